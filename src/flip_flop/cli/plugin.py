"""Commands of installed packages, and ``flip-flop init``."""

import functools
import keyword
import re
import string
from collections.abc import Collection
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import click

from flip_flop.console import echo
from flip_flop.errors import InputError, install_command, nearest

COMMANDS = "flip_flop.commands"
FILES = Path(__file__).parent / "plugin_files"


class PluginGroup(click.Group):
    """A group with commands of installed packages.

    The value of an entry point in ``flip_flop.commands`` is a click command. ``study`` adds ``flip-flop study``, and
    ``templates.vary`` adds ``flip-flop templates vary``.
    """

    def __init__(self, *args: Any, prefix: str = "", **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.prefix = prefix

    @functools.cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The entry points of this group by the name of the command."""
        installed = (each for each in entry_points(group=COMMANDS) if each.name.startswith(self.prefix))
        return {name: each for each in installed if "." not in (name := each.name.removeprefix(self.prefix))}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List our commands, then the commands of installed packages by name."""
        return [*self.commands, *sorted({*self.plugins} - {*self.commands})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return our command, or import the command of an installed package."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in self.plugins:
            return own
        try:
            plugin: click.Command = self.plugins[cmd_name].load()
        except ImportError as error:
            value = self.plugins[cmd_name].value
            raise click.ClickException(f"Cannot import the command {cmd_name!r} ({value}): {error}") from error
        return plugin

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or fail with the nearest name."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            inner = (each.name for each in entry_points(group=COMMANDS) if each.name.endswith(f".{args[0]}"))
            meant = next(inner, "").replace(".", " ")
            ctx.fail(f"No such command {args[0]!r}. {f'Did you mean {meant!r}?' if meant else nearest(args[0], names)}")
        return super().resolve_command(ctx, args)

    def describe_command(self, ctx: click.Context, name: str) -> str:
        """Return the short help of a command."""
        try:
            command = self.get_command(ctx, name)
        except click.ClickException as error:  # the other commands still work
            return error.message
        return command.get_short_help_str(100) if command else ""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.describe_command(ctx, name)) for name in self.list_commands(ctx)])


class InitGroup(PluginGroup):
    """A first argument that is not a command is a data file: ``flip-flop init reviews.csv``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the command ``data``."""
        return super().parse_args(ctx, args if args[:1] and args[0] in self.list_commands(ctx) else ["data", *args])


@click.group("init", cls=InitGroup, prefix="init.")
def init_command() -> None:
    """Write a task file for your data, or a plug-in."""


@init_command.command("method", short_help="Write a package with a method and its test.")
@click.argument("name")
def method_command(name: str) -> int:
    """Write the folder NAME: a package with a method and its test."""
    from flip_flop.method import METHODS

    return _write_plugin("method", name, METHODS)


@init_command.command("metric", short_help="Write a package with a metric and its test.")
@click.argument("name")
def metric_command(name: str) -> int:
    """Write the folder NAME: a package with a metric and its test."""
    from flip_flop.metrics import METRICS

    return _write_plugin("metric", name, METRICS)


def _write_plugin(kind: str, name: str, known: Collection[str]) -> int:
    from flip_flop.files import new_folder

    if not re.fullmatch("[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in known:
        message = f"{name!r} cannot be the name of a new {kind}."
        raise InputError("E-INIT-NAME", message)
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
    return 0
