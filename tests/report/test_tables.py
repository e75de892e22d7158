import csv
import io
import itertools
import json
import re
import unicodedata
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop import load_run, write_report
from flip_flop.console import align_columns, spreadsheet_cell, visible
from flip_flop.metrics import summarise
from flip_flop.report.audit_tables import missing_values, render_csv, render_markdown, render_text
from flip_flop.report.compare import AuditComparison, comparison_blocks
from flip_flop.report.page import report_groups, write_figures
from flip_flop.report.sections import metric_table, render_latex
from tests.report.made_runs import HOSTILE


def groups_of(paths):
    return report_groups([load_run(path) for path in paths])


@pytest.fixture(scope="module")
def rows(demo):
    return comparison_blocks([load_run(path) for path in demo])


def test_the_text_table_has_an_aligned_block_for_each_set_of_templates(rows, demo):
    block, other = (block.splitlines() for block in render_text(rows).split("\n\n"))
    assert block[0] == "demo_reviews, test, 8 templates, 300 instances, in percent"
    assert other[0] == "demo_reviews, test, 3 held-out templates, 300 instances, in percent"
    assert " ".join(block[1].split()) == "run P_o 95% of P_o mean F1 sigma F1 min..max F1 accuracy vote F1"
    widths = {len(line) for line in block[1:]}
    assert len(widths) == 1
    metrics = json.loads((demo[3] / "metrics.json").read_text())
    agreement, f1 = (f"{100 * metrics[key]:.1f}" for key in ("observed_agreement", "mean_f1"))
    low, high = (f"{100 * end:.1f}" for end in metrics["intervals"]["observed_agreement"])
    assert block[-1].split()[:6] == ["f2c", agreement, low, "to", high, f1]
    assert missing_values([*itertools.chain(*rows.values())]) == []


@pytest.mark.parametrize(("width", "tables"), [(None, 2), (110, 2), (80, 2), (60, 4)])
def test_a_table_fits_the_terminal(rows, width, tables):
    text = render_text(rows, width)
    blocks = text.split("\n\n")
    assert len(blocks) == tables
    lines = [line for line in text.splitlines() if "in percent" not in line]
    assert width is None or max(map(len, lines)) <= width
    assert sorted(re.findall(r"\d+\.\d", text)) == sorted(re.findall(r"\d+\.\d", render_text(rows)))
    assert all("\nf2c  " in block for block in blocks)


def test_missing_numbers_are_dashes_and_empty_cells(hostile):
    rows = comparison_blocks([load_run(path) for path in hostile])
    assert render_text(rows).splitlines()[3].split()[-5:] == ["–"] * 5
    (reason,) = missing_values([*itertools.chain(*rows.values())])
    assert reason.startswith("– of F1 and accuracy: they need gold labels")
    assert list(csv.reader(io.StringIO(render_csv(rows))))[1][4:11] == [""] * 7


def test_names_are_escaped_in_markdown_and_are_not_formulas_in_a_spreadsheet(hostile, make_run):
    assert "<" not in render_markdown(comparison_blocks([load_run(path) for path in hostile]))
    blocks = comparison_blocks([load_run(make_run("=a|b`c"))])
    assert "\n| =a\\|b\\`c |" in render_markdown(blocks)
    assert list(csv.reader(io.StringIO(render_csv(blocks))))[1][0] == "'=a|b`c"


def test_the_latex_table_has_the_recorded_numbers_and_escapes_names(demo, hostile):
    text = render_latex(groups_of(demo))
    metrics = json.loads((demo[3] / "metrics.json").read_text())
    line = next(line for line in text.splitlines() if line.startswith("    f2c &"))
    assert re.findall(r"[\d.]+", line)[1:3] == [
        f"{100 * metrics[key]:.1f}" for key in ("observed_agreement", "mean_f1")
    ]
    for part in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrrrrrrrr}", r"$\sigma_{F_1}$"):
        assert text.count(part) == 2
    assert re.search(r"\+[\d.]+ to \+[\d.]+", text)
    assert r"\textless{}/script\textgreater{}" in render_latex(groups_of(hostile))


def test_figures_are_standalone_svg_files(demo, hostile, tmp_path):
    folder = write_figures(groups_of(demo), tmp_path / "figures")
    agreement = {f"g{group}-agreement-{run}.svg" for group, runs in ((1, 4), (2, 2)) for run in range(1, runs + 1)}
    names = {f"g{group}-{name}.svg" for group in (1, 2) for name in ("templates", "labels")} | agreement
    assert {path.name for path in folder.iterdir()} == names
    for path in [*folder.iterdir(), *write_figures(groups_of(hostile), tmp_path / "hostile").iterdir()]:
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not {each.tag.split("}")[1] for each in root.iter()} & {"script", "b", "a"}
        assert "var(" not in path.read_text(encoding="utf-8")


