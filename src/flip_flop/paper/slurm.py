"""Submit a study to Slurm: one array of units, and a dependent job that writes the tables. Slurm does the rest."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.files import read_object, write_json, write_text
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.units import Plan, Unit

# Slurm signals a job before the end of its time, up to a minute earlier than asked.
LEAD_SECONDS, LEAD_TOLERANCE = 90, 60
# A training run that never reaches its next checkpoint must not be requeued forever.
MAX_RESTARTS = 100

SCRIPT = """\
#!/bin/bash
{options}
#SBATCH --requeue
# {count} units of study {study}, each a training run with its audits, or an audit of the base.
units=(
{units}
)
unit=${{units[$SLURM_ARRAY_TASK_ID]}}
mkdir -p {logs}
exec >> {logs}/"$unit".log 2>&1
export PYTHONUNBUFFERED=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${{TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-75}}

# Slurm sends SIGTERM to the step, not to this script: when a pre-emption's grace begins, and {lead} s before the time
# limit. Training stops with a checkpoint. A launcher then has a different exit code.
step='trap "stopped=1" TERM; "$@" & wait $!; status=$?; [[ $stopped ]] && {{ wait $!; status=143; }}; exit $status'
srun --ntasks=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    bash -c "$step" step {command} --unit "$unit"
status=$?

# Slurm itself requeues a job after a lost node or a pre-emption. The script requeues only a job that is still RUNNING,
# so not one that scancel or a pre-emption has ended. The last job of an array has the array's SLURM_JOB_ID: requeueing
# that would run completed units again.
job="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
if [[ $status == 143 && ${{SLURM_RESTART_COUNT:-0}} -lt {restarts} ]] &&
    [[ $(squeue --noheader --jobs="$job" --format=%T) == RUNNING ]]; then
    echo "requeued, to continue from the last checkpoint"
    # Slurm ends this script. If the script ended first, the job could count as failed instead.
    scontrol requeue "$job" && sleep 300
fi
exit $status
"""


def sbatch_directives(
    partition: str | None, time: str, gpus: int | None, mem: str | None, cpus: int | None, slurm: Sequence[str]
) -> dict[str, str]:
    """Make options of ``sbatch`` from the command line. ``slurm`` holds any further ones as ``KEY=VALUE``.

    Raises:
        InputError: ``E-STUDY-SLURM``.

    Example:
        >>> sbatch_directives(None, "1-02:00", 0, None, 4, ["nice=10"])
        {'time': '1-02:00', 'cpus-per-task': '4', 'nice': '10'}
    """
    if (seconds := _seconds(time.strip())) is None:
        raise InputError("E-STUDY-SLURM", f"Invalid --time {time!r}.", "Write minutes, or 12:00:00, or 1-12:00.")
    if seconds <= LEAD_SECONDS + LEAD_TOLERANCE:
        message = f"--time {time} is too short: Slurm would stop each job {LEAD_SECONDS} s before its end."
        raise InputError("E-STUDY-SLURM", message, "Give at least three minutes.")
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


def _seconds(time: str) -> int | None:
    """Read a time limit in one of Slurm's formats; None if it has none of them."""
    if re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", time) is None:
        return None
    days, dash, rest = time.rpartition("-")
    parts = [int(part) for part in rest.split(":")]
    parts = [0] * (len(parts) < 3 and not dash) + parts  # minutes come first without days or hours
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


