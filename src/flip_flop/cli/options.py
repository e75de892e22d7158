"""Options that several verbs share, and what their values stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from flip_flop.scoring import LoadedModel
    from flip_flop.tasks import Task

Command = Callable[..., Any]

model_option = click.option(
    "--model", "-m", required=True, help="A hub name, a folder, or `demo` for the embedded model."
)
adapter_option = click.option(
    "--adapter", type=click.Path(path_type=Path), help="An adapter/ folder of a training run."
)
task_option = click.option(
    "--task",
    "-t",
    required=True,
    help="A dataset of the paper (`flip-flop tasks list`), a task file (YAML), or `demo`.",
)
revision_option = click.option("--revision", help="The model's commit, branch or tag on the hub.")
dtype_option = click.option(
    "--dtype",
    default="auto",
    show_default=True,
    help="float32, bfloat16 or float16; auto: bfloat16 on a GPU.",
)
device_option = click.option("--device", default="auto", show_default=True, help="cpu, cuda, cuda:1, ...")
chat_option = click.option(
    "--chat-template",
    type=click.Choice(["auto", "on", "off"]),
    default="auto",
    show_default=True,
    help="Put prompts into the tokenizer's chat template; auto: where it has one.",
)
batch_option = click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    help="Tokens of one forward.",
)
backend_option = click.option(
    "--backend",
    type=click.Choice(["packed", "padded"]),
    default="packed",
    show_default=True,
    help="packed: what sequences share is computed once, where the model allows it; padded: each by itself.",
)
mirror_option = click.option(
    "--hub-mirror",
    type=click.Path(path_type=Path),
    envvar="FLIP_FLOP_HUB_MIRROR",
    help="Read data sets from DIR/<repo>/<config>/<split>.parquet instead of the hub.",
)
story_cloze_option = click.option(
    "--story-cloze-dir",
    type=click.Path(path_type=Path),
    envvar="FLIP_FLOP_STORY_CLOZE",
    help="The folder of StoryCloze's two CSV files, which its owners give out.",
)
templates_option = click.option(
    "--templates", help="NAME,NAME,... or `all` or `held_out`; by default all but the held-out ones."
)


def model_options(command: Command) -> Command:
    """Everything that :func:`open_model` reads."""
    for option in (device_option, dtype_option, revision_option, adapter_option, model_option):
        command = option(command)
    return command


def scoring_options(command: Command) -> Command:
    """How prompts are put to a model and scored."""
    for option in (batch_option, backend_option, chat_option):
        command = option(command)
    return command


def open_model(model: str, adapter: Path | None, revision: str | None, dtype: str, device: str) -> "LoadedModel":
    """Load what ``--model`` and ``--adapter`` name."""
    from flip_flop.scoring import load_model

    return load_model(model, adapter=adapter, revision=revision, dtype=dtype, device=device)


def data_options(command: Command) -> Command:
    """Where the paper's datasets are read from."""
    for option in (story_cloze_option, mirror_option):
        command = option(command)
    return command


def open_task(
    task: str,
    templates: str | None = None,
    hub_mirror: Path | None = None,
    story_cloze_dir: Path | None = None,
    seed: int = 0,
) -> "Task":
    """Load what ``--task`` names, with the templates that ``--templates`` asks for."""
    from flip_flop.tasks import load_task

    return load_task(task, templates=templates, hub_mirror=hub_mirror, story_cloze_dir=story_cloze_dir, seed=seed)
