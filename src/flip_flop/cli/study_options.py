"""The options of ``flip-flop study``."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flip_flop.errors import InputError

revision_option = click.option("--revision", help="The model's commit, branch or tag on the hub.")
dtype_option = click.option("--dtype", default="auto", show_default=True)
device_option = click.option("--device", default="auto", show_default=True)


def data_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Where the paper's datasets are read from."""
    for flag, variable in (
        ("--story-cloze-dir", "FLIP_FLOP_STORY_CLOZE"),
        ("--hub-mirror", "FLIP_FLOP_HUB_MIRROR"),
    ):
        command = click.option(flag, type=click.Path(path_type=Path), envvar=variable)(command)
    return command


out_option = click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("out/studies"),
    show_default=True,
    help="The folder of all studies: what two of them share is run once.",
)


class _Numbers(click.ParamType):
    name = "N,N,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, ...]:
        """Whole numbers, separated by commas."""
        try:
            return tuple(int(part) for part in str(value).split(","))
        except ValueError:
            self.fail(f"{value!r} is not a list of whole numbers such as 0,1,2.")


class _Names(click.ParamType):
    name = "NAME,NAME,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, ...]:
        """Words, separated by commas."""
        return tuple(part.strip() for part in str(value).split(",") if part.strip())


def last_run_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which run is looked at."""
    for option in reversed(
        (
            click.argument("name"),
            click.option("--model", "-m", help="As for `run`; needed where the study was run with several."),
            out_option,
        )
    ):
        command = option(command)
    return command


def grid_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What makes a study's grid."""
    for option in reversed(
        (
            click.argument("name"),
            click.option("--model", "-m", help="A hub name, a folder, or `demo`; by default the study's own."),
            revision_option,
            dtype_option,
            device_option,
            click.option("--tasks", type=_Names(), help="Of the study's tasks these only."),
            click.option("--methods", type=_Names(), help="Of base, swarm, cce and f2c these only."),
            click.option("--seeds", type=_Numbers(), help="The trainings' seeds."),
            click.option("--limit", type=click.IntRange(min=1), help="A uniform sample of this size, of each split."),
            click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE", help="Any field of F2CConfig."),
            data_options,
        )
    ):
        command = option(command)
    return command


def slurm_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What Slurm is asked for, for each cell."""
    for option in reversed(
        (
            click.option("--partition", help="Slurm: the partition."),
            click.option("--time", default="240", show_default=True, help="Slurm: minutes, or 4:00:00, or 1-12:00."),
            click.option("--gpus", type=click.IntRange(0), help="Slurm: GPUs; by default 1, or 0 with --device cpu."),
            click.option(
                "--launcher",
                help="Slurm, --export: what starts a training in several processes, one for each of --gpus 4: "
                "'accelerate launch --num_processes 4 --main_process_port 0'.",
            ),
            click.option("--mem", help="Slurm: memory, such as 32GB."),
            click.option("--cpus", type=click.IntRange(min=1), help="Slurm: cores."),
            click.option(
                "--max-jobs",
                type=click.IntRange(min=1),
                default=64,
                show_default=True,
                help="Slurm: at a time, of one array.",
            ),
            click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="Slurm: any other option of sbatch."),
        )
    ):
        command = option(command)
    return command


def launcher_words(launcher: str | None, gpus: int | None, *, has_workers: bool) -> list[str]:
    """The words of ``--launcher``; a program of this very installation by its whole path, whatever is on the path.

    Args:
        launcher: As it was typed; None where it was not.
        gpus: ``--gpus``.
        has_workers: The cells are run by local workers.

    Raises:
        InputError: ``E-DISTRIBUTED``: the launcher has nothing to start, or is missing. ``E-STUDY-VALUE``: it is no
            command.
    """
    if launcher is None:
        if gpus is not None and gpus > 1:
            message = f"--gpus is {gpus}, and a training without --launcher is one process with one GPU."
            hint = f"Give --launcher 'accelerate launch --num_processes {gpus} --main_process_port 0'."
            raise InputError("E-DISTRIBUTED", message, hint)
        return []
    if has_workers:
        message = "--launcher: local workers take one cell after the other, each as one process."
        raise InputError("E-DISTRIBUTED", message, "Use --executor slurm, or --export FILE and run its lines.")
    try:
        program, *others = shlex.split(launcher)
    except ValueError:
        message = f"--launcher {launcher!r} is no command."
        raise InputError("E-STUDY-VALUE", message, "Write --launcher 'accelerate launch --num_processes 4'.") from None
    own = Path(sys.executable).parent / program
    return [str(own) if own.is_file() else program, *others]
