"""A changed digit in any file of a run, an adapter, a checkpoint or a study is refused or harmless."""

import json
import re
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.record import AdapterRecord, RunRecord
from flip_flop.report import load_run
from flip_flop.scoring.stored_calibration import stored_calibration
from flip_flop.training import train
from flip_flop.training.checkpoints import write_manifest
from tests.training.conftest import adapter_bytes, before_step, load_tiny, make_task, settings
from tests.training.test_resume import run

HARMLESS = ("README.md", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


def change_digit(path):
    """Change a digit, or a bit of a file without digits."""
    content = path.read_bytes()
    digits = [found.start() for found in re.finditer(rb"[1-8]", content)]
    place = digits[len(digits) // 2] if digits else len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


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
    assert (error.code, "calibration.json is damaged" in error.message) == ("E-CALIBRATION-STORED", True)


# ---- checkpoints ----


@pytest.fixture(scope="module")
def crashed(tmp_path_factory):
    """A run that was killed at its sixth step, with checkpoints of the second and fourth."""
    out = tmp_path_factory.mktemp("crashed") / "run"

    def crash():
        raise RuntimeError("crash")

    with pytest.MonkeyPatch.context() as patch:
        before_step(patch, 5, crash)
        with pytest.raises(RuntimeError, match="crash"):
            run(out)
    return out


@pytest.fixture(scope="module")
def resumed(crashed, tmp_path_factory):
    out = shutil.copytree(crashed, tmp_path_factory.mktemp("resumed") / "run")
    run(out, resume=True)
    return adapter_bytes(out)


@pytest.mark.parametrize("name", ["README.md", "tokenizer.json", "optimizer.pt", "trainer_state.json"])
def test_the_best_checkpoint_is_lost_only_if_its_adapter_is(crashed, resumed, tmp_path, caplog, name):
    out = shutil.copytree(crashed, tmp_path / "run")
    state = json.loads((out / "checkpoints" / "checkpoint-4" / "trainer_state.json").read_text())
    best = out / "checkpoints" / f"checkpoint-{state['best_global_step']}"
    change_digit(best / name)
    run(out, resume=True)
    assert "cannot be used" not in caplog.text
    assert adapter_bytes(out) == resumed


def edit_tensors(name, act):
    """Change a file of tensors."""

    def edit(checkpoint):
        if name.endswith(".safetensors"):
            tensors = load_file(checkpoint / name)
            act(tensors)
            save_file(tensors, checkpoint / name, {"format": "pt"})
        else:
            state = torch.load(checkpoint / name, weights_only=False)
            act(state)
            torch.save(state, checkpoint / name)

    return edit


def edit_state(**changes):
    def edit(checkpoint):
        path = checkpoint / "trainer_state.json"
        value = json.loads(path.read_text()) | changes
        path.write_text(json.dumps({key: part for key, part in value.items() if part != "absent"}))

    return edit


def shorten(state):
    state["state"][0]["exp_avg"] = torch.zeros(1)


def first(tensors, tensor):
    tensors[sorted(tensors)[0]] = tensor


FORGED = {
    "a short moment": edit_tensors("optimizer.pt", shorten),
    "no moment": edit_tensors("optimizer.pt", lambda state: state["state"][0].pop("exp_avg")),
    "a text as moment": edit_tensors("optimizer.pt", lambda state: state["state"][0].update(exp_avg="a")),
    "another parameter": edit_tensors("optimizer.pt", lambda state: state["state"].update({999: {}})),
    "no group": edit_tensors("optimizer.pt", lambda state: state["param_groups"].clear()),
    "a text as rate": edit_tensors("optimizer.pt", lambda state: state["param_groups"][0].update(lr="a")),
    "an empty optimizer": edit_tensors("optimizer.pt", lambda state: state.clear()),
    "a list as optimizer": lambda checkpoint: torch.save([1], checkpoint / "optimizer.pt"),
    "an empty schedule": edit_tensors("scheduler.pt", lambda state: state.clear()),
    "a text as epoch": edit_tensors("scheduler.pt", lambda state: state.update(last_epoch="a")),
    "no rates": edit_tensors("scheduler.pt", lambda state: state.update(base_lrs=[])),
    "no generator": edit_tensors("rng_state.pth", lambda state: state.clear()),
    "a number as generator": edit_tensors("rng_state.pth", lambda state: state.update(python=3)),
    "another shape": edit_tensors("adapter_model.safetensors", lambda tensors: first(tensors, torch.zeros(2, 2))),
    "a missing tensor": edit_tensors("adapter_model.safetensors", lambda tensors: tensors.pop(sorted(tensors)[0])),
    "an unknown tensor": edit_tensors("adapter_model.safetensors", lambda tensors: tensors.update(x=torch.zeros(1))),
    "no json": lambda checkpoint: (checkpoint / "trainer_state.json").write_text("{"),
    "a list as state": lambda checkpoint: (checkpoint / "trainer_state.json").write_text("[]"),
    "an unknown key": edit_state(other=1),
    "a missing key": edit_state(log_history="absent"),
    "a text as step": edit_state(global_step="4"),
    "another step": edit_state(global_step=3),
    "a text as log": edit_state(log_history="a"),
    "a log of texts": edit_state(log_history=[{"step": "a"}]),
    "no saved steps": edit_state(save_steps=0),
    "no logged steps": edit_state(logging_steps=0),
    "a text as best": edit_state(best_metric="a"),
    "a list as flops": edit_state(total_flos=[]),
    "no adapter": lambda checkpoint: (checkpoint / "adapter_model.safetensors").unlink(),
}


@pytest.mark.parametrize("forgery", FORGED)
def test_a_checkpoint_that_does_not_fit_the_run_is_one_line(crashed, tmp_path, forgery):
    out = shutil.copytree(crashed, tmp_path / "run")
    checkpoint = out / "checkpoints" / "checkpoint-4"
    FORGED[forgery](checkpoint)
    write_manifest(checkpoint)
    error = error_of(run, out, resume=True)
    assert error.code == "E-RUN-BROKEN"
    assert f"{checkpoint} does not fit this run" in error.message
    shutil.rmtree(checkpoint)
    assert not (out / "run.json").exists()
