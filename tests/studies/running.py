"""Small studies of the embedded model, and the command that runs them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from flip_flop.paper.cli import study_command

STUDY = """\
name: small
model: demo
tasks: [demo_clear]
methods: [base, cce]
settings:
  max_steps: 6
  per_device_train_batch_size: 4
  eval_strategy: steps
  eval_steps: 2
  save_strategy: steps
  save_steps: 2
  logging_steps: 1
limit: 26
"""
# Long enough for something to be killed in the middle of a training run.
LONG = STUDY.replace("max_steps: 6", "max_steps: 48").replace("_steps: 2", "_steps: 6")
COMMAND = [sys.executable, "-m", "flip_flop", "study"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}


def write_study(folder: Path, text: str = STUDY) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def _take_ctrl_c() -> None:
    """What runs in the background of a shell script ignores it, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(*arguments, **more) -> subprocess.Popen:
    return subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        env=ENVIRONMENT | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_take_ctrl_c,
    )


def here(*arguments) -> int:
    """Run the command in this process: starting another takes seconds."""
    return study_command.main([str(word) for word in arguments], standalone_mode=False)


def has_ended(process: int) -> bool:
    """Return whether a process has ended, also as a zombie."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def whole_checkpoints(root: Path) -> list[Path]:
    """The whole checkpoints of a study's training runs."""
    return sorted(root.glob("trainings/*/checkpoints/checkpoint-*/MANIFEST.json"))


def attempts(root: Path) -> dict[str, int]:
    """Number of processes that have begun each unit."""
    return {log.stem: log.read_text().count("---- ") for log in (root / "logs").glob("*.log")}


def outcome(root: Path) -> dict[str, str]:
    """The inputs of a study's tables, by run directory."""
    found = {}
    for record in sorted(root.glob("*/*/run.json")):
        files = ("metrics.json", "adapter/adapter_model.safetensors")
        content = [(record.parent / name).read_bytes() for name in files if (record.parent / name).is_file()]
        found[record.parent.name] = repr([json.loads(record.read_text())["kind"], *content])
    return found


def tables(root: Path) -> dict[str, str]:
    """What a study prints."""
    return {path.name: path.read_text() for path in sorted((root / "small" / "tables").iterdir())}
