"""The LaTeX is whole: as many cells as columns, environments that close, names that cannot command."""

import re
import shutil
import subprocess

import pytest

from flip_flop.paper.output import make_tables
from flip_flop.report.tables import escape
from tests.studies.made_results import MODEL, Maker, made_frame, paper_audits, study1, study2, study3

HOSTILE = r"\input{x} $a_b$ 50% #1 & ~^ {[*]} <\\> \"q\" `c`"
DOCUMENT = r"""\documentclass[11pt,twocolumn]{article}
\usepackage[T1]{fontenc}\usepackage[utf8]{inputenc}
\usepackage{booktabs}\usepackage{graphicx}\usepackage[dvipsnames]{xcolor}
\begin{document}
%s
\end{document}
"""


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    maker = Maker(tmp_path_factory.mktemp("made"), is_demo=True)
    study3(study2(study1(maker, tasks=("rte", "copa", "[own]_task"))), "cb")
    paper = list(make_tables(made_frame(*paper_audits(model=HOSTILE))))
    found = [*paper, *make_tables(maker.frame())]
    assert len(found) == 2 + 6
    return found


def width(line: str) -> int:
    cells = re.split(r"(?<!\\)&", line.strip().removesuffix(r"\\"))
    spans = [re.match(r"\s*\\multicolumn\{(\d+)\}", cell) for cell in cells]
    return sum(int(span.group(1)) if span else 1 for span in spans)


def test_latex_is_well_formed(tables):
    for table in tables:
        text = table.latex()
        columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text).group(1)
        assert len(columns) == len(table.columns)
        lines = [line for line in text.splitlines() if line.endswith(r"\\")]
        assert len(lines) == sum(map(bool, table.rows)) + 1 + any(column.group for column in table.columns)
        assert {width(line) for line in lines} == {len(columns)}
        opened = []
        for kind, name in re.findall(r"\\(begin|end)\{(\w+\*?)\}", text):
            if kind == "begin":
                opened.append(name)
            else:
                assert opened.pop() == name
        assert opened == []
        assert [text.count(rule) for rule in (r"\toprule", r"\bottomrule", r"\hline")] == [1, 1, 0]
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")


def test_latex_marks_best_and_worst(tables):
    text = tables[0].latex()
    assert text.count("ForestGreen") == text.count("BrickRed") == 33
    assert r"\textbf{\textcolor{ForestGreen}{90.84}}" in text
    assert r"\textcolor{BrickRed}{81.35}" in text
    assert r"$\overline{F_1}$" in text


def test_latex_escapes_names():
    assert escape("a_b & 50%") == r"a\_b \& 50\%"
    assert escape("[x]*") == "{[}x{]}{*}"
    assert escape("\\end{x}\u202e") == r"\textbackslash{}end\{x\}\textbackslash{}u202e"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_pdflatex_compiles_every_table(tables, tmp_path):
    (tmp_path / "all.tex").write_text(DOCUMENT % "\n".join(table.latex() for table in tables), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "all.pdf").stat().st_size > 1000
    assert MODEL.split("/")[0] in (tmp_path / "all.tex").read_text()
