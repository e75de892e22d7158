"""``flip-flop train``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flip_flop.cli.options import (
    data_options,
    device_option,
    dtype_option,
    model_option,
    open_model,
    open_task,
    revision_option,
    task_option,
    templates_option,
)
from flip_flop.errors import InputError

# Settings that the command sets by itself, and the flag that sets them.
OWNED = {"output_dir": "--out", "resume_from_checkpoint": "--resume", "use_cpu": "--device", "do_train": "the verb"}


class TrainCommand(click.Command):
    """Its help lists the method's settings, from the dataclass that holds them."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every own field of F2CConfig, with its default."""
        from dataclasses import fields

        from transformers import TrainingArguments

        from flip_flop.training import F2CConfig

        inherited = {item.name for item in fields(TrainingArguments)}
        rows = [
            (f"--{item.name.replace('_', '-')}", f"{item.metadata['help']}  [default: {item.default}]")
            for item in fields(F2CConfig)
            if item.name not in inherited and item.name != "method"
        ]
        with formatter.section("Settings of the method (F2CConfig)"):
            formatter.write_dl(rows)


@click.command("train", cls=TrainCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@model_option
@revision_option
@dtype_option
@device_option
@task_option
@templates_option
@click.option("--method", type=click.Choice(["f2c", "cce", "swarm"]), help="By default f2c.")
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="The run's folder.")
@click.option("--config", type=click.Path(path_type=Path), help="Settings in a YAML file; flags win over it.")
@click.option("--limit", type=click.IntRange(min=1), help="Take a seeded uniform sample of this many instances.")
@click.option("--resume", is_flag=True, help="Go on from the last whole checkpoint in --out.")
@data_options
@click.option("--quiet", "-q", is_flag=True, help="Show no progress.")
@click.pass_context
def train_command(
    ctx: click.Context,
    model: str,
    revision: str | None,
    dtype: str,
    device: str,
    task: str,
    templates: str | None,
    method: str | None,
    out: Path,
    config: Path | None,
    limit: int | None,
    resume: bool,
    hub_mirror: Path | None,
    story_cloze_dir: Path | None,
    quiet: bool,
) -> int:
    """Train a LoRA adapter without labels, and leave it in OUT/adapter.

    Any field of F2CConfig or of transformers' TrainingArguments is a flag: --learning-rate 1e-4,
    --divergence-space labels, --num-train-epochs 5, --report-to wandb.
    """
    from flip_flop.tasks import require_templates_for_training
    from flip_flop.training import load_training_data, make_config, train
    from flip_flop.training.distributed import rank

    settings = read_settings(config) | parse_flags(ctx.args)
    for name in settings:
        if name.replace("-", "_") in OWNED:
            flag = OWNED[name.replace("-", "_")]
            raise InputError("E-CONFIG-KEY", f"{name} is not a setting of its own here.", f"It is set by {flag}.")
    if method is not None:
        settings["method"] = method
    settings["use_cpu"] = device == "cpu"
    if device not in ("auto", "cpu", "cuda"):
        raise InputError(
            "E-MODEL-DEVICE", f"Training takes no --device {device}.", "Set CUDA_VISIBLE_DEVICES, and use cuda or auto."
        )
    resolved = make_config(settings, "the command line" if config is None else f"{config} and the command line")
    if out.is_file():
        raise InputError("E-OUT-PATH", f"{out} is a file.", "Give a folder.")
    chosen = open_task(task, templates, hub_mirror, story_cloze_dir)
    require_templates_for_training(chosen)
    data = load_training_data(chosen, resolved, limit=limit)  # before the model: its mistakes show at once
    loaded = open_model(model, None, revision, dtype, device)
    run = train(loaded, data, resolved, out, resume=resume, quiet=quiet)
    if run.stopped_by is not None:
        return 128 + run.stopped_by
    adapter = out / "adapter"  # as typed
    if rank() == 0:
        click.echo(f"{adapter}: next, flip-flop audit --model {model} --adapter {adapter} --task {task} --out ...")
    return 0


def read_settings(path: Path | None) -> dict[str, Any]:
    """The settings in a YAML file; none without one.

    Raises:
        InputError: ``E-CONFIG-FILE``.
    """
    if path is None:
        return {}
    from flip_flop.strict_yaml import read_yaml

    if not path.is_file():
        raise InputError("E-CONFIG-FILE", f"No file {path}.", "Give --config an existing YAML file.")
    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise InputError("E-CONFIG-FILE", f"{path} does not hold settings.", "Write `name: value` lines.")
    return settings


def parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--name value``, ``--name=value`` and ``--name`` (for true) as settings.

    Example:
        >>> parse_flags(["--learning-rate", "1e-4", "--bf16", "--seed=3"])
        {'learning-rate': '1e-4', 'bf16': 'true', 'seed': '3'}
    """
    settings: dict[str, str] = {}
    name = None
    for argument in arguments:
        if argument.startswith("--"):
            name, separator, value = argument[2:].partition("=")
            settings[name] = value if separator else "true"
            name = None if separator else name
        elif name is None:
            raise InputError("E-CONFIG-KEY", f"{argument!r} follows no flag.", "Write --name value.")
        else:
            settings[name] = argument
            name = None
    return settings
