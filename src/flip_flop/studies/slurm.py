"""The Slurm executor: arrays of trainings and of audits through submitit, watched until all is settled."""

import json
import logging
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import write_json
from flip_flop.studies.cells import DONE, FAILED, Outcome
from flip_flop.studies.drive import Settled, Summary
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.launched import cell_command
from flip_flop.studies.plan import Cell, Plan
from flip_flop.studies.slurm_task import SlurmTask

log = logging.getLogger("flip_flop")

# Between two looks at the queue: a tenth of the time since anything changed, within these bounds.
POLL_SECONDS = (5.0, 30.0)
# How often a job may run into its time limit: a training goes on from its checkpoint, an audit begins anew.
MAX_TIMEOUTS = {"train": 50, "audit": 1}
# A file written on another node may be seen late.
GRACE_SECONDS = 90.0


def slurm_parameters(options: Mapping[str, Any], more: Sequence[str]) -> dict[str, Any]:
    """What submitit is told, from the command line.

    Args:
        options: ``partition``, ``time``, ``gpus_per_node``, ``mem`` and the like; None is left to Slurm.
        more: ``KEY=VALUE`` for any other option of ``sbatch``.

    Raises:
        InputError: ``E-STUDY-SLURM``.

    Example:
        >>> slurm_parameters({"time": "1-02:00", "mem": None}, ["nice=10", "qos=low"])
        {'time': 1560, 'additional_parameters': {'nice': '10', 'qos': 'low'}}
    """
    found = {name: value for name, value in options.items() if value is not None}
    found["time"] = _minutes(str(found["time"]))
    extra = {}
    for text in more:
        name, separator, value = text.lstrip("-").partition("=")
        if not separator or not name:
            raise InputError("E-STUDY-SLURM", f"--slurm {text!r} is not KEY=VALUE.", "Write --slurm qos=low.")
        if name == "dependency":
            hint = "Start the study when what it has to wait for has ended."
            raise InputError("E-STUDY-SLURM", f"--slurm {text!r}: a study's jobs wait for one another.", hint)
        extra[name] = value
    return found | ({"additional_parameters": extra} if extra else {})


