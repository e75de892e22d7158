"""``flip-flop study``, ``flip-flop tasks``, and ``flip-flop templates fetch``."""

import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import click

from flip_flop.cli.options import DataOptions, RowOptions, option, options, out_file, out_folder
from flip_flop.console import align_columns, echo, num_processes, terminal_width
from flip_flop.errors import InputError, log
from flip_flop.hub import check_shard
from flip_flop.method.settings import Protocol, TrainingProtocol
from flip_flop.metrics import resolve_average
from flip_flop.paper.data.catalog import (
    ROW_PROTOCOLS,
    CatalogData,
    CatalogEntry,
    Comparison,
    catalog_data,
    catalog_entry,
    catalog_names,
    compare,
)
from flip_flop.paper.data.promptsource import fetch, promptsource_names
from flip_flop.paper.folder import StudyFolder, load_plan
from flip_flop.paper.plan import Plan, Setup, Unit, make_plan
from flip_flop.paper.slurm import export_commands, sbatch_options, submit
from flip_flop.paper.study import Study, load_study, narrow
from flip_flop.tasks import VALUE_LIMITS, TaskRequest, split_names
from flip_flop.texts import render

# Other processes run this installation, and not the first one on the path.
PROGRAM = [sys.executable, "-m", "flip_flop", "study"]
STATES = ("done", "failed", "open")
NAMES = "NAME,NAME,..."


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(map(int, split_names(text)))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not N,N,....") from None


