"""The commands of a study's units: as lines of a file for any scheduler, or as an array job of Slurm."""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.files import read_object, write_json, write_text
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.plan import Plan, Unit

EXPORT = """\
# Study {study}: {total} units, each a training run with its audits or an audit of the base; {open} are not done.
# One after the other: sh {file}
# Four at a time: grep -v '^#' {file} | xargs -d '\\n' -P 4 -n 1 sh -c
# All use the first GPU, unless each line sets its own CUDA_VISIBLE_DEVICES.
# The weights are loaded in {dtype}. --device cpu or cuda, or --dtype, changes that.
{commands}
# At the end, tables and figures:
# {tables}
"""

# Slurm sends SIGTERM to the step, not to this script: when a pre-emption's grace begins, and 90 s before the time
# limit. Training stops with a checkpoint. A launcher then has a different exit code.
# Slurm itself requeues a job after a lost node or a pre-emption. The script requeues only a job that is still RUNNING,
# so not one that scancel or a pre-emption has ended, and at most 100 times: a training run may never reach its next
# checkpoint. The last job of an array has the array's SLURM_JOB_ID: requeueing that would run completed units again.
ARRAY = """\
#!/bin/bash
{options}
#SBATCH --requeue
#SBATCH --signal=TERM@90
#SBATCH --open-mode=append
# {count} units of study {study}, each a training run with its audits, or an audit of the base.
commands=(
{commands}
)
export PYTHONUNBUFFERED=1 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=${{TORCH_ELASTIC_SHUTDOWN_TIMEOUT:-75}}
step='trap "stopped=1" TERM; bash -c "$1" & wait $!; status=$?
[[ $stopped ]] && {{ wait $!; status=143; }}; exit $status'
srun --ntasks=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    bash -c "$step" step "exec ${{commands[$SLURM_ARRAY_TASK_ID]}}"
status=$?
job="${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID"
if [[ $status == 143 && ${{SLURM_RESTART_COUNT:-0}} -lt 100 ]] &&
    [[ $(squeue --noheader --jobs="$job" --format=%T) == RUNNING ]]; then
    echo "requeued, to continue from the last checkpoint"
    # Slurm ends this script. If the script ended first, the job could count as failed instead.
    scontrol requeue "$job" && sleep 300
fi
exit $status
"""
SET_BY_SCRIPT = ("array", "signal", "output", "requeue")


def export_commands(out: Path, plan: Plan, commands: Sequence[str], tables: Sequence[str]) -> None:
    """Write the commands of the units into a file, and after them the command ``tables`` as a comment."""
    write_text(
        out,
        EXPORT.format(
            study=plan.study.name,
            total=len(plan.units),
            open=len(commands),
            dtype=plan.setup.dtype,
            file=shlex.quote(out.name),
            commands="\n".join(commands),
            tables=shlex.join(tables),
        ),
    )


def sbatch_options(
    partition: str | None, time: str, gpus: int | None, mem: str | None, cpus: int | None, more: Sequence[str]
) -> dict[str, str]:
    """Make options of ``sbatch`` from the command line. ``more`` holds any further ones as ``KEY=VALUE``.

    Raises:
        InputError: ``E-STUDY-SLURM``.

    Example:
        >>> sbatch_options(None, "1-02:00", 0, None, 4, ["nice=10"])
        {'time': '1-02:00', 'cpus-per-task': '4', 'nice': '10'}
    """
    options = {
        "partition": partition,
        "time": time,
        "gpus-per-node": 1 if gpus is None else gpus or None,
        "mem": mem,
        "cpus-per-task": cpus,
    }
    for text in more:
        name, _, value = text.lstrip("-").partition("=")
        if not name or not value or name in SET_BY_SCRIPT:
            raise InputError(
                "E-STUDY-SLURM",
                f"--slurm {text!r} is not KEY=VALUE, or is not free.",
                f"Write --slurm qos=low. The study's script sets {', '.join(SET_BY_SCRIPT)}.",
            )
        options[name] = value
    return {name: str(value) for name, value in options.items() if value is not None}


def submit(
    folder: StudyFolder,
    plan: Plan,
    commands: Mapping[Unit, str],
    tables: Sequence[str],
    options: dict[str, str],
    max_jobs: int,
) -> list[str]:
    """Submit an array of the commands of units that are not in the queue, then a job of the command ``tables``.

    Returns:
        The job numbers; none if all units are in the queue.
    """
    if shutil.which("sbatch") is None:
        raise InputError(
            "E-STUDY-SLURM",
            "--executor slurm: there is no sbatch here.",
            "Run it on a login node, or use --executor local, or --export.",
        )
    jobs = folder.root / "slurm"
    name = plan.study.name
    queued = _queued(jobs)
    units = [unit for unit in commands if unit.name not in queued]
    if not units:
        return []
    array = {"job-name": name, "array": f"0-{len(units) - 1}%{max_jobs}", "output": str(jobs / "%A_%a.log")}
    lines = [f"    {shlex.quote(commands[unit])}" for unit in units]
    script = ARRAY.format(options=_lines(array | options), study=name, count=len(units), commands="\n".join(lines))
    number = _sbatch(jobs / f"{folder.study(plan).name}.sh", script)
    write_json(jobs / f"{number}.json", {"units": [unit.name for unit in units]})
    options = {key: value for key, value in options.items() if key not in ("gpus-per-node", "mem")}
    options |= {"job-name": f"{name}-tables", "dependency": f"afterany:{number}", "output": str(jobs / "%j.log")}
    script = f"#!/bin/bash\n{_lines(options)}\nexec {shlex.join(tables)}\n"
    return [number, _sbatch(jobs / f"{folder.study(plan).name}-tables.sh", script)]


def _lines(options: dict[str, str]) -> str:
    return "\n".join(f"#SBATCH --{name}={shlex.quote(value)}" for name, value in options.items())


def _sbatch(path: Path, script: str) -> str:
    write_text(path, script)
    return _slurm("sbatch", "--parsable", str(path)).strip().partition(";")[0]


def _queued(jobs: Path) -> set[str]:
    """Return the names of the units that an earlier command has submitted and Slurm has not ended."""
    names = set()
    for job in _slurm("squeue", "--noheader", "--array", "--format=%i", "--me").split():
        number, _, index = job.partition("_")
        if index.isdigit() and (record := read_object(jobs / f"{number}.json")):
            names.add(record["units"][int(index)])
    return names


def _slurm(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (subprocess.SubprocessError, OSError) as error:
        reason = " ".join(str(getattr(error, "stderr", None) or "it does not answer").split())[-300:].rstrip(".")
        raise InputError(
            "E-STUDY-SLURM",
            f"{shlex.join(command)}: {reason}.",
            "Correct the option, or run the same command again when Slurm's controller is up.",
        ) from None
