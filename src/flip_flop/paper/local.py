"""Run the units of a study on this machine, one process for each unit; or export their commands."""

import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import torch

from flip_flop.console import echo, track
from flip_flop.files import write_text
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.run import BUSY, DONE, FAILED, STOPPED, SUPERVISED
from flip_flop.paper.units import Plan, Unit

# For a training run to end its step and write a checkpoint.
STOP_SECONDS = 180.0

EXPORT_HEAD = """\
# Study {study}: {total} units, each a training run with its audits or an audit of the base; {open} are not done.
# One after the other: sh {file}
# Four at a time: grep -v '^#' {file} | xargs -d '\\n' -P 4 -n 1 sh -c
# All use the first GPU, unless each line sets its own CUDA_VISIBLE_DEVICES.
# The weights are loaded in {dtype}. --device cpu or cuda, or --dtype, changes that.
"""


def worker_devices(device: str, jobs: int | None = None) -> list[str]:
    """Return the value of CUDA_VISIBLE_DEVICES for each worker: one GPU, or none. More workers share the GPUs."""
    available = 0 if device == "cpu" else torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(available))) if named is None else [name.strip() for name in named.split(",")]
    devices = [name for name in names if name][:available] or [""]
    return [devices[index % len(devices)] for index in range(jobs or len(devices))]


class LocalRun:
    """Run units in processes of ``command``, one for each device at a time. The output goes to their logs.

    Each unit has its own process: an error on a GPU, a lost process or a library's global state stays with it.
    The processes stop in order on a text on their standard input, and at once if this process is killed.
    """

    def __init__(self, folder: StudyFolder, command: Sequence[str], devices: Sequence[str]):
        self.folder, self.command = folder, command
        self._devices: SimpleQueue[str] = SimpleQueue()
        for device in devices:
            self._devices.put(device)
        self._pool = ThreadPoolExecutor(len(devices))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lock, self._is_stopping = threading.Lock(), False

    def run(self, plan: Plan, *, quiet: bool = False) -> list[Unit]:
        """Run the units that are not done, and return those that another process is running."""
        units = self.folder.open_units(plan)
        futures = {self._pool.submit(self._run_unit, unit): unit for unit in units}
        busy = []
        previous = signal.signal(signal.SIGTERM, lambda number, frame: exit(STOPPED))
        try:
            with track(plan.study.name, len(units), "units", quiet=quiet) as advance:
                for future in as_completed(futures):
                    busy += [futures[future]] if future.result() == BUSY else []
                    advance(1)
        finally:
            self._stop()
            signal.signal(signal.SIGTERM, previous)
        return busy

    def _run_unit(self, unit: Unit) -> int:
        device, log = self._devices.get(), self.folder.log(unit)
        log.parent.mkdir(parents=True, exist_ok=True)
        added = {"PYTHONUNBUFFERED": "1", SUPERVISED: "1", "CUDA_VISIBLE_DEVICES": device}
        try:
            with log.open("ab") as file, self._lock:
                if self._is_stopping:
                    return STOPPED
                process = subprocess.Popen(
                    [*self.command, "--unit", unit.name],
                    stdin=subprocess.PIPE,
                    stdout=file,
                    stderr=file,
                    env={**os.environ, **added},
                    start_new_session=True,  # Ctrl-C reaches only this process
                )
                self._processes.append(process)
            code = process.wait()
        finally:
            self._devices.put(device)
        if code not in (DONE, FAILED, BUSY) and not self._is_stopping:
            how = f"of signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
            cell = next((cell for cell in unit.cells if not self.folder.is_done(cell)), unit.cells[-1])
            self.folder.write_failures(unit, [f"{cell.kind} {cell.label}: the process ended {how}."])
        return code

    def _stop(self) -> None:
        """Ask all processes to stop, wait for them, and end those that do not."""
        with self._lock:
            self._is_stopping = True
        if any(process.poll() is None for process in self._processes):
            echo("finishing the step; press Ctrl-C again to stop now", err=True)
        previous = signal.signal(signal.SIGINT, lambda number, frame: self._kill())
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):  # it has ended
                    process.stdin.write(b"stop")
                    process.stdin.close()
        timer = threading.Timer(STOP_SECONDS, self._kill)
        timer.start()
        self._pool.shutdown(cancel_futures=True)
        timer.cancel()
        signal.signal(signal.SIGINT, previous)

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()


def export_commands(
    folder: StudyFolder, plan: Plan, command: Sequence[str], tables: Sequence[str], launcher: Sequence[str], out: Path
) -> int:
    """Write a command for each unit that is not done, and return their number. Any order works.

    ``launcher`` replaces the interpreter, the first word of ``command``, to train. ``tables`` writes the tables.
    """
    units, file = folder.open_units(plan), shlex.quote(out.name)
    names = {"study": plan.study.name, "total": len(plan.units), "open": len(units), "dtype": plan.setup.dtype}
    text = EXPORT_HEAD.format(file=file, **names)
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    for unit in units:
        start = launcher if unit.training and launcher else command[:1]
        words = [*start, *command[1:], "--unit", unit.name]
        text += f"{shlex.join(words)} >> {shlex.quote(str(folder.log(unit)))} 2>&1\n"
    write_text(out, f"{text}# At the end, tables and figures:\n# {shlex.join(tables)}\n")
    return len(units)
