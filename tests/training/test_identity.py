"""A resumed run and a loaded adapter must have the recorded data, model and adapter, or one line lists the changes."""

import json
import shutil
from dataclasses import replace

import pytest
from safetensors.torch import load_file, save_file

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.prompts import TemplateSet
from flip_flop.record import RunRecord
from flip_flop.scoring import load_model
from flip_flop.tasks import RowsSource
from flip_flop.training import train
from tests.tiny import CHAT_TEMPLATE, save_tiny
from tests.training.conftest import make_task, rows, settings

pytestmark = pytest.mark.slow


def edit_json(path, **changes):
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    (path.parent / "MANIFEST.json").unlink(missing_ok=True)  # as an earlier version wrote it


def flip_bit(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1
    path.write_bytes(content)


def edit_weights(folder):
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 1.5
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_rows(task, split, made):
    return replace(task, data={**task.data, split: RowsSource(made, "made rows")})


def with_template(task, **changes):
    templates = [replace(each, **changes) if each.name == "truth" else each for each in task.templates]
    return replace(task, templates=TemplateSet(tuple(templates)))


def relabelled(made):
    return [row | {"label": 1 - row["label"]} for row in made]


ROPE = {"rope_theta": 500.0, "rope_type": "default"}
MODEL_CHANGES = {
    "weights": ("weights", "weights", edit_weights),
    "rope_theta": ("config", "config.json", lambda base: edit_json(base / "config.json", rope_parameters=ROPE)),
    "norm eps": ("config", "config.json", lambda base: edit_json(base / "config.json", rms_norm_eps=0.1)),
    "activation": ("config", "config.json", lambda base: edit_json(base / "config.json", hidden_act="relu")),
    "dropout": ("config", "config.json", lambda base: edit_json(base / "config.json", attention_dropout=0.5)),
    "normaliser": (
        "tokenizer", "tokenizer", lambda base: edit_json(base / "tokenizer.json", normalizer={"type": "Lowercase"}),
    ),
    "chat template": (
        "chat_template", "chat template", lambda base: (base / "chat_template.jinja").write_text(CHAT_TEMPLATE),
    ),
}  # fmt: skip
DATA_CHANGES = {
    "training rows": (
        "rows", "training rows", lambda task: with_rows(task, "train", [*rows(11), rows(12)[11] | {"text": "New"}]),
    ),
    "training labels": (
        "gold", "gold labels of the training rows", lambda task: with_rows(task, "train", relabelled(rows(12))),
    ),
    "validation rows": (
        "validation", "validation rows",
        lambda task: with_rows(task, "validation", [row | {"text": row["text"] + "!"} for row in rows(7, 100)]),
    ),
    "validation labels": (
        "validation_gold", "gold labels of the validation rows",
        lambda task: with_rows(task, "validation", relabelled(rows(7, 100))),
    ),
    "a template": ("templates", "template 'truth'", lambda task: with_template(task, jinja="True? {{ text }}")),
    "a template's answers": ("templates", "template 'truth'", lambda task: with_template(task, answer_choices="F|||T")),
    "F1": (
        "task", "task (its name, labels or F1, or the order of its templates)", lambda task: replace(task, f1="macro"),
    ),
}  # fmt: skip


def run(base, out, task=None, **keywords):
    config = settings(max_steps=1, num_train_epochs=1)
    return train(load_model(str(base)), task or make_task(), config, out, quiet=True, keep_worse=True, **keywords)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model on disk, and a run on it."""
    folder = tmp_path_factory.mktemp("identity")
    save_tiny(folder / "base")
    run(folder / "base", folder / "run")
    return folder


@pytest.fixture
def base(made, tmp_path):
    return shutil.copytree(made / "base", tmp_path / "base")


@pytest.fixture
def finished(made, tmp_path):
    return shutil.copytree(made / "run", tmp_path / "run")


@pytest.fixture
def stopped(finished):
    """The run, as if killed before its record was written."""
    (finished / "run.json").unlink()
    return finished


def refused(code, what, *arguments, **keywords):
    with pytest.raises(InputError) as caught:
        what(*arguments, **keywords)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("change", MODEL_CHANGES | DATA_CHANGES)
def test_resume_rejects_changed_inputs(base, stopped, change):
    task = make_task()
    if change in MODEL_CHANGES:
        name, words, act = MODEL_CHANGES[change]
        act(base)
    else:
        name, words, act = DATA_CHANGES[change]
        task = act(task)
    error = refused("E-RESUME-CHANGED", run, base, stopped, task, resume=True)
    assert error.message == f"cannot resume {stopped}, because these have changed: {words}."
    assert error.hint.endswith(f" Or continue with --allow-changed {name}.")


def test_several_changes_are_listed_with_the_settings(base, stopped):
    MODEL_CHANGES["normaliser"][2](base)
    task = DATA_CHANGES["validation labels"][2](make_task())
    config = settings(max_steps=1, num_train_epochs=1, learning_rate=0.1)
    error = refused("E-RESUME-CHANGED", train, load_model(str(base)), task, config, stopped, resume=True)
    assert "changed: tokenizer, gold labels of the validation rows, settings.learning_rate (0.01, now 0.1)." in str(
        error
    )


def test_allowed_change_is_recorded_in_later_resumes(base, stopped):
    task = DATA_CHANGES["validation rows"][2](make_task())
    refused("E-RESUME-CHANGED", run, base, stopped, task, resume=True, allow_changed=["config", "gold"])
    for allowed in (["validation", "config"], []):
        run(base, stopped, task, resume=True, allow_changed=allowed)
        assert RunRecord.read(stopped).allowed_changes == ("validation",)
        (stopped / "run.json").unlink()
    refused("E-ALLOW-CHANGED", run, base, stopped, resume=True, allow_changed=["adapter"])


ADAPTER_CHANGES = {
    "a flipped bit": ("adapter", lambda adapter: flip_bit(adapter / "adapter_model.safetensors")),
    "lora_alpha": ("adapter_config", lambda adapter: edit_json(adapter / "adapter_config.json", lora_alpha=99)),
    "a broken config": ("adapter_config", lambda adapter: (adapter / "adapter_config.json").write_text("{")),
}


@pytest.mark.parametrize("change", ADAPTER_CHANGES)
def test_changed_adapter_is_refused(base, finished, change):
    name, act = ADAPTER_CHANGES[change]
    assert load_model(str(base), adapter=finished / "adapter").allowed_changes == ()
    act(finished / "adapter")
    error = refused("E-ADAPTER-CHANGED", load_model, str(base), adapter=finished / "adapter")
    file = "adapter_model.safetensors" if name == "adapter" else "adapter_config.json"
    assert error.message == f"{finished / 'adapter'} is not as its training left it: {file}."
    assert error.hint.endswith(f"--allow-changed {name}.")
    if change == "a broken config":
        refused("E-ADAPTER-KEYS", load_model, str(base), adapter=finished / "adapter", allow_changed=[name])
        return
    loaded = load_model(str(base), adapter=finished / "adapter", allow_changed=[name, "config"])
    assert audit(loaded, make_task(), quiet=True).record.allowed_changes == (name,)
    (finished / "run.json").unlink()  # an adapter without a record
    load_model(str(base), adapter=finished / "adapter")


@pytest.mark.parametrize("change", [change for change in MODEL_CHANGES if change != "chat template"])
def test_adapter_is_refused_on_another_base_model(base, finished, change):
    name, words, act = MODEL_CHANGES[change]
    act(base)
    error = refused("E-ADAPTER-BASE", load_model, str(base), adapter=finished / "adapter")
    assert error.message.endswith(f"this model differs from it in: {words}.")
    assert load_model(str(base), adapter=finished / "adapter", allow_changed=[name]).allowed_changes == (name,)


def test_changed_chat_template_is_refused_if_it_was_used_in_training(base, finished):
    MODEL_CHANGES["chat template"][2](base)
    assert not load_model(str(base), adapter=finished / "adapter").encoder().uses_chat_template
    record = json.loads((finished / "run.json").read_text())
    edit_json(finished / "run.json", scoring=record["scoring"] | {"chat_template": True})
    error = refused("E-ADAPTER-BASE", load_model, str(base), adapter=finished / "adapter")
    assert error.message.endswith(": chat template.")


def test_changed_system_message_of_a_task_gives_a_warning(base, tmp_path, caplog):
    MODEL_CHANGES["chat template"][2](base)
    brief, kind = (replace(make_task(), system=each) for each in ("Be brief.", "Be kind."))
    config = settings(method="swarm", max_steps=1, num_train_epochs=1)
    train(load_model(str(base)), brief, config, tmp_path / "run", quiet=True, keep_worse=True)
    adapted = load_model(str(base), adapter=tmp_path / "run" / "adapter")
    audit(adapted, brief, quiet=True)
    assert "W-CHAT-CHANGED" not in caplog.text
    audit(adapted, kind, quiet=True)
    trained, now = ({"system": each.system} for each in (brief, kind))
    assert f"W-CHAT-CHANGED: the adapter was trained with {trained}, the task has {now}." in caplog.text


def test_irrelevant_changes_are_accepted(base, finished):
    edit_json(base / "config.json", transformers_version="0.1", _name_or_path="elsewhere")
    edit_json(base / "generation_config.json", temperature=0.5)
    edit_json(finished / "adapter" / "adapter_config.json", base_model_name_or_path="elsewhere")
    (base / "README.md").write_text("mine")
    load_model(str(base), adapter=finished / "adapter")
    (finished / "run.json").unlink()
    run(base, finished, resume=True)


def test_names_in_an_adapters_config_have_a_fixed_order(made):
    config = json.loads((made / "run" / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
    assert len(config["target_modules"]) == 14
