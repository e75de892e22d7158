"""What runs on a node: a cell's command in a process of its own, stopped and queued again when Slurm says so.

Only the standard library is imported: the process that waits need not hold what the cell needs.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any

POLL_SECONDS = 0.5
# Slurm gives submitit 90 seconds between its signal and the end.
STOP_SECONDS = 75.0
# How long Slurm may leave a job between SIGTERM and the end: a partition's GraceTime.
GRACE_SECONDS = 3600.0


class SlurmTask:
    """A callable for submitit that can be checkpointed.

    Args:
        command: Runs the cell; on SIGTERM it leaves a checkpoint and ends.
    """

    def __init__(self, command: Sequence[str]):
        self.command = list(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_stopped = False

    def __call__(self) -> None:
        """Run the command to its end.

        Raises:
            RuntimeError: It failed; its log says why.
        """
        self._watch_for_slurm()
        # How long a launcher of several processes waits for their checkpoint.
        environment = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(STOP_SECONDS)), **os.environ}
        # submitit's own signal is for this process alone.
        previous = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        try:
            self._process = subprocess.Popen(self.command, env=environment)
        finally:
            signal.signal(signal.SIGUSR2, previous)
        # Not wait(): the handler of a signal, which runs within it, has to look at the process, too.
        while not self._has_ended():
            time.sleep(POLL_SECONDS)
        status = self._process.wait()
        # -SIGTERM: before it had begun to listen. A launcher of several processes ends with a status of its own.
        if status in (128 + signal.SIGTERM, -signal.SIGTERM) or (status and self._is_stopped):
            # Slurm wants the node. submitit lets its SIGTERM pass in this process, which is killed at the end of the
            # grace, or queues itself again at submitit's own signal. Were it to end before, the job would have failed
            # of itself, and what has failed is not queued again.
            time.sleep(GRACE_SECONDS)
        if status:
            raise RuntimeError(f"the cell's command ended with {status}")

    def checkpoint(self) -> Any:
        """Called by submitit before Slurm takes the node away: stop the cell, and queue it again."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            over = time.monotonic() + STOP_SECONDS
            while not self._has_ended() and time.monotonic() < over:
                time.sleep(POLL_SECONDS)
            print(f"stopped {self.command[-1]} to queue it again", file=sys.stderr)
        return DelayedSubmission(SlurmTask(self.command))

    def _watch_for_slurm(self) -> None:
        """Note the SIGTERM that Slurm sends to all processes of a job, and leave it to submitit."""
        submitits = signal.getsignal(signal.SIGTERM)
        if not callable(submitits):
            return

        def note(number: int, frame: FrameType | None) -> None:
            self._is_stopped = True
            submitits(number, frame)

        signal.signal(signal.SIGTERM, note)

    def _has_ended(self) -> bool:
        """Whether the process has ended; it is left to be waited for."""
        assert self._process is not None
        if self._process.returncode is not None:
            return True
        found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        return found is not None
