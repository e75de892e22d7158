"""Runs of ``flip-flop`` in forks of this process, which has imported all that they need: a start takes milliseconds."""

import fcntl
import importlib
import os
import pkgutil
import resource
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import flip_flop
from flip_flop.cli.main import main


def import_everything() -> None:
    """Import all modules, and the libraries that they import in functions, once, before any fork."""
    for module in pkgutil.walk_packages(flip_flop.__path__, "flip_flop."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for library in ("datasets", "peft", "transformers.trainer"):
        importlib.import_module(library)
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, negative for a signal, and what it wrote on standard error."""

    code: int
    err: str

    @property
    def wrong(self) -> str | None:
        """What a user must never see; ``None`` for success, a refusal in one line, or a kill."""
        if "Traceback (most recent call last)" in self.err:
            return "a traceback: " + self.err.strip().splitlines()[-1]
        if self.code not in (0, 1, 2, 130, 143, -signal.SIGKILL):
            return f"exit code {self.code}"
        refusals = [line for line in self.err.splitlines() if line.startswith(("E-", "Error:"))]
        if self.code == 2 and not refusals:
            return "exit code 2 without a reason"
        return None


class Run:
    """A command in a process group of its own."""

    def __init__(self, arguments: Sequence[str], folder: Path, max_file_size: int | None = None):
        self.err, writable = os.pipe()
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _child(arguments, folder, writable, max_file_size)
        os.close(writable)

    def wait(self, kill_after: float | None = None) -> Ended:
        """Wait for its end, or kill it and all that it started after so many seconds."""
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if kill_after is not None and time.monotonic() - self.started >= kill_after:
                try:
                    os.killpg(self.pid, signal.SIGKILL)
                except ProcessLookupError:  # it has not begun its group yet
                    os.kill(self.pid, signal.SIGKILL)
                _, status = os.waitpid(self.pid, 0)
                break
            time.sleep(0.001)
        with os.fdopen(self.err, "rb") as pipe:
            return Ended(os.waitstatus_to_exitcode(status), pipe.read().decode("utf-8", "replace"))


def run(arguments: Sequence[str], folder: Path, **limits: int | None) -> Ended:
    """A command from beginning to end."""
    return Run(arguments, folder, **limits).wait()


def _child(arguments: Sequence[str], folder: Path, err: int, max_file_size: int | None) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if max_file_size is not None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_size, max_file_size))
        sys.argv = ["flip-flop", *map(str, arguments)]
        main()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
