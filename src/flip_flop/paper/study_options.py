"""The options of ``flip-flop study``: each is declared once, as a field of a dataclass."""

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from flip_flop.cli.options import DataOptions, option, out_file, out_folder
from flip_flop.errors import InputError

if TYPE_CHECKING:
    from flip_flop.paper.study import Study
    from flip_flop.paper.units import Setup


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
    device: str = option("auto", help="cpu, cuda or auto.")
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
        from flip_flop.paper.study import narrow
        from flip_flop.paper.study_file import load_study
        from flip_flop.paper.units import Setup

        narrower = {key: getattr(self, key) for key in ("tasks", "methods", "seeds", "limit", "protocol")}
        study = narrow(load_study(name), **narrower, settings=dict(map(_setting, self.settings)))
        named = self.model or study.model
        if named is None:
            raise InputError("E-STUDY-MODEL", f"study {study.name} names no model.", "Give --model.")
        if self.device not in ("auto", "cpu", "cuda"):
            message = f"A study takes no --device {self.device}."
            raise InputError("E-MODEL-DEVICE", message, "Set CUDA_VISIBLE_DEVICES, and use cuda or auto.")
        study = replace(study, model=study.model and model_path(study.model))
        folders = (self.hub_mirror, self.story_cloze_dir)
        mirror, stories = (None if folder is None else str(folder.resolve()) for folder in folders)
        return study, Setup(model_path(named), self.revision, self.dtype, self.device, mirror, stories)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The executor of the units, and the resources of each for Slurm."""

    executor: Literal["local", "slurm"] = option("local", help="Worker processes here, or an array of Slurm's.")
    jobs: int | None = option(
        None, min=1, short="--workers", help="Local processes at a time; by default one per GPU, or one."
    )
    partition: str | None = option(None, help="Slurm: the partition.")
    time: str = option("240", help="Slurm: minutes, or 4:00:00, or 1-12:00.")
    gpus: int | None = option(None, min=0, help="Slurm: GPUs; by default 1, or 0 with --device cpu.")
    launcher: str | None = option(
        None,
        help="Slurm, --export: the program that starts one process for each of --gpus 4: "
        "'accelerate launch --num_processes 4 --main_process_port 0'.",
    )
    mem: str | None = option(None, help="Slurm: memory, such as 32GB.")
    cpus: int | None = option(None, min=1, help="Slurm: cores.")
    max_jobs: int = option(64, min=1, help="Slurm: at a time, in each array.")
    slurm: tuple[str, ...] = option((), metavar="KEY=VALUE", help="Slurm: any other option of sbatch.")
    export: Path | None = option(
        None, callback=out_file, help="Write the commands into this file, and do not run them."
    )

    def launcher_words(self) -> list[str]:
        """The words of ``--launcher``; a program of this very installation by its whole path."""
        if self.launcher is None:
            if self.gpus is not None and self.gpus > 1:
                message = f"--gpus is {self.gpus}, but without --launcher a unit is one process with one GPU."
                hint = f"Give --launcher 'accelerate launch --num_processes {self.gpus} --main_process_port 0'."
                raise InputError("E-DISTRIBUTED", message, hint)
            return []
        if self.executor == "local" and self.export is None:
            message = "--launcher: local workers run each unit as one process."
            raise InputError("E-DISTRIBUTED", message, "Use --executor slurm, or --export FILE and run its lines.")
        try:
            program, *others = shlex.split(self.launcher)
        except ValueError:
            message, hint = f"Invalid --launcher {self.launcher!r}.", "Write 'accelerate launch --num_processes 4'."
            raise InputError("E-STUDY-VALUE", message, hint) from None
        own = Path(sys.executable).parent / program
        return [str(own) if own.is_file() else program, *others]


out_option = click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    callback=out_folder,
    default=Path("out/studies"),
    show_default=True,
    help="The folder of all studies: what two of them share is run once.",
)


def model_path(model: str) -> str:
    """The model as a plan names it. Units may run in other folders, so a path is absolute."""
    return str(Path(model).resolve()) if model != "demo" and Path(model).is_dir() else model


def _setting(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise InputError("E-CONFIG-KEY", f"--set {text!r} is not FIELD=VALUE.", "Write --set learning_rate=1e-4.")
    return name.strip(), value.strip()
