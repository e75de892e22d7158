"""The folder of all studies, and the run of a unit. An interrupted study continues when its command is run again.

Of several processes that ``accelerate launch`` or ``torchrun`` has started, all train a unit, and audit it if they
divide the weights. The first one does everything else. A shared file system may show files late, so the first one also
decides what is left to do.
"""

import contextlib
import gc
import logging
import math
import os
import shlex
import signal
import subprocess
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError

from flip_flop.console import echo, is_first_process, now, track
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.files import (
    lock_output,
    read_object,
    remove,
    sha256_json,
    sha256_text,
    write_json,
    write_text,
)
from flip_flop.paper.plan import Cell, Plan, Unit, cell_key, choose, open_task
from flip_flop.paper.study import Study
from flip_flop.record import RUN_FILE, find_change, loaded_files
from flip_flop.scoring import CausalLMScorer, LoadedModel, load_model
from flip_flop.scoring.distributed import all_gather
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import Task
from flip_flop.training import F2CConfig, load_training_data, make_config, train

log = logging.getLogger("flip_flop")

CELL = "cell.json"
DONE, FAILED, STOPPED = 0, 1, 128 + signal.SIGTERM  # exit codes of a unit
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
        run, mark = _read(self.run(cell) / RUN_FILE), _read(self.run(cell) / CELL)
        if run.get("kind") != cell.kind or mark.get("key") != cell.key or self.damage(cell) is not None:
            return False
        adapter = mark.get("adapter")
        return cell.training is None or (bool(adapter) and _adapter(self.root / str(mark.get("trained_in"))) == adapter)

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
        write_text(self.log(unit).with_suffix(".failed"), "".join(f"{line}\n" for line in lines))

    def states(self, plan: Plan) -> dict[Cell, str]:
        """Return the state of each cell: ``done``, ``open``, or ``failed: `` with the reason and the log.

        A cell has failed if a file of its run has changed, or if its last attempt failed and it is not done since.
        """
        states: dict[Cell, str] = {}
        for unit in plan.units:
            path, lines = self.log(unit).with_suffix(".failed"), list[str]()
            with contextlib.suppress(OSError):
                lines = path.read_text(encoding="utf-8").splitlines()
            for cell in unit.cells:
                name = f"{cell.kind} {cell.label}: "
                if damage := self.damage(cell):
                    lines.insert(0, f"{name}{self.run(cell) / damage}.")
                reason = next((line for line in lines if line.startswith(name)), None)
                states[cell] = "open" if reason is None else f"failed: {reason} Log: {self.log(unit)}"
                if self.is_done(cell):
                    states[cell] = "done"
        return states

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
        record = _PLAN.dump_python(plan, mode="json", exclude={"study": {"settings", "override"}})
        folder, revision = self.study(plan), plan.setup.revision
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
            if f"{path.parent.name}-".startswith(f"{study.name}-"):
                plan = load_plan(path)  # maybe of a study whose name begins alike
                if (plan.study.name, plan.study.protocol) == (study.name, study.protocol):
                    plans[plan.setup.model] = plan
        if model is None and len(plans) == 1:
            return next(iter(plans.values()))
        if model in plans:
            return plans[model]
        known = sorted(plans) or sorted(entry.parent.name for entry in self.root.glob("*/study.json"))
        options = "" if model is None else f" --model {model}"
        options += "" if study.protocol == "paper" else f" --protocol {study.protocol}"
        raise InputError(
            "E-STUDY",
            f"{self.root} has {'several runs' if plans and model is None else 'no run'} of study "
            f"{study.name!r}{options and f' with{options}'}.",
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
    return adapter.get("digest") if isinstance(adapter, dict) else None


def _read(path: Path) -> dict[str, Any]:
    return read_object(path) or {}


# ---- one unit, in this process ----


def num_processes() -> int:
    """Return the number of processes that a launcher has started; 1 without a launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def split_batch_across_ranks(config: F2CConfig, processes: int) -> None:
    """Divide the instances of a step among the processes, so that their number does not change a training run.

    Raises:
        InputError: ``E-DISTRIBUTED`` if they cannot be divided.
    """
    step = config.per_device_train_batch_size * config.gradient_accumulation_steps
    share, rest = divmod(step, processes)
    if rest:
        raise InputError(
            "E-DISTRIBUTED",
            f"A step of {step} instances cannot be divided evenly among {processes} processes.",
            f"Launch a number of processes that divides {step}.",
        )
    config.per_device_train_batch_size = math.gcd(config.per_device_train_batch_size, share)
    config.gradient_accumulation_steps = share // config.per_device_train_batch_size


def run_unit(plan: Plan, folder: StudyFolder, unit: Unit) -> int:
    """Run the cells of a unit that are not done, and return the exit code: 0, 1 if a cell failed, 143 if stopped.

    Raises:
        SystemExit: SIGTERM stopped an audit.
    """
    with _exit_on_sigterm():
        together = [cell for cell in unit.cells if _by_all_processes(plan, cell)]
        if num_processes() > 1 and together:
            # This begins the process group. Later, digests resolve settings for the CPU, which would begin a CPU's.
            ddp = {name: value for name, value in together[0].settings.items() if name.startswith("ddp")}
            make_config(ddp | {"use_cpu": _on_cpu(plan)})
        if is_first_process():
            return _run_cells(plan, folder, unit)
        for cell in together:
            if all_gather(False)[0]:
                continue
            if cell.kind == "audit":
                _audit(plan, folder, unit, cell)
            elif not _train(plan, folder, cell):
                return STOPPED
        return DONE


def _by_all_processes(plan: Plan, cell: Cell) -> bool:
    return plan.study.shard is not None or cell.kind == "train"


@contextlib.contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    previous = signal.signal(signal.SIGTERM, lambda number, frame: exit(STOPPED))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run_cells(plan: Plan, folder: StudyFolder, unit: Unit) -> int:
    """Run the cells one after the other. An error of training, or of an audit by all processes, ends the unit."""
    echo(f"---- {now()}, process {os.getpid()}")
    failures: list[str] = []
    for cell in unit.cells:
        is_shared, is_done = _by_all_processes(plan, cell), folder.is_done(cell)
        if all_gather(is_done)[0] if is_shared else is_done:
            continue
        started, reason = time.monotonic(), ""
        try:
            if cell.kind == "audit":
                _audit(plan, folder, unit, cell)
            elif not _train(plan, folder, cell):
                return STOPPED
            folder.finish(cell, unit.training if cell.kind == "audit" else None)
        except InputError as error:
            echo(error, err=True)
            if error.code == "E-OUT-BUSY":
                return FAILED
            reason = str(error)
        except Exception as error:
            echo(traceback.format_exc(), err=True)
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        echo(f"{cell.kind} {cell.label}: {reason or f'{time.monotonic() - started:.0f} s'}", err=True)
        gc.collect()
        torch.cuda.empty_cache()
        if reason:
            failures.append(f"{cell.kind} {cell.label}: {reason}")
            if is_shared:
                break
    folder.write_failures(unit, failures)
    return FAILED if failures else DONE


def _on_cpu(plan: Plan) -> bool:
    return plan.setup.device == "cpu" or not torch.cuda.is_available()


def _open(plan: Plan, cell: Cell) -> Task:
    task = choose(open_task(cell.task, plan.study, plan.setup), cell.templates)
    if cell_key(plan, cell, task) != cell.key:
        raise InputError(
            "E-STUDY",
            f"the data, templates or settings of {cell.task} have changed since the plan of {cell.label}.",
        )
    return task


def _load(plan: Plan, adapter: Path | None = None) -> LoadedModel:
    setup = plan.setup
    loaded = load_model(
        setup.model,
        adapter=adapter,
        revision=setup.revision,
        dtype=setup.dtype,
        device=setup.device,
        shard=plan.study.shard,
    )
    if loaded.record.is_demo:
        torch.set_num_threads(1)  # so small a model is slower with two threads
    return loaded


def _train(plan: Plan, folder: StudyFolder, cell: Cell) -> bool:
    """Train, or continue from the last checkpoint. Return whether the training has ended, not been stopped."""
    task, out, study = _open(plan, cell), folder.run(cell), plan.study
    config = make_config(dict(cell.settings) | {"use_cpu": _on_cpu(plan)}, cell.label)
    split_batch_across_ranks(config, 1 if study.shard == "tp" else num_processes())
    if is_first_process() and (damage := folder.damage(cell)):
        echo(f"{out / damage}: {cell.label} continues from its last checkpoint", err=True)
        (out / RUN_FILE).unlink()
        (out / CELL).unlink()
    data = load_training_data(task, config, limit=study.limit, eval_limit=study.eval_limit)
    try:
        return train(_load(plan), data, config, out, resume=True, keep_worse=True).stopped_by is None
    except InputError as error:
        if error.code != "E-RESUME-CHANGED":
            raise
        raise InputError(
            error.code, error.message, f"Restore them, or remove {out}, and run the study again."
        ) from error


def _audit(plan: Plan, folder: StudyFolder, unit: Unit, cell: Cell) -> None:
    out, is_first = folder.run(cell), is_first_process()
    with lock_output(out) if is_first else contextlib.nullcontext():  # refused before the work, not after it
        split = _open(plan, cell).render(plan.study.split, limit=plan.study.limit)
        known = {item.name for item in fields(ScoringOptions)}
        scoring = ScoringOptions(**{name: value for name, value in cell.settings.items() if name in known})
        adapter = folder.run(unit.training) / "adapter" if unit.training else None
        scorer = CausalLMScorer(_load(plan, adapter), shared=plan.study.shard is not None)
        result = audit(scorer, split, scoring=scoring, name=cell.method, quiet=not is_first)
        if is_first:
            remove(out)  # a damaged audit
            result.write(out)


# ---- all units, on this machine ----


def worker_devices(device: str, jobs: int | None = None) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each worker: one GPU, or none. More workers share the GPUs."""
    available = 0 if device == "cpu" else torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(available))) if named is None else [name.strip() for name in named.split(",")]
    devices = [name for name in names if name][:available] or [""]
    return [devices[index % len(devices)] for index in range(jobs or len(devices))]


