"""The options of ``flip-flop study``."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from flip_flop.cli.options import data_options, device_option, dtype_option, revision_option

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
            click.option(
                "--gpus", type=click.IntRange(0, 1), help="Slurm: GPUs; by default 1, or 0 with --device cpu."
            ),
            click.option("--mem", help="Slurm: memory, such as 32GB."),
            click.option("--cpus", type=click.IntRange(min=1), help="Slurm: cores."),
            click.option(
                "--max-jobs", type=click.IntRange(min=1), default=64, show_default=True, help="Slurm: at a time."
            ),
            click.option("--slurm", multiple=True, metavar="KEY=VALUE", help="Slurm: any other option of sbatch."),
        )
    ):
        command = option(command)
    return command
