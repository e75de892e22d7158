"""``flip-flop study``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from flip_flop.cli.options import options
from flip_flop.console import echo
from flip_flop.errors import InputError
from flip_flop.method.settings import TrainingProtocol
from flip_flop.paper.study_options import GridOptions, RunOptions, model_path, out_option

if TYPE_CHECKING:
    from flip_flop.paper.folder import StudyFolder
    from flip_flop.paper.units import Plan

# Other processes run this installation, and not the first one on the path.
PROGRAM = [sys.executable, "-m", "flip_flop", "study"]

IN_QUEUE = "All units that are not done are in Slurm's queue already."

model_option = click.option("--model", "-m", help="As for `run`. Required if the study was run with several.")
protocol_option = click.option("--protocol", type=click.Choice(get_args(TrainingProtocol)), help="As for `run`.")


@click.group("study", short_help="The paper's studies as grids: plan, run, status, tables.")
def study_command() -> None:
    """Run the paper's studies, or your studies, as grids of training runs and audits.

    NAME is a shipped study, or the path of a YAML file. Shipped: study1 (Table 1), study2 (Table 2 and heat maps),
    study3 (held-out templates), base_spread (the appendix's box plot), smoke (the embedded model, minutes).
    """


@study_command.command("plan", short_help="List the cells; no model is loaded.")
@click.argument("name")
@options(GridOptions)
@out_option
def plan_command(grid: GridOptions, name: str, out: Path) -> int:
    """List a study's cells, and whether each is done. No model is loaded, and the hub is not contacted."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, below
    echo(f"reading study {name}", err=True)
    from flip_flop.paper.folder import StudyFolder
    from flip_flop.paper.preview import plan_lines

    study, setup = grid.study(name)
    for line in plan_lines(study, setup.with_dtype(on_gpu=_on_gpu(setup.device)), StudyFolder(out)):
        echo(line)
    return 0


@study_command.command("run", short_help="Run all open units, then write tables and figures.")
@click.argument("name")
@options(GridOptions, RunOptions)
@out_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def run_command(grid: GridOptions, how: RunOptions, name: str, out: Path, quiet: bool) -> int:
    """Run every unit of a study that is not done, then write its tables and figures.

    A unit is a training run with its audits, or an audit of the base. To continue an interrupted study, run the same
    command again: training runs continue from their checkpoints, and completed cells are skipped. The exit code is 1 if
    cells failed, and the output names each with its log. With --executor slurm the command submits units and returns.
    """
    from flip_flop.paper.digests import make_plan
    from flip_flop.paper.folder import StudyFolder
    from flip_flop.paper.local import export_commands
    from flip_flop.paper.slurm import SlurmArray, sbatch_directives
    from flip_flop.paper.study_file import study_names

    _refuse_to_be_launched("Give the study the launcher: --launcher 'accelerate launch ...'.")
    launcher = how.launcher_words()
    study, setup = grid.study(name)
    gpus = 0 if how.gpus is None and setup.device == "cpu" else how.gpus
    directives = sbatch_directives(how.partition, how.time, gpus, how.mem, how.cpus, how.slurm)
    on_gpu = how.executor == "slurm" or _on_gpu(setup.device) if gpus is None else gpus > 0
    if how.export is not None and gpus is None and not on_gpu and setup.dtype == "auto":
        message = "--export without --dtype or --device: this machine has no GPU, but the commands may run on one."
        raise InputError("E-MODEL-DTYPE", message, "Give --device cpu or cuda, or --dtype.")
    folder, plan = StudyFolder(out), make_plan(study, setup.with_dtype(on_gpu=on_gpu))
    command = [*PROGRAM, "work", str(folder.write_plan(plan))]
    named = name if name in study_names() else str(Path(name).resolve())
    tables = [*PROGRAM, "tables", named, "--model", setup.model, "--protocol", study.protocol]
    tables += ["--out", str(folder.root)]
    if how.export is not None:
        number = export_commands(folder, plan, command, tables, launcher, how.export)
        echo(f"{how.export}: {number} commands")
        return 0
    units = folder.open_units(plan)
    if not quiet:
        echo(f"{study.name}: {len(plan.units)} units, {len(plan.units) - len(units)} of them done", err=True)
    if how.executor == "slurm" and units:
        numbers = SlurmArray(folder, plan, command, directives, how.max_jobs, launcher).submit(units, tables)
        echo(f"submitted to Slurm: {', '.join(numbers)}; the last job writes the tables" if numbers else IN_QUEUE)
        return 0
    return _run_here(folder, plan, command, how.jobs, quiet)


@study_command.command("work", short_help="Run one unit of a plan, or all that are not done.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--unit", help="The unit's name. By default all that are not done, one after the other.")
def work_command(plan: Path, unit: str | None) -> int:
    """Run units of a plan, OUT/<study>/plans/<digest>.json. `run`, its Slurm jobs and its exported commands use this.

    The exit code is 1 if a cell failed, 75 if another process is running the unit, and 143 if a signal stopped it.
    """
    from flip_flop.paper.folder import StudyFolder, load_plan, root_of
    from flip_flop.paper.run import run_unit

    found, folder = load_plan(plan), StudyFolder(root_of(plan))
    if unit is None:
        _refuse_to_be_launched("Name one with --unit, or leave out the launcher.")
        return _run_here(folder, found, [*PROGRAM, "work", str(plan)], 1, quiet=False)
    return run_unit(found, folder, found.unit(unit))


@study_command.command("status", short_help="Count done, failed and open cells.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def status_command(name: str, model: str | None, protocol: str | None, out: Path) -> int:
    """Count the cells of the last run of a study by task: done, failed and open. List failures with their logs."""
    from flip_flop.paper.folder import StudyFolder
    from flip_flop.paper.preview import status_lines

    folder = StudyFolder(out)
    for line in status_lines(_last_run(folder, name, model, protocol), folder):
        echo(line)
    return 0


@study_command.command("tables", short_help="Write tables and figures of completed cells.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def tables_command(name: str, model: str | None, protocol: str | None, out: Path) -> int:
    """Write the tables and figures of the completed cells in the last run of a study."""
    from flip_flop.paper.folder import StudyFolder

    folder = StudyFolder(out)
    _write_outputs(folder, _last_run(folder, name, model, protocol), quiet=False)
    return 0


def _refuse_to_be_launched(hint: str) -> None:
    from flip_flop.paper.run import num_processes

    if num_processes() > 1:
        message = f"A launcher has started {num_processes()} processes, but one process must run the study."
        raise InputError("E-DISTRIBUTED", message, hint)


def _run_here(folder: "StudyFolder", plan: "Plan", command: list[str], jobs: int | None, quiet: bool) -> int:
    from flip_flop.paper.local import LocalRun, worker_devices
    from flip_flop.paper.preview import error_lines

    busy = LocalRun(folder, command, worker_devices(plan.setup.device, jobs)).run(plan, quiet=quiet)
    _write_outputs(folder, plan, quiet)
    for unit in busy:
        echo(f"skipped: another process is running {unit.name}", err=True)
    errors = list(error_lines(plan, folder))
    for line in errors:
        echo(line, err=True)
    if errors:
        echo("Run the same command again to retry. Completed cells are skipped.", err=True)
    return 1 if errors else 0


def _last_run(folder: "StudyFolder", name: str, model: str | None, protocol: str | None) -> "Plan":
    from flip_flop.paper.study import narrow
    from flip_flop.paper.study_file import load_study

    return folder.read_study(narrow(load_study(name), protocol=protocol), model_path(model) if model else None)


def _on_gpu(device: str) -> bool:
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def _write_outputs(folder: "StudyFolder", plan: "Plan", quiet: bool) -> None:
    from flip_flop.paper.frame import make_frame
    from flip_flop.paper.output import make_tables, write_outputs
    from flip_flop.paper.table import render_text

    frame = make_frame(folder, plan)
    is_done = frame.groupby("position")["is_done"].first()
    if not is_done.any():
        echo("no audit is complete yet, so no tables were written", err=True)
        return
    written = write_outputs(frame, plan.study, folder.study(plan))
    if not is_done.all():
        echo(f"{(~is_done).sum()} of {len(is_done)} audits are not complete: their cells are blank", err=True)
    if (table := next(make_tables(frame), None)) is not None:
        echo(render_text(table))
    if not quiet:
        folders = dict.fromkeys(path.parent.name for path in written[1:])
        echo(f"\n{written[0]}: all of it on one page; {', '.join(f'{name}/' for name in folders)} have the files")
