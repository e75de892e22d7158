"""Runs of ``flip-flop`` in forks of this process, which has imported all that they need: a start takes milliseconds."""

import fcntl
import importlib
import mmap
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


# Events of Python's audit hooks that change files, and those that open one, to write or not.
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")
SECONDS_TO_STOP = 120
KILLED = (signal.SIGKILL, signal.SIGXFSZ)  # other signals are answered with an exit code and a line


@dataclass(frozen=True)
class Stop:
    """A signal for a run: after so many seconds, or at its change of a file of this number.

    ``max_file_size`` is the size that no file exceeds. The system sends SIGXFSZ in the middle of the write.
    """

    number: signal.Signals = signal.SIGKILL
    after: float | None = None
    at_change: int | None = None
    max_file_size: int | None = None


@dataclass(frozen=True)
class Ended:
    """How a run ended: its exit code, negative for a signal, and what it wrote on standard error."""

    code: int
    err: str
    changes: int = 0
    stop: Stop | None = None

    @property
    def wrong(self) -> str | None:
        """A fault; ``None`` for success, a refusal in one line, or a stop that was asked for."""
        if "Traceback (most recent call last)" in self.err:
            return "a traceback: " + self.err.strip().splitlines()[-1]
        allowed = {0, 1, 2}
        if self.stop is not None:
            allowed = {0, -self.stop.number if self.stop.number in KILLED else 128 + self.stop.number}
        if self.code not in allowed:
            return f"exit code {self.code}"
        refusals = [line for line in self.err.splitlines() if line.startswith(("E-", "Error:"))]
        if self.code == 2 and not refusals:
            return "exit code 2 without a reason"
        if self.code > 128 and "stopped" not in "".join(self.err.splitlines()[-1:]):
            return f"exit code {self.code} without a last line 'stopped'"
        return None


class Run:
    """A command in a process group of its own."""

    def __init__(self, arguments: Sequence[str], folder: Path, stop: Stop | None = None, room: int | None = None):
        self.stop = stop
        self.err, writable = os.pipe()
        fcntl.fcntl(writable, fcntl.F_SETPIPE_SZ, 1 << 20)
        self.changes = mmap.mmap(-1, 8)
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            _child(arguments, folder, writable, stop, room, self.changes)
        os.close(writable)

    def wait(self) -> Ended:
        """Wait for its end, or send it and all that it started the signal. A run that continues then is killed."""
        after = None if self.stop is None else self.stop.after
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if after is not None and time.monotonic() - self.started >= after:
                assert self.stop is not None
                number = self.stop.number if after == self.stop.after else signal.SIGKILL
                try:
                    os.killpg(self.pid, number)
                except ProcessLookupError:  # it has not begun its group yet
                    os.kill(self.pid, number)
                after += SECONDS_TO_STOP
            time.sleep(0.001)
        with os.fdopen(self.err, "rb") as pipe:
            err = pipe.read().decode("utf-8", "replace")
        changes = int.from_bytes(self.changes[:], "little")
        return Ended(os.waitstatus_to_exitcode(status), err, changes, self.stop)


def run(arguments: Sequence[str], folder: Path, stop: Stop | None = None, room: int | None = None) -> Ended:
    """A command from beginning to end, where files have ``room`` for so many bytes."""
    return Run(arguments, folder, stop, room).wait()


def _child(
    arguments: Sequence[str], folder: Path, err: int, stop: Stop | None, room: int | None, changes: mmap.mmap
) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        os.dup2(err, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN if room is not None else signal.SIG_DFL)
        size = room if stop is None else stop.max_file_size
        if size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        _count_changes(changes, stop)
        sys.argv = ["flip-flop", *map(str, arguments)]
        main()
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _count_changes(changes: mmap.mmap, stop: Stop | None) -> None:
    """Count the changes of files in this process, and send it the signal of ``stop`` before one of them."""
    process = os.getpid()

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (writes or event in CHANGES) and os.getpid() == process:
            count = int.from_bytes(changes[:], "little") + 1
            changes[:] = count.to_bytes(8, "little")
            if stop is not None and stop.at_change == count:
                os.kill(process, stop.number)

    sys.addaudithook(hook)
