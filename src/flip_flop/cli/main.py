"""``flip-flop``: its commands and exit codes."""

import atexit
import contextlib
import errno
import gc
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

from flip_flop.cli.lazy import LazyGroup
from flip_flop.console import (
    LogLines,
    align_columns,
    echo,
    hardware,
    is_first_process,
    num_processes,
    stop_signals,
    versions,
)
from flip_flop.errors import OTHER_ENDED, InputError, first_sentence, is_of_communication, log

COMMANDS = {
    "demo": ("flip_flop.cli.demo:demo_command", "Audit, train, audit and report on the embedded task; no network."),
    "init": (
        "flip_flop.cli.init:init_command",
        "Create a task file, or a package for a method or metric.",
    ),
    "audit": ("flip_flop.cli.audit:audit_command", "Measure how consistently a model answers across templates."),
    "train": ("flip_flop.cli.train:train_command", "Train an adapter: f2c, cce, swarm, or a method of another paper."),
    "predict": (
        "flip_flop.classifier.cli:predict_command",
        "Predict labels for a data file, by template and majority.",
    ),
    "export": ("flip_flop.classifier.cli:export_command", "Write a classifier with its adapter or merged weights."),
    "serve": ("flip_flop.serving.cli:serve_command", "Answer questions over HTTP with a classifier."),
    "templates": ("flip_flop.cli.templates:templates_command", "Fetch, list, show, lint and vary templates."),
    "compare": ("flip_flop.cli.compare:compare_command", "Differences between audits, also of changed prompts."),
    "report": ("flip_flop.cli.report:report_command", "One HTML page from audits."),
    "tasks": ("flip_flop.paper.cli:tasks_command", "The paper's datasets by name: list, show, check."),
    "study": ("flip_flop.paper.cli:study_command", "The paper's studies as grids: plan, run, status, tables."),
}

# All processes of a launcher detect the same error within this time.
SECONDS_FOR_THE_FIRST = 10.0


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="flip-flop-consistency", prog_name="flip-flop")
def cli() -> None:
    """Measure and improve the consistency of a language model across prompt templates."""


@cli.command("env")
def env_command() -> None:
    """Show versions and hardware, for a bug report."""
    facts = versions() | hardware()
    echo(align_columns([(name, "none" if value is None else str(value)) for name, value in facts.items()]))


def main() -> None:
    """Run a command. For invalid input, print a line to standard error and exit with 2."""
    _set_up_logging()
    atexit.register(gc.freeze)  # otherwise a last collection of all modules takes seconds
    is_main = threading.current_thread() is threading.main_thread()
    try:
        # A launcher's processes end at once, in a collective operation, too.
        if num_processes() == 1 and is_main:
            for number in stop_signals():
                signal.signal(number, _terminate)
        code = cli.main(prog_name="flip-flop", standalone_mode=False)
    except InputError as error:
        _refuse(str(error))
    except click.ClickException as error:
        shown = io.StringIO()
        error.show(shown)
        _refuse(shown.getvalue().rstrip("\n"))
    except (click.Abort, KeyboardInterrupt):
        if is_first_process():
            echo("stopped", err=True)
        sys.exit(130)
    except OSError as error:
        from flip_flop.files import WRITE_ERRORS, write_failure  # numpy, for which --help does not wait

        where = f" {error.filename}" if error.filename else ""
        plain = InputError("E-OS", f"{error.strerror or error}{where}.", "Fix it and run the command again.")
        is_write = error.filename and error.errno in WRITE_ERRORS
        _refuse(str(write_failure(error, Path(error.filename), plain.hint) if is_write else plain))
    except Exception as error:
        kind = type(error).__name__  # of torch, which is not imported for its name
        reason = first_sentence(error)
        if kind == "OutOfMemoryError":
            hint = "See docs/memory.md. --resume continues a training run from its last checkpoint."
            _refuse(str(InputError("E-MEMORY", f"{reason}.", hint)))
        out_of_files = os.strerror(errno.EMFILE)
        if out_of_files in "".join(traceback.format_exception(error)):  # an import fails with an error of its own kind
            _refuse(str(InputError("E-OS", f"{out_of_files}.", "Raise the limit: ulimit -n 1024.")))
        if not is_of_communication(error):
            raise
        code, message, hint = OTHER_ENDED
        _refuse(str(InputError(code, f"{message}: {reason}.", hint)))
    sys.exit(code if isinstance(code, int) else 0)


def _terminate(number: int, frame: object) -> None:
    """Remove temporary files on the way out, as on Ctrl-C."""
    with contextlib.suppress(OSError):  # the terminal may be closed
        os.write(2, b"stopped\n")  # echo cannot interrupt itself
    raise SystemExit(128 + number)


def _refuse(text: str) -> NoReturn:
    """Print an error of one or all processes once, and exit with 2.

    All processes except the first wait: the launcher stops them when the first fails. A process that is not stopped has
    an error that the first does not have.
    """
    if not is_first_process():
        for number in (*stop_signals(), signal.SIGINT):
            signal.signal(number, lambda *_: sys.exit(2))
        time.sleep(SECONDS_FOR_THE_FIRST)
    echo(text, err=True)
    sys.exit(2)


def _set_up_logging() -> None:
    """Print our messages as plain lines, and of other libraries only errors."""
    for library in ("HF_HUB", "TRANSFORMERS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")  # read when the library is imported, later
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines("%(message)s"))
    sys.excepthook = lambda kind, error, trace: echo("".join(traceback.format_exception(error)).rstrip(), err=True)
    log.handlers = [handler]  # replaces the handler of an earlier call
    # Only the first process of a launcher prints messages.
    log.setLevel(logging.INFO if is_first_process() else logging.ERROR)
    # The first warns of missing kernels when it is imported.
    for library in ("bitsandbytes", "transformers"):
        logging.getLogger(library).setLevel(logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")


if __name__ == "__main__":
    main()
