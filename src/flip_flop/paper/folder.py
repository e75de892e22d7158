"""The folder of all studies: run directories of cells, logs, and the plans of each study."""

import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from flip_flop.errors import InputError
from flip_flop.files import read_json, read_object, sha256_json, sha256_text, write_json, write_text
from flip_flop.manifest import find_change, loaded_files
from flip_flop.paper.study import Study
from flip_flop.paper.study_file import study_names
from flip_flop.paper.units import Cell, Plan, Unit
from flip_flop.record import RUN_FILE

log = logging.getLogger("flip_flop")

CELL = "cell.json"


class StudyFolder:
    """``trainings/``, ``audits/``, ``logs/``, ``slurm/``, and a folder for each study and model."""

    def __init__(self, root: Path):
        self.root = root.resolve()

    def run(self, cell: Cell) -> Path:
        """Return the run directory of a cell."""
        return self.root / cell.folder

    def log(self, unit: Unit) -> Path:
        """Return the log of a unit. Attempts are appended."""
        return self.root / "logs" / f"{unit.name}.log"

    def is_done(self, cell: Cell) -> bool:
        """Return whether a cell's record is complete. An audit must be of the current adapter."""
        record, own = _read(self.run(cell) / RUN_FILE), _read(self.run(cell) / CELL)
        if record.get("kind") != cell.kind or own.get("key") != cell.key or self.damage(cell) is not None:
            return False
        if cell.training is None:
            return True
        measured, run = own.get("adapter"), own.get("trained_in")
        return bool(measured) and _adapter(self.root / str(run)) == measured

    def damage(self, cell: Cell) -> str | None:
        """Name the changed file of a cell's run; ``None`` if it is complete or has not finished."""
        folder = self.run(cell)
        only = () if cell.kind == "train" else loaded_files(folder)  # prompts of an audit may have been removed
        return find_change(folder, only) if (folder / RUN_FILE).exists() else None

    def open_units(self, plan: Plan) -> list[Unit]:
        """Return the units with a cell that is not done."""
        return [unit for unit in plan.units if not all(map(self.is_done, unit.cells))]

    def finish(self, cell: Cell, training: Cell | None = None) -> None:
        """Mark a complete run as done: write its digest, and for an audit the adapter's digest, into its folder."""
        record = {"key": cell.key, "label": cell.label, "training": cell.training}
        if training is not None:
            record |= {"trained_in": str(training.folder), "adapter": _adapter(self.run(cell))}
        write_json(self.run(cell) / CELL, record)

    def write_failures(self, unit: Unit, lines: list[str]) -> None:
        """Replace the failures of a unit's last attempt, one line for each cell."""
        if lines:
            write_text(self._failures(unit), "".join(f"{line}\n" for line in lines))
        else:
            self._failures(unit).unlink(missing_ok=True)

    def failures(self, unit: Unit) -> list[str]:
        """Return one line for each cell of a unit with a changed file, or that failed and is not done since."""
        damaged = [
            f"{cell.kind} {cell.label}: {self.run(cell) / each}." for cell in unit.cells if (each := self.damage(cell))
        ]
        try:
            lines = self._failures(unit).read_text(encoding="utf-8").splitlines()
        except OSError:
            return damaged
        names = tuple(f"{cell.kind} {cell.label}: " for cell in unit.cells if not self.is_done(cell))
        return damaged + [line for line in lines if line.startswith(names)]

    def _failures(self, unit: Unit) -> Path:
        return self.root / "logs" / f"{unit.name}.failed"

    # ---- the study ----

    def study(self, plan: Plan) -> Path:
        """Return the folder of a study with a model.

        The folder has the study's name if the study file names this model. Otherwise the end of the model's name
        follows, and six digits of a digest, as the names of two models may end alike.
        """
        study, model = plan.study, plan.setup.model
        name = study.name if study.protocol == "paper" else f"{study.name}-{study.protocol}"
        if study.model == model:
            return self.root / name
        word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in Path(model).name)
        return self.root / f"{name}-{word}-{sha256_text(model)[:6]}"

    def write_plan(self, plan: Plan) -> Path:
        """Write the plan under its digest and as ``study.json``, and return the former path.

        Units read the former: another command may start the same study with other seeds meanwhile.
        """
        record, folder, now = asdict(plan), self.study(plan), plan.setup.revision
        was = _read(folder / "study.json").get("setup", {}).get("revision")
        if was and now and was != now:
            log.warning(
                "W-STUDY-MODEL: %s is at commit %s now. The last run used %s, and its cells are not used. "
                "--revision %s continues that run.",
                *(plan.setup.model, now, was, was),
            )
        path = folder / "plans" / f"{sha256_json(record)[:12]}.json"
        write_json(path, record)
        write_json(folder / "study.json", record)
        return path

    def read_study(self, study: Study, model: str | None = None) -> Plan:
        """Read the plan of a study's last run. Without a model, there must be one plan.

        Raises:
            InputError: ``E-STUDY-MISSING``, or ``E-STUDY-MODEL`` if there are several models, or ``E-STUDY-BROKEN``.
        """
        plans = {}
        for path in sorted(self.root.glob("*/study.json"), key=lambda path: path.stat().st_mtime_ns):
            if not f"{path.parent.name}-".startswith(f"{study.name}-"):
                continue
            plan = load_plan(path)  # maybe of a study whose name begins alike
            if (plan.study.name, plan.study.protocol) == (study.name, study.protocol):
                plans[plan.setup.model] = plan
        if model is None and len(plans) > 1:
            message = f"{self.root} has study {study.name!r} with several models: {', '.join(sorted(plans))}."
            raise InputError("E-STUDY-MODEL", message, "Name one of them with --model.")
        found = plans.get(model) if model is not None else next(iter(plans.values()), None)
        if found is None:
            known = sorted(plans) or sorted(entry.parent.name for entry in self.root.glob("*/study.json"))
            given = "" if model is None else f" --model {model}"
            given += "" if study.protocol == "paper" else f" --protocol {study.protocol}"
            there = f"There: {', '.join(known)}. " if known else ""
            name = study.name if study.name in study_names() else "FILE"
            message = f"{self.root} has no study {study.name!r}{given and f' with{given}'}."
            raise InputError("E-STUDY-MISSING", message, f"{there}Run it: flip-flop study run {name}{given}.")
        return found


def root_of(plan: Path) -> Path:
    """Return the folder of all studies that holds a plan: ``ROOT/<study>/plans/<digest>.json``."""
    return plan.resolve().parents[2]


def load_plan(path: Path) -> Plan:
    """Read a plan that :meth:`StudyFolder.write_plan` wrote.

    Raises:
        InputError: ``E-STUDY-BROKEN``.
    """
    try:
        record = read_json(path)
        digest = sha256_json(record)[:12]
        if path.stem != digest and not path.with_name("plans").joinpath(f"{digest}.json").is_file():
            raise ValueError("another digest")
        return TypeAdapter(Plan).validate_python(record)
    except ValidationError as error:
        reason = f"{'.'.join(map(str, error.errors()[0]['loc']))}: {error.errors()[0]['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        reason = type(error).__name__
    raise InputError("E-STUDY-BROKEN", f"{path} is not the plan of a study ({reason}).")


def _adapter(run: Path) -> str | None:
    """Return the digest of the adapter that a run saved or measured."""
    adapter = _read(run / RUN_FILE).get("adapter")
    return adapter.get("digest") if isinstance(adapter, dict) else None


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) or {}
