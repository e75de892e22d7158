"""A task, a study and commands that take about a second each, on the embedded model."""

import contextlib
import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from flip_flop import files

TEMPLATES = [
    {"name": "plain", "jinja": "{{ text }}. Good?", "answer_choices": "No ||| Yes"},
    {"name": "truth", "jinja": "True or false: {{ text }}", "answer_choices": "False ||| True"},
    {"name": "terse", "jinja": "{{ text }}", "answer_choices": "Never ||| Yes"},
]
SPLITS = {"train": 12, "validation": 6, "test": 10}
MODEL = ["--model", "demo", "--task", "task.yaml", "--device", "cpu", "--quiet"]
AUDIT = ["audit", *MODEL, "--out", "audit"]
TRAIN = [
    *("train", *MODEL, "--out", "run", "--keep-worse", "--max-steps", "6", "--per-device-train-batch-size", "4"),
    *("--eval-steps", "2", "--save-total-limit", "9", "--lora-dropout", "0.05"),
]
PREDICT = ["predict", *MODEL, "--input", "test.jsonl", "--out", "answers.csv"]
REPORT = ["report", "audit", "--out", "page.html"]
STUDY = ["study", "run", "study.yaml", "--model", "demo", "--device", "cpu", "--out", "studies"]


@dataclass
class Outcome:
    """What a kind of attack did: how often, and everything that should not have happened."""

    attack: str
    attempts: int = 0
    failures: list[str] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def expect(self, holds: object, what: str) -> None:
        """Note a failure."""
        if not holds:
            self.failures.append(what)

    def count(self, note: str) -> None:
        """Count something that is allowed."""
        self.notes[note] = self.notes.get(note, 0) + 1


def make_workplace(folder: Path) -> Path:
    """Write the task, its rows and the study."""
    rng, rows = random.Random(7), []
    for number in range(sum(SPLITS.values())):
        thing, label = rng.choice(["room", "staff", "food", "wifi"]), rng.randrange(2)
        rows.append({"text": f"The {thing} was {'not ' if label else ''}good {number}", "label": label})
    for split, count in SPLITS.items():
        lines = [json.dumps(rows.pop()) for _ in range(count)]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    data = {split: f"{split}.jsonl" for split in SPLITS}
    task = {"name": "toy", "data": data, "label_field": "label", "labels": [0, 1], "templates": TEMPLATES}
    (folder / "task.yaml").write_text(yaml.safe_dump(task), encoding="utf-8")
    settings = {"max_steps": 2, "per_device_train_batch_size": 4, "eval_steps": 1}
    study = {"name": "small", "tasks": ["task.yaml"], "methods": ["base", "cce"], "seeds": [0], "settings": settings}
    (folder / "study.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    return folder


def remove(*paths: Path) -> None:
    """Remove files and folders where they are."""
    for path in paths:
        files.remove(path)


def debris(folder: Path) -> list[str]:
    """Hidden files and folders below a folder, which are temporary ones, but for a training's lock."""
    return [str(item) for item in folder.rglob(".*") if item.name != ".lock"]


def adapter_of(run: Path) -> bytes:
    """The bytes of a run's adapter; none where it is not there."""
    file = run / "adapter" / "adapter_model.safetensors"
    return file.read_bytes() if file.is_file() else b""


def results_of(audit: Path) -> bytes:
    """The bytes of an audit's metrics; none where it is not there."""
    file = audit / "metrics.json"
    return file.read_bytes() if file.is_file() else b""


def damage(file: Path, kind: str, rng: random.Random) -> None:
    """Remove, empty or halve a file, or flip one of its bits."""
    content = bytearray(file.read_bytes())
    if kind == "missing":
        file.unlink()
    elif kind == "flipped":
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    else:
        file.write_bytes(content[: len(content) // 2] if kind == "halved" else b"")


@contextlib.contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Keep the cache of flip-flop in a folder."""
    former = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if former is not None:
            os.environ["XDG_CACHE_HOME"] = former
