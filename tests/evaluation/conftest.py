"""A tiny model on disk, and tasks in memory whose axes all differ: 5 instances, 4 templates, 3 labels."""

import json

import pytest
from transformers.utils import logging as transformers_logging

from flip_flop import audit, load_model
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import RowsSource, Task
from tests.served import serving
from tests.tiny import save_tiny, with_chat_template

TEMPLATES = (
    Template("plain", "{{ text }} Good, bad or neither?", "Bad ||| Good ||| Neither"),
    Template("truth", "True, false or maybe: {{ text }}", "False ||| True ||| Maybe"),
    Template("long", "Review: {{ text }}\nVerdict:", "Not at all ||| Guaranteed ||| Maybe, not sure"),
    Template("terse", "{{ text }}", "No ||| Yes ||| So"),
)
PLACES = ("room", "staff", "food", "hotel", "wifi")


def make_rows(count=5):
    return [
        {"text": f"The {PLACES[number % 5]} was {'not ' * (number % 2)}good {number}.", "mood": number % 3}
        for number in range(count)
    ]


def make_task(rows=None, templates=TEMPLATES, **changes):
    data = {"test": RowsSource(make_rows() if rows is None else rows, "made rows")}
    settings = {"labels": (0, 1, 2), "label_field": "mood"} | changes
    return Task("moods", TemplateSet(tuple(templates)), data, **settings)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=3)


@pytest.fixture(scope="session")
def loaded(folder):
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    return load_model(str(folder))


@pytest.fixture(scope="session")
def audited(loaded):
    return audit(loaded, make_task(), quiet=True)


def change_metrics(run, **changes):
    """Change a run directory as an earlier version wrote it. A value of None removes the key."""
    metrics = json.loads((run / "metrics.json").read_text()) | changes
    kept = {name: value for name, value in metrics.items() if name not in changes or value is not None}
    (run / "metrics.json").write_text(json.dumps(kept))
    (run / "MANIFEST.json").unlink()


@pytest.fixture
def task():
    return make_task()


@pytest.fixture
def served(loaded, tmp_path, monkeypatch):
    """The switches of a server and its name; the store of answers is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    with serving(loaded.model, with_chat_template(loaded.tokenizer)) as pair:
        yield pair
