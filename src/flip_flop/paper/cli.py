"""``flip-flop study``."""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from flip_flop.cli.options import DataOptions, option, options, out_file, out_folder
from flip_flop.console import align_columns, echo
from flip_flop.errors import InputError
from flip_flop.method.settings import TrainingProtocol

if TYPE_CHECKING:
    from flip_flop.paper.plan import Plan, Setup
    from flip_flop.paper.run import StudyFolder
    from flip_flop.paper.study import Study

# Other processes run this installation, and not the first one on the path.
PROGRAM = [sys.executable, "-m", "flip_flop", "study"]
# Errors of a dataset whose rows or templates are not on this machine.
UNAVAILABLE = ("E-DATA-HUB", "E-DATA-FILE", "E-TPL-FETCH")


class _List(click.ParamType):
    def __init__(self, kind: Callable[[str], Any], name: str):
        self.kind, self.name = kind, name

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[Any, ...]:
        try:
            return tuple(self.kind(part.strip()) for part in str(value).split(",") if part.strip())
        except ValueError:
            self.fail(f"{value!r} is not {self.name}.")


NAMES, NUMBERS = _List(str, "NAME,NAME,..."), _List(int, "N,N,...")


@dataclass(frozen=True, kw_only=True)
class GridOptions(DataOptions):
    """The grid of a study, and its data folders."""

    model: str | None = option(None, short="-m", help="A hub name, a folder, or `demo`; by default the study's own.")
    revision: str | None = option(None, help="The model's commit, branch or tag on the hub.")
    dtype: str = option("auto", help="float32, bfloat16 or float16; auto: bfloat16 on a GPU.")
    device: Literal["auto", "cpu", "cuda"] = option("auto", help="CUDA_VISIBLE_DEVICES selects the GPUs.")
    tasks: tuple[str, ...] | None = option(None, type=NAMES, help="Of the study's, these only.")
    methods: tuple[str, ...] | None = option(
        None, type=NAMES, help="base, swarm, cce, f2c, the study's variants, package.module:name."
    )
    seeds: tuple[int, ...] | None = option(None, type=NUMBERS, help="The trainings' seeds.")
    limit: int | None = option(None, min=1, help="A uniform sample of this size per split.")
    protocol: str | None = option(None, help="recommended, paper or release: whose settings (docs/release.md).")
    settings: tuple[str, ...] = option((), flag="set", metavar="FIELD=VALUE", help="Any field of F2CConfig.")

    def __post_init__(self) -> None:
        from flip_flop.training.settings import check_names

        check_names(dict(map(_setting, self.settings)), "--set")  # before seconds of imports

    def study(self, name: str) -> tuple["Study", "Setup"]:
        """Return the study and its setup."""
        from flip_flop.paper.plan import Setup
        from flip_flop.paper.study import load_study, narrow

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
    launcher: str | None = option(
        None,
        help="Slurm, --export: the program that starts one process for each of --gpus 4: "
        "'accelerate launch --num_processes 4 --main_process_port 0'.",
    )
    mem: str | None = option(None, help="Slurm: memory, such as 32GB.")
    cpus: int | None = option(None, min=1, help="Slurm: cores.")
    max_jobs: int = option(64, min=1, help="Slurm: at a time.")
    slurm: tuple[str, ...] = option((), metavar="KEY=VALUE", help="Slurm: any other option of sbatch.")
    export: Path | None = option(
        None, callback=out_file, help="Write the commands into this file, and do not run them."
    )

    def launcher_words(self) -> list[str]:
        """The words of ``--launcher``; a program of this very installation by its whole path."""
        if self.launcher is None:
            if self.gpus is not None and self.gpus > 1:
                raise InputError(
                    "E-DISTRIBUTED",
                    f"--gpus is {self.gpus}, and there is no --launcher.",
                    f"Give --launcher 'accelerate launch --num_processes {self.gpus} --main_process_port 0'.",
                )
            return []
        if self.executor == "local" and self.export is None:
            raise InputError(
                "E-DISTRIBUTED",
                "--launcher: local workers run each unit as one process.",
                "Use --executor slurm, or --export FILE and run its lines.",
            )
        try:
            program, *others = shlex.split(self.launcher)
        except ValueError:
            raise InputError(
                "E-STUDY",
                f"Invalid --launcher {self.launcher!r}.",
                "Write 'accelerate launch --num_processes 4'.",
            ) from None
        installed = Path(sys.executable).parent / program
        return [str(installed) if installed.is_file() else program, *others]


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
    return str(Path(model).resolve()) if model != "demo" and Path(model).is_dir() else model


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InputError("E-CONFIG", f"--set {text!r} is not FIELD=VALUE.", "Write --set learning_rate=1e-4.")
    return name.strip(), value.strip()


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
    from flip_flop.paper.run import StudyFolder

    study, setup = grid.study(name)
    for line in plan_lines(study, setup.with_dtype(on_gpu=_on_gpu(setup.device)), StudyFolder(out)):
        echo(line)
    return 0