def unit_commands(
    folder: StudyFolder,
    units: Iterable[Unit],
    command: Sequence[str],
    launcher: Sequence[str] = (),
    *,
    sharded: bool = False,
) -> dict[Unit, str]:
    """Return the shell command of each unit, which appends its output to the unit's log. Any order works.

    ``launcher`` replaces the interpreter, the first word of ``command``, to train; to audit the base if ``sharded``.
    """
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    commands = {}
    for unit in units:
        start = launcher if launcher and (unit.training or sharded) else command[:1]
        words = [*start, *command[1:], "--unit", unit.name]
        commands[unit] = f"{shlex.join(words)} >> {shlex.quote(str(folder.log(unit)))} 2>&1"
    return commands


def run_units(
    name: str, commands: Mapping[Unit, str], devices: Sequence[str], *, quiet: bool = False
) -> dict[Unit, int]:
    """Run the commands of units, one process per device at a time, and return their exit codes.

    An error on a GPU or a lost process ends only its unit. SIGTERM and Ctrl-C let each process finish its step and
    write a checkpoint. A second Ctrl-C ends them after the current backward pass.
    """
    waiting, free, exit_codes = list(commands), list(devices), {}
    running: dict[subprocess.Popen[bytes], tuple[Unit, str]] = {}
    with _exit_on_sigterm(), track(name, len(waiting), "units", quiet=quiet) as advance:
        try:
            while waiting or running:
                while waiting and free:
                    unit, device = waiting.pop(0), free.pop(0)
                    process = subprocess.Popen(
                        ["sh", "-c", f"exec {commands[unit]}"],
                        stdin=subprocess.DEVNULL,
                        env={**os.environ, "PYTHONUNBUFFERED": "1", "CUDA_VISIBLE_DEVICES": device},
                        start_new_session=True,  # Ctrl-C reaches only this process
                    )
                    running[process] = (unit, device)
                time.sleep(0.1)
                for process in [process for process in running if process.poll() is not None]:
                    unit, device = running.pop(process)
                    exit_codes[unit] = process.returncode
                    free.append(device)
                    advance(1)
        finally:
            if running:
                echo("finishing the step; press Ctrl-C again to stop now", err=True)
            try:
                for process in running:
                    process.terminate()
                for process in running:
                    process.wait()
            finally:
                for process in running:
                    process.kill()
    return exit_codes
