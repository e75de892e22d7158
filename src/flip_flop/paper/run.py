"""The run of a unit, and of all units on this machine. An interrupted study continues when its command is run again.

Of several processes that ``accelerate launch`` or ``torchrun`` has started, all train a unit, and audit it if they
divide the weights. The first one does everything else. A shared file system may show files late, so the first one also
decides which cells to compute.
"""

import contextlib
import gc
import math
import os
import shlex
import signal
import subprocess
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

from flip_flop.console import echo, is_first_process, now, num_processes, stop_signals, track
from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.files import lock_output, remove
from flip_flop.paper.folder import CELL, StudyFolder
from flip_flop.paper.plan import Cell, Plan, Unit, cell_key, choose, identify_model, open_task
from flip_flop.scoring import ScoringOptions
from flip_flop.scoring.distributed import all_gather
from flip_flop.scoring.models import LoadedModel, load_model
from flip_flop.scoring.scores import CausalLMScorer
from flip_flop.tasks import Task, split_names
from flip_flop.training.config import F2CConfig, make_config
from flip_flop.training.data import load_training_data
from flip_flop.training.run import train

# Exit codes of a unit.
DONE = 0
FAILED = 1
STOPPED = 128 + signal.SIGTERM


# ---- one unit, in this process ----


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
    """Run the cells of a unit that are not done, and return the exit code: 0, or 1 if a cell failed.

    Raises:
        SystemExit: A signal stopped a training run (143) or an audit.
    """
    with _exit_on_signal():
        together = [cell for cell in unit.cells if _by_all_processes(plan, cell)]
        if num_processes() > 1 and together:
            # This begins the process group. Later, digests resolve settings for the CPU, which would begin a CPU's.
            ddp = {name: value for name, value in together[0].settings.items() if name.startswith("ddp")}
            make_config(ddp | {"use_cpu": not plan.setup.on_gpu})
        if is_first_process():
            return _run_cells(plan, folder, unit)
        for cell in together:
            if not all_gather(False)[0]:
                _compute(plan, folder, unit, cell)
        return DONE


def _by_all_processes(plan: Plan, cell: Cell) -> bool:
    return plan.study.shard is not None or cell.kind == "train"


@contextlib.contextmanager
def _exit_on_signal() -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # a shell repeats SIGHUP
        exit(128 + number)

    previous = {number: signal.signal(number, stop) for number in stop_signals()}
    try:
        yield
    finally:
        for handler in previous.items():
            signal.signal(*handler)


def _run_cells(plan: Plan, folder: StudyFolder, unit: Unit) -> int:
    """Run the cells one after the other. An error of training, or of an audit by all processes, ends the unit."""
    echo(f"---- {now()}, process {os.getpid()}")
    failures = []
    for cell in unit.cells:
        is_shared = _by_all_processes(plan, cell)
        is_done = folder.is_done(cell)
        if all_gather(is_done)[0] if is_shared else is_done:
            continue
        started = time.monotonic()
        reason = ""
        try:
            _compute(plan, folder, unit, cell)
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


def _compute(plan: Plan, folder: StudyFolder, unit: Unit, cell: Cell) -> None:
    if cell.kind == "train":
        _train(plan, folder, cell)
    else:
        _audit(plan, folder, unit, cell)


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
    if "name" not in plan.model_identity and identify_model(setup) != plan.model_identity:  # not one of the hub
        raise InputError("E-STUDY", f"the files of {setup.model} have changed since the plan.", "Run the study again.")
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
    return loaded.keep_answers()


def _train(plan: Plan, folder: StudyFolder, cell: Cell) -> None:
    """Train, or continue from the last checkpoint. A stopped run ends this process, as a stopped audit does."""
    task = _open(plan, cell)
    out = folder.run(cell)
    study = plan.study
    config = make_config(dict(cell.settings) | {"use_cpu": not plan.setup.on_gpu}, cell.label)
    split_batch_across_ranks(config, num_processes())
    if is_first_process():
        (out / CELL).unlink(missing_ok=True)  # written when the run is complete
    data = load_training_data(task, config, limit=study.limit, eval_limit=study.eval_limit)
    if train(_load(plan), data, config, out, resume=True, keep_worse=True).stopped_by is not None:
        raise SystemExit(STOPPED)


def _audit(plan: Plan, folder: StudyFolder, unit: Unit, cell: Cell) -> None:
    out = folder.run(cell)
    is_first = is_first_process()
    with lock_output(out) if is_first else contextlib.nullcontext():  # refused before the work, not after it
        split = _open(plan, cell).render(plan.study.split, limit=plan.study.limit)
        adapter = folder.run(unit.training) / "adapter" if unit.training else None
        scorer = CausalLMScorer(_load(plan, adapter), shared=plan.study.shard is not None)
        result = audit(scorer, split, scoring=ScoringOptions(**cell.settings), name=cell.method, quiet=not is_first)
        if is_first:
            remove(out)  # a damaged audit
            result.write(out)


# ---- all units, on this machine ----


def worker_devices(device: str, jobs: int | None = None, processes: int = 1) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each worker: a GPU for each process of a unit, or none.

    More workers share the GPUs.

    Raises:
        InputError: ``E-DISTRIBUTED``: a unit has more processes than there are GPUs.
    """
    available = 0 if device == "cpu" else torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(available))) if named is None else split_names(named)
    gpus = names[:available]
    if 0 < len(gpus) < processes:
        raise InputError(
            "E-DISTRIBUTED",
            f"A unit of {processes} processes needs as many GPUs, and {len(gpus)} are visible.",
            f"Give --processes-per-unit {len(gpus)}." if len(gpus) > 1 else "Leave --processes-per-unit out.",
        )
    groups = [gpus[first : first + processes] for first in range(0, len(gpus) - processes + 1, processes)]
    devices = [",".join(group) for group in groups] or [""]
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

    An error on a GPU or a lost process ends only its unit. SIGTERM, SIGHUP and Ctrl-C let each process finish its step
    and write a checkpoint. A second Ctrl-C ends them after the current backward pass.
    """
    waiting = list(commands)
    free = list(devices)
    exit_codes = {}
    running: dict[subprocess.Popen[bytes], tuple[Unit, str]] = {}
    with _exit_on_signal(), track(name, len(waiting), "units", quiet=quiet) as advance:
        try:
            while waiting or running:
                while waiting and free:
                    unit = waiting.pop(0)
                    device = free.pop(0)
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
            try:
                for process in running:
                    process.terminate()
                if running:
                    with contextlib.suppress(OSError):  # a closed terminal
                        echo("finishing the step; press Ctrl-C again to stop now", err=True)
                for process in running:
                    process.wait()
            finally:
                for process in running:
                    process.kill()
    return exit_codes
