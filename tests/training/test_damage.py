"""A changed file is refused or harmless. Changed weights, tasks and rows are reported."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from flip_flop import F2CTrainer, load_classifier, load_model, load_run
from flip_flop.evaluation.audit import audit
from flip_flop.prompts import TemplateSet
from flip_flop.record import RunRecord
from flip_flop.tasks import RowsSource
from flip_flop.training.data import load_training_data
from flip_flop.training.selection import CheckpointCriterion
from tests.refused import refused
from tests.tiny import CHAT_TEMPLATE, save_tiny
from tests.training.conftest import adapter_bytes, change_digit, load_tiny, make_task, rows, run, settings
from tests.training.test_resume import interrupt
from tests.training.test_resume import run as run_with_checkpoints

pytestmark = pytest.mark.xdist_group("damage")
HARMLESS = ("README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def files_of(folder):
    return [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]


# The rows are enough for a stored calibration.
TASK = make_task(60)
SHORT = {
    "max_steps": 1, "num_train_epochs": 1, "votes": "frozen", "vote_calibration": "batch", "label_prior": [0.5, 0.5],
}  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model on disk, and a run on it."""
    folder = tmp_path_factory.mktemp("made")
    save_tiny(folder / "base")
    run(folder / "run", model=str(folder / "base"), task=TASK, **SHORT)
    return folder


@pytest.fixture
def base(made, tmp_path):
    return shutil.copytree(made / "base", tmp_path / "base")


@pytest.fixture
def finished(made, tmp_path):
    return shutil.copytree(made / "run", tmp_path / "run")


def test_a_changed_file_of_an_audit_is_named(tmp_path):
    audited = audit(load_tiny(), make_task(), quiet=True)
    out = audited.write(tmp_path / "audit")
    names = files_of(out)
    assert len(names) == 5
    for name in names:
        content = (out / name).read_bytes()
        change_digit(out / name)
        line = refused("^E-RUN-BROKEN: ", load_run, out)
        assert name in line or name == "MANIFEST.json"
        (out / name).write_bytes(content)
    assert load_run(out)
    (out / "instances.jsonl.gz").unlink()  # its prompts are private
    assert load_run(out)
    change_digit(out / "metrics.json")
    (out / "MANIFEST.json").unlink()
    assert load_run(out)
    assert load_run(audited.write(out)).metrics.keys() == audited.metrics.keys()  # it may be overwritten


@pytest.mark.slow
def test_a_changed_file_of_a_training_run_is_named(finished):
    assert {"run.json", "log.jsonl", "votes.npz", "plan.json"} <= {*files_of(finished)}
    for name in [*files_of(finished), *(f"adapter/{name}" for name in files_of(finished / "adapter"))]:
        content = (finished / name).read_bytes()
        change_digit(finished / name)
        if name.removeprefix("adapter/") in HARMLESS:
            RunRecord.read(finished, "train")
        else:
            line = refused("^E-RUN-BROKEN: ", RunRecord.read, finished, "train")
            assert name in line or name == "MANIFEST.json"
        (finished / name).write_bytes(content)


def test_changed_classifier_of_an_adapter_is_refused(finished):
    assert load_classifier(finished).task.templates.names == make_task().training_templates.names
    change_digit(finished / "adapter" / "classifier.json")
    refused("^E-RUN-BROKEN: .*classifier.json", load_classifier, finished)


