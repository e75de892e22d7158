"""`study plan` lists the cells of a run without running it."""

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.preview import plan_lines
from flip_flop.paper.run import run_unit
from flip_flop.paper.study import Settings
from tests.studies.plans import DEMO, plan, small, write_task

QWEN = "Qwen/Qwen2.5-3B-Instruct"


@pytest.fixture
def no_rows(monkeypatch, tmp_path):
    """No templates and no data are available."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("FLIP_FLOP_PROMPTSOURCE", "FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)


def cells(study, root, setup=DEMO):
    return [line.split() for line in plan_lines(study, setup, StudyFolder(root)) if line.startswith(("train", "audit"))]


def test_cells_have_the_states_of_the_folder(tmp_path):
    made, folder = plan(), StudyFolder(tmp_path)
    assert run_unit(made, folder, made.units[0]) == 0
    folder.write_failures(made.units[1], [f"train {made.trainings[0].label}: E-CODE: it fails."])
    assert cells(small(), tmp_path) == [
        ["audit", "base-clear_hotel_reviews", "5", "done"],
        ["train", "cce-clear_hotel_reviews-seed0", "5", "failed"],
        ["audit", "cce-clear_hotel_reviews-seed0", "5", "open"],
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["audits", "logs"]  # and no other files


def test_without_rows_the_papers_cells_are_listed_without_states(no_rows, flip_flop):
    shown = flip_flop("study", "plan", "study2", "--model", QWEN)
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines()]
    assert ["train", "f2c-rte-seed0", "-"] in lines
    assert ["audit", "f2c-rte-seed0", "on", "cb", "-"] in lines
    assert "8 trainings, 91 audits; protocol paper" in shown.out.splitlines()
    assert shown.out.splitlines()[-1].startswith("Some rows or templates are not on this machine")
    shown = flip_flop("study", "plan", "study3", "--model", QWEN, "--tasks", "rte")
    assert ["train", "f2c-rte-seed0", "5", "-"] in [line.split() for line in shown.out.splitlines()]


@pytest.mark.parametrize("name", ["num_train_epochs", "max_steps", "gradient_accumulation_steps", "logging_steps"])
@pytest.mark.parametrize("value", [None, [3], {"a": 3}])
def test_a_setting_without_a_number_is_refused(tmp_path, name, value):
    with pytest.raises(InputError, match=f"E-CONFIG-VALUE: {name} .*It must be"):
        cells(small(settings=Settings({name: value})), tmp_path)


def test_missing_rows_of_a_users_task_are_an_error(tmp_path):
    path = write_task(tmp_path / "task")
    (tmp_path / "task" / "train.csv").unlink()
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*train\.csv"):
        cells(small(tasks=(str(path),)), tmp_path)


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "study1"), "E-STUDY-MODEL"),
        (("plan", "study1", "-m", "m", "--set", "x"), "E-CONFIG-KEY"),
        (("plan", "study1", "-m", "m", "--device", "tpu"), "E-MODEL-DEVICE"),
        (("plan", "study1", "-m", "m", "--tasks", ""), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--methods", " , "), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--seeds", "-1"), "E-STUDY-VALUE"),
        (("plan", "study2", "-m", "m", "--tasks", "rte"), "E-STUDY-VALUE"),
        (("status", "study1", "--out", "nowhere"), "E-STUDY-MISSING"),
        (("run", "nothing"), "E-STUDY-UNKNOWN"),
    ],
)
def test_a_mistake_is_one_line(flip_flop, no_rows, arguments, code):
    shown = flip_flop("study", *arguments)
    line = shown.err.removeprefix(f"reading study {arguments[1]}\n")
    assert (shown.code, line.partition(":")[0]) == (2, code)
    assert line.count("\n") == 1
