"""How what a study names becomes a task or a model: the one place that opens either."""

from pathlib import Path

from flip_flop.scoring import LoadedModel, load_model
from flip_flop.studies.plan import Setup
from flip_flop.tasks import Task, load_task


def open_task(name: str, setup: Setup) -> Task:
    """A task with all its templates."""
    # TODO(merge): return load_task(name, templates="all", hub_mirror=..., story_cloze_dir=...)
    from flip_flop.demo.task import VARIANTS, demo_task
    from flip_flop.tasks.catalog import catalog_names, catalog_task

    mirror, stories = (None if path is None else Path(path) for path in (setup.hub_mirror, setup.story_cloze_dir))
    if name in VARIANTS:
        return demo_task(0, name)
    if name in catalog_names():
        return catalog_task(name, hub_mirror=mirror, story_cloze_dir=stories)
    return load_task(name, known_names=[*VARIANTS, *catalog_names()], hub_mirror=mirror)


def open_model(setup: Setup, adapter: Path | None) -> LoadedModel:
    """The model, with an adapter or without."""
    # TODO(merge): return load_model(setup.model, adapter=adapter, ...), which knows "demo" and is quiet
    from transformers.utils import logging as transformers_logging

    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    folder, name = model_folder(setup.model), setup.model
    loaded = load_model(
        str(folder or name),
        adapter=adapter,
        revision=setup.revision,
        dtype=setup.dtype,
        device=setup.device,
        display_name=name,
    )
    loaded.record["is_demo"] = name == "demo"
    return loaded


def model_folder(name: str) -> Path | None:
    """The folder that a model's name stands for; None for one on the hub."""
    from flip_flop.demo import demo_model_path

    folder = demo_model_path() if name == "demo" else Path(name)
    return folder if folder.is_dir() else None
