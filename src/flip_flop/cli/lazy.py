"""A group of commands that are imported when they are used."""

import pkgutil
from collections.abc import Mapping
from typing import Any

import click

from flip_flop.errors import nearest


class LazyGroup(click.Group):
    """A group that imports a command when it is used, so that ``--help`` does not import torch.

    Args:
        lazy: The commands by name: ``"module:attribute"`` and the line of the help.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]], **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List the names of all commands."""
        return [*self.lazy, *self.commands]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; import it if it is lazy."""
        if cmd_name not in self.lazy:
            return super().get_command(ctx, cmd_name)
        command: click.Command = pkgutil.resolve_name(self.lazy[cmd_name][0])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command, or fail with the nearest name."""
        names = self.list_commands(ctx)
        if args[0] not in names and not args[0].startswith("-"):
            ctx.fail(f"No such command {args[0]!r}. {nearest(args[0], names)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their lines; import none that is lazy."""
        lines = {name: text for name, (_, text) in self.lazy.items()}
        lines |= {name: command.get_short_help_str(100) for name, command in self.commands.items()}
        with formatter.section("Commands"):
            formatter.write_dl(list(lines.items()))
