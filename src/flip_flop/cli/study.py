"""``flip-flop study``."""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flip_flop.cli.options import open_model, open_task
from flip_flop.cli.study_options import grid_options, last_run_options, launcher_words, out_option, slurm_options
from flip_flop.errors import InputError

if TYPE_CHECKING:
    from flip_flop.studies.drive import Settled, Summary
    from flip_flop.studies.folder import StudyFolder
    from flip_flop.studies.plan import Openers, Plan, Setup, Untrained
    from flip_flop.studies.study import Study

# Workers and Slurm's tasks run this very installation, whatever is on the path.
PROGRAM = [sys.executable, "-m", "flip_flop.cli.main", "study"]


@click.group("study")
def study_command() -> None:
    """The paper's studies, and your own, as grids of trainings and audits.

    NAME is study1 (Table 1), study2 (Table 2 and heat maps), study3 (held-out templates), base_spread (the appendix's
    box plot), smoke (the embedded model, minutes), or the path of a YAML file of your own.
    """


@study_command.command("plan", short_help="Cells, data sizes, and an estimate of tokens and time; no model is loaded.")
@grid_options
@click.option("--tflops", type=float, default=140.0, show_default=True, help="Operations a second, in 10^12.")
def plan_command(tflops: float, **grid: Any) -> int:
    """List a study's cells with their data sizes, and estimate tokens and time. No model is loaded, no hub asked."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when the library is imported, below
    from flip_flop.studies.estimate import estimate, estimate_lines

    if not tflops > 0:
        raise InputError("E-STUDY-VALUE", f"--tflops is {tflops:g}.", "Give a number above 0.")
    study, setup = _study(**grid)
    for line in estimate_lines(study, estimate(study, setup, openers(), tflops), tflops):
        click.echo(line)
    return 0


@study_command.command("run", short_help="Run what is not done yet, then write tables and figures.")
@grid_options
@out_option
@click.option("--executor", type=click.Choice(["local", "slurm"]), default="local", show_default=True)
@click.option("--workers", type=click.IntRange(min=1), help="Local workers; by default one per GPU, or one.")
@slurm_options
@click.option("--export", type=click.Path(path_type=Path), help="Write the commands into this file; run nothing.")
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def run_command(
    out: Path,
    executor: str,
    workers: int | None,
    export: Path | None,
    quiet: bool,
    slurm: tuple[str, ...],
    partition: str | None,
    time: str,
    gpus: int | None,
    launcher: str | None,
    mem: str | None,
    cpus: int | None,
    max_jobs: int,
    **grid: Any,
) -> int:
    """Run every cell of a study that is not done, then write its tables and figures.

    Killed? Run the same command again: trainings go on from their checkpoints, complete cells are not run again.
    Exit code 1: some cells failed; each is named with its log.
    """
    from flip_flop.studies.drive import drive
    from flip_flop.studies.export import export_commands
    from flip_flop.studies.folder import StudyFolder
    from flip_flop.studies.keys import make_plan
    from flip_flop.studies.launched import require_one_process
    from flip_flop.studies.local import LocalDriver, worker_environments
    from flip_flop.studies.slurm import SlurmDriver, slurm_parameters
    from flip_flop.studies.study import study_names

    require_one_process()
    words = launcher_words(launcher, gpus, has_workers=executor == "local" and export is None)
    study, setup = _study(**grid)
    gpus = 0 if gpus is None and setup.device == "cpu" else gpus
    on_gpu = _has_gpu(setup, executor) if gpus is None else gpus > 0
    if export is not None and gpus is None and not on_gpu and setup.dtype == "auto":
        message = "--export without --dtype or --device: there is no GPU here, and may be one where the commands run."
        raise InputError("E-MODEL-DTYPE", message, "Give --device cpu or cuda, or --dtype.")
    setup = setup.with_dtype(on_gpu=on_gpu)
    folder = StudyFolder(out)
    plan = make_plan(study, setup, openers())
    path = folder.write_plan(plan)
    if export is not None:
        name = grid["name"] if grid["name"] in study_names() else str(Path(grid["name"]).resolve())
        count = export_commands(plan, name, folder, path, PROGRAM, export, words)
        click.echo(f"{export}: {count} commands")
        return 0
    if executor == "slurm":
        options = {"partition": partition, "time": time, "gpus_per_node": 1 if gpus is None else gpus or None}
        options |= {"mem": mem}
        options |= {"cpus_per_task": cpus, "array_parallelism": max_jobs}
        parameters = slurm_parameters(options, slurm)

        def run(settled: "Settled") -> "Summary":
            return SlurmDriver(plan, folder, [*PROGRAM, "run-cell", str(path)], parameters, settled, words).run()

    else:
        environments = worker_environments(setup.device, workers)

        def run(settled: "Settled") -> "Summary":
            return LocalDriver(plan, folder, [*PROGRAM, "worker", str(path)], environments, settled, quiet=quiet).run()

    summary = drive(plan, folder, run, quiet=quiet)
    _write_outputs(folder, folder.standing_plan(plan), quiet)
    for line in summary.complaints(folder):
        click.echo(line, err=True)
    return 1 if summary.failed or summary.not_run else 0


@study_command.command("status", short_help="What is done, running, failed, waiting.")
@last_run_options
def status_command(name: str, model: str | None, out: Path) -> int:
    """How far the last run of a study is: done, running, failed and waiting cells, by task."""
    from flip_flop.studies.drive import status_lines
    from flip_flop.studies.folder import StudyFolder

    folder = StudyFolder(out)
    for line in status_lines(_last_run(folder, name, model), folder):
        click.echo(line)
    return 0


@study_command.command("tables", short_help="Write tables and figures of what is done.")
@last_run_options
def tables_command(name: str, model: str | None, out: Path) -> int:
    """Write the tables and figures of the cells that are done in the last run of a study."""
    from flip_flop.studies.folder import StudyFolder

    folder = StudyFolder(out)
    _write_outputs(folder, _last_run(folder, name, model), quiet=False)
    return 0


@study_command.command("worker", hidden=True)
@click.argument("plan", type=click.Path(path_type=Path))
def worker_command(plan: Path) -> int:
    """Run the cells whose keys come on standard input."""
    from flip_flop.studies.worker import serve

    serve(plan, openers())
    return 0


@study_command.command("run-cell", hidden=True)
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("name")
@click.option(
    "--untrained",
    type=click.Choice(["train", "wait", "refuse"]),
    default="train",
    help="An audit whose training is not done begins with it, waits while its own command is at work, or refuses.",
)
def run_cell_command(plan: Path, name: str, untrained: "Untrained") -> int:
    """Run one cell of a plan, and wait for it where another process is at work on it."""
    from flip_flop.studies.worker import run_one

    return run_one(plan, name, openers(), untrained=untrained)


def openers() -> "Openers":
    """How a study opens what its file names."""
    from flip_flop.demo import demo_model_path
    from flip_flop.studies.plan import Openers

    def task(name: str, setup: "Setup") -> Any:
        return open_task(name, "all", _path(setup.hub_mirror), _path(setup.story_cloze_dir))

    def model(setup: "Setup", adapter: Path | None) -> Any:
        return open_model(setup.model, adapter, setup.revision, setup.dtype, setup.device)

    def folder(name: str) -> Path | None:
        place = demo_model_path() if name == "demo" else Path(name)
        return place if place.is_dir() else None

    return Openers(task, model, folder)


def _path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _study(
    name: str,
    model: str | None,
    revision: str | None,
    dtype: str,
    device: str,
    tasks: Sequence[str] | None,
    methods: Sequence[str] | None,
    seeds: Sequence[int] | None,
    limit: int | None,
    settings: Sequence[str],
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
) -> tuple["Study", "Setup"]:
    """The study and its setup, as the command line has it."""
    from flip_flop.studies.plan import Setup
    from flip_flop.studies.study import load_study, narrow

    study = narrow(
        load_study(name),
        tasks=tasks,
        methods=methods,
        seeds=seeds,
        limit=limit,
        settings=dict(_setting(text) for text in settings),
    )
    named = model or study.model
    if named is None:
        raise InputError("E-STUDY-MODEL", f"study {study.name} names no model.", "Give --model.")
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            "E-MODEL-DEVICE", f"A study takes no --device {device}.", "Set CUDA_VISIBLE_DEVICES, and use cuda or auto."
        )
    study = replace(study, model=None if study.model is None else _model_place(study.model))
    mirror, stories = (None if path is None else str(path.resolve()) for path in (hub_mirror, story_cloze_dir))
    return study, Setup(_model_place(named), revision, dtype, device, mirror, stories)


def _model_place(model: str) -> str:
    """The model as a plan names it. Workers run elsewhere: a folder is named by its whole path."""
    place = Path(model)
    return str(place.resolve()) if model != "demo" and place.is_dir() else model


def _last_run(folder: "StudyFolder", name: str, model: str | None) -> "Plan":
    """The plan of a study's last run, with this model where one is given."""
    from flip_flop.studies.study import load_study

    return folder.read_study(load_study(name), _model_place(model) if model else None)


def _has_gpu(setup: "Setup", executor: str) -> bool:
    """Whether the cells will run on a GPU, as far as it is known here."""
    if setup.device == "cuda" or executor == "slurm":
        return True
    import torch

    return torch.cuda.is_available()


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InputError("E-CONFIG-KEY", f"--set {text!r} is not FIELD=VALUE.", "Write --set learning_rate=1e-4.")
    return name.strip(), value.strip()


def _write_outputs(folder: Any, plan: "Plan", quiet: bool) -> None:
    """Tables and figures of what is done."""
    from flip_flop.studies.output import write_outputs
    from flip_flop.studies.results import read_results

    results = read_results(folder, plan)
    missing = sum(result.run is None for result in results)
    if missing == len(results):
        click.echo("no audit is complete: there is nothing to show", err=True)
        return
    written = write_outputs(results, plan.study, folder.study(plan))
    if missing:
        click.echo(f"{missing} of {len(results)} audits are not complete: their cells are blank", err=True)
    if not quiet:
        click.echo("\n".join(str(path) for path in written))
