"""Study 3 on real rows with the embedded model, from the templates to the tables."""

import json

import pytest

from flip_flop.paper import run
from flip_flop.paper.run import StudyFolder, load_plan
from tests.studies.small_studies import SHORT, here, run_here


@pytest.mark.slow
@pytest.mark.xdist_group("real_rows")
def test_study_3_on_rte_audits_the_last_five_templates(hub_mirror, promptsource_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(promptsource_folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(run, "run_units", run_here)
    options = ["--model", "demo", "--device", "cpu", "--limit", "12", "--hub-mirror", hub_mirror, "--out", tmp_path]
    for name, value in SHORT.items():
        options += ["--set", f"{name}={value}"]
    assert here("run", "study3", "--tasks", "rte", *options) == 0
    (study,) = tmp_path.glob("study3-demo-*")
    plan = load_plan(study / "study.json")
    names = {}
    for cell in plan.cells:
        record = json.loads((StudyFolder(tmp_path).run(cell) / "run.json").read_text())
        names[cell] = [template["name"] for template in record["task"]["templates"]]
    five, every = plan.trainings
    assert len(names[every]) == 10
    assert names[five] == names[every][:5]
    assert [names[audit] for audit in plan.audits] == [names[every][5:]] * 3
    assert {audit.training: audit.held_out for audit in plan.audits} == {None: True, five.key: True, every.key: False}

    text = (study / "tables" / "study3_unseen_templates.md").read_text()
    rows = [line.split("|")[2].strip() for line in text.splitlines() if line.startswith("|")][2:]
    assert rows == ["base", "F2C, 5 templates", "F2C, 10 templates (seen)"]
    assert "Instances x templates, split test: RTE 12 x 5." in text
    assert (study / "figures" / "unseen_templates.png").is_file()
