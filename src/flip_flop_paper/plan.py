"""A study as it is run: its cells, each one training or one audit, and its units, each one training with its audits."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop_paper.study import Settings, Study, Subsets
from flip_flop_paper.variants import MethodVariant

KEY_DIGITS = 12


@dataclass(frozen=True)
class Setup:
    """What a study is run on, beside its grid: the values of the command line's options of these names."""

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    hub_mirror: str | None = None
    story_cloze_dir: str | None = None

    def with_dtype(self, *, on_gpu: bool) -> "Setup":
        """With ``auto`` resolved by where the cells will run, so that no table mixes data types."""
        return replace(self, dtype="bfloat16" if on_gpu else "float32") if self.dtype == "auto" else self


@dataclass(frozen=True)
class Cell:
    """The record of one training or of one audit.

    Attributes:
        key: The digest of all that decides its result.
        kind: ``"train"`` or ``"audit"``.
        method: As the study names it; the one that is trained is in a training's ``settings``.
        task: As the study names it; ``task_name`` is the task's own name.
        source: The name of the task trained on; None for the base, as is the seed.
        held_out: None of the audited templates was trained on.
        training: The key of the training that is audited.
    """

    key: str
    kind: str
    label: str
    method: str
    task: str
    task_name: str
    source: str | None
    seed: int | None
    held_out: bool
    templates: tuple[str, ...]
    training: str | None
    settings: Mapping[str, Any] = field(hash=False)

    @property
    def name(self) -> str:
        """The name of its folder."""
        return f"{self.label}-{self.key[:KEY_DIGITS]}"

    @property
    def folder(self) -> Path:
        """Its run directory, below the root of all studies."""
        return Path("trainings" if self.kind == "train" else "audits") / self.name


@dataclass(frozen=True)
class Unit:
    """What one process runs: a training with its audits, or one audit of the base."""

    cells: tuple[Cell, ...]

    @property
    def training(self) -> Cell | None:
        """The training; None for an audit of the base."""
        return self.cells[0] if self.cells[0].kind == "train" else None

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return self.cells if self.training is None else self.cells[1:]

    @property
    def name(self) -> str:
        """The name of its log and its lease: the same in every study that shares its training."""
        return self.cells[0].name


@dataclass(frozen=True)
class Plan:
    """A study's cells, and what they are run on."""

    study: Study
    setup: Setup
    model_identity: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def trainings(self) -> tuple[Cell, ...]:
        """The trainings, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "train")

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "audit")

    @functools.cached_property
    def units(self) -> tuple[Unit, ...]:
        """Each training with its audits, and each audit of the base, in the order of the cells."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.training or cell.key, []).append(cell)
        return tuple(Unit(tuple(cells)) for cells in groups.values())

    def unit(self, name: str) -> Unit:
        """The unit of this name.

        Raises:
            InputError: ``E-STUDY-UNIT``.
        """
        units = {unit.name: unit for unit in self.units}
        if name not in units:
            raise InputError("E-STUDY-UNIT", f"the plan has no unit {name!r}.", nearest(name, units))
        return units[name]

    def training_of(self, cell: Cell) -> Cell | None:
        """The training that an audit measures; None for a training, and for an audit of the base."""
        return next((training for training in self.trainings if training.key == cell.training), None)


def read_plan(record: Mapping[str, Any]) -> Plan:
    """The inverse of ``dataclasses.asdict``; of earlier versions' plans, too, without what is no more."""
    study: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record["study"].items()
    }
    study["settings"] = Settings(**study["settings"])
    study["template_subsets"] = {
        task: Subsets(*(tuple(value) if isinstance(value, list) else value for value in subsets.values()))
        for task, subsets in study["template_subsets"].items()
    }
    study["variants"] = {name: MethodVariant(**values) for name, values in study.get("variants", {}).items()}
    cells = tuple(map(_cell, record["cells"]))
    return Plan(Study(**study), Setup(**record["setup"]), record["model_identity"], cells)


def _cell(record: Mapping[str, Any]) -> Cell:
    known = {item.name: record[item.name] for item in fields(Cell)}
    known["settings"] = {name: value for name, value in record["settings"].items() if name != "fast_linear"}
    return Cell(**known | {"templates": tuple(record["templates"])})
