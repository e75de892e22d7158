"""The folder of all studies: where cells go, and what stands on disk."""

import json
import logging
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import read_object, sha256_json, sha256_text, write_json
from flip_flop_paper.leases import Leases
from flip_flop_paper.plan import Cell, Plan, Unit, read_plan
from flip_flop_paper.study import Study, study_names

log = logging.getLogger("flip_flop")

CELL = "cell.json"


class StudyFolder:
    """``trainings/``, ``audits/``, ``logs/``, ``claims/`` (the leases), and a folder for each study and model."""

    def __init__(self, root: Path):
        self.root = root.resolve()
        self.leases = Leases(self.root / "claims")

    def run(self, cell: Cell) -> Path:
        """A cell's run directory."""
        return self.root / cell.folder

    def log(self, unit: Unit) -> Path:
        """What a unit printed, each of its attempts after the other."""
        return self.root / "logs" / f"{unit.name}.log"

    def is_done(self, cell: Cell) -> bool:
        """Whether a cell's record is complete, and this cell's; an audit's must be of the adapter that is there now."""
        folder = self.run(cell)
        record, own = _read(folder / "run.json"), _read(folder / CELL)
        if record.get("kind") != cell.kind or own.get("key") != cell.key:
            return False
        if cell.training is None:
            return True
        measured, run = own.get("adapter"), own.get("trained_in")
        return bool(measured) and _adapter(self.root / str(run)) == measured

    def seconds(self, cell: Cell) -> float:
        """How long a cell that is done took."""
        return float(_read(self.run(cell) / "run.json").get("seconds") or 0.0)

    def finish(self, cell: Cell, training: Cell | None = None) -> None:
        """Put the key beside a complete run; beside an audit's, of a training, whose adapter was measured, too."""
        record = {"key": cell.key, "label": cell.label, "training": cell.training}
        if training is not None:
            record |= {"trained_in": str(training.folder), "adapter": _adapter(self.run(cell))}
        write_json(self.run(cell) / CELL, record)

    def fail(self, cell: Cell, reason: str) -> None:
        """Keep the line that says why a cell failed."""
        write_json(self._failure(cell), {"key": cell.key, "reason": reason})

    def forget_failure(self, cell: Cell) -> None:
        """A new attempt begins."""
        self._failure(cell).unlink(missing_ok=True)

    def failure(self, cell: Cell) -> str | None:
        """Why the last attempt failed; None where it did not."""
        return _read(self._failure(cell)).get("reason")

    def _failure(self, cell: Cell) -> Path:
        return self.root / "logs" / f"{cell.name}.failed.json"

    # ---- the study ----

    def study(self, plan: Plan) -> Path:
        """The folder of a study with a model: the study's name alone where its file names this model.

        Else the model's last word follows, and six digits: two models may have one last word.
        """
        study, model = plan.study, plan.setup.model
        name = study.name if study.protocol == "paper" else f"{study.name}-{study.protocol}"
        if study.model == model:
            return self.root / name
        word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in Path(model).name)
        return self.root / f"{name}-{word}-{sha256_text(model)[:6]}"

    def write_plan(self, plan: Plan) -> Path:
        """Write the plan under its digest and as ``study.json``, and return the former.

        Workers read the former: another run may start the same study with other seeds meanwhile.
        """
        record, folder, now = asdict(plan), self.study(plan), plan.setup.revision
        was = _read(folder / "study.json").get("setup", {}).get("revision")
        if was and now and was != now:
            log.warning(
                "W-STUDY-MODEL: %s is at commit %s, and was at %s in the study's last run, of which nothing serves "
                "here. --revision %s goes on with that.",
                *(plan.setup.model, now, was, was),
            )
        path = folder / "plans" / f"{sha256_json(record)[:12]}.json"
        if not path.is_file():
            write_json(path, record)
        write_json(folder / "study.json", record)
        return path

    def latest_plan(self, plan: Plan) -> Plan:
        """The plan that is on disk at the end of a run, or the run's own where the two share no audit.

        Another run may have begun with another grid, or with another dtype, meanwhile.

        Raises:
            InputError: ``E-STUDY-BROKEN``.
        """
        found = load_plan(self.study(plan) / "study.json")
        return found if {cell.key for cell in found.audits} & {cell.key for cell in plan.audits} else plan

    def read_study(self, study: Study, model: str | None = None) -> Plan:
        """The plan of a study's last run; without a model, as a plan's setup names it, of the only one that there is.

        Raises:
            InputError: ``E-STUDY-MISSING``; ``E-STUDY-MODEL``: there are several. ``E-STUDY-BROKEN``.
        """
        plans = self._plans(study)
        if model is None and len(plans) > 1:
            message = f"{self.root} has study {study.name!r} with several models: {', '.join(sorted(plans))}."
            raise InputError("E-STUDY-MODEL", message, "Name one of them with --model.")
        found = plans.get(model) if model is not None else next(iter(plans.values()), None)
        if found is None:
            began = sorted(plans) or sorted(entry.parent.name for entry in self.root.glob("*/study.json"))
            there = f"There: {', '.join(began)}. " if began else ""
            which, given = ("", "") if model is None else (f" with the model {model}", f" --model {model}")
            if study.protocol != "paper":
                which, given = f"{which} under protocol {study.protocol}", f"{given} --protocol {study.protocol}"
            name = study.name if study.name in study_names() else "FILE"
            message = f"{self.root} has no study {study.name!r}{which}."
            raise InputError("E-STUDY-MISSING", message, f"{there}Run it: flip-flop study run {name}{given}.")
        return found

    def _plans(self, study: Study) -> dict[str, Plan]:
        """The last plan of a study by model; a study's name may begin another's, so the plans say whose they are."""
        folders = self.root.glob("*/study.json")
        paths = [path for path in folders if f"{path.parent.name}-".startswith(f"{study.name}-")]
        found = {}
        for path in sorted(paths, key=lambda path: path.stat().st_mtime_ns):
            plan = load_plan(path)
            if (plan.study.name, plan.study.protocol) == (study.name, study.protocol):
                found[plan.setup.model] = plan
        return found


def root_of(plan: Path) -> Path:
    """The folder of all studies that a plan lies in: ``ROOT/<study>/plans/<digest>.json``."""
    return plan.resolve().parents[2]


def load_plan(path: Path) -> Plan:
    """Read what :meth:`StudyFolder.write_plan` wrote.

    Raises:
        InputError: ``E-STUDY-BROKEN``.
    """
    try:
        return read_plan(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{path} is not a study's plan ({type(error).__name__})."
        raise InputError("E-STUDY-BROKEN", message, "Run the study again: complete cells stay.") from error


def _adapter(run: Path) -> str | None:
    """The digest of the adapter that a run left, or measured."""
    adapter = _read(run / "run.json").get("adapter")
    return adapter.get("digest") if isinstance(adapter, dict) else None


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) or {}