def test_csv_has_all_digits(rows, demo):
    table = list(csv.DictReader(io.StringIO(render_csv(rows))))
    for line, path in zip(table, demo, strict=True):
        metrics = json.loads((path / "metrics.json").read_text())
        for key in ("observed_agreement", "mean_f1", "f1_std", "vote_f1", "no_consensus_share"):
            assert float(line[key]) == metrics[key]


def make_constant(run, labels):
    """Rewrite a run's scores so that each template with a label in ``labels`` always predicts it."""
    found = load_run(run)
    scores = found.scores.copy()
    for template, label in labels.items():
        scores[:, template] = np.where(np.arange(2) == label, -0.1, -2.0)
    metrics = summarise(scores, found.gold, found.template_names)
    data = replace(found.data, values=scores)
    replace(found, data=data, metrics=metrics, instances=[*found.instances]).write(run)
    return load_run(run)


@pytest.mark.slow
def test_constant_templates_have_a_column_and_a_sentence_if_a_run_has_some(make_run, tmp_path):
    sound = load_run(make_run("sound", num_templates=4))
    stuck = make_constant(make_run("stuck", num_templates=4), {0: 0, 2: 0, 3: 1})
    none, some = (comparison_blocks(runs) for runs in ([sound], [sound, stuck]))
    assert "constant" not in render_text(none) + render_markdown(none)
    lines = [line.split("  ") for line in render_text(some).splitlines()]
    assert lines[1][-1] == "constant"
    assert [line[-1].strip() for line in lines[3:]] == ["0 of 4", "3 of 4"]
    sentence = (
        "stuck: constant templates (one label for every instance): "
        "plain (negative), good_bad (negative), polarity (positive)."
    )
    assert sentence in render_markdown(some).replace("\\", "")
    assert [row["constant_templates"] for row in csv.DictReader(io.StringIO(render_csv(some)))] == ["0", "3"]
    page = write_report([sound.path, stuck.path], tmp_path / "report.html").read_text()
    assert sentence in page
    assert "stuck: 3 of 4 templates constant" in page
    assert "stuck has collapsed" not in page


def test_agreement_through_constant_templates_is_never_the_best(make_run):
    sound = load_run(make_run("sound", num_templates=4))
    stuck = make_constant(make_run("stuck", num_templates=4), {0: 0, 2: 0})
    stuck.metrics["observed_agreement"] = 0.99
    table = metric_table(AuditComparison((sound, stuck)))
    agreement = [column["label"] for column in table["columns"]].index("Agreement Pₒ")
    assert [row["cells"][agreement]["best"] for row in table["rows"]] == [True, False]
    stuck.metrics["constant_templates"] = []
    table = metric_table(AuditComparison((sound, stuck)))
    assert [row["cells"][agreement]["best"] for row in table["rows"]] == [False, True]


@given(st.text(alphabet=st.characters(), max_size=30), st.booleans())
def test_invisible_characters_are_escaped(text, one_line):
    kept = "\u200c\u200d" if one_line else "\u200c\u200d\n\t"
    for character in visible(text, one_line=one_line):
        assert character in kept or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    visible(text).encode("utf-8")
    if all(unicodedata.category(character)[0] in "LNPS" for character in text):
        assert visible(text) == text


def test_columns_are_aligned_for_all_names():
    lines = align_columns([["run", "F1"], [HOSTILE, "8.25"], ["b", "10.5"]], num_left=1, rule=True).splitlines()
    assert (len(lines), len({len(line) for line in lines})) == (4, 1)
    assert lines[1] == "-" * len(visible(HOSTILE, one_line=True)) + "  ----"
    assert align_columns([["a", "b"], ["long", ""]], indent="  ").splitlines() == ["  a     b", "  long"]


@pytest.mark.parametrize("sign", "=+-@\t\r\n＝＋－＠")
def test_formulas_are_quoted_and_numbers_are_not(sign):
    assert spreadsheet_cell(f"{sign}1+1") == f"'{sign}1+1"
    assert spreadsheet_cell(f"a{sign}") == f"a{sign}"
    assert [*map(spreadsheet_cell, (-0.5, "-0.5", "+49 170"))] == [-0.5, "-0.5", "+49 170"]
