"""`study plan`: what is counted is counted, what is not known is a dash, and nothing is guessed."""

import re
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.scoring import PromptEncoder
from flip_flop.scoring.loading import load_tokenizer
from flip_flop_paper import preview
from flip_flop_paper.folder import StudyFolder
from flip_flop_paper.keys import model_folder
from flip_flop_paper.plan import Setup
from flip_flop_paper.preview import Preview
from flip_flop_paper.release import with_protocol
from flip_flop_paper.study import Settings, Subsets, load_study, narrow
from flip_flop_paper.variants import MethodVariant
from flip_flop_paper.work import run_unit
from tests.studies.plans import DEMO, SHORT, plan, small, write_task

QWEN = Setup("Qwen/Qwen2.5-3B-Instruct")


@pytest.fixture
def no_rows(monkeypatch, tmp_path):
    """No templates and no data are available."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("FLIP_FLOP_PROMPTSOURCE", "FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)


def lines(study, setup, root, **more):
    return list(Preview(study, setup, StudyFolder(root), **more).lines())


def test_the_papers_rows_are_marked_where_no_row_is_available(no_rows, tmp_path):
    found = lines(load_study("study1"), QWEN, tmp_path)
    assert sum(line.startswith("train ") for line in found) == 33
    assert sum(line.startswith("audit ") for line in found) == 44
    text = "\n".join(found)
    assert re.search(r"^train  f2c-rte-seed0 +10 +4,758\* +200\* +32,000\* +- +-$", text, re.M)
    assert re.search(r"^all +44 units: 33 trainings, 44 audits( +[\d,]+){4} +-$", text, re.M)
    assert "- *: published counts, as rows or templates are not available here: " in text
    assert "- Tokens are not counted: the tokenizer of Qwen/Qwen2.5-3B-Instruct is not available here." in text
    found = lines(narrow(load_study("study3"), tasks=["rte"], limit=22), QWEN, tmp_path)
    assert re.search(r"^audit  f2c-rte-seed0-first5-on-last5 +5 +22\* +- +-$", "\n".join(found), re.M)


def test_each_trainings_settings_and_passes_are_named_and_evaluation_is_counted_beside_the_releases(no_rows, tmp_path):
    study = with_protocol(narrow(load_study("study1"), tasks=["cb", "rte"], protocol="release"), QWEN.model)
    text = "\n".join(lines(study, QWEN, tmp_path))
    # 21 passes over 194 rows and 3 steps; their votes, and the base's on 194; 32 times 56 rows
    assert re.search(r"^train  cce-cb-seed0 +15 +4,170\* +4,364\* +1,792\* +- +-$", text, re.M)
    own, theirs = 3 * 32 * (56 + 1000) + 4 * (56 + 277), 3 * 30 * 2 * (56 + 56 + 1000 + 277)
    assert (
        f"- Evaluation: {own:,} passes, validation and audits. By the same count the release takes {theirs:,}: " in text
    )
    assert "- All trainings: learning_rate 1e-05, lr_scheduler_type cosine, weight_decay 0.01, per_device_" in text
    assert re.search(r"^cce +rte +0\.1$", text, re.M)
    assert re.search(r"^f2c +cb +1\.0 +9\.0 +7 +0\.01 +0\.1 +2\.0 +0\.01$", text, re.M)
    epochs = small(
        settings=Settings({"num_train_epochs": 2, "per_device_train_batch_size": 5, "eval_strategy": "epoch"})
    )
    found = [line.split() for line in lines(epochs, DEMO, tmp_path) if line.startswith("train ")]
    # 2 passes over 22 rows; their votes; 22 validation rows by the base, before and after each pass
    assert [line[3:6] for line in found] == [["44", "22", "88"]]


@pytest.mark.parametrize(
    ("settings", "votes"),
    [
        ({"votes": "frozen"}, 20),  # those that 5 steps see
        ({"votes": "refreshed", "refresh_steps": 2}, 60),  # again before the third step and the fifth
        ({"votes": "online", "vote_pass": "separate"}, 42),  # the base's on all, and a pass for each instance of a step
    ],
)
def test_votes_with_a_pass_of_their_own_are_counted(tmp_path, settings, votes):
    steps = {"max_steps": 5, "per_device_train_batch_size": 4, "eval_strategy": "no", "save_strategy": "no"}
    found = lines(small(settings=Settings(steps | settings)), DEMO, tmp_path)
    (training,) = [line.split() for line in found if line.startswith("train ")]
    assert training[3:6] == ["20", str(votes), "0"]


def test_settings_that_only_a_variant_completes_are_no_matter_of_the_base(tmp_path):
    common = {**SHORT, "vote_calibration": "prior", "votes": "frozen"}
    study = small(
        settings=Settings(common, {"known": {"label_prior": [0.4, 0.6]}}),
        methods=("base", "known"),
        variants={"known": MethodVariant("f2c", "Known", "#123456")},
    )
    assert not any("not available" in line for line in lines(study, DEMO, tmp_path))
    assert {cell.method for cell in plan(study).cells} == {"base", "known"}
    with pytest.raises(InputError, match="E-CONFIG-KEY"):
        plan(small(methods=("base",), settings=Settings({"chat_tmplate": "off"})))


def test_tokens_are_those_of_the_packed_pass_and_times_those_of_finished_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(preview, "SAMPLE", 300)
    made, folder = plan(), StudyFolder(tmp_path)
    task = preview.open_task("demo_clear", DEMO)
    encoder = PromptEncoder(load_tokenizer(str(model_folder("demo"))))
    instances = task.with_templates(task.training_templates.names).instances("test")
    tokens = sum(len(encoder.encode(instance).trie) for instance in instances) / 1e6
    (base,) = [line for line in lines(small(limit=None), DEMO, tmp_path) if "base-clear_hotel_reviews" in line]
    assert base.split()[-5:] == ["5", "300", f"{tokens:.1f}", "M", "-"]
    run_unit(made, folder, made.units[0])
    found = lines(small(limit=44), DEMO, tmp_path)
    (base,) = [line for line in found if "base-clear_hotel_reviews" in line]
    seconds = folder.seconds(made.audits[0]) / 22 * 44
    assert base.endswith(f" {seconds:.1f} s")
    assert any(line.startswith("- Time: of finished runs of this model in ") for line in found)


def test_one_instance_is_timed_when_that_is_asked_for_and_else_no_model_is_loaded(tmp_path, monkeypatch):
    found = lines(small(), DEMO, tmp_path, timed=True)
    assert all(line.endswith((" s", " min")) for line in found[3:7])
    assert "- Time: one instance of each split, timed; a training's pass counts as 3." in found
    monkeypatch.setattr(preview, "open_model", None)
    assert lines(small(), DEMO, tmp_path)


@pytest.mark.parametrize("name", ["num_train_epochs", "max_steps", "gradient_accumulation_steps", "logging_steps"])
@pytest.mark.parametrize("value", [None, [3], {"a": 3}])
def test_a_setting_without_a_number_is_refused(tmp_path, name, value):
    with pytest.raises(InputError, match=f"E-CONFIG-VALUE: {name} .*It must be"):
        lines(small(settings=Settings({name: value})), DEMO, tmp_path)


def test_a_task_of_ones_own_whose_rows_are_gone_is_no_task_of_the_paper(tmp_path):
    path = write_task(tmp_path / "task")
    (tmp_path / "task" / "train.csv").unlink()
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*train\.csv"):
        lines(small(tasks=(str(path),)), DEMO, tmp_path)


def test_templates_that_the_run_would_refuse_are_refused(tmp_path, no_rows):
    assert lines(small(template_subsets={"demo_clear": Subsets((3,), 2)}), DEMO, tmp_path)
    for subsets in (Subsets((99,), 2), Subsets((2,), 99), Subsets((4,), 5)):
        with pytest.raises(InputError, match="E-STUDY-TEMPLATES"):
            lines(small(template_subsets={"demo_clear": subsets}), DEMO, tmp_path)
    study = narrow(load_study("study3"), tasks=["rte"])
    for subsets in (Subsets((11,), 5), Subsets((5,), 11)):
        with pytest.raises(InputError, match="E-STUDY-TEMPLATES: task 'rte' has 10 templates, fewer than the 11"):
            lines(replace(study, template_subsets={"rte": subsets}), QWEN, tmp_path)


def test_plan_from_the_command_line(flip_flop, no_rows):
    shown = flip_flop("study", "plan", "study2", "--model", QWEN.model)
    assert shown.code == 0
    assert "19 units: 8 trainings, 91 audits" in shown.out
    for arguments, code in (
        (("plan", "study1"), "E-STUDY-MODEL"),
        (("plan", "study1", "-m", "m", "--set", "x"), "E-CONFIG-KEY"),
        (("plan", "study1", "-m", "m", "--device", "tpu"), "E-MODEL-DEVICE"),
        (("plan", "study1", "-m", "m", "--tasks", ""), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--methods", " , "), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--seeds", "-1"), "E-STUDY-VALUE"),
        (("plan", "study2", "-m", "m", "--tasks", "rte"), "E-STUDY-VALUE"),
        (("status", "study1", "--out", "nowhere"), "E-STUDY-MISSING"),
        (("run", "nothing"), "E-STUDY-UNKNOWN"),
    ):
        shown = flip_flop("study", *arguments)
        assert (shown.code, shown.err.partition(":")[0]) == (2, code)
        assert shown.err.count("\n") == 1
