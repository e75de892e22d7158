"""One call writes what the results give reason for, and one page with all of it."""

import logging
import re
import sys
from dataclasses import replace

import pytest

from flip_flop.studies.output import write_outputs
from flip_flop.studies.study import Study
from tests.studies.made_results import Maker, study1, study2, study3

STUDY = Study("made", ("rte",), description="Made rows, nothing else.")
SPREAD, BOXES = ["base_spread"], ["f1_over_templates_base"]
MAPS = ["transfer_f1_std", "transfer_mean_f1", "transfer_observed_agreement"]


def names(files, folder):
    return sorted({path.stem for path in files if path.parent.name == folder})


def base_alone(maker):
    return [maker.audit("base", task) for task in ("rte", "cb")]


@pytest.mark.parametrize(
    ("study", "tables", "figures"),
    [
        (study1, [*SPREAD, "selection", "table1_changes", "table1_methods"], ["f1_over_templates", *BOXES]),
        (study2, [*SPREAD, "selection", "table2_pairs", "table2_transfer"], [*BOXES, *MAPS]),
        (study3, ["selection", "study3_unseen_templates"], ["unseen_templates"]),
        (base_alone, SPREAD, BOXES),
    ],
)
def test_each_study_gives_its_tables_and_figures(tmp_path, study, tables, figures):
    files = write_outputs(study(Maker(tmp_path / "runs")), STUDY, tmp_path / "out")
    assert (names(files, "tables"), names(files, "figures")) == (tables, figures)
    for folder, kinds in {"tables": {".csv", ".md", ".tex"}, "figures": {".pdf", ".png", ".svg"}}.items():
        assert {path.suffix for path in files if path.parent.name == folder} == kinds
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(files)


def test_the_page_shows_every_table_and_figure_and_its_links_are_there(tmp_path):
    out = tmp_path / "out"
    files = write_outputs(study1(Maker(tmp_path / "runs", is_demo=True)), STUDY, out)
    page = files[0].read_text(encoding="utf-8")
    assert page.startswith("# made\n\nMade rows, nothing else.\n\n**The model is a toy")
    linked = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((out / target).is_file() for target in linked)
    assert {f"figures/{path.name}" for path in files if path.suffix == ".png"} <= linked
    for path in files:
        if path.suffix == ".md" and path.parent.name == "tables":
            assert path.read_text(encoding="utf-8").rstrip() in page


def test_what_is_not_written_again_is_removed_and_nothing_else(tmp_path):
    out = tmp_path / "out"
    before = write_outputs(study1(Maker(tmp_path / "runs"), tasks=("rte", "cb"), seeds=(0,)), STUDY, out)
    (out / "tables" / "notes.txt").write_text("mine")
    after = write_outputs(base_alone(Maker(tmp_path / "others")), STUDY, out)
    assert len(after) < len(before)
    assert {path for path in out.rglob("*") if path.is_file()} == {*after, out / "tables" / "notes.txt"}


def test_the_same_results_give_the_same_bytes(tmp_path):
    results = study1(Maker(tmp_path / "runs"), tasks=("rte", "cb"), seeds=(0,))
    first = write_outputs(results, STUDY, tmp_path / "a")
    second = write_outputs(list(reversed(results)), STUDY, tmp_path / "b")
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_where_nothing_is_complete_nothing_is_written(tmp_path):
    results = [replace(each, run=None) for each in base_alone(Maker(tmp_path / "runs"))]
    assert write_outputs(results, STUDY, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()


def test_without_matplotlib_there_are_tables_and_a_line_that_says_how_to_get_figures(tmp_path, monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "flip_flop.studies.figures"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING, "flip_flop"):
        files = write_outputs(base_alone(Maker(tmp_path / "runs")), STUDY, tmp_path / "out")
    assert (names(files, "tables"), names(files, "figures")) == (["base_spread"], [])
    assert "pip install 'flip-flop-consistency[studies]'" in caplog.text
