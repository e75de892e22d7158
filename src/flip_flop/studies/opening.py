"""How what a study names becomes a task or a model."""

from pathlib import Path

from flip_flop.scoring import LoadedModel, load_model
from flip_flop.scoring.models import EMBEDDED_MODEL
from flip_flop.studies.plan import Setup
from flip_flop.tasks import Task, load_task


def open_task(name: str, setup: Setup) -> Task:
    """A task with all its templates."""
    mirror, stories = (None if path is None else Path(path) for path in (setup.hub_mirror, setup.story_cloze_dir))
    return load_task(name, templates="all", hub_mirror=mirror, story_cloze_dir=stories)


def open_model(setup: Setup, adapter: Path | None) -> LoadedModel:
    """The model, with an adapter or without."""
    return load_model(setup.model, adapter=adapter, revision=setup.revision, dtype=setup.dtype, device=setup.device)


def model_folder(name: str) -> Path | None:
    """The folder that a model's name stands for; None for one on the hub."""
    folder = EMBEDDED_MODEL if name == "demo" else Path(name)
    return folder if folder.is_dir() else None
