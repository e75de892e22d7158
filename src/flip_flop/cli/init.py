"""``flip-flop init``: a task file for a data file, or a package for a method or metric."""

import keyword
import re
import string
from collections.abc import Collection
from pathlib import Path

import click

from flip_flop.cli.lazy import LazyGroup
from flip_flop.console import echo
from flip_flop.errors import InputError, install_command

FILES = Path(__file__).parent / "plugin_files"
DATA = {"data": ("flip_flop.drafting.cli:data_command", "Write a task file for a data file.")}


class InitGroup(LazyGroup):
    """A first argument that is not a command is a data file: ``flip-flop init reviews.csv``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command ``data``."""
        return super().parse_args(ctx, args if args[:1] and args[0] in self.list_commands(ctx) else ["data", *args])


@click.group("init", cls=InitGroup, lazy=DATA)
def init_command() -> None:
    """Write a task file for your data, or a package for a method or metric."""


@init_command.command("method", short_help="Write a package with a method and its test.")
@click.argument("name")
def method_command(name: str) -> None:
    """Write the folder NAME: a package with a method and its test."""
    from flip_flop.method import METHODS

    _write_plugin("method", name, METHODS)


@init_command.command("metric", short_help="Write a package with a metric and its test.")
@click.argument("name")
def metric_command(name: str) -> None:
    """Write the folder NAME: a package with a metric and its test."""
    from flip_flop.metrics import METRICS

    _write_plugin("metric", name, METRICS)


def _write_plugin(kind: str, name: str, known: Collection[str]) -> None:
    from flip_flop.files import new_folder

    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in known:
        raise InputError(
            "E-CONFIG",
            f"{name!r} cannot be the name of a new {kind}.",
            "Choose another name of lower-case letters, digits and underscores.",
        )
    if Path(name).exists():
        raise InputError("E-OUT-USED", f"{name} exists already.", "Choose another name.")
    values = {"kind": kind, "name": name, "constant": name.upper(), "title": name.replace("_", " ").capitalize()}
    with new_folder(Path(name)) as folder:
        for source, file in (
            (f"{kind}.py", f"{name}.py"),
            (f"test_{kind}.py", f"test_{name}.py"),
            ("pyproject.toml", "pyproject.toml"),
        ):
            text = (FILES / f"{source}.txt").read_text(encoding="utf-8")
            (folder / file).write_text(string.Template(text).substitute(values), encoding="utf-8")
    echo(f"{name}: next, edit {name}/{name}.py, then {install_command(f'./{name}', '--editable')}")