def plan_lines(study: "Study", setup: "Setup", folder: "StudyFolder") -> Iterator[str]:
    """List the cells of a study, and whether each is done.

    If rows or templates of the paper's datasets are not available, the states are unknown.

    Raises:
        InputError: An error in a task, in its rows or in a setting.
    """
    from flip_flop.paper.data.catalog import catalog_names
    from flip_flop.paper.plan import make_plan
    from flip_flop.paper.study import expand

    yield f"{study.name}: {study.description}".rstrip(": ")
    note = ""
    try:
        plan = make_plan(study, setup)
        states = folder.states(plan)
        rows = [(cell.kind, cell.label, str(len(cell.templates)), states[cell]) for cell in plan.cells]
    except InputError as error:
        if error.code not in UNAVAILABLE or not set(study.tasks) <= {*catalog_names()}:
            raise
        note = f"Some rows or templates are not on this machine, so the states are unknown: {error}"
        rows = []
        for place in expand(study):
            trained = place.training or place
            on = f" on {place.task}" if trained.task != place.task else ""
            seed = "" if trained.seed is None else f"-seed{trained.seed}"
            number = next((str(n) for n in (place.templates, trained.templates) if isinstance(n, int)), "")
            rows.append((place.kind, f"{trained.method}-{trained.task}{seed}{on}", number, "-"))
    counts = Counter(kind for kind, *_ in rows)
    yield from align_columns([("", "cell", "templates", "state"), *rows], num_left=2).splitlines()
    yield f"{counts['train']} trainings, {counts['audit']} audits; protocol {study.protocol}"
    if note:
        yield note


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
    from flip_flop.paper.plan import make_plan
    from flip_flop.paper.run import StudyFolder, num_processes
    from flip_flop.paper.slurm import export_commands, sbatch_options, submit, unit_commands
    from flip_flop.paper.study import study_names

    if num_processes() > 1:
        raise InputError(
            "E-DISTRIBUTED",
            f"A launcher has started {num_processes()} processes, but one process must run the study.",
            "Give the study the launcher: --launcher 'accelerate launch ...'.",
        )
    launcher = how.launcher_words()
    study, setup = grid.study(name)
    gpus = 0 if how.gpus is None and setup.device == "cpu" else how.gpus
    job_options = sbatch_options(how.partition, how.time, gpus, how.mem, how.cpus, how.slurm)
    on_gpu = how.executor == "slurm" or _on_gpu(setup.device) if gpus is None else gpus > 0
    if how.export is not None and gpus is None and not on_gpu and setup.dtype == "auto":
        raise InputError(
            "E-MODEL-DEVICE",
            "--export without --dtype or --device: this machine has no GPU, but the commands may run on one.",
            "Give --device cpu or cuda, or --dtype.",
        )
    folder, plan = StudyFolder(out), make_plan(study, setup.with_dtype(on_gpu=on_gpu))
    command = [*PROGRAM, "work", str(folder.write_plan(plan))]
    reference = name if name in study_names() else str(Path(name).resolve())
    tables = [*PROGRAM, "tables", reference, "--model", setup.model, "--protocol", study.protocol]
    tables += ["--out", str(folder.root)]
    units = folder.open_units(plan)
    if how.export is not None:
        export_commands(how.export, plan, unit_commands(folder, units, command, launcher), tables)
        echo(f"{how.export}: {len(units)} commands")
        return 0
    if not quiet:
        echo(f"{study.name}: {len(plan.units)} units, {len(plan.units) - len(units)} of them done", err=True)
    if how.executor == "slurm" and units:
        numbers = submit(folder, plan, command, tables, job_options, launcher, how.max_jobs)
        if numbers:
            echo(f"submitted to Slurm: {', '.join(numbers)}; the last job writes the tables")
        else:
            echo("All units that are not done are in Slurm's queue already.")
        return 0
    return _run_here(folder, plan, command, how.jobs, quiet)


