"""One call writes what the results give reason for, and one page with all of it."""

import re

from flip_flop.studies.output import write_outputs
from flip_flop.studies.study import Study
from tests.studies.made_results import Maker, study1, study2, study3

STUDY = Study("made", ("rte",), description="Made rows, nothing else.")


def names(files, folder):
    return sorted({path.stem for path in files if path.parent.name == folder})


def test_study_1_gives_table_1_and_the_boxes(tmp_path):
    files = write_outputs(study1(Maker(tmp_path / "runs")), STUDY, tmp_path / "out")
    assert names(files, "tables") == ["base_spread", "selection", "table1_changes", "table1_methods"]
    assert names(files, "figures") == ["f1_over_templates", "f1_over_templates_base"]
    kinds = sorted(path.suffix for path in files if path.stem == "table1_methods")
    assert kinds == [".csv", ".md", ".tex"]
    assert sorted(path.suffix for path in files if path.stem == "f1_over_templates") == [".pdf", ".png", ".svg"]
    assert sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file()) == sorted(files)


def test_study_2_gives_table_2_and_three_heat_maps(tmp_path):
    files = write_outputs(study2(Maker(tmp_path / "runs")), STUDY, tmp_path / "out")
    assert names(files, "tables") == ["base_spread", "selection", "table2_pairs", "table2_transfer"]
    maps = ["transfer_f1_std", "transfer_mean_f1", "transfer_observed_agreement"]
    assert names(files, "figures") == ["f1_over_templates_base", *maps]


def test_study_3_gives_its_curves(tmp_path):
    files = write_outputs(study3(Maker(tmp_path / "runs")), STUDY, tmp_path / "out")
    assert names(files, "tables") == ["selection", "study3_unseen_templates"]
    assert names(files, "figures") == ["unseen_templates"]


def test_the_base_alone_gives_its_spread(tmp_path):
    results = [Maker(tmp_path / "runs").audit("base", task) for task in ("rte", "cb")]
    files = write_outputs(results, STUDY, tmp_path / "out")
    assert names(files, "tables") == ["base_spread"]
    assert names(files, "figures") == ["f1_over_templates_base"]


def test_the_page_shows_every_table_and_picture_and_its_links_are_there(tmp_path):
    out = tmp_path / "out"
    files = write_outputs(study1(Maker(tmp_path / "runs", is_demo=True)), STUDY, out)
    page = files[0].read_text(encoding="utf-8")
    assert page.startswith("# made\n\nMade rows, nothing else.\n\n**The model is the embedded one, a toy")
    linked = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((out / target).is_file() for target in linked)
    pictures = {f"figures/{path.name}" for path in files if path.suffix == ".png"}
    assert pictures <= linked
    for path in files:
        if path.suffix == ".md" and path.parent.name == "tables":
            assert path.read_text(encoding="utf-8").rstrip() in page


def test_what_is_not_written_anew_is_removed_and_nothing_else(tmp_path):
    out, maker = tmp_path / "out", Maker(tmp_path / "runs")
    before = write_outputs(study1(maker, tasks=("rte", "cb"), seeds=(0,)), STUDY, out)
    (out / "tables" / "notes.txt").write_text("mine")
    others = Maker(tmp_path / "others")
    after = write_outputs([others.audit("base", task) for task in ("rte", "wic")], STUDY, out)
    assert len(after) < len(before)
    left = {path for path in out.rglob("*") if path.is_file()}
    assert left == {*after, out / "tables" / "notes.txt"}


def test_the_same_results_give_the_same_bytes(tmp_path):
    results = study1(Maker(tmp_path / "runs"), tasks=("rte", "cb"), seeds=(0,))
    first = write_outputs(results, STUDY, tmp_path / "a")
    second = write_outputs(list(reversed(results)), STUDY, tmp_path / "b")
    assert [path.name for path in first] == [path.name for path in second]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_without_results_nothing_is_written(tmp_path):
    assert write_outputs([], STUDY, tmp_path / "out") == []
    assert not (tmp_path / "out").exists()