def _minutes(text: str) -> int:
    """Slurm's own forms: minutes, hours:minutes:seconds, minutes:seconds, days-hours:minutes."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text.strip())
    if match is None:
        raise InputError("E-STUDY-SLURM", f"--time {text!r} is no time.", "Write minutes, or 12:00:00, or 1-12:00.")
    days, *parts = (None if part is None else int(part) for part in match.groups())
    first, second, third = parts
    if days is not None:
        seconds = days * 86400 + (first or 0) * 3600 + (second or 0) * 60 + (third or 0)
    elif third is not None:
        seconds = (first or 0) * 3600 + (second or 0) * 60 + third
    else:
        seconds = (first or 0) * 60 + (second or 0)
    return max(1, -(-seconds // 60))


class SlurmDriver:
    """Submits a plan's cells and waits for them. Killed, it leaves them in the queue; started again, it finds them.

    Args:
        plan: The plan.
        folder: The folder of all studies, on a file system that all nodes share.
        command: The command of a cell, without its name.
        parameters: From :func:`slurm_parameters`.
        settled: Told of each cell that is settled, and what became of it.
        launcher: The words that start several processes for a training; an audit is one process's, with one GPU.
    """

    def __init__(
        self,
        plan: Plan,
        folder: StudyFolder,
        command: Sequence[str],
        parameters: Mapping[str, Any],
        settled: Settled,
        launcher: Sequence[str] = (),
    ):
        self.plan, self.folder, self.command, self.settled = plan, folder, list(command), settled
        self.parameters, self.launcher = dict(parameters), launcher
        self.place = folder.root / "slurm"
        self.jobs: dict[Cell, str] = {}
        self.gone_since: dict[Cell, float] = {}
        self.early: set[Cell] = set()
        self.summary = Summary()

    def run(self) -> Summary:
        """Submit what is neither done nor in the queue, and wait until all of it is settled."""
        _require_slurm()
        for cell in self.plan.cells:
            if self.folder.is_done(cell):
                self.summary.done.append(cell)
        self._find_jobs()
        self._submit()
        changed = time.monotonic()
        try:
            while self.jobs:
                if self._look():
                    changed = time.monotonic()
                if self.jobs:
                    shortest, longest = POLL_SECONDS
                    time.sleep(min(max((time.monotonic() - changed) / 10, shortest), longest))
        except KeyboardInterrupt:
            jobs = [job for cell, job in self.jobs.items() if cell not in self.early]
            log.info(
                "%d jobs stay in Slurm's queue. Run the same command to wait for them; scancel takes them out: %s",
                len(jobs),
                " ".join(sorted({job.partition("_")[0] for job in jobs})),
            )
            raise
        return self.summary

    def _find_jobs(self) -> None:
        """Jobs of an earlier driver that are still in the queue."""
        if len(self.summary.done) == len(self.plan.cells):
            return
        queued = _queue()
        if queued is None:
            hint = "Run the same command again when Slurm's controller is up."
            raise InputError("E-STUDY-SLURM", "squeue does not answer.", hint)
        for cell in self.plan.cells:
            job = self._newest_job(cell)
            if cell not in self.summary.done and job in queued:
                self.jobs[cell] = job

    def _newest_job(self, cell: Cell) -> str:
        """The job that a driver of this folder has submitted last; empty where none has."""
        path = self.place / f"{cell.name}.json"
        return str(json.loads(path.read_text(encoding="utf-8"))["job"]) if path.is_file() else ""

    def _submit(self) -> None:
        """One array of trainings, one of the audits that wait for none, and for each training one of its audits."""
        new = [cell for cell in self.plan.cells if cell not in self.summary.done and cell not in self.jobs]
        for cell in new:
            self.folder.forget_failure(cell)
        self._submit_array([cell for cell in new if cell.kind == "train"], "train")
        trainings = {cell.key: job for cell, job in self.jobs.items() if cell.kind == "train"}
        audits = [cell for cell in new if cell.kind == "audit"]
        self._submit_array([cell for cell in audits if cell.training not in trainings], "audit")
        # Each waits for its own training alone: another one may be queued again many times.
        for training, job in trainings.items():
            self._submit_array([cell for cell in audits if cell.training == training], "audit", after=job)

    def _submit_array(self, cells: list[Cell], kind: str, after: str | None = None) -> None:
        if not cells:
            return
        import submitit

        executor = submitit.SlurmExecutor(folder=self.place / "%j", max_num_timeout=MAX_TIMEOUTS[kind])
        one_gpu = {"gpus_per_node": 1} if kind == "audit" and self.parameters.get("gpus_per_node", 0) > 1 else {}
        try:
            executor.update_parameters(
                **{"job_name": f"{self.plan.study.name}-{kind}"[:60], "stderr_to_stdout": True}
                | self.parameters
                | one_gpu,
                # afterany: an audit whose training failed says so, and does not wait for ever.
                **({"dependency": f"afterany:{after}"} if after else {}),
            )
            with executor.batch():
                # A training has a job of its own, with its own time and GPUs: an audit's has neither.
                commands = [cell_command(cell, self.command, self.launcher, "refuse") for cell in cells]
                jobs = [executor.submit(SlurmTask(command)) for command in commands]
        except (subprocess.CalledProcessError, submitit.core.utils.FailedJobError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[-300:].rstrip(".")
            raise InputError(
                "E-STUDY-SLURM", f"sbatch refused the study's jobs: {reason}.", "See sbatch's own words."
            ) from error
        for cell, job in zip(cells, jobs, strict=True):
            self.jobs[cell] = job.job_id
            write_json(self.place / f"{cell.name}.json", {"job": job.job_id})

    def _look(self) -> bool:
        """Settle what has ended, and say whether anything changed."""
        queued, before = _queue(), (dict(self.jobs), len(self.gone_since))
        again = []
        for cell, job in list(self.jobs.items()):
            if self.folder.is_done(cell):
                self._settle(cell, Outcome(DONE, seconds=self._seconds(cell)))
            elif queued is None or job in queued or self.folder.claims.is_held(cell.name):
                self.gone_since.pop(cell, None)
            elif (newest := self._newest_job(cell) or job) != job:  # another driver has submitted it again
                self.jobs[cell] = newest
                self.gone_since.pop(cell, None)
            elif self._is_early(cell):
                self.early.add(cell)
                self.folder.forget_failure(cell)
            elif self._was_early(cell):
                again.append(cell)
            else:
                self._judge(cell, job)
        self._submit_again(again)
        return before != (self.jobs, len(self.gone_since))

    def _is_early(self, cell: Cell) -> bool:
        """Whether an audit's job is gone while its training goes on.

        Slurm may take a job that is queued again for one that has ended, and start what waits for its end.
        """
        training = self.plan.training_of(cell)
        return training is not None and training in self.jobs and not self.folder.is_done(training)

    def _was_early(self, cell: Cell) -> bool:
        """Whether an audit's job ended for want of a training that is done by now."""
        training = self.plan.training_of(cell)
        lacked = cell in self.early or self.folder.lacked_training(cell)
        return lacked and training is not None and self.folder.is_done(training)

    def _submit_again(self, cells: list[Cell]) -> None:
        """Submit audits that came too early; their trainings are done."""
        for cell in cells:
            self.folder.forget_failure(cell)
            self.early.discard(cell)
        try:
            self._submit_array(cells, "audit")
        except InputError as error:
            for cell in cells:
                self.folder.fail(cell, str(error))
                self._settle(cell, Outcome(FAILED, str(error)))

    def _judge(self, cell: Cell, job: str) -> None:
        """Settle what has failed, or has had no result for so long that none will come."""
        reason, since = self.folder.failure(cell), self.gone_since.setdefault(cell, time.monotonic())
        training = self.plan.training_of(cell)
        if training is not None and training in self.summary.failed:
            reason = reason or f"not run: {training.label} failed"
        if reason is not None or time.monotonic() - since > GRACE_SECONDS:
            self._settle(cell, Outcome(FAILED, reason or self._lost(cell, job)))

    def _lost(self, cell: Cell, job: str) -> str:
        words = f"its job {job} ended without a result; see {self.place / job}."
        if cell.kind == "audit":
            return f"{words} An audit that needs more than its time begins anew only once: raise --time."
        return f"{words} Run again, the training goes on from its last checkpoint."

    def _settle(self, cell: Cell, outcome: Outcome) -> None:
        del self.jobs[cell]
        if outcome.state == DONE:
            self.summary.done.append(cell)
        elif self.plan.training_of(cell) in self.summary.failed:
            self.summary.not_run.append(cell)
        else:
            self.summary.failed[cell] = str(outcome.reason)
        self.settled(cell, outcome)

    def _seconds(self, cell: Cell) -> float:
        record = json.loads((self.folder.run(cell) / "run.json").read_text(encoding="utf-8"))
        return float(record.get("seconds") or 0.0)


def _require_slurm() -> None:
    try:
        import submitit  # noqa: F401 - an extra: it may be absent
    except ImportError:
        hint = "Install the extra slurm: pip install -e '.[slurm]' in the project's folder."
        raise InputError("E-STUDY-SLURM", "--executor slurm needs submitit, which is not installed.", hint) from None
    for program in ("sbatch", "srun", "squeue"):
        if shutil.which(program) is None:
            hint = "Run it on a login node, or use --executor local, or --export."
            raise InputError("E-STUDY-SLURM", f"--executor slurm: there is no {program} here.", hint)


def _queue() -> set[str] | None:
    """The user's jobs that Slurm has not ended with, an array's one by one; None where it does not answer."""
    command = ["squeue", "--noheader", "--array", "--format=%i", "--me"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (subprocess.SubprocessError, OSError):
        return None
    return set(answer.stdout.split())
