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
from flip_flop_paper.study_options import GridOptions, RunOptions, model_path, out_option

if TYPE_CHECKING:
    from flip_flop_paper.folder import StudyFolder
    from flip_flop_paper.plan import Plan
    from flip_flop_paper.tracker import Tracker

# Workers and Slurm's tasks run this very installation, whatever is on the path.
PROGRAM = [sys.executable, "-m", "flip_flop", "study"]

model_option = click.option("--model", "-m", help="As for `run`; needed where the study was run with several.")
protocol_option = click.option("--protocol", type=click.Choice(get_args(TrainingProtocol)), help="As for `run`.")


@click.group("study", short_help="The paper's studies as grids: plan, run, status, tables.")
def study_command() -> None:
    """The paper's studies, and your own, as grids of trainings and audits.

    NAME is study1 (Table 1), study2 (Table 2 and heat maps), study3 (held-out templates), base_spread (the appendix's
    box plot), smoke (the embedded model, minutes), or the path of a YAML file of your own.
    """


@study_command.command("plan", short_help="Cells with counts of rows, templates and tokens; no model is loaded.")
@click.argument("name")
@options(GridOptions)
@out_option
@click.option("--timed", is_flag=True, help="Load the model, and time one instance of each split.")
def plan_command(grid: GridOptions, name: str, out: Path, timed: bool) -> int:
    """List a study's cells with their rows, templates and tokens, and the times of finished runs; no hub is asked."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, below
    from flip_flop_paper.folder import StudyFolder
    from flip_flop_paper.preview import Preview

    for line in Preview(*grid.study(name), StudyFolder(out), timed=timed).lines():
        echo(line)
    return 0


@study_command.command("run", short_help="Run what is not done yet, then write tables and figures.")
@click.argument("name")
@options(GridOptions, RunOptions)
@out_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def run_command(grid: GridOptions, how: RunOptions, name: str, out: Path, quiet: bool) -> int:
    """Run every unit of a study that is not done, then write its tables and figures.

    A unit is a training with its audits, or an audit of the base. Killed? Run the same command again: trainings go on
    from their checkpoints, complete cells are not run again. Exit code 1: some failed; each is named with its log.
    """
    from flip_flop_paper.folder import StudyFolder
    from flip_flop_paper.keys import make_plan
    from flip_flop_paper.local import export_commands
    from flip_flop_paper.slurm import SlurmExecutor, sbatch_directives
    from flip_flop_paper.study import study_names
    from flip_flop_paper.tracker import Tracker

    _refuse_to_be_launched("Give the study the launcher: --launcher 'accelerate launch ...'.")
    launcher = how.launcher_words()
    study, setup = grid.study(name)
    gpus = 0 if how.gpus is None and setup.device == "cpu" else how.gpus
    directives = sbatch_directives(how.partition, how.time, gpus, how.mem, how.cpus, how.slurm)
    on_gpu = setup.device == "cuda" or how.executor == "slurm" or _has_gpu() if gpus is None else gpus > 0
    if how.export is not None and gpus is None and not on_gpu and setup.dtype == "auto":
        message = "--export without --dtype or --device: there is no GPU here, and may be one where the commands run."
        raise InputError("E-MODEL-DTYPE", message, "Give --device cpu or cuda, or --dtype.")
    folder, plan = StudyFolder(out), make_plan(study, setup.with_dtype(on_gpu=on_gpu))
    path, tracker = folder.write_plan(plan), Tracker(plan, folder, quiet=quiet)
    command = [*PROGRAM, "work", str(path)]
    if how.export is not None:
        named = name if name in study_names() else str(Path(name).resolve())
        tables = [*PROGRAM, "tables", named, "--model", setup.model, "--protocol", study.protocol]
        tables += ["--out", str(folder.root)]
        echo(f"{how.export}: {export_commands(tracker, command, tables, how.export, launcher)} commands")
        return 0
    tracker.forget_failures()
    if how.executor == "slurm":
        with tracker.progress():
            SlurmExecutor(tracker, command, directives, how.max_jobs, launcher).run()
    else:
        _run_here(tracker, command, how.workers)
    _write_outputs(folder, folder.latest_plan(plan), quiet)
    return _report(tracker)


@study_command.command("work", short_help="Run units of a plan here: all that nobody is at work on, or one.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--unit", help="This one; by default all, one after the other.")
@click.option("--workers", type=click.IntRange(min=1), help="Without --unit: by default one per GPU, or one.")
def work_command(plan: Path, unit: str | None, workers: int | None) -> int:
    """Run units of a plan, OUT/<study>/plans/<digest>.json, as `run` does; other machines may do so, too.

    A unit is a training with its audits, or an audit of the base. What is done, or has failed, is not run again.
    """
    from flip_flop_paper.folder import StudyFolder, load_plan, root_of
    from flip_flop_paper.tracker import Tracker
    from flip_flop_paper.work import SUPERVISED, run_open_units, run_unit

    found, folder = load_plan(plan), StudyFolder(root_of(plan))
    if unit is not None:
        return run_unit(found, folder, found.unit(unit))
    _refuse_to_be_launched("Name one with --unit, or leave out the launcher.")
    if SUPERVISED in os.environ:
        return run_open_units(found, folder)
    tracker = Tracker(found, folder)
    _run_here(tracker, [*PROGRAM, "work", str(plan)], workers)
    return _report(tracker)


@study_command.command("status", short_help="What is done, running, failed, waiting.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def status_command(name: str, model: str | None, protocol: str | None, out: Path) -> int:
    """How far the last run of a study is: done, running, failed and waiting cells, by task."""
    from flip_flop_paper.folder import StudyFolder
    from flip_flop_paper.tracker import Tracker

    folder = StudyFolder(out)
    for line in Tracker(_last_run(folder, name, model, protocol), folder, quiet=True).status_lines():
        echo(line)
    return 0


@study_command.command("tables", short_help="Write tables and figures of what is done.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def tables_command(name: str, model: str | None, protocol: str | None, out: Path) -> int:
    """Write the tables and figures of the cells that are done in the last run of a study."""
    from flip_flop_paper.folder import StudyFolder

    folder = StudyFolder(out)
    _write_outputs(folder, _last_run(folder, name, model, protocol), quiet=False)
    return 0


def _refuse_to_be_launched(hint: str) -> None:
    from flip_flop_paper.work import num_processes

    if num_processes() > 1:
        message = f"A launcher has started {num_processes()} processes, and a study's units are handed out by one."
        raise InputError("E-DISTRIBUTED", message, hint)


def _run_here(tracker: "Tracker", command: list[str], workers: int | None) -> None:
    from flip_flop_paper.local import LocalExecutor, worker_environments

    with tracker.progress():
        LocalExecutor(tracker, command, worker_environments(tracker.plan.setup.device, workers)).run()


def _report(tracker: "Tracker") -> int:
    for line in tracker.error_lines():
        echo(line, err=True)
    return 1 if tracker.failed else 0


def _last_run(folder: "StudyFolder", name: str, model: str | None, protocol: str | None) -> "Plan":
    from flip_flop_paper.study import load_study, narrow

    return folder.read_study(narrow(load_study(name), protocol=protocol), model_path(model) if model else None)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _write_outputs(folder: "StudyFolder", plan: "Plan", quiet: bool) -> None:
    from flip_flop_paper.frame import make_frame
    from flip_flop_paper.output import make_tables, write_outputs
    from flip_flop_paper.tables.table import render_text

    frame = make_frame(folder, plan)
    is_done = frame.groupby("position")["is_done"].first()
    if not is_done.any():
        echo("no audit is complete: there is nothing to show", err=True)
        return
    written = write_outputs(frame, plan.study, folder.study(plan))
    if not is_done.all():
        echo(f"{(~is_done).sum()} of {len(is_done)} audits are not complete: their cells are blank", err=True)
    if (table := next(make_tables(frame), None)) is not None:
        echo(render_text(table))
    if not quiet:
        folders = dict.fromkeys(path.parent.name for path in written[1:])
        echo(f"\n{written[0]}: all of it on one page; {', '.join(f'{name}/' for name in folders)} have the files")