@dataclass(frozen=True, kw_only=True)
class GridOptions(DataOptions):
    """The grid of a study, and its data folders."""

    model: str | None = option(None, short="-m", help="A hub name, a folder, or `demo`; by default the study's own.")
    revision: str | None = option(None, help="The model's commit, branch or tag on the hub.")
    dtype: str = option("auto", help="float32, bfloat16 or float16; auto: bfloat16 on a GPU.")
    device: Literal["auto", "cpu", "cuda"] = option("auto", help="CUDA_VISIBLE_DEVICES selects the GPUs.")
    tasks: list[str] | None = option(None, type=split_names, metavar=NAMES, help="Of the study's, these only.")
    methods: list[str] | None = option(
        None, type=split_names, metavar=NAMES, help="base, swarm, cce, f2c, the study's variants, package.module:name."
    )
    seeds: tuple[int, ...] | None = option(None, type=_numbers, metavar="N,N,...", help="The trainings' seeds.")
    limit: int | None = option(None, min=1, help="A uniform sample of this size per split.")
    protocol: str | None = option(None, help="recommended, paper or release: whose settings (docs/release.md).")
    settings: tuple[str, ...] = option((), flag="set", metavar="FIELD=VALUE", help="Any field of F2CConfig.")

    def study(self, name: str) -> tuple[Study, Setup]:
        """Return the study and its setup."""
        selection = {key: getattr(self, key) for key in ("tasks", "methods", "seeds", "limit", "protocol")}
        study = narrow(load_study(name), **selection, settings=dict(map(_setting, self.settings)))
        model = self.model or study.model
        if model is None:
            raise InputError("E-STUDY", f"study {study.name} names no model.", "Give --model.")
        study = study.model_copy(update={"model": study.model and model_path(study.model)})
        folders = (self.hub_mirror, self.story_cloze_dir)
        mirror, stories = (None if folder is None else str(folder.resolve()) for folder in folders)
        return study, Setup(model_path(model), self.revision, self.dtype, self.device, mirror, stories)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The executor of the units, and the resources of each for Slurm."""

    executor: Literal["local", "slurm"] = option("local", help="Processes here, or an array of Slurm's.")
    jobs: int | None = option(
        None, min=1, short="--workers", help="Local processes at a time; by default one per GPU, or one."
    )
    partition: str | None = option(None, help="Slurm: the partition.")
    time: str = option("240", help="Slurm: minutes, at least three, or 4:00:00, or 1-12:00.")
    gpus: int | None = option(None, min=0, help="Slurm: GPUs; by default 1, or 0 with --device cpu.")
    processes_per_unit: int | None = option(
        None,
        min=2,
        help="Start each training run with torchrun, in this many processes, one per GPU; with `shard`, each audit, "
        "too.",
    )
    mem: str | None = option(None, help="Slurm: memory, such as 32GB.")
    cpus: int | None = option(None, min=1, help="Slurm: cores.")
    max_jobs: int = option(64, min=1, help="Slurm: at a time.")
    slurm: tuple[str, ...] = option((), metavar="KEY=VALUE", help="Slurm: any other option of sbatch.")
    export: Path | None = option(
        None, callback=out_file, help="Write the commands into this file, and do not run them."
    )

    def launcher(self) -> list[str]:
        """Return the words that start one process for each of ``--processes-per-unit``."""
        if self.processes_per_unit is None:
            if self.gpus is not None and self.gpus > 1:
                raise InputError(
                    "E-DISTRIBUTED",
                    f"--gpus is {self.gpus}, but a unit has one process.",
                    f"Give --processes-per-unit {self.gpus}.",
                )
            return []
        return [
            str(Path(sys.executable).parent / "torchrun"),
            *("--standalone", "--nproc-per-node", str(self.processes_per_unit)),
        ]


out_option = click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    callback=out_folder,
    default=Path("out/studies"),
    show_default=True,
    help="The folder of all studies: what two of them share is run once.",
)
model_option = click.option("--model", "-m", help="As for `run`. Required if the study was run with several.")
protocol_option = click.option("--protocol", type=click.Choice(get_args(TrainingProtocol)), help="As for `run`.")


def model_path(model: str) -> str:
    """The model as a plan names it. Units may run in other folders, so a path is absolute."""
    if model != "demo" and Path(model).is_dir():
        return str(Path(model).resolve())
    return model


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InputError("E-CONFIG", f"--set {text!r} is not FIELD=VALUE.", "Write --set learning_rate=1e-4.")
    return name.strip(), value.strip()


@click.group("study")
def study_command() -> None:
    """Run the paper's studies, or your studies, as grids of training runs and audits.

    NAME is a shipped study, or the path of a YAML file. Shipped: study1 (Table 1), study2 (Table 2 and heat maps),
    study3 (held-out templates), base_spread (the appendix's box plot), smoke (the embedded model, minutes).
    """


@study_command.command("plan", short_help="List the cells; no model is loaded.")
@click.argument("name")
@options(GridOptions)
@out_option
def plan_command(grid: GridOptions, name: str, out: Path) -> None:
    """List a study's cells, and whether each is done. No model is loaded, and the hub is not contacted."""
    os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported
    echo(f"reading study {name}", err=True)
    study, setup = grid.study(name)
    plan = make_plan(study, setup.with_dtype(on_gpu=setup.on_gpu))
    states = StudyFolder(out).states(plan)
    rows = [(cell.kind, cell.label, str(len(cell.templates)), states[cell].partition(":")[0]) for cell in plan.cells]
    echo(f"{study.name}: {study.description}".rstrip(": "))
    echo(align_columns([("", "cell", "templates", "state"), *rows], num_left=2))
    echo(f"{len(plan.trainings)} trainings, {len(plan.audits)} audits; protocol {study.protocol}")


@study_command.command("run", short_help="Run all open units, then write tables and figures.")
@click.argument("name")
@options(GridOptions, RunOptions)
@out_option
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
def run_command(grid: GridOptions, how: RunOptions, name: str, out: Path, quiet: bool) -> int:
    """Run every unit of a study that is not done, then write its tables and figures.

    A unit is a training run with its audits, or an audit of the base. To continue an interrupted study, run the same
    command again: training runs continue from their checkpoints, and completed cells are skipped. The exit code is 1 if
    cells are not done, and the output names each with its log. With --executor slurm the command submits units and
    returns.
    """
    if not quiet:
        echo(f"reading study {name}", err=True)
    launcher = how.launcher()
    study, setup = grid.study(name)
    from flip_flop.paper.run import unit_commands, worker_devices

    if num_processes() > 1:
        raise InputError(
            "E-DISTRIBUTED",
            f"A launcher has started {num_processes()} processes, but one process must run the study.",
            "Start the study without it, with --processes-per-unit.",
        )
    if study.shard is not None:
        check_shard(setup.model, has_launcher=bool(launcher))
    gpus = how.gpus
    if gpus is None:
        gpus = 0 if setup.device == "cpu" else how.processes_per_unit
    job_options = sbatch_options(how.partition, how.time, gpus, how.mem, how.cpus, how.slurm)
    on_gpu = how.executor == "slurm" or setup.on_gpu if gpus is None else gpus > 0
    if how.export is not None and gpus is None and not on_gpu and setup.dtype == "auto":
        raise InputError(
            "E-MODEL-DEVICE",
            "--export without --dtype or --device: this machine has no GPU, but the commands may run on one.",
            "Give --device cpu or cuda, or --dtype.",
        )
    folder = StudyFolder(out)
    plan = make_plan(study, setup.with_dtype(on_gpu=on_gpu))
    path = str(folder.write_plan(plan))
    command = [*PROGRAM, "work", path]
    tables = [*PROGRAM, "tables", path]
    still_open = (unit for unit in plan.units if not all(map(folder.is_done, unit.cells)))
    commands = unit_commands(folder, still_open, command, launcher, sharded=study.shard is not None)
    if how.export is not None:
        export_commands(how.export, plan, list(commands.values()), tables)
        echo(f"{how.export}: {len(commands)} commands")
        return 0
    if not quiet:
        echo(f"{study.name}: {len(plan.units)} units, {len(plan.units) - len(commands)} of them done", err=True)
    if how.executor == "slurm" and commands:
        numbers = submit(folder, plan, commands, tables, job_options, how.max_jobs)
        echo(
            f"submitted to Slurm: {', '.join(numbers)}; the last job writes the tables"
            if numbers
            else "All units that are not done are in Slurm's queue already."
        )
        return 0
    devices = worker_devices(setup.device, how.jobs, how.processes_per_unit or 1)
    return _run_here(folder, plan, commands, devices, quiet)


def _run_here(
    folder: StudyFolder, plan: Plan, commands: Mapping[Unit, str], devices: Sequence[str], quiet: bool
) -> int:
    from flip_flop.paper.run import run_units

    exit_codes = run_units(plan.study.name, commands, devices, quiet=quiet)
    _write_outputs(folder, plan, quiet)
    states = folder.states(plan)
    errors = [state for state in states.values() if state.startswith("failed")]
    for unit, code in exit_codes.items():
        has_failed_cell = any(states[cell].startswith("failed") for cell in unit.cells)
        if code and not has_failed_cell:
            errors.append(f"not done: {unit.name} ended with exit code {code}. Log: {folder.log(unit)}")
    if errors:
        echo("\n".join([*errors, "Run the same command again to retry. Completed cells are skipped."]), err=True)
    return 1 if errors else 0


@study_command.command("work", short_help="Run one unit of a plan.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--unit", required=True, help="The unit's name.")
def work_command(plan: Path, unit: str) -> int:
    """Run a unit of a plan, OUT/<study>/plans/<digest>.json. `run`, its Slurm jobs and its exported commands use this.

    The exit code is 1 if a cell failed or another process runs the unit, and 143 if a signal stopped it.
    """
    from flip_flop.paper.run import run_unit

    loaded = load_plan(plan)
    return run_unit(loaded, StudyFolder(plan.resolve().parents[2]), loaded.unit(unit))


@study_command.command("status", short_help="Count done, failed and open cells.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def status_command(name: str, model: str | None, protocol: str | None, out: Path) -> None:
    """Count the cells of the last run of a study by task: done, failed and open. List failures with their logs."""
    folder, plan = _last_run(out, name, model, protocol)
    states = folder.states(plan)
    counts: Counter[tuple[str, str, str]] = Counter()
    for cell, state in states.items():
        for place in ((cell.kind, cell.task_name), ("all", "")):
            counts[*place, state.partition(":")[0]] += 1
    places = [*sorted({(cell.kind, cell.task_name) for cell in states}), ("all", "")]
    rows = [["", "task", *STATES]]
    for place in places:
        numbers = [str(counts[*place, state]) for state in STATES]
        rows.append([*place, *numbers])
    echo(align_columns(rows, num_left=2))
    for state in states.values():
        if state.startswith("failed"):
            echo(state)


@study_command.command("tables", short_help="Write tables and figures of completed cells.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def tables_command(name: str, model: str | None, protocol: str | None, out: Path) -> None:
    """Write the tables and figures of the completed cells in the last run of a study.

    NAME may also be the plan of a run, OUT/<study>/plans/<digest>.json, without --model, --protocol and --out. The
    commands of `run --export` and the jobs of Slurm use this.
    """
    _write_outputs(*_last_run(out, name, model, protocol), quiet=False)


def _last_run(out: Path, name: str, model: str | None, protocol: str | None) -> tuple[StudyFolder, Plan]:
    echo(f"reading study {name}", err=True)
    if (path := Path(name).resolve()).suffix == ".json" and path.parent.name == "plans":
        if model or protocol:
            raise InputError(
                "E-STUDY", f"{name} is the plan of a run, which has its model and protocol.", "Leave them out."
            )
        return StudyFolder(path.parent.parent.parent), load_plan(path)
    study = narrow(load_study(name), protocol=protocol)
    folder = StudyFolder(out)
    plan = folder.read_study(study, model_path(model) if model else None)
    for part in ("tasks", "methods"):
        if set(last := getattr(plan.study, part)) != set(getattr(study, part)):
            log.warning("W-STUDY: the last run of %s had other %s than its file: %s.", name, part, ", ".join(last))
    return folder, plan


def _write_outputs(folder: StudyFolder, plan: Plan, quiet: bool) -> None:
    from flip_flop.paper.frame import make_frame
    from flip_flop.paper.tables import make_tables, write_outputs

    frame = make_frame(folder, plan)
    is_done = frame.groupby("position")["is_done"].first()
    if not is_done.any():
        echo("no audit is complete yet, so no tables were written", err=True)
        return
    written = write_outputs(frame, plan.study, folder.study(plan))
    if not is_done.all():
        echo(f"{(~is_done).sum()} of {len(is_done)} audits are not complete: their cells are blank", err=True)
    if (table := next(make_tables(frame), None)) is not None:
        echo(table.text(terminal_width()))
    if not quiet:
        folders = dict.fromkeys(path.parent.name for path in written[1:])
        echo(f"\n{written[0]}: all of it on one page; {', '.join(f'{name}/' for name in folders)} have the files")


# ---- datasets and templates ----


@click.group("tasks")
def tasks_command() -> None:
    """The paper's datasets: their names, sources and sizes."""


@tasks_command.command("list", short_help="Names and sizes, as in the paper.")
def list_command() -> None:
    """List names, labels, templates and sizes of the paper's table without reading data."""
    entries = [catalog_entry(name) for name in catalog_names()]
    rows = [[entry.name, *map(str, entry.paper.values()), entry.source_name] for entry in entries]
    echo(align_columns([["task", *entries[0].paper, "from"], *rows]))
    echo("\nnext: flip-flop tasks check, or flip-flop tasks show rte")


@tasks_command.command("show", short_help="A dataset's source, fields, labels and splits.")
@click.argument("task")
@options(RowOptions)
def show_command(data: RowOptions, task: str) -> None:
    """Show the source, fields, labels and splits of a dataset, and its templates if the rows are available."""
    entry = catalog_entry(task)
    average = resolve_average(entry.f1, len(entry.labels))
    known: dict[str, Any] = {"entry": entry, "train": entry.train_from, "test": entry.test_from, "average": average}
    try:
        known["task"] = _open(data, task, data.protocol).task
    except InputError as error:
        known["error"] = error
    echo(render("flip_flop.paper", "dataset.txt.jinja", protocol=data.protocol, **known))


@tasks_command.command("check", short_help="Compare the numbers with the published numbers.")
@click.argument("tasks", nargs=-1)
@options(DataOptions)
@click.option("--protocol", type=click.Choice(get_args(Protocol)), help="By default both, one after the other.")
def check_command(data: DataOptions, tasks: Sequence[str], protocol: str | None) -> int:
    """Compare rows, templates and labels with the published numbers, which are in parentheses if they differ.

    Without a name, all datasets are compared, under both protocols. Exit code 1: a number differs without a known
    reason, or rows are not available. StoryCloze, which its owners give to each user, may be missing.
    """
    entries = [catalog_entry(name) for name in tasks or catalog_names()]
    protocols = [name for name in ROW_PROTOCOLS if protocol in (None, name)]
    comparisons_of = {}
    missing = {}
    for entry in entries:
        try:
            comparisons_of[entry.name] = [compare(_open(data, entry.name, name)) for name in protocols]
        except InputError as error:
            if error.code == "E-TPL-FETCH":
                raise
            missing[entry.name] = error
    for place, name in enumerate(protocols):
        comparisons = {task: of_protocols[place] for task, of_protocols in comparisons_of.items()}
        cells = [["task", *entries[0].paper]]
        cells += [_cells(entry, comparisons.get(entry.name), name) for entry in entries]
        known = {"protocol": name, "publication": ROW_PROTOCOLS[name], "comparisons": comparisons.values()}
        echo(render("flip_flop.paper", "check.txt.jinja", align_columns=align_columns, cells=cells, **known))
    for name, reason in missing.items():
        echo(f"{name}: {reason}")
    is_complete = not missing or (set(missing) == {"storycloze"} and data.story_cloze_dir is None)
    is_explained = not any(comparison.unexplained for both in comparisons_of.values() for comparison in both)
    return 0 if is_complete and is_explained else 1


def _open(data: DataOptions, name: str, protocol: str) -> CatalogData:
    return catalog_data(
        TaskRequest(
            name=name,
            hub_mirror=data.hub_mirror,
            story_cloze_dir=data.story_cloze_dir,
            splits=protocol,
            value_limit=VALUE_LIMITS[protocol],
        )
    )


def _cells(entry: CatalogEntry, comparison: Comparison | None, splits: str) -> list[str]:
    """Return the found numbers, each with the published number in parentheses if it differs."""
    cells = [entry.name]
    for column, published in entry.published(splits).items():
        number = "-" if comparison is None else str(comparison.found[column])
        cells.append(number if number == str(published) else f"{number} ({published})")
    return cells


@click.command("fetch")
def fetch_command() -> None:
    """Put PromptSource's templates into the user's cache, once.

    pip downloads promptsource 0.2.3 (Apache-2.0) from the package index. pip checks its SHA-256, and
    the program reads only its YAML files.
    """
    folder = fetch()
    echo(f"{folder}: the templates of {len(promptsource_names(folder))} datasets")