# ---- checkpoints ----


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A run that was killed at its sixth step, with checkpoints of the second step, the best one, and the fourth."""
    out = tmp_path_factory.mktemp("crashed") / "run"

    values = iter([0.1, 0.9, 0.7])  # at steps 0, 2 and 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            CheckpointCriterion,
            "judge",
            lambda *_: {"selection": next(values), "base_selection": 0.0, "vote_drift": 0.0},
        )
        interrupt(out, patch, 5)
    return out


DAMAGES = {
    "a changed digit": lambda checkpoint: change_digit(checkpoint / "optimizer.pt"),
    "a short file": lambda checkpoint: os.truncate(checkpoint / "trainer_state.json", 100),
    "a missing file": lambda checkpoint: (checkpoint / "adapter_model.safetensors").unlink(),
    "a list as manifest": lambda checkpoint: (checkpoint / "MANIFEST.json").write_text("[]"),
    "no digests": lambda checkpoint: (checkpoint / "MANIFEST.json").write_text('{"optimizer.pt": {"size": 1}}'),
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(crashed, tmp_path, damage):
    out = shutil.copytree(crashed, tmp_path / "run")
    DAMAGES[damage](out / "checkpoints" / "checkpoint-4")
    refused("^E-RUN-BROKEN: .*checkpoint-4 cannot be used", run_with_checkpoints, out, resume=True)
    assert not (out / "run.json").exists()


@pytest.mark.slow
def test_a_damaged_best_checkpoint_is_refused_only_for_its_adapter(crashed, tmp_path):
    best = "checkpoint-2"
    for name, is_refused in (("optimizer.pt", False), ("adapter_model.safetensors", True)):
        out = shutil.copytree(crashed, tmp_path / name)
        change_digit(out / "checkpoints" / best / name)
        if is_refused:
            refused(f"{best} cannot be used", run_with_checkpoints, out, resume=True)
        else:
            run_with_checkpoints(out, resume=True)


# Of nine steps. The sixth is a new best one, so that the second is no longer the best.
SELECTIONS = {0: 0.1, 2: 0.5, 4: 0.4, 6: 0.9, 8: 0.8, 9: 0.7}


@pytest.mark.slow
def test_the_hint_for_a_damaged_checkpoint_names_one_that_can_be_used(tmp_path, monkeypatch):
    steps, judge = [], CheckpointCriterion.judge

    def known(self, *arguments):
        return judge(self, *arguments) | {"selection": SELECTIONS[steps[-1]]}

    evaluate = F2CTrainer._evaluate_own
    monkeypatch.setattr(CheckpointCriterion, "judge", known)
    monkeypatch.setattr(
        F2CTrainer, "_evaluate_own", lambda self: (steps.append(self.state.global_step), evaluate(self))[1]
    )
    whole, out = tmp_path / "whole", tmp_path / "run"
    run_with_checkpoints(whole, num_train_epochs=3)
    interrupt(out, monkeypatch, 7, num_train_epochs=3)
    checkpoints = out / "checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {"checkpoint-2", "checkpoint-4", "checkpoint-6"}
    for changed, removed, rest in (
        ((6,), "checkpoint-6", "resume from checkpoint-4"),
        ((6, 4), "checkpoint-6 and checkpoint-4", "resume from checkpoint-2"),
        ((2, 6), "checkpoint-6 and checkpoint-4 and checkpoint-2", "begin again"),
    ):
        files = [checkpoints / f"checkpoint-{step}" / "adapter_model.safetensors" for step in changed]
        contents = [file.read_bytes() for file in files]
        for file in files:
            change_digit(file)
        hint = f"checkpoint-6 cannot be used: .* remove {removed} to {rest}.$"
        refused(hint, run_with_checkpoints, out, resume=True, num_train_epochs=3)
        for file, content in zip(files, contents, strict=True):
            file.write_bytes(content)
    shutil.rmtree(checkpoints / "checkpoint-6")
    run_with_checkpoints(out, resume=True, num_train_epochs=3)
    assert adapter_bytes(out) == adapter_bytes(whole)


def remove_adapter(out):
    shutil.rmtree(out / "adapter")


def remove_adapter_and_manifest(out):
    remove_adapter(out)
    (out / "MANIFEST.json").unlink()


def remove_checkpoints(out):
    shutil.rmtree(out / "checkpoints")
    change_digit(out / "run.json")


FINISHED = {
    "no adapter": remove_adapter,
    "no adapter, no manifest": remove_adapter_and_manifest,
    "half of the adapter": lambda out: os.truncate(out / "adapter" / "adapter_model.safetensors", 300),
    "half of the record": lambda out: os.truncate(out / "run.json", 300),
    "half of the manifest": lambda out: os.truncate(out / "MANIFEST.json", 100),
    "no checkpoint": remove_checkpoints,
}


@pytest.mark.slow
@pytest.mark.parametrize("damage", FINISHED)
def test_a_damaged_finished_run_is_repaired_by_a_resume(made, finished, caplog, damage):
    caplog.set_level("INFO", "flip_flop")
    FINISHED[damage](finished)
    options = {"model": str(made / "base"), "task": TASK, **SHORT}
    refused("^E-OUT-USED: .*Add --resume", run, finished, **options)
    run(finished, resume=True, **options)
    assert "complete already" not in caplog.text
    assert adapter_bytes(finished) == adapter_bytes(made / "run")
    record, expected = (RunRecord.read(folder, "train") for folder in (finished, made / "run"))
    assert (record.adapter, record.task) == (expected.adapter, expected.task)
    run(finished, resume=True, **options)
    assert "complete already" in caplog.text


def edit_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 1.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_rows(task, split, new_rows):
    return replace(task, data={**task.data, split: RowsSource(new_rows, "made rows")})


def with_other_template(task):
    templates = [replace(item, jinja="True? {{ text }}") if item.name == "truth" else item for item in task.templates]
    return replace(task, templates=TemplateSet(tuple(templates)))


RELABELLED = [row | {"label": 1 - row["label"]} for row in rows(7, 100)]
CHANGES = {
    "training rows": (lambda task: with_rows(task, "train", [*rows(59), rows(60)[59] | {"text": "New"}]), ("rows",)),
    "validation labels": (lambda task: with_rows(task, "validation", RELABELLED), ("rows",)),
    "a template": (with_other_template, ("task", "rows")),
}


def resume(base, finished, task=None):
    """Resume the run as if it had been killed before its record was written; return the recorded changes."""
    (finished / "run.json").unlink()
    run(finished, model=str(base), task=task or TASK, resume=True, **SHORT)
    return RunRecord.read(finished).allowed_changes


@pytest.mark.parametrize("change", CHANGES)
def test_digests_of_a_plan_depend_on_rows_labels_and_templates(change):
    edit, inputs = CHANGES[change]
    before, after = (load_training_data(task, settings(**SHORT)) for task in (TASK, edit(TASK)))
    assert before.digest != after.digest
    assert (before.record.digest != after.record.digest) is ("task" in inputs)


@pytest.mark.slow
def test_a_resumed_run_reports_and_records_changed_rows_and_templates(base, finished, caplog):
    edit, inputs = CHANGES["a template"]
    assert resume(base, finished, edit(TASK)) == inputs
    assert caplog.text.count("W-RESUME-CHANGED") == 1
    assert resume(base, finished) == inputs, "a later resume keeps the changes"


@pytest.mark.slow
def test_other_weights_are_one_warning_and_are_recorded(base, finished, caplog):
    edit_weights(base)
    loaded = load_model(str(base), adapter=finished / "adapter")
    assert caplog.text.count("W-ADAPTER") == 1
    assert audit(loaded, make_task(), quiet=True).record.allowed_changes == ("weights",)
    assert resume(base, finished) == ("weights",)
    assert "these have changed since its start: model's weights." in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_changed_adapter_is_refused_beside_its_run(base, finished, file):
    assert load_model(str(base), adapter=finished / "adapter").allowed_changes == ()
    change_digit(finished / "adapter" / file)
    refused(rf"^E-ADAPTER: .*{file} is damaged.*--resume", load_model, str(base), adapter=finished / "adapter")


@pytest.mark.slow
def test_changed_system_message_of_a_task_gives_a_warning(base, tmp_path, caplog):
    (base / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    brief, kind = (replace(make_task(), system=text) for text in ("Be brief.", "Be kind."))
    run(tmp_path / "run", model=str(base), task=brief, method="swarm", **SHORT)
    adapted = load_model(str(base), adapter=tmp_path / "run" / "adapter")
    audit(adapted, brief, quiet=True)
    assert "W-CHAT" not in caplog.text
    audit(adapted, kind, quiet=True)
    trained, now = ({"system": task.system} for task in (brief, kind))
    assert f"W-CHAT: the adapter was trained with {trained}, the task has {now}." in caplog.text


@pytest.mark.slow
def test_names_in_an_adapters_config_have_a_fixed_order(made):
    config = json.loads((made / "run" / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
