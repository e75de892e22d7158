"""One call writes the tables and figures that apply, and a page with all of them."""

import logging
import re
import sys

import pytest

from flip_flop.paper.output import write_outputs
from tests.studies.made_results import Maker, study1, study2, study3

SPREAD, BOXES = ["base_spread"], ["f1_over_templates_base"]
MAPS = ["transfer_f1_std", "transfer_mean_f1", "transfer_observed_agreement"]
STARTS = {".pdf": b"%PDF-", ".svg": b"<?xml", ".png": b"\x89PNG", ".md": b"### ", ".tex": b"% Needs", ".csv": b""}


def write(maker, out):
    return write_outputs(maker.frame(), maker.plan.study, out)


def names(files, folder):
    return sorted({path.stem for path in files if path.parent.name == folder})


def base_alone(maker):
    return study1(maker, tasks=("rte", "cb"), methods=())


@pytest.mark.parametrize(
    ("study", "tables", "figures"),
    [
        (study1, [*SPREAD, "table1_changes", "table1_methods"], ["f1_over_templates", *BOXES]),
        (study2, [*SPREAD, "table2_pairs", "table2_transfer"], [*BOXES, *MAPS]),
        (study3, ["study3_unseen_templates"], ["unseen_templates"]),
        (base_alone, SPREAD, BOXES),
    ],
)
def test_outputs_are_reproducible(tmp_path, study, tables, figures):
    maker = study(Maker(tmp_path / "runs", is_demo=True))
    files = write(maker, tmp_path / "out")
    assert (names(files, "tables"), names(files, "figures")) == (tables, figures)
    for folder, kinds in {"tables": {".csv", ".md", ".tex"}, "figures": {".pdf", ".png", ".svg"}}.items():
        assert {path.suffix for path in files if path.parent.name == folder} == kinds
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(files)
    content = {path: path.read_bytes() for path in files}
    assert all(found.startswith(STARTS[path.suffix]) for path, found in content.items() if path.stem != "index")
    maker.cells = dict(reversed(maker.cells.items()))  # in any order
    assert write(maker, tmp_path / "out") == files
    assert {path: path.read_bytes() for path in files} == content

    page = files[0].read_text(encoding="utf-8")
    assert page.startswith("# made\n\nMade rows, nothing else.\n\n**The model is a toy")
    linked = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((tmp_path / "out" / target).is_file() for target in linked)
    assert {f"figures/{path.name}" for path in files if path.suffix == ".png"} <= linked
    for path in files:
        if path.suffix == ".md" and path.parent.name == "tables":
            assert path.read_text(encoding="utf-8").rstrip() in page


def test_outdated_outputs_are_removed(tmp_path):
    out = tmp_path / "out"
    before = write(study1(Maker(tmp_path / "runs"), tasks=("rte", "cb"), seeds=(0,)), out)
    (out / "tables" / "notes.txt").write_text("mine")
    after = write(base_alone(Maker(tmp_path / "others")), out)
    assert len(after) < len(before)
    assert {path for path in out.rglob("*") if path.is_file()} == {*after, out / "tables" / "notes.txt"}


def test_tables_without_matplotlib(tmp_path, monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "flip_flop.paper.figures"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING, "flip_flop"):
        files = write(base_alone(Maker(tmp_path / "runs")), tmp_path / "out")
    assert (names(files, "tables"), names(files, "figures")) == (["base_spread"], [])
    assert "-m pip install 'matplotlib>=3.9'" in caplog.text
