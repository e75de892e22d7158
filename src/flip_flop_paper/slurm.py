"""The Slurm executor: an array script, submitted with sbatch and watched until all its units are settled."""

import json
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.files import write_json, write_text
from flip_flop_paper.plan import Unit
from flip_flop_paper.tracker import Tracker

# Between two looks at the queue.
POLL_SECONDS = 10.0
# A file that was written on another node may be seen late.
GRACE_SECONDS = 90.0
# How often a job may be queued again before its end: trainings go on from checkpoints, and one that never gets to the
# next checkpoint must not try for ever.
MAX_RESTARTS = 100

SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
# {count} units of study {study}, each a training with its audits, or an audit of the base.
units=(
{units}
)
unit=${{units[$SLURM_ARRAY_TASK_ID]}}
mkdir -p {logs}
exec >> {logs}/"$unit".log 2>&1
export PYTHONUNBUFFERED=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${{TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-75}}

# Slurm sends SIGTERM to a job's step, not to this script: at the beginning of a pre-emption's grace, and {warning} s
# before the time limit. Training stops with a checkpoint; a launcher then ends with a status of its own.
step='trap "stopped=1" TERM; "$@" & wait $!; status=$?; [[ $stopped ]] && {{ wait $!; status=143; }}; exit $status'
srun --ntasks=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    bash -c "$step" step {command} --unit "$unit"
status=$?

# A job that scancel has ended, or a pre-emption without grace, is not RUNNING any more.
if [[ $status == 143 && ${{SLURM_RESTART_COUNT:-0}} -lt {restarts} ]] &&
    [[ $(squeue --noheader --jobs="$SLURM_JOB_ID" --format=%T) == RUNNING ]]; then
    echo "queued again, to go on from the last checkpoint"
    # Slurm ends this script. Were it to end first, the job could count as failed, and would not be queued again.
    scontrol requeue "$SLURM_JOB_ID" && sleep 300
