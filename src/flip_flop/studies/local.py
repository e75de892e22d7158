"""Units on this machine: a process for each, as many at a time as there are GPUs, or one on the CPU; or commands."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from flip_flop.files import write_text
from flip_flop.studies.plan import Unit
from flip_flop.studies.tracker import Tracker
from flip_flop.studies.work import BUSY, RETRY_SECONDS, STOPPED, SUPERVISED, terminable, waiting_for

# Between two looks at the workers.
POLL_SECONDS = 0.2
# For all workers together: each may have to end a step and write a checkpoint.
STOP_SECONDS = 180.0

EXPORT_HEAD = """\
# Study {study}: {total} units, each a training with its audits or an audit of the base; {open} are not done.
# One after the other: sh {file}
# Four at a time: grep -v '^#' {file} | xargs -d '\\n' -P 4 -n 1 sh -c
# Several at a time on a machine with GPUs: all take the first one, unless each line is given one of its own,
# with CUDA_VISIBLE_DEVICES.
# The weights are loaded in {dtype}; --device cpu or cuda, or --dtype, decides that.
"""


def export_commands(
    tracker: Tracker, command: Sequence[str], tables: Sequence[str], out: Path, launcher: Sequence[str] = ()
) -> int:
    """Write a command for each unit that is not done, to be run in any order, and return their number.

    ``command`` runs a unit, whose name follows; a training's ``launcher`` stands in its first word's place, which is
    the interpreter. ``tables`` is the command that writes the tables.
    """
    plan, folder, file = tracker.plan, tracker.folder, shlex.quote(out.name)
    study, total, dtype = plan.study.name, len(plan.units), plan.setup.dtype
    text = EXPORT_HEAD.format(study=study, total=total, open=len(tracker.open), file=file, dtype=dtype)
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    for unit in tracker.open:
        start = launcher if unit.training else ()
        words = [*start, *command[1 if start else 0 :], unit.name]
        text += f"{shlex.join(words)} >> {shlex.quote(str(folder.log(unit)))} 2>&1\n"
    write_text(out, f"{text}# At the end, tables and figures:\n# {shlex.join(tables)}\n")
    return len(tracker.open)


def worker_environments(device: str, count: int | None = None) -> list[dict[str, str]]:
    """What the environment of each worker adds: its GPU, or none; on GPUs another number of workers takes turns."""
    available = 0 if device == "cpu" else torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = list(map(str, range(available))) if named is None else [name.strip() for name in named.split(",")]
    devices = [name for name in names if name][:available] or [""]
    return [{"CUDA_VISIBLE_DEVICES": devices[index % len(devices)]} for index in range(count or len(devices))]


class LocalExecutor:
    """Runs a tracker's units in processes of this machine, one at a time for each environment."""

    def __init__(self, tracker: Tracker, command: Sequence[str], environments: Sequence[Mapping[str, str]]):
        self.tracker, self.command, self.environments = tracker, command, environments
        self.folder = tracker.folder
        self.workers: dict[int, tuple[Unit, subprocess.Popen[bytes]]] = {}
        self.pending = list(tracker.open)

    def run(self) -> None:
        """Run every unit that is not done, and wait for those that other processes are at work on."""
        with terminable():
            try:
                while self.pending or self.workers:
                    for index, environment in enumerate(self.environments):
                        if index not in self.workers and (unit := self._next()) is not None:
                            self.workers[index] = (unit, self._start(unit, environment))
                    time.sleep(POLL_SECONDS if self.workers else RETRY_SECONDS if self.pending else 0)
                    self.tracker.look([unit for unit, _ in self.workers.values()])
                    for index, (unit, process) in list(self.workers.items()):
                        if (status := process.poll()) is not None:
                            process.communicate()  # closes its input
                            del self.workers[index]
                            self._on_exit(unit, status)
            finally:
                self._stop()

    def _next(self) -> Unit | None:
        """The first unit that can be run now."""
        self.tracker.look(self.pending)  # another process may have done it meanwhile, or have failed
        self.pending = [unit for unit in self.pending if unit in self.tracker.open]
        for unit in self.pending:
            if not self.folder.leases.is_held(unit.name):
                self.pending.remove(unit)
                return unit
            self.tracker.say("%s", waiting_for(self.folder, unit))
        return None

    def _start(self, unit: Unit, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        path = self.folder.log(unit)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as log:
            # A session of its own: Ctrl-C reaches this process, which asks its workers to stop.
            return subprocess.Popen(
                [*self.command, unit.name],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1", SUPERVISED: "1", **environment},
                start_new_session=True,
            )

    def _on_exit(self, unit: Unit, status: int) -> None:
        self.tracker.look([unit])
        if status == BUSY:
            self.pending.append(unit)
        elif unit in self.tracker.open:
            how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"
            reason = "it was stopped by a signal" if status == STOPPED else f"the worker died of {how}"
            self.tracker.give_up(unit, f"{reason}.")

    def _stop(self) -> None:
        processes = [process for _, process in self.workers.values()]
        for process in processes:
            process.terminate()
        over = time.monotonic() + STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.0, over - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
            process.communicate()  # closes its input
