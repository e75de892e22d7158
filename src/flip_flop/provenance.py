"""What a run's record says of the machine, the versions and the command; never an environment dump."""

import datetime
import importlib.metadata
import os
import platform
import re
import shlex
import sys
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "numpy", "jinja2")
# Only at the beginning of a word: "task-tickets" holds an "sk-" too.
SECRET = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|[0-9a-f]{40}\b)|(?<=://)[^/@\s]+(?=@)")
# Flags whose value is a secret whatever it looks like.
SECRET_FLAG = re.compile(r"(--[\w-]*(?:token|password|secret|api[-_]key))(?:=.*)?", re.DOTALL)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what its results depend on."""
    found = {"python": platform.python_version(), "flip_flop": _version("flip-flop-consistency")}
    return found | {name: _version(name) for name in PACKAGES}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hardware() -> dict[str, Any]:
    """The processor, the number of cores, and the GPU where there is one."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor()


def command() -> str:
    """The command line as typed, with tokens and keys replaced; a commit after ``--revision`` is no key."""
    words = [Path(sys.argv[0]).name.replace("main.py", "flip-flop")]
    for argument in sys.argv[1:]:
        is_commit = words[-1] == "--revision" or argument.startswith("--revision=")
        if SECRET_FLAG.fullmatch(words[-1]) and "=" not in words[-1]:
            words.append("***")
        elif "=" in argument and (flag := SECRET_FLAG.fullmatch(argument)):
            words.append(f"{flag[1]}=***")
        else:
            words.append(argument if is_commit else SECRET.sub("***", argument))
    return shlex.join(words)


def now(seconds_ago: float = 0) -> str:
    """The time in UTC, to the second."""
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    return time.isoformat(timespec="seconds")