fi
exit $status
"""
WARNING_SECONDS = 90


def sbatch_directives(
    partition: str | None, time: str, gpus: int | None, mem: str | None, cpus: int | None, slurm: Sequence[str]
) -> dict[str, str]:
    """Options of ``sbatch`` from those of the command line; ``slurm`` holds ``KEY=VALUE`` for any other one.

    Raises:
        InputError: ``E-STUDY-SLURM``.

    Example:
        >>> sbatch_directives(None, "1-02:00", 0, None, 4, ["nice=10"])
        {'time': '1-02:00', 'cpus-per-task': '4', 'nice': '10'}
    """
    if re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time.strip()) is None:
        raise InputError("E-STUDY-SLURM", f"Invalid --time {time!r}.", "Write minutes, or 12:00:00, or 1-12:00.")
    given = {"partition": partition, "time": time.strip(), "gpus-per-node": 1 if gpus is None else gpus or None}
    given |= {"mem": mem, "cpus-per-task": cpus}
    for text in slurm:
        name, separator, value = text.lstrip("-").partition("=")
        if not separator or not name:
            raise InputError("E-STUDY-SLURM", f"--slurm {text!r} is not KEY=VALUE.", "Write --slurm qos=low.")
        if name in ("array", "signal", "output", "requeue"):
            raise InputError("E-STUDY-SLURM", f"--slurm {text!r}: the study's script sets it.", "Leave it out.")
        given[name] = value
    return {name: str(value) for name, value in given.items() if value is not None}


@dataclass
class SlurmExecutor:
    """Submits the units of a plan and waits for them. Killed, it leaves them in the queue; run again, it finds them.

    The folder is on a file system that all nodes share. ``command`` runs a unit with ``--unit`` and its name; a
    training's ``launcher`` stands in its first word's place, which is the interpreter.
    """

    tracker: Tracker
    command: Sequence[str]
    directives: Mapping[str, str]
    max_jobs: int
    launcher: Sequence[str] = ()

    def __post_init__(self):
        self.folder, self.plan = self.tracker.folder, self.tracker.plan
        self.jobs = self.folder.root / "slurm"
        self.gone_since: dict[Unit, float] = {}

    def run(self) -> None:
        """Submit what is neither done nor in the queue, and wait until all of it is settled."""
        for program in ("sbatch", "srun", "squeue"):
            if shutil.which(program) is None:
                hint = "Run it on a login node, or use --executor local, or --export."
                raise InputError("E-STUDY-SLURM", f"--executor slurm: there is no {program} here.", hint)
        if not self.tracker.open:
            return
        queued = _queue()
        if queued is None:
            hint = "Run the same command again when Slurm's controller is up."
            raise InputError("E-STUDY-SLURM", "squeue does not answer.", hint)
        self._submit([unit for unit in self.tracker.open if self._job(unit) not in queued])
        try:
            while self._look():
                time.sleep(POLL_SECONDS)
        except KeyboardInterrupt:
            left = sorted({self._job(unit).partition("_")[0] for unit in self.tracker.open})
            words = "Jobs stay in Slurm's queue. Run the same command to wait for them; scancel takes them out: %s"
            self.tracker.say(words, " ".join(left))
            raise

    def script(self, units: Sequence[Unit], *, is_launched: bool) -> str:
        """The array script of these units; one process of those that are not launched needs one GPU."""
        directives = {
            "job-name": self.plan.study.name,
            "array": f"0-{len(units) - 1}%{self.max_jobs}",
            "signal": f"TERM@{WARNING_SECONDS}",
            "open-mode": "append",
            "output": str(self.jobs / "%A_%a.log"),
        } | dict(self.directives)
        if self.launcher and not is_launched and "gpus-per-node" in directives:
            directives["gpus-per-node"] = "1"
        start = self.launcher if is_launched else self.command[:1]
        return SCRIPT.format(
            options="\n".join(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in directives.items()),
            study=self.plan.study.name,
            count=len(units),
            units="\n".join(f"    {shlex.quote(unit.name)}" for unit in units),
            logs=shlex.quote(str(self.folder.root / "logs")),
            command=shlex.join([*start, *self.command[1:]]),
            warning=WARNING_SECONDS,
            restarts=MAX_RESTARTS,
        )

    def _submit(self, units: Sequence[Unit]) -> None:
        """Submit an array of all, or where a launcher starts trainings, one of these and one of the base's audits."""
        for is_launched in (False, True):
            chosen = [unit for unit in units if (bool(self.launcher) and unit.training is not None) == is_launched]
            if not chosen:
                continue
            path = self.jobs / f"{self.folder.study(self.plan).name}{'-launched' if is_launched else ''}.sh"
            write_text(path, self.script(chosen, is_launched=is_launched))
            done = subprocess.run(["sbatch", "--parsable", str(path)], capture_output=True, text=True)
            if done.returncode:
                reason = " ".join(done.stderr.split())[-300:].rstrip(".")
                raise InputError("E-STUDY-SLURM", f"sbatch refused {path}: {reason}.", "See sbatch's own words.")
            job = done.stdout.strip().partition(";")[0]
            for index, unit in enumerate(chosen):
                record = {"job": f"{job}_{index}", "cells": [cell.key for cell in unit.cells]}
                write_json(self.jobs / f"{unit.name}.json", record)

    def _job(self, unit: Unit) -> str:
        """The job that a run in this folder has submitted last for these cells; empty where none has."""
        try:
            record = json.loads((self.jobs / f"{unit.name}.json").read_text(encoding="utf-8"))
            return str(record["job"]) if {cell.key for cell in unit.cells} <= set(record["cells"]) else ""
        except (OSError, ValueError, KeyError):
            return ""

    def _look(self) -> bool:
        """Settle what has ended, and say whether anything is left."""
        self.tracker.look()
        queued = _queue()
        for unit in list(self.tracker.open):
            job = self._job(unit)
            if queued is None or job in queued or self.folder.leases.is_held(unit.name):
                self.gone_since.pop(unit, None)
            elif time.monotonic() - self.gone_since.setdefault(unit, time.monotonic()) > GRACE_SECONDS:
                reason = f"its job {job} ended without a result; see {self.jobs / job}.log, too."
                self.tracker.give_up(unit, f"{reason} Run again, a training goes on from its last checkpoint.")
        return bool(self.tracker.open)


def _queue() -> set[str] | None:
    """The user's jobs that Slurm has not ended with, an array's one by one; None where it does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i", "--me"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return set(answer.stdout.split())
