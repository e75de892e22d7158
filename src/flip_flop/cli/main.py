"""``flip-flop``: its commands and exit codes."""

import importlib
import io
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import NoReturn

import click

from flip_flop.cli.plugin import PluginGroup
from flip_flop.console import LogLines, align_columns, echo, hardware, is_first_process, versions
from flip_flop.errors import InputError

VERBS = {
    "demo": "Audit, train, audit and report on the embedded task; no network.",
    "init": "Create a task file from a data file, or a package for a method or metric.",
    "audit": "Measure how consistently a model answers across templates.",
    "train": "Train an adapter: f2c, cce, swarm, or a method of another paper.",
    "predict": "Predict labels for a data file, per template and by majority vote.",
    "templates": "PromptSource's templates and your own: fetch, list, show, lint.",
    "report": "One HTML page from audits.",
    "env": "Versions and hardware, for a bug report.",
}

# All processes of a launcher detect the same error within this time.
SECONDS_FOR_THE_FIRST = 10.0


class Commands(PluginGroup):
    """Import a command when it is used, so that ``--help`` does not import torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List our commands, then the commands of installed packages by name."""
        return [*VERBS, *sorted({*self.plugins} - {*VERBS})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return ``<name>_command`` of our module, or the command of an installed package."""
        if cmd_name not in VERBS or cmd_name in self.commands:
            return super().get_command(ctx, cmd_name)
        module = importlib.import_module(f"flip_flop.cli.{'plugin' if cmd_name == 'init' else cmd_name}")
        command: click.Command = vars(module)[f"{cmd_name}_command"]
        return command

    def describe_command(self, ctx: click.Context, name: str) -> str:
        """Describe a command without importing ours."""
        return VERBS[name] if name in VERBS else super().describe_command(ctx, name)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
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
    is_main = threading.current_thread() is threading.main_thread()
    # A launcher's processes end at once, in a collective operation, too.
    if is_main and os.environ.get("WORLD_SIZE", "1") == "1":
        signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(prog_name="flip-flop", standalone_mode=False)
    except InputError as error:
        _refuse(str(error))
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _refuse(shown.getvalue().rstrip("\n"))
    except (click.Abort, KeyboardInterrupt):
        echo("stopped", err=True)
        sys.exit(130)
    except OSError as error:
        from flip_flop.files import WRITE_ERRORS, write_failure  # numpy, for which --help does not wait

        where = f" {error.filename}" if error.filename else ""
        plain = InputError("E-OS", f"{error.strerror or error}{where}.", "Fix it and run the command again.")
        is_write = error.filename and error.errno in WRITE_ERRORS
        _refuse(str(write_failure(error, Path(error.filename), plain.hint) if is_write else plain))
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of torch, which is not imported for its name
            raise
        reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
        hint = "See docs/memory.md. --resume continues a training run from its last checkpoint."
        _refuse(str(InputError("E-MEMORY", f"{reason}.", hint)))
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, frame: object) -> None:
    """Remove temporary files on the way out, as on Ctrl-C."""
    os.write(2, b"stopped\n")  # echo cannot interrupt itself
    raise SystemExit(128 + number)


def _refuse(text: str) -> NoReturn:
    """Print an error of one or all processes once, and exit with 2."""
    _silence_other_processes(2)
    echo(text, err=True)
    sys.exit(2)


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
