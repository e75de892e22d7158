"""The units of a study: one training run with its audits, or one audit of the base. A digest names each cell."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.paper.study import Study

KEY_DIGITS = 12


@dataclass(frozen=True)
class Setup:
    """The model, hardware and data folders of a study, as the options of these names give them."""

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    hub_mirror: str | None = None
    story_cloze_dir: str | None = None

    def with_dtype(self, *, on_gpu: bool) -> "Setup":
        """Resolve ``auto`` by the hardware of the units, so that no table mixes data types."""
        return replace(self, dtype="bfloat16" if on_gpu else "float32") if self.dtype == "auto" else self


@dataclass(frozen=True)
class Cell:
    """One training or one audit.

    Attributes:
        key: The digest of everything that decides the result.
        kind: ``"train"`` or ``"audit"``.
        method: As the study names it. The ``settings`` of a training run name the method behind a variant.
        task: As the study names it. ``task_name`` is the name in the task file.
        source: The name of the task trained on. None for the base, like the seed.
        held_out: Whether the training run used none of the audited templates.
        training: The key of the audited training.
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
        """The folder's name."""
        return f"{self.label}-{self.key[:KEY_DIGITS]}"

    @property
    def folder(self) -> Path:
        """The run directory, relative to the root of all studies."""
        return Path("trainings" if self.kind == "train" else "audits") / self.name


@dataclass(frozen=True)
class Unit:
    """One training with its audits, or one audit of the base. A unit is idempotent."""

    cells: tuple[Cell, ...]

    @property
    def training(self) -> Cell | None:
        """The training run, or None for an audit of the base."""
        return self.cells[0] if self.cells[0].kind == "train" else None

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return self.cells if self.training is None else self.cells[1:]

    @property
    def name(self) -> str:
        """The name of its log: the same in every study that shares its training run."""
        return self.cells[0].name


@dataclass(frozen=True)
class Plan:
    """The cells of a study, with its setup."""

    study: Study
    setup: Setup
    model_identity: Mapping[str, Any]
    cells: tuple[Cell, ...]

    @property
    def trainings(self) -> tuple[Cell, ...]:
        """The training runs, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "train")

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "audit")

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Each training run with its audits, and each audit of the base, in the order of the cells."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.training or cell.key, []).append(cell)
        return tuple(Unit(tuple(cells)) for cells in groups.values())

    def unit(self, name: str) -> Unit:
        """Return the unit of this name.

        Raises:
            InputError: ``E-STUDY-UNIT``.
        """
        units = {unit.name: unit for unit in self.units}
        if name not in units:
            raise InputError("E-STUDY-UNIT", f"the plan has no unit {name!r}.", nearest(name, units))
        return units[name]

    def training_of(self, cell: Cell) -> Cell | None:
        """Return the training run of an audit, or None for the base."""
        return next((training for training in self.trainings if training.key == cell.training), None)
