"""A changed digit in any file of a run, an adapter, a checkpoint or a study is refused or harmless."""

import os
import shutil

import pytest

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.record import AdapterRecord, RunRecord
from flip_flop.report import load_run
from flip_flop.scoring.adapters import stored_calibration
from flip_flop.training import train
from flip_flop.training.selection import CheckpointCriterion
from tests.training.conftest import before_step, change_digit, load_tiny, make_task, settings
from tests.training.test_resume import run

HARMLESS = ("README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def files_of(folder):
    return [path.name for path in sorted(folder.iterdir()) if path.is_file() and not path.name.startswith(".")]


def error_of(function, *arguments, **keywords):
    with pytest.raises(InputError) as caught:
        function(*arguments, **keywords)
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    config = settings(max_steps=2, votes="frozen", vote_calibration="batch", label_prior=[0.5, 0.5])
    train(load_tiny(), make_task(60), config, out, quiet=True, keep_worse=True)
    return out


@pytest.fixture
def copy(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


def test_a_changed_file_of_an_audit_is_named(tmp_path):
    out = audit(load_tiny(), make_task(), quiet=True).write(tmp_path / "audit")
    names = files_of(out)
    assert len(names) == 5
    for name in names:
        content = (out / name).read_bytes()
        change_digit(out / name)
        error = error_of(load_run, out)
        assert error.code == "E-RUN-BROKEN"
        assert name in error.message or name == "MANIFEST.json"
        (out / name).write_bytes(content)
    assert load_run(out)
    (out / "instances.jsonl.gz").unlink()  # its prompts are private
    assert load_run(out)
    change_digit(out / "metrics.json")
    (out / "MANIFEST.json").unlink()  # as an earlier version wrote it
    assert load_run(out)


def test_a_damaged_audit_may_be_overwritten(tmp_path):
    found = audit(load_tiny(), make_task(), quiet=True)
    out = found.write(tmp_path / "audit")
    change_digit(out / "metrics.json")
    found.write(out)
    assert load_run(out).metrics.keys() == found.metrics.keys()


def test_a_changed_file_of_a_training_run_is_named(copy):
    assert {"run.json", "log.jsonl", "votes.npz", "plan.json"} <= {*files_of(copy)}
    for name in [*files_of(copy), *(f"adapter/{name}" for name in files_of(copy / "adapter"))]:
        content = (copy / name).read_bytes()
        change_digit(copy / name)
        if name.removeprefix("adapter/") in HARMLESS:
            RunRecord.read(copy, "train")
        else:
            error = error_of(RunRecord.read, copy, "train")
            assert error.code == "E-RUN-BROKEN"
            assert name in error.message or name == "MANIFEST.json"
        (copy / name).write_bytes(content)


def test_changed_offsets_of_an_adapter_are_refused(copy):
    templates = make_task().training_templates
    adapter = AdapterRecord(path=str(copy / "adapter"))
    assert stored_calibration(adapter, templates, 2)
    change_digit(copy / "adapter" / "calibration.json")
    error = error_of(stored_calibration, adapter, templates, 2)
    assert (error.code, "calibration.json is damaged" in error.message) == ("E-CALIBRATION", True)


# ---- checkpoints ----


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A run that was killed at its sixth step, with checkpoints of the second step, the best one, and the fourth."""
    out = tmp_path_factory.mktemp("crashed") / "run"

    def crash():
        raise RuntimeError("crash")

    values = iter([0.1, 0.9, 0.7])  # at steps 0, 2 and 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointCriterion, "judge", lambda *_: {"selection": next(values), "vote_drift": 0.0})
        before_step(patch, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            run(out)
    return out


DAMAGES = {
    "a changed digit": lambda checkpoint: change_digit(checkpoint / "optimizer.pt"),
    "a short file": lambda checkpoint: os.truncate(checkpoint / "trainer_state.json", 100),
    "a missing file": lambda checkpoint: (checkpoint / "adapter_model.safetensors").unlink(),
    "a list as manifest": lambda checkpoint: (checkpoint / "MANIFEST.json").write_text("[]"),
    "no digests": lambda checkpoint: (checkpoint / "MANIFEST.json").write_text('{"optimizer.pt": {"size": 1}}'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_refused(crashed, tmp_path, damage):
    out = shutil.copytree(crashed, tmp_path / "run")
    DAMAGES[damage](out / "checkpoints" / "checkpoint-4")
    error = error_of(run, out, resume=True)
    assert (error.code, "checkpoint-4 cannot be used" in error.message) == ("E-RUN-BROKEN", True)
    assert not (out / "run.json").exists()


def test_a_damaged_best_checkpoint_is_refused_only_for_its_adapter(crashed, tmp_path):
    best = "checkpoint-2"
    for name, is_refused in (("optimizer.pt", False), ("README.md", False), ("adapter_model.safetensors", True)):
        out = shutil.copytree(crashed, tmp_path / name)
        change_digit(out / "checkpoints" / best / name)
        if is_refused:
            assert f"{best} cannot be used" in error_of(run, out, resume=True).message
        else:
            run(out, resume=True)
