"""Who is at work on a unit: leases that outlive no holder, on one machine and on a shared file system.

Several cluster file systems keep file locks to one node, so a lease is a file that only one process can create,
``<unit>.<generation>``, touched by its holder every few seconds. A stale lease is never taken over: the next generation
is created beside it, and again only one process can. Its holder removes the stale ones when it gives its own back.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HEARTBEAT_SECONDS = 10.0
# A file system on the network may show a file's time a minute late.
STALE_SECONDS = 180.0


@dataclass(frozen=True)
class Holder:
    """A process: the kernel that runs it, its number there, and when it began."""

    boot_id: str
    process: int
    start_time: str
    host: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}"

    @classmethod
    def of(cls, process: int) -> "Holder":
        """The process of this number on this machine."""
        return cls(_boot_id(), process, _start_time(process), socket.gethostname())

    def is_alive(self) -> bool | None:
        """Whether the process is running; None where it cannot be seen: elsewhere, or without /proc."""
        if self.boot_id != _boot_id() or not Path("/proc/self/stat").exists():
            return None
        return bool(self.start_time) and _start_time(self.process) == self.start_time


def _boot_id() -> str:
    """The running kernel and, as containers share one, the space in which it numbers processes."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _start_time(process: int) -> str:
    """When a process began, in the kernel's ticks; empty where there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


class Leases:
    """The leases of one folder; one of another machine counts if it was touched within ``STALE_SECONDS``."""

    def __init__(self, folder: Path, heartbeat_seconds: float = HEARTBEAT_SECONDS):
        self.folder, self.heartbeat_seconds = folder, heartbeat_seconds

    def is_held(self, name: str) -> bool:
        """Whether a living process is at work on this."""
        return any(not self._is_stale(lease) for lease in self._generations(name))

    def holder(self, name: str) -> Holder | None:
        """Who has the newest lease, dead or alive; None where there is none, or it does not say."""
        newest = self._newest(name)
        return None if newest is None else _read_holder(newest)

    def left_by(self, holder: Holder) -> set[str]:
        """What a process that is dead was at work on."""
        leases = [path for path in self.folder.glob("*.*") if path.suffix[1:].isdigit()]
        return {path.stem for path in leases if _read_holder(path) == holder}

    @contextlib.contextmanager
    def acquire(self, name: str) -> Iterator[bool]:
        """Try to get the lease; yields whether it worked, and gives the lease back at the end."""
        mine = self._create(name)
        if mine is None:
            yield False
            return
        over = threading.Event()
        heartbeat = threading.Thread(target=self._heartbeat, args=(mine, over), daemon=True)
        heartbeat.start()
        try:
            yield True
        finally:
            over.set()
            heartbeat.join()
            for path in self._generations(name):
                below = _generation(path) < _generation(mine)
                # Of a holder that was asleep for so long that it counted as dead, the lease may be another's by now.
                if (below and self._is_stale(path)) or (path == mine and _read_holder(path) == Holder.of(os.getpid())):
                    path.unlink(missing_ok=True)

    def _create(self, name: str) -> Path | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        newest = self._newest(name)  # before the look: of two who both find it stale, one creates the next
        if self.is_held(name):
            return None
        mine = self.folder / f"{name}.{0 if newest is None else _generation(newest) + 1}"
        try:
            with mine.open("x", encoding="utf-8") as file:
                json.dump(vars(Holder.of(os.getpid())), file)
        except FileExistsError:  # another one was faster
            return None
        # Between the look and the lease others may have come and gone, and one of another number may be at work.
        if any(path != mine and not self._is_stale(path) for path in self._generations(name)):
            mine.unlink(missing_ok=True)
            return None
        return mine

    def _heartbeat(self, mine: Path, over: threading.Event) -> None:
        while not over.wait(self.heartbeat_seconds):
            with contextlib.suppress(OSError):
                os.utime(mine)

    def _generations(self, name: str) -> list[Path]:
        found = [path for path in self.folder.glob(f"{name}.*") if path.suffix[1:].isdigit() and path.stem == name]
        return sorted(found, key=_generation)

    def _newest(self, name: str) -> Path | None:
        return next(reversed(self._generations(name)), None)

    def _is_stale(self, lease: Path) -> bool:
        try:
            touched = lease.stat().st_mtime
        except OSError:
            return False  # given back this moment: what is there now, the next look shows
        holder = _read_holder(lease)
        # None: not yet written, or by a process that was killed while it wrote.
        alive = None if holder is None else holder.is_alive()
        return self._now() - touched > STALE_SECONDS if alive is None else not alive

    def _now(self) -> float:
        """The file system's own clock: those of two machines may differ."""
        probe = self.folder / f".clock-{socket.gethostname()}-{os.getpid()}-{threading.get_ident()}"
        try:
            probe.touch()
            return probe.stat().st_mtime
        except OSError:
            return time.time()
        finally:
            probe.unlink(missing_ok=True)


def _read_holder(lease: Path) -> Holder | None:
    """Whose lease this is; None where it does not say."""
    try:
        return Holder(**json.loads(lease.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _generation(path: Path) -> int:
    return int(path.suffix[1:])
