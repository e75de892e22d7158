"""A resumed run and a loaded adapter report changed weights, tasks and rows; changed files are refused."""

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
from tests.training.conftest import change_digit, make_task, rows, settings

pytestmark = pytest.mark.slow


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
    "training rows": (lambda task: with_rows(task, "train", [*rows(11), rows(12)[11] | {"text": "New"}]), ("rows",)),
    "validation labels": (lambda task: with_rows(task, "validation", RELABELLED), ("rows",)),
    "a template": (with_other_template, ("task", "rows")),
}


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


def resume(base, finished, task=None):
    """Resume the run as if it had been killed before its record was written; return the recorded changes."""
    (finished / "run.json").unlink()
    run(base, finished, task, resume=True)
    return RunRecord.read(finished).allowed_changes


@pytest.mark.parametrize("change", CHANGES)
def test_a_resumed_run_reports_and_records_changed_rows_and_templates(base, finished, caplog, change):
    edit, inputs = CHANGES[change]
    assert resume(base, finished, edit(make_task())) == inputs
    assert caplog.text.count("W-RESUME-CHANGED") == 1
    assert resume(base, finished) == inputs, "a later resume keeps the changes"


def test_other_weights_are_one_warning_and_are_recorded(base, finished, caplog):
    edit_weights(base)
    loaded = load_model(str(base), adapter=finished / "adapter")
    assert caplog.text.count("W-ADAPTER") == 1
    assert audit(loaded, make_task(), quiet=True).record.allowed_changes == ("weights",)
    assert resume(base, finished) == ("weights",)
    assert "these have changed since its start: model's weights." in caplog.text


@pytest.mark.parametrize("file", ["adapter_model.safetensors", "adapter_config.json"])
def test_a_changed_adapter_is_refused_beside_its_run(base, finished, file):
    assert load_model(str(base), adapter=finished / "adapter").allowed_changes == ()
    change_digit(finished / "adapter" / file)
    with pytest.raises(InputError, match=rf"^E-ADAPTER: .*{file} is damaged"):
        load_model(str(base), adapter=finished / "adapter")


def test_changed_system_message_of_a_task_gives_a_warning(base, tmp_path, caplog):
    (base / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    brief, kind = (replace(make_task(), system=text) for text in ("Be brief.", "Be kind."))
    config = settings(method="swarm", max_steps=1, num_train_epochs=1)
    train(load_model(str(base)), brief, config, tmp_path / "run", quiet=True, keep_worse=True)
    adapted = load_model(str(base), adapter=tmp_path / "run" / "adapter")
    audit(adapted, brief, quiet=True)
    assert "W-CHAT" not in caplog.text
    audit(adapted, kind, quiet=True)
    trained, now = ({"system": task.system} for task in (brief, kind))
    assert f"W-CHAT: the adapter was trained with {trained}, the task has {now}." in caplog.text


def test_names_in_an_adapters_config_have_a_fixed_order(made):
    config = json.loads((made / "run" / "adapter" / "adapter_config.json").read_text())
    assert config["target_modules"] == sorted(config["target_modules"])
