"""``flip-flop``: its commands and exit codes."""

import functools
import importlib
import io
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import click

from flip_flop.console import LogLines, align_columns, echo, hardware, is_first_process, versions
from flip_flop.errors import InputError, nearest

VERBS = {
    "demo": "Audit, train, audit and report on the embedded task; no network.",
    "init": "Create a task file from a data file, with four starter templates.",
    "audit": "Measure how consistently a model answers across templates.",
    "train": "Train an adapter: f2c, cce, swarm, or a method of another paper.",
    "predict": "Predict labels for a data file, per template and by majority vote.",
    "tasks": "The paper's datasets by name: list, show, check.",
    "templates": "PromptSource's templates and your own: fetch, list, show, lint.",
    "report": "One HTML page from audits.",
    "env": "Versions and hardware, for a bug report.",
}

# Installed packages add commands in this entry-point group. A value is a click command.
GROUP = "flip_flop.commands"
# All processes of a launcher detect the same error within this time.
SECONDS_FOR_THE_FIRST = 10.0


class LazyGroup(click.Group):
    """Import a command when it is used, so that ``--help`` does not import torch."""

    @functools.cached_property
    def plugins(self) -> dict[str, EntryPoint]:
        """The commands of installed packages, by name."""
        return {each.name: each for each in entry_points(group=GROUP) if each.name not in VERBS}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List our commands, then those of installed packages by name."""
        return [*VERBS, *sorted(self.plugins)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return ``<name>_command`` of ``flip_flop.cli.<name>``, or the command of an installed package."""
        if cmd_name in self.plugins:
            try:
                plugin: click.Command = self.plugins[cmd_name].load()
            except ImportError as error:
                value = self.plugins[cmd_name].value
                raise click.ClickException(f"Cannot import the command {cmd_name!r} ({value}): {error}") from error
            return plugin
        if cmd_name not in VERBS:
            return None
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        command: click.Command = vars(importlib.import_module(f"flip_flop.cli.{cmd_name}"))[f"{cmd_name}_command"]
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
        """List our commands without importing them."""
        rows = list(VERBS.items())
        for name in sorted(self.plugins):
            try:
                command = self.get_command(ctx, name)
            except click.ClickException as error:  # the others can still be used
                rows.append((name, error.message))
            else:
                rows.append((name, command.get_short_help_str(100) if command else ""))
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flip-flop-consistency", prog_name="flip-flop")
def cli() -> None:
    """Measure and improve the consistency of a language model across prompt templates."""


@cli.command("env")
def env_command() -> int:
    """Show versions and hardware, for a bug report."""
    facts = versions() | hardware()
    echo(align_columns([(name, "none" if value is None else str(value)) for name, value in facts.items()]))
    return 0


def main() -> None:
    """Run a command. For invalid input, print a line to standard error and exit with 2."""
    _set_up_logging()
    try:
        code = cli.main(prog_name="flip-flop", standalone_mode=False)
    except InputError as error:
        _silence_other_processes(2)
        echo(error, err=True)
        sys.exit(2)
    except click.ClickException as error:
        _silence_other_processes(2)
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue().rstrip("\n"), err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        echo("stopped", err=True)
        sys.exit(130)
    except OSError as error:
        from flip_flop.files import WRITE_ERRORS, write_failure  # numpy, for which --help does not wait

        _silence_other_processes(2)
        where = f" {error.filename}" if error.filename else ""
        plain = InputError("E-OS", f"{error.strerror or error}{where}.", "Fix it and run the command again.")
        is_write = error.filename and error.errno in WRITE_ERRORS
        echo(write_failure(error, Path(error.filename), plain.hint) if is_write else plain, err=True)
        sys.exit(2)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of torch, which is not imported for its name
            raise
        _silence_other_processes(2)
        reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
        hint = "See docs/memory.md. --resume continues a training run from its last checkpoint."
        echo(InputError("E-MEMORY", f"{reason}.", hint), err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _silence_other_processes(code: int) -> None:
    """Wait in all processes except the first, so that an error of all processes is printed once.

    The launcher stops the other processes when the first fails. A process that is not stopped has an error that the
    first does not have.
    """
    if not is_first_process():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(code))
        time.sleep(SECONDS_FOR_THE_FIRST)


def _set_up_logging() -> None:
    """Print our messages as plain lines, and of other libraries only errors."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when the library is imported, later
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(message)s"))
    sys.excepthook = lambda kind, error, trace: echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    log = logging.getLogger("flip_flop")
    log.handlers = [handler]  # replaces the handler of an earlier call
    # Only the first process of a launcher prints messages.
    log.setLevel(logging.INFO if is_first_process() else logging.ERROR)
    # It warns of missing kernels when it is imported.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
