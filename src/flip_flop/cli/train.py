"""``flip-flop train``."""

import shlex
from collections.abc import Sequence
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, get_args

import click

from flip_flop.cli.options import BaseModelOptions, DataOptions, TaskOptions, option, options, out_folder
from flip_flop.console import echo, is_first_process
from flip_flop.errors import InputError
from flip_flop.files import Json
from flip_flop.method.settings import TrainingProtocol, row_protocol_of
from flip_flop.training.settings import ALIASES, TrainingSettings, as_flag, setting_of

# Settings that the command owns, and the flags that set them.
OWNED = {"output_dir": "--out", "resume_from_checkpoint": "--resume", "use_cpu": "--device", "do_train": "the verb"}


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training."""

    method: str | None = option(
        None,
        help="f2c, cce, swarm, bct, opct, ssd, ttrl, cpc_grpo, swarm_l2, swarm_l1_l2, marginal_entropy, supervised, "
        "paft, ppcl, swarm_release, cce_release, f2c_release, or package.module:name of a custom method; by default "
        "f2c. supervised, paft and ppcl use labels.",
    )
    out: Path = option(short="-o", callback=out_folder, help="Folder of the run.")
    config: Path | None = option(None, help="YAML file with settings. Flags override it.")
    limit: int | None = option(None, min=1, help="Use a seeded uniform sample of this many instances.")
    eval_limit: int | None = option(
        None,
        min=1,
        help="Select the checkpoint on a seeded, stratified sample of this many validation instances.",
    )
    few_labels: Path | None = option(
        None,
        help="Estimate label_prior from these labelled rows: CSV, JSONL or parquet. With supervised_weight, they are "
        "training rows instead, and the loss reads their labels only.",
    )
    resume: bool = option(False, help="Continue from the last complete checkpoint in --out.")
    keep_worse: bool = option(False, help="Save the adapter even if it has collapsed or is worse than the base.")
    quiet: bool = option(False, short="-q", help="Show no progress.")


class TrainCommand(click.Command):
    """Adds the settings of ``F2CConfig`` to the help."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List every field of F2CConfig that is ours, or has another default than the library's."""
        short = {name: f"{alias}, " for alias, name in ALIASES.items()}
        rows = [
            (f"{short.get(item.name, '')}{as_flag(item.name)}", f"{item.metadata['help']}  [default: {_default(item)}]")
            for item in fields(TrainingSettings)
            if item.name not in ("method", *OWNED)
        ]
        with formatter.section("Settings (F2CConfig)"):
            formatter.write_dl(rows)


@click.command("train", cls=TrainCommand, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
@options(BaseModelOptions, TaskOptions, TrainOptions, DataOptions)
@click.pass_context
def train_command(
    ctx: click.Context, model: BaseModelOptions, task: TaskOptions, run: TrainOptions, data: DataOptions
) -> int:
    """Train a LoRA adapter, by default without labels, and save it in OUT/adapter.

    Any field of F2CConfig or of transformers' TrainingArguments is a flag: --learning-rate 1e-4,
    --divergence-space labels, --epochs 5, --report-to wandb. Short: --lr, --epochs, --batch-size.
    """
    settings = _read_settings(run.config) | _parse_flags(ctx.args)
    if run.method is not None:
        settings["method"] = run.method
    keys = {setting_of(key): key for key in settings}
    source = f"{run.config} and the command line" if run.config else "the command line"
    flags = [flag for param in ctx.command.params for flag in param.opts if flag.startswith("--")]
    from flip_flop.training.folder import check_out

    check_out(run.out, resume=run.resume)
    quiet = run.quiet or not is_first_process()
    if not quiet:
        echo(f"reading {task.task}", err=True)
    from flip_flop.tasks import prior_from, require_templates_for_training
    from flip_flop.training.config import make_config
    from flip_flop.training.data import load_training_data
    from flip_flop.training.run import train

    for name, flag in OWNED.items():
        if name in keys:
            raise InputError("E-CONFIG", f"{keys[name]} cannot be set as a setting.", f"It is set by {flag}.")
    if model.device not in ("auto", "cpu", "cuda"):
        raise InputError(
            "E-MODEL-DEVICE",
            f"Training does not support --device {model.device}.",
            "Set CUDA_VISIBLE_DEVICES, and use cuda or auto.",
        )
    # Everything typed and the data are checked before the model is loaded.
    settings["use_cpu"] = model.device == "cpu"
    few_labels = run.few_labels if "supervised_weight" in keys else None
    if run.few_labels is not None and few_labels is None:
        if "label_prior" in keys:
            raise InputError("E-LABEL-PRIOR", "label_prior and --few-labels are both given.", "Remove one of them.")
        settings["label_prior"] = list(prior_from(data.open(task.task, task.templates), run.few_labels))
    config = make_config(settings, source, flags)
    if few_labels is not None and not config.supervised_weight:
        raise InputError(
            "E-CONFIG",
            "supervised_weight is 0, so --few-labels has no effect.",
            "Leave supervised_weight out to estimate label_prior from them.",
        )
    opened = data.open(task.task, task.templates, row_protocol_of(config.protocol), task.axes)
    require_templates_for_training(opened)
    model.check()
    rows = load_training_data(opened, config, limit=run.limit, eval_limit=run.eval_limit, few_labels=few_labels)
    model.announce(quiet=quiet)
    result = train(
        model.load(),
        rows,
        config,
        run.out,
        resume=run.resume,
        quiet=run.quiet,
        keep_worse=run.keep_worse,
    )
    if result.stopped_by is not None:
        return 128 + int(result.stopped_by)
    if result.withheld:
        return 1
    if is_first_process():
        adapter = run.out / "adapter"
        options = {"model": model.model, "adapter": adapter, "task": task.task, "hub-mirror": data.hub_mirror}
        if config.protocol == "release":
            options["protocol"] = "release"
        if config.too_long == "skip":
            options["too-long"] = "skip"
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
        words += [f"--axis={axis}" for axis in task.axis]
        echo(f"{adapter}: next, {shlex.join(['flip-flop', 'audit', *words])} --out ...")
    return 0


def _default(item: Field[Any]) -> str:
    of_protocols = (f"{item.metadata[name]} ({name})" for name in get_args(TrainingProtocol) if name in item.metadata)
    return ", ".join(of_protocols) or str(item.default)


def _read_settings(path: Path | None) -> Json:
    if path is None:
        return {}
    from flip_flop.strict_yaml import read_yaml

    settings = read_yaml(path, code="E-CONFIG")
    if not isinstance(settings, dict):
        raise InputError("E-CONFIG", f"{path} has no settings.", "Write `name: value` lines.")
    return settings


def _parse_flags(arguments: Sequence[str]) -> dict[str, str]:
    """``--name value``, ``--name=value`` and ``--name`` (for true) as settings.

    Example:
        >>> _parse_flags(["--learning-rate", "1e-4", "--bf16", "--seed=3"])
        {'--learning-rate': '1e-4', '--bf16': 'true', '--seed': '3'}
    """
    settings = {}
    name = None
    for argument in arguments:
        if argument.startswith("--"):
            name, separator, value = argument.partition("=")
            settings[name] = value if separator else "true"
            name = None if separator else name
        elif name is None:
            raise InputError("E-CONFIG", f"{argument!r} does not follow a flag.", "Write --name value.")
        else:
            settings[name], name = argument, None
    return settings
