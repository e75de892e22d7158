"""`study plan` lists the cells of a run without running it, and a mistake is one line."""

import pytest

from flip_flop.errors import InputError
from flip_flop.paper import cli
from flip_flop.paper.cli import plan_lines
from flip_flop.paper.run import StudyFolder, load_plan
from tests.studies.plans import DEMO, small
from tests.studies.running import STUDY, here, write_study

QWEN = "Qwen/Qwen2.5-3B-Instruct"


@pytest.fixture
def no_rows(monkeypatch, tmp_path):
    """No templates and no data are available."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("FLIP_FLOP_PROMPTSOURCE", "FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)


def test_a_plan_lists_cells_and_writes_nothing(tmp_path):
    lines = [line.split() for line in plan_lines(small(), DEMO, StudyFolder(tmp_path / "out"))]
    assert lines[2:] == [
        ["audit", "base-clear_hotel_reviews", "5", "open"],
        ["train", "cce-clear_hotel_reviews-seed0", "5", "open"],
        ["audit", "cce-clear_hotel_reviews-seed0", "5", "open"],
        ["1", "trainings,", "2", "audits;", "protocol", "paper"],
    ]
    assert not (tmp_path / "out").exists()


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


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "study1"), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--set", "x"), "E-CONFIG"),
        (("plan", "study1", "-m", "m", "--tasks", ""), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--methods", " , "), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--seeds", "-1"), "E-STUDY"),
        (("plan", "study2", "-m", "m", "--tasks", "rte"), "E-STUDY"),
        (("status", "study1", "--out", "nowhere"), "E-STUDY"),
        (("run", "nothing"), "E-STUDY"),
    ],
)
def test_a_mistake_is_one_line(flip_flop, no_rows, arguments, code):
    shown = flip_flop("study", *arguments)
    line = shown.err.removeprefix(f"reading study {arguments[1]}\n")
    assert (shown.code, line.partition(":")[0]) == (2, code)
    assert line.count("\n") == 1


def test_local_model_is_identified_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_run_here", lambda *arguments: 0)
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "other/tiny"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_text(name)
    write_study(tmp_path, STUDY.replace("model: demo", "model: ./tiny"))
    for model in ((), ("--model", "tiny"), ("--model", tmp_path / "tiny")):
        here("run", "small.yaml", "--out", "out", *model)
        assert [path.parent.name for path in (tmp_path / "out").glob("*/study.json")] == ["small"]
    here("run", "small.yaml", "--out", "out", "--model", "other/tiny")
    assert len([*(tmp_path / "out").glob("small*/study.json")]) == 2
    assert load_plan(tmp_path / "out" / "small" / "study.json").setup.model == str(tmp_path / "tiny")
    for command in ("status", "tables"):
        with pytest.raises(InputError, match=r"E-STUDY: .*several runs"):
            here(command, "small.yaml", "--out", "out")
        assert here(command, "small.yaml", "--out", "out", "--model", "other/tiny") == 0
