"""Studies 2 and 3 on real rows with the embedded model, from the templates to the tables."""

import csv
import json
from pathlib import Path

import pytest

from flip_flop.paper import run
from flip_flop.paper.run import StudyFolder, load_plan
from tests.studies.small_studies import SHORT, here, run_here

# One process for the whole file: its tests share two studies.
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real_rows")]


@pytest.fixture(scope="module")
def root(hub_mirror, promptsource_folder, tmp_path_factory) -> Path:
    """Study 3 on RTE and a 2 x 2 corner of study 2, in one folder."""
    folder = tmp_path_factory.mktemp("real_rows")
    options = ["--model", "demo", "--device", "cpu", "--limit", "12", "--hub-mirror", hub_mirror]
    options += ["--out", folder / "out"]
    for name, value in SHORT.items():
        options += ["--set", f"{name}={value}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLIP_FLOP_PROMPTSOURCE", str(promptsource_folder))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setattr(run, "run_units", run_here)
        assert here("run", "study3", "--tasks", "rte", *options) == 0
        assert here("run", "study2", "--tasks", "rte,copa", *options) == 0
    return folder / "out"


def place(root, study):
    """A study's folder: the shipped ones name no model, so its name follows."""
    (found,) = root.glob(f"{study}-demo-*")
    return found


def template_names(root, cell):
    record = json.loads((StudyFolder(root).run(cell) / "run.json").read_text())
    return [template["name"] for template in record["task"]["templates"]]


def test_study_3_on_rte_audits_the_last_five_templates(root):
    plan = load_plan(place(root, "study3") / "study.json")
    five, every = plan.trainings
    names = template_names(root, every)
    assert len(names) == 10
    assert template_names(root, five) == names[:5]
    assert [template_names(root, audit) for audit in plan.audits] == [names[5:]] * 3
    assert {audit.training: audit.held_out for audit in plan.audits} == {None: True, five.key: True, every.key: False}

    text = (place(root, "study3") / "tables" / "study3_unseen_templates.md").read_text()
    rows = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert rows == ["base", "F2C, 5 templates", "F2C, 10 templates (seen)"]
    assert "Instances x templates, split test: RTE 12 x 5." in text
    assert (place(root, "study3") / "figures" / "unseen_templates.png").is_file()


def test_part_of_study_2_has_both_pairs(root):
    with (place(root, "study2") / "tables" / "table2_pairs.csv").open() as file:
        pairs = {(row["source"], row["target"]) for row in csv.DictReader(file)}
    assert pairs == {("rte", "copa"), ("copa", "rte")}
    text = (place(root, "study2") / "tables" / "table2_transfer.md").read_text()
    assert "All (2 pairs)" in text
    assert "12 of test (the paper: 277 of test)" in text
