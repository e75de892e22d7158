"""A study's cells as they are run: what each is, what it is called, and where it goes."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from flip_flop.scoring import LoadedModel
from flip_flop.studies.study import Settings, Study, Subsets
from flip_flop.tasks import Task

# What an audit does whose training is not done: begins with it, unless another process is at work on it; leaves it to
# a command of its own, and waits while that is at work; or refuses to run.
Untrained = Literal["train", "wait", "refuse"]

KEY_DIGITS = 12


@dataclass(frozen=True)
class Setup:
    """What a study is run on, beside its grid.

    Attributes:
        model: A hub name, a folder, or ``demo``.
        revision: The hub's commit, branch or tag.
        dtype: As for ``--dtype``.
        device: As for ``--device``.
        hub_mirror: As for ``--hub-mirror``.
        story_cloze_dir: As for ``--story-cloze-dir``.
    """

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    hub_mirror: str | None = None
    story_cloze_dir: str | None = None

    def with_dtype(self, *, on_gpu: bool) -> "Setup":
        """With ``auto`` resolved by where the cells will run, so that no table mixes data types.

        Example:
            >>> Setup("demo").with_dtype(on_gpu=False).dtype
            'float32'
        """
        return replace(self, dtype="bfloat16" if on_gpu else "float32") if self.dtype == "auto" else self


@dataclass(frozen=True)
class Openers:
    """How names become tasks and models: the command line knows.

    Attributes:
        task: A task with all its templates.
        model: The model, with an adapter or without.
        model_folder: The folder that a model's name stands for; None for one on the hub.
    """

    task: Callable[[str, Setup], Task]
    model: Callable[[Setup, Path | None], LoadedModel]
    model_folder: Callable[[str], Path | None]


@dataclass(frozen=True)
class Cell:
    """A training or an audit, ready to be run.

    Attributes:
        key: The digest of all that decides its result.
        kind: ``"train"`` or ``"audit"``.
        label: Its name for people: the same wherever the key is the same.
        method: ``base``, ``swarm``, ``cce`` or ``f2c``.
        task: What is trained on, or audited: as the study names it.
        task_name: The task's own name.
        source: The name of the task trained on; None for the base.
        seed: The training's; None for the base.
        num_templates: How many templates were trained on, where the study varies it.
        held_out: None of the audited templates was trained on.
        templates: The names of those trained on, or audited.
        training: The key of the training that is audited.
        settings: Of the training, or those of the scoring.
        limit: A uniform sample of this many instances.
        split: The split audited.
    """

    key: str
    kind: str
    label: str
    method: str
    task: str
    task_name: str
    source: str | None
    seed: int | None
    num_templates: int | None
    held_out: bool
    templates: tuple[str, ...]
    training: str | None
    settings: Mapping[str, Any] = field(hash=False)
    limit: int | None
    split: str

    @property
    def name(self) -> str:
        """The name of its folder and its log."""
        return f"{self.label}-{self.key[:KEY_DIGITS]}"

    @property
    def folder(self) -> Path:
        """Its run directory, below the root of all studies."""
        return Path("trainings" if self.kind == "train" else "audits") / self.name


@dataclass(frozen=True)
class Plan:
    """A study's cells: what is to be run, and on what."""

    study: Study
    setup: Setup
    model_identity: Mapping[str, Any]
    cells: tuple[Cell, ...]

    def cell(self, key: str) -> Cell:
        """The cell of this key."""
        return next(cell for cell in self.cells if cell.key == key)

    def training_of(self, cell: Cell) -> Cell | None:
        """The training that an audit needs; None for a training, and for an audit of the base."""
        return None if cell.training is None else self.cell(cell.training)

    @property
    def trainings(self) -> tuple[Cell, ...]:
        """The trainings, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "train")

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "audit")


def plan_record(plan: Plan) -> dict[str, Any]:
    """The plan as JSON values."""
    return asdict(plan)


def read_plan(record: Mapping[str, Any]) -> Plan:
    """The inverse of :func:`plan_record`; the study's own grid is spelt out in the cells."""
    study = dict(record["study"])
    study |= {name: tuple(study[name]) for name in ("tasks", "methods", "seeds")}
    study["cross"] = None if study["cross"] is None else tuple(study["cross"])
    study["settings"] = Settings(**study["settings"])
    study["template_subsets"] = {
        task: Subsets(tuple(entry["train_first"]), _held_out(entry["held_out"]))
        for task, entry in study["template_subsets"].items()
    }
    cells = tuple(Cell(**{**cell, "templates": tuple(cell["templates"])}) for cell in record["cells"])
    return Plan(Study(**study), Setup(**record["setup"]), record["model_identity"], cells)


def _held_out(value: int | list[str]) -> int | tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else value