def _run_here(folder: "StudyFolder", plan: "Plan", command: list[str], jobs: int | None, quiet: bool) -> int:
    from flip_flop.paper.run import run_units, worker_devices

    exit_codes = run_units(plan, folder, command, worker_devices(plan.setup.device, jobs), quiet=quiet)
    _write_outputs(folder, plan, quiet)
    errors = folder.error_lines(plan)
    for unit, code in exit_codes.items():
        if code and not folder.failures(unit):
            errors.append(f"not done: {unit.name} ended with exit code {code}. Log: {folder.log(unit)}")
    for line in errors:
        echo(line, err=True)
    if errors:
        echo("Run the same command again to retry. Completed cells are skipped.", err=True)
    return 1 if errors else 0


@study_command.command("work", short_help="Run one unit of a plan.")
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--unit", required=True, help="The unit's name.")
def work_command(plan: Path, unit: str) -> int:
    """Run a unit of a plan, OUT/<study>/plans/<digest>.json. `run`, its Slurm jobs and its exported commands use this.

    The exit code is 1 if a cell failed or another process runs the unit, and 143 if a signal stopped it.
    """
    from flip_flop.paper.run import StudyFolder, load_plan, run_unit

    loaded = load_plan(plan)
    return run_unit(loaded, StudyFolder(plan.resolve().parents[2]), loaded.unit(unit))


@study_command.command("status", short_help="Count done, failed and open cells.")
@click.argument("name")
@model_option
@protocol_option
@out_option
def status_command(name: str, model: str | None, protocol: str | None, out: Path) -> int:
    """Count the cells of the last run of a study by task: done, failed and open. List failures with their logs."""
    from flip_flop.paper.run import StudyFolder, status_lines

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
    from flip_flop.paper.run import StudyFolder

    folder = StudyFolder(out)
    _write_outputs(folder, _last_run(folder, name, model, protocol), quiet=False)
    return 0


def _last_run(folder: "StudyFolder", name: str, model: str | None, protocol: str | None) -> "Plan":
    from flip_flop.paper.study import load_study, narrow

    return folder.read_study(narrow(load_study(name), protocol=protocol), model_path(model) if model else None)


def _on_gpu(device: str) -> bool:
    import torch

    return device == "cuda" or (device == "auto" and torch.cuda.is_available())


def _write_outputs(folder: "StudyFolder", plan: "Plan", quiet: bool) -> None:
    from flip_flop.paper.frame import make_frame
    from flip_flop.paper.output import make_tables, write_outputs

    frame = make_frame(folder, plan)
    is_done = frame.groupby("position")["is_done"].first()
    if not is_done.any():
        echo("no audit is complete yet, so no tables were written", err=True)
        return
    written = write_outputs(frame, plan.study, folder.study(plan))
    if not is_done.all():
        echo(f"{(~is_done).sum()} of {len(is_done)} audits are not complete: their cells are blank", err=True)
    if (table := next(make_tables(frame), None)) is not None:
        echo(table.text())
    if not quiet:
        folders = dict.fromkeys(path.parent.name for path in written[1:])
        echo(f"\n{written[0]}: all of it on one page; {', '.join(f'{name}/' for name in folders)} have the files")
