"""Units on this machine: worker processes, as many as there are GPUs, or one on the CPU; or commands to be run."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from flip_flop.files import write_text
from flip_flop_paper.leases import Holder
from flip_flop_paper.tracker import Tracker
from flip_flop_paper.work import BUSY, DONE, STOPPED, SUPERVISED, terminable, waiting_for

# Between two looks at the workers.
POLL_SECONDS = 0.5
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

    ``command`` runs a unit with ``--unit`` and its name; a training's ``launcher`` stands in its first word's place,
    which is the interpreter. ``tables`` is the command that writes the tables.
    """
    plan, folder, file = tracker.plan, tracker.folder, shlex.quote(out.name)
    study, total, dtype = plan.study.name, len(plan.units), plan.setup.dtype
    text = EXPORT_HEAD.format(study=study, total=total, open=len(tracker.open), file=file, dtype=dtype)
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    for unit in tracker.open:
        start = launcher if unit.training and launcher else command[:1]
        words = [*start, *command[1:], "--unit", unit.name]
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
    """Keeps a worker for each environment running until all units of a tracker are settled, by whichever process.

    A worker is a process of ``command``, see :func:`~flip_flop_paper.work.run_open_units`. One that ends early is
    replaced; if it died, the unit that it was at work on has failed.
    """

    def __init__(self, tracker: Tracker, command: Sequence[str], environments: Sequence[Mapping[str, str]]):
        self.tracker, self.command, self.environments = tracker, command, environments
        self.leases = tracker.folder.leases
        self.workers: dict[int, tuple[subprocess.Popen[bytes], Holder]] = {}

    def run(self) -> None:
        """Run every unit that is not done, and wait for those that other processes are at work on."""
        with terminable():
            try:
                while self.tracker.open or self.workers:
                    for index, environment in enumerate(self.environments):
                        if index not in self.workers and len(self.workers) < len(self.tracker.open):
                            self.workers[index] = self._start(environment)
                    time.sleep(POLL_SECONDS)
                    self.tracker.look()
                    for index, (process, holder) in list(self.workers.items()):
                        if process.poll() is not None:
                            process.communicate()  # closes its input
                            del self.workers[index]
                            self._on_exit(process.returncode, holder)
                    self._name_others()
            finally:
                self._stop()

    def _start(self, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Holder]:
        # A session of its own: Ctrl-C reaches this process, which asks its workers to stop.
        worker = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": "1", SUPERVISED: "1", **environment},
            start_new_session=True,
        )
        return worker, Holder.of(worker.pid)

    def _on_exit(self, status: int, holder: Holder) -> None:
        self.tracker.look()
        if status in (DONE, BUSY):
            return
        how = f"died of signal {signal.Signals(-status).name}" if status < 0 else f"died of exit status {status}"
        how = "was stopped by a signal" if status == STOPPED else how
        free = [unit for unit in self.tracker.open if not self.leases.is_held(unit.name)]
        left = self.leases.left_by(holder)
        # Of a worker that died before it had a unit it is the first one, or all would be tried for ever.
        for unit in [unit for unit in free if unit.name in left] if left else free[:1]:
            with self.leases.acquire(unit.name) as is_ours:  # or another worker has begun it meanwhile
                if is_ours:
                    self.tracker.give_up(unit, f"the worker {how}.")
        self.tracker.look()

    def _name_others(self) -> None:
        """Say which units are waited for that other processes are at work on."""
        own = {holder for _, holder in self.workers.values()}
        for unit in self.tracker.open:
            if self.leases.is_held(unit.name) and self.leases.holder(unit.name) not in own:
                self.tracker.say("%s", waiting_for(self.tracker.folder, unit))

    def _stop(self) -> None:
        """Ask all workers at once."""
        for process, _ in self.workers.values():
            if process.stdin is not None:
                process.stdin.close()
        over = time.monotonic() + STOP_SECONDS
        for process, _ in self.workers.values():
            try:
                process.wait(max(0.0, over - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