class SlurmArray:
    """The jobs of a study.

    ``command`` runs a unit with ``--unit``. For training runs ``launcher`` replaces its first word, the interpreter.
    """

    def __init__(
        self,
        folder: StudyFolder,
        plan: Plan,
        command: Sequence[str],
        directives: dict[str, str],
        max_jobs: int,
        launcher: Sequence[str] = (),
    ):
        for program in ("sbatch", "srun", "squeue"):
            if shutil.which(program) is None:
                hint = "Run it on a login node, or use --executor local, or --export."
                raise InputError("E-STUDY-SLURM", f"--executor slurm: there is no {program} here.", hint)
        self.folder, self.plan, self.command, self.directives = folder, plan, command, directives
        self.max_jobs, self.launcher = max_jobs, launcher
        self.jobs = folder.root / "slurm"

    def submit(self, units: Sequence[Unit], tables: Sequence[str]) -> list[str]:
        """Submit the units that are not in the queue, then a job of the command ``tables``. Return the job numbers.

        With a launcher there are two arrays, as an audit of the base is one process.
        """
        queued = self._queued()
        numbers = []
        for is_launched in (False, True):
            chosen = [unit for unit in units if (bool(self.launcher) and unit.training is not None) == is_launched]
            chosen = [unit for unit in chosen if unit.name not in queued]
            if chosen:
                script = self._path("-launched" if is_launched else "")
                write_text(script, self.script(chosen, is_launched=is_launched))
                numbers.append(self._sbatch(script))
                write_json(self.jobs / f"{numbers[-1]}.json", {"units": [unit.name for unit in chosen]})
        if numbers:
            kept = {name: value for name, value in self.directives.items() if name not in ("gpus-per-node", "mem")}
            kept |= {"job-name": f"{self.plan.study.name}-tables", "dependency": f"afterany:{':'.join(numbers)}"}
            script = self._path("-tables")
            options = _options(kept | {"output": str(self.jobs / "%j.log")})
            write_text(script, f"#!/bin/bash\n{options}\nexec {shlex.join(tables)}\n")
            numbers.append(self._sbatch(script))
        return numbers

    def script(self, units: Sequence[Unit], *, is_launched: bool) -> str:
        """Render the array script. Units that are not launched are one process with at most one GPU."""
        directives = {
            "job-name": self.plan.study.name,
            "array": f"0-{len(units) - 1}%{self.max_jobs}",
            "signal": f"TERM@{LEAD_SECONDS}",
            "open-mode": "append",
            "output": str(self.jobs / "%A_%a.log"),
        } | self.directives
        if self.launcher and not is_launched and "gpus-per-node" in directives:
            directives["gpus-per-node"] = "1"
        start = self.launcher if is_launched else self.command[:1]
        return SCRIPT.format(
            options=_options(directives),
            study=self.plan.study.name,
            count=len(units),
            units="\n".join(f"    {shlex.quote(unit.name)}" for unit in units),
            logs=shlex.quote(str(self.folder.root / "logs")),
            command=shlex.join([*start, *self.command[1:]]),
            lead=LEAD_SECONDS,
            restarts=MAX_RESTARTS,
        )

    def _path(self, suffix: str) -> Path:
        return self.jobs / f"{self.folder.study(self.plan).name}{suffix}.sh"

    def _sbatch(self, script: Path) -> str:
        done = subprocess.run(["sbatch", "--parsable", str(script)], capture_output=True, text=True)
        if done.returncode:
            reason = " ".join(done.stderr.split())[-300:].rstrip(".")
            raise InputError("E-STUDY-SLURM", f"sbatch refused {script}: {reason}.", "Correct the option.")
        return done.stdout.strip().partition(";")[0]

    def _queued(self) -> set[str]:
        """Return the names of the units that an earlier command has submitted and Slurm has not ended."""
        command = ["squeue", "--noheader", "--array", "--format=%i", "--me"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        except (subprocess.SubprocessError, OSError):
            hint = "Run the same command again when Slurm's controller is up."
            raise InputError("E-STUDY-SLURM", "squeue does not answer.", hint) from None
        found = set()
        for job in done.stdout.split():
            number, _, index = job.partition("_")
            if index.isdigit() and (record := read_object(self.jobs / f"{number}.json")):
                found.add(record["units"][int(index)])
        return found


def _options(directives: dict[str, str]) -> str:
    return "\n".join(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in directives.items())
