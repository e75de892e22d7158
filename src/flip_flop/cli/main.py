"""``flip-flop``: its commands, and what happens when one fails."""

import importlib
import io
import logging
import os
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import click

from flip_flop.cli.plugin import PluginGroup
from flip_flop.errors import InputError
from flip_flop.terminal import LogLines, echo, is_first_process

VERBS = {
    "demo": "Audit, train, audit and report on the embedded task; no network.",
    "init": "Write a task file for your data, with four phrasings to begin with.",
    "audit": "Measure how consistently a model answers over templates.",
    "train": "Train an adapter without labels: f2c, cce or swarm.",
    "predict": "Answer a file's rows: distribution per template, and the vote.",
    "templates": "PromptSource's templates and your own: fetch, list, show, lint.",
    "report": "One HTML page from audits.",
    "env": "Versions and hardware, for a bug report.",
}

# What all processes find, each finds within this of the others.
SECONDS_FOR_THE_FIRST = 10.0


class Commands(PluginGroup):
    """Import a command when it is used, so that ``--help`` does not import torch."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """List our commands, then the commands of installed packages by name."""
        return [*VERBS, *sorted({*self.plugins} - {*VERBS})]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return ``<name>_command`` of our module, or the command of an installed package."""
        if cmd_name not in VERBS:
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
    """Measure how consistently a language model answers over phrasings, train it without labels, prove the change."""


def main() -> None:
    """Run a command; a user's mistake is one line on standard error and exit code 2."""
    _set_up_logging()
    try:
        code = cli.main(prog_name="flip-flop", standalone_mode=False)
    except InputError as error:
        _let_the_first_speak(2)
        echo(error, err=True)
        sys.exit(2)
    except click.ClickException as error:
        _let_the_first_speak(2)
        shown = io.StringIO()
        error.show(shown)
        echo(shown.getvalue().rstrip("\n"), err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        echo("stopped", err=True)
        sys.exit(130)
    except OSError as error:
        from flip_flop.files import WRITE_ERRORS, write_failure  # numpy, for which --help does not wait

        _let_the_first_speak(2)
        where = f" {error.filename}" if error.filename else ""
        plain = InputError("E-OS", f"{error.strerror or error}{where}.", "Fix it and run the command again.")
        is_write = error.filename and error.errno in WRITE_ERRORS
        echo(write_failure(error, Path(error.filename), plain.hint) if is_write else plain, err=True)
        sys.exit(2)
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # of torch, which is not imported for its name
            raise
        _let_the_first_speak(2)
        reason = " ".join(str(error).split(". ")[0].split()).rstrip(".")
        hint = "docs/memory.md has what helps. A training goes on from its last checkpoint with --resume."
        echo(InputError("E-MEMORY", f"{reason}.", hint), err=True)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


def _let_the_first_speak(code: int) -> None:
    """Of several processes that a launcher started, a mistake that all of them find is said by the first one alone.

    The launcher ends the others when one has failed; a process that is not ended soon is the only one that knows.
    """
    if not is_first_process():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(code))
        time.sleep(SECONDS_FOR_THE_FIRST)


def _set_up_logging() -> None:
    """Our own notes as plain lines; of other libraries only errors."""
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")  # read when the library is imported, later
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(message)s"))
    sys.excepthook = lambda kind, error, trace: echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    log = logging.getLogger("flip_flop")
    log.handlers = [handler]  # one, however often a process calls this
    # Of several processes that a launcher started, only the first one prints notes.
    log.setLevel(logging.INFO if is_first_process() else logging.ERROR)
    # Imported where it is installed, it warns of kernels that it does without.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
