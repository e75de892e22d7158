"""Stand-ins, with their final signatures, for what other packages are about to hold. Goes with them."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from flip_flop import scoring as scoring_package
from flip_flop import tasks as tasks_package
from flip_flop.errors import InputError
from flip_flop.options import ScoringOptions
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import LoadedModel
from flip_flop.scoring.scorer import ScoreTable
from flip_flop.tasks import Rows, Task
from flip_flop.tasks.record import describe_task


@dataclass(frozen=True, eq=False)
class RenderedSplit:
    task: Task
    split: str
    rows: Rows
    instances: Sequence[RenderedInstance]

    @property
    def gold(self) -> Int64[np.ndarray, " instances"]:
        return np.array([-1 if each.label is None else each.label for each in self.instances], dtype=np.int64)

    @property
    def record(self) -> dict[str, Any]:
        return describe_task(self.task, self.split, self.rows, self.instances)


def render(
    task: Task, split: str, *, limit: int | None = None, seed: int = 0, need_labels: bool | None = None
) -> RenderedSplit:  # Task.render
    rows = task.rows(split)
    instances = task.render_rows(rows, split, limit=limit, seed=seed, need_labels=need_labels)
    return RenderedSplit(task, split, rows, instances)


def load_task(  # flip_flop.tasks
    name_or_path: str | Path,
    *,
    templates: str | None = None,
    hub_mirror: Path | None = None,
    story_cloze_dir: Path | None = None,
    seed: int = 0,
) -> Task:
    demo = importlib.import_module("flip_flop.demo.task")
    catalog = importlib.import_module("flip_flop.tasks.catalog")
    if name_or_path in demo.VARIANTS:
        found = demo.demo_task(seed, name_or_path)
    elif name_or_path in catalog.catalog_names():
        found = catalog.catalog_task(name_or_path, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir, seed=seed)
    else:
        known = [*demo.VARIANTS, *catalog.catalog_names()]
        found = tasks_package.load_task(name_or_path, known_names=known, hub_mirror=hub_mirror)
    if templates is None:
        return found.with_templates(found.training_templates.names)
    if templates == "all":
        return found
    if templates == "held_out":
        if not found.held_out_templates:
            message = f"Task {found.name!r} has no held_out_templates."
            raise InputError("E-TPL-UNKNOWN", message, "Name some in the task file.")
        return found.with_templates(found.held_out_templates)
    named = found.with_templates([name.strip() for name in templates.split(",") if name.strip()])
    return replace(named, held_out_templates=())


def load_model(  # flip_flop.scoring
    name: str,
    *,
    adapter: str | Path | None = None,
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "auto",
) -> LoadedModel:
    path = str(importlib.import_module("flip_flop.demo").demo_model_path()) if name == "demo" else name
    found = scoring_package.load_model(
        path, adapter=adapter, revision=revision, dtype=dtype, device=device, display_name=name
    )
    found.record["is_demo"] = name == "demo"
    return found


def load_tokenizer(name: str, revision: str | None = None) -> Any:  # flip_flop.scoring
    path = str(importlib.import_module("flip_flop.demo").demo_model_path()) if name == "demo" else name
    return importlib.import_module("flip_flop.scoring.models").load_tokenizer(path, revision)


def score(  # flip_flop.scoring
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    options: ScoringOptions,
    *,
    label: str = "scoring",
    quiet: bool = True,
) -> ScoreTable:
    return scoring_package.score(
        loaded,
        instances,
        options.chat_template,
        backend=options.backend,
        batch_tokens=options.batch_tokens,
        label=label,
        quiet=quiet,
    )


@dataclass(frozen=True)
class TrainingData:  # flip_flop.training
    task: Task
    limit: int | None


def load_training_data(task: Task, config: Any, *, limit: int | None = None) -> TrainingData:  # flip_flop.training
    trained = task.with_templates(task.training_templates.names)
    for split in ("train", "validation"):
        if split == "train" or split in trained.data:
            trained.instances(split, limit=limit, seed=config.seed)
    return TrainingData(task, limit)


def train(  # flip_flop.training
    loaded: LoadedModel, data: TrainingData, config: Any, out: Path, *, resume: bool = False, quiet: bool = False
) -> Any:
    training = importlib.import_module("flip_flop.training")
    return training.train(loaded, data.task, config, out, resume=resume, limit=data.limit, quiet=quiet)


def run_demo(out: Path, *, seed: int = 0, quiet: bool = False) -> dict[str, list[Path]]:  # flip_flop.demo.run
    def open_model(adapter: Path | None) -> LoadedModel:
        return load_model("demo", adapter=adapter, dtype="float32", device="cpu")

    found: dict[str, list[Path]] = importlib.import_module("flip_flop.demo.run").run_demo(
        out, open_model, seed=seed, quiet=quiet
    )
    return found


def run_of(found: Any, out: Path) -> Any:  # flip_flop.report.Run, which an Audit then is
    return importlib.import_module("flip_flop.report").Run(
        path=out,
        name=found.record.name,
        record=found.record.to_json(),
        metrics=found.metrics,
        scores=found.scores,
        gold=found.gold,
        instance_ids=found.instance_ids,
        template_names=found.template_names,
        examples={},
    )
