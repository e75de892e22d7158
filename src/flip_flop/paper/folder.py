"""The folder of all studies: the states of cells, and the plans of the last runs. Importing it needs no torch."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from flip_flop.errors import InputError, log
from flip_flop.files import Json, read_object, sha256_json, sha256_text, write_json, write_text
from flip_flop.paper.plan import Cell, Plan, Unit
from flip_flop.paper.study import Study
from flip_flop.record import RUN_FILE, find_change, loaded_files
from flip_flop.training.folder import find_damage

CELL = "cell.json"
_PLAN = TypeAdapter(Plan)


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
        return self._is_marked(cell) and self.damage(cell) is None

    def _is_marked(self, cell: Cell) -> bool:
        run = _read(self.run(cell) / RUN_FILE)
        mark = _read(self.run(cell) / CELL)
        if run.get("kind") != cell.kind or mark.get("key") != cell.key:
            return False
        adapter = mark.get("adapter")
        return cell.training is None or (bool(adapter) and _adapter(self.root / str(mark.get("trained_in"))) == adapter)

    def damage(self, cell: Cell) -> str | None:
        """Name the changed file of a cell's run; ``None`` if it is complete or has not finished."""
        folder = self.run(cell)
        if cell.kind == "train":
            return find_damage(folder)
        # An audit's prompts may have been removed.
        if (folder / RUN_FILE).exists():
            return find_change(folder, loaded_files(folder))
        return None

    def finish(self, cell: Cell, training: Cell | None = None) -> None:
        """Mark a complete run as done: write its digest, and for an audit the adapter's digest, into its folder."""
        record = {"key": cell.key, "label": cell.label, "training": cell.training}
        if training is not None:
            record |= {"trained_in": str(training.folder), "adapter": _adapter(self.run(cell))}
        write_json(self.run(cell) / CELL, record)

    def write_failures(self, unit: Unit, lines: list[str]) -> None:
        """Replace the failures of a unit's last attempt, one line for each cell. Without failures, remove the file."""
        path = self.log(unit).with_suffix(".failed")
        if lines:
            write_text(path, "".join(f"{line}\n" for line in lines))
        else:
            path.unlink(missing_ok=True)

    def states(self, plan: Plan) -> dict[Cell, str]:
        """Return the state of each cell: ``done``, ``open``, or ``failed: `` with the reason and the log.

        A cell has failed if a file of its run has changed, or if its last attempt failed and it is not done since.
        """
        states = {}
        for unit in plan.units:
            path = self.log(unit).with_suffix(".failed")
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            for cell in unit.cells:
                name = f"{cell.kind} {cell.label}: "
                damage = self.damage(cell)  # reads all files of the run, once
                if damage is not None:
                    lines.insert(0, f"{name}{self.run(cell) / damage}.")
                reason = next((line for line in lines if line.startswith(name)), None)
                states[cell] = "open" if reason is None else f"failed: {reason} Log: {self.log(unit)}"
                if damage is None and self._is_marked(cell):
                    states[cell] = "done"
        return states

    # ---- the study ----

    def study(self, plan: Plan) -> Path:
        """Return the folder of a study with a model.

        The folder has the study's name if the study file names this model. Otherwise the end of the model's name
        follows, and six digits of a digest, as the names of two models may end alike.
        """
        study = plan.study
        model = plan.setup.model
        name = study.name if study.protocol == "paper" else f"{study.name}-{study.protocol}"
        if study.model == model:
            return self.root / name
        word = "".join(letter if letter.isalnum() or letter in "._-" else "_" for letter in Path(model).name)
        return self.root / f"{name}-{word}-{sha256_text(model)[:6]}"

    def write_plan(self, plan: Plan) -> Path:
        """Write the plan under its digest and as ``study.json``, and return the former path.

        Units read the former: another command may start the same study with other seeds meanwhile.
        """
        record = _PLAN.dump_python(plan, mode="json", exclude={"study": {"settings", "override"}})
        folder = self.study(plan)
        revision = plan.setup.revision
        former = _read(folder / "study.json").get("setup", {}).get("revision")
        if former and revision and former != revision:
            log.warning(
                "W-STUDY: %s is at commit %s now. The last run used %s, and its cells are not used. "
                "--revision %s continues that run.",
                *(plan.setup.model, revision, former, former),
            )
        path = folder / "plans" / f"{sha256_json(record)[:12]}.json"
        write_json(path, record)
        write_json(folder / "study.json", record)
        return path

    def read_study(self, study: Study, model: str | None = None) -> Plan:
        """Read the plan of a study's last run. Without a model, there must be one plan.

        Raises:
            InputError: ``E-STUDY``, also if there are several models or a plan cannot be read.
        """
        plans = {}
        for path in sorted(self.root.glob("*/study.json"), key=lambda path: path.stat().st_mtime_ns):
            record = _read(path).get("study")
            if isinstance(record, dict) and record.get("name") == study.name:  # another study's may be unreadable
                plan = load_plan(path)
                if plan.study.protocol == study.protocol:
                    plans[plan.setup.model] = plan
        if model is None and len(plans) == 1:
            return next(iter(plans.values()))
        if model in plans:
            return plans[model]
        known = sorted(plans) or sorted(entry.parent.name for entry in self.root.glob("*/study.json"))
        raise InputError(
            "E-STUDY",
            f"{self.root} has {'several runs' if plans and model is None else 'no such run'} of study {study.name!r}.",
            f"Name one with --model. There: {', '.join(known)}." if known else "Run the study first.",
        )


def load_plan(path: Path) -> Plan:
    """Read a plan that :meth:`StudyFolder.write_plan` wrote (``E-STUDY``)."""
    try:
        return _PLAN.validate_json(path.read_bytes())
    except OSError as error:
        reason = str(error.strerror)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
    raise InputError("E-STUDY", f"{path} is not the plan of a study ({reason}).", "Run the study again.")


def _adapter(run: Path) -> str | None:
    """Return the digest of the adapter that a run saved or measured."""
    adapter = _read(run / RUN_FILE).get("adapter")
    if isinstance(adapter, dict):
        return adapter.get("digest")
    return None


def _read(path: Path) -> Json:
    return read_object(path) or {}
