"""Other processes of the command, forked from one that has imported its libraries: a start takes no seconds."""

import multiprocessing
import os
import signal
import socket
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

from flip_flop.cli.main import main


def wait_for(condition, seconds=180):
    """Wait until ``condition()`` is true, and return its value."""
    over = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < over, "timed out"
        time.sleep(0.02)
    return found


CONTEXT = multiprocessing.get_context("forkserver")
LIBRARIES = ["datasets", "peft", "transformers.trainer", "flip_flop.paper.cli", "flip_flop.training"]
CONTEXT.set_forkserver_preload(LIBRARIES)
ALONE = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def start(work, *arguments, output, **environment):
    """Start ``work(*arguments)`` in this folder. Its output goes to a file, and signals to its children reach it."""
    variables = os.environ | ALONE | environment
    given = (work, arguments, str(output), os.getcwd(), dict(variables))
    process = CONTEXT.Process(target=_run, args=given, daemon=True)
    process.start()
    return process


def start_all(count, work, *arguments, output):
    """Start processes that work together, in the environment that a launcher gives them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = [launched(count, rank, port) for rank in range(count)]
    return [start(work, *arguments, output=output, **of_rank) for of_rank in variables]


def launched(count, rank=0, port=29500):
    """The variables of a launcher."""
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
    return shared | ranks | dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(count))


def launch(count, work, *arguments, output):
    """Run processes as a launcher does: the first that fails ends the others. Return its exit code, and all output."""
    processes, code = start_all(count, work, *arguments, output=output), 0
    left = {process.sentinel: process for process in processes}
    while left:
        ended = left.pop(wait(left, timeout=240)[0])
        ended.join()
        if ended.exitcode and not code:
            code = ended.exitcode
            for process in left.values():
                process.terminate()
    return code, Path(output).read_text()


def command(*words):
    """``flip-flop`` with these words."""
    sys.argv = ["flip-flop", *map(str, words)]
    main()


def end(processes, seconds=240):
    """Wait for the processes, and return their exit codes."""
    try:
        for process in processes:
            process.join(seconds)
        return [process.exitcode for process in processes]
    finally:
        for process in processes:
            process.kill()


def _run(work, arguments, output, folder, environment):
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process may ignore it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with Path(output).open("ab") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    work(*arguments)
