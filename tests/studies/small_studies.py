"""Small studies of the embedded model: their plans, and the command that runs them."""

import json
import shlex
from pathlib import Path

from flip_flop.paper.cli import study_command
from flip_flop.paper.plan import Setup, make_plan
from flip_flop.paper.study import Study

SHORT = {
    "max_steps": 2,
    "learning_rate": 3e-4,
    "per_device_train_batch_size": 4,
    "eval_strategy": "no",
    "save_strategy": "no",
    "logging_steps": 1,
}
DEMO = Setup("demo", device="cpu")
# The file of a study whose training runs are long enough to be stopped.
LONG = """\
name: small
model: demo
tasks: [demo_clear]
methods: [base, cce]
settings:
  max_steps: 12
  per_device_train_batch_size: 4
  eval_strategy: steps
  eval_steps: 4
  save_strategy: steps
  save_steps: 4
  logging_steps: 1
limit: 26
"""


def small(common=SHORT, **changes) -> Study:
    settings = {"common": common, **changes.pop("settings", {})}
    fields = {"name": "small", "tasks": ("demo_clear",), "methods": ("base", "cce"), "model": "demo", "limit": 22}
    return Study(settings=settings, **(fields | changes))


def plan(study: Study | None = None, setup: Setup = DEMO):
    return make_plan(study or small(), setup)


def keys(*arguments, **more) -> dict[str, str]:
    return {f"{cell.kind} {cell.label}": cell.key for cell in plan(*arguments, **more).cells}


def write_task(path: Path, *, name="tickets", prompt="{{ text }}?", shift=0, **more) -> Path:
    """Write a task file and its data. ``more`` are fields of the file."""
    path.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", 12), ("test", 9)):
        lines = [f"number {shift + index} of {split},{index % 2}" for index in range(rows)]
        (path / f"{split}.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    templates = [{"name": f"t{n}", "jinja": f"{n} {prompt}", "answer_choices": "No ||| Yes"} for n in range(4)]
    fields = {"name": name, "data": {"train": "train.csv", "test": "test.csv"}, "label_field": "label"}
    fields |= {"labels": [0, 1], "templates": templates} | more
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    (path / "task.yaml").write_text("\n".join(lines) + "\n")
    return path / "task.yaml"


def write_study(folder: Path, text: str = LONG) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(text)
    return path


def here(*arguments) -> int:
    """Run the command in this process: starting another takes seconds."""
    return study_command.main([str(word) for word in arguments], standalone_mode=False) or 0


def run_here(name, commands, devices, *, quiet):
    """Run the commands of units in this process: their fourth word is study."""
    return {unit: here(*shlex.split(command)[4:8]) for unit, command in commands.items()}


def whole_checkpoints(root: Path) -> list[Path]:
    """The whole checkpoints of a study's training runs."""
    return sorted(root.glob("trainings/*/checkpoints/checkpoint-*/MANIFEST.json"))


def attempts(root: Path) -> dict[str, int]:
    """Number of processes that have begun each unit."""
    return {log.stem: log.read_text().count("---- ") for log in (root / "logs").glob("*.log")}


def outcome(root: Path) -> dict[str, str]:
    """The inputs of a study's tables, by run directory."""
    runs = {}
    for record in sorted(root.glob("*/*/run.json")):
        files = ("metrics.json", "adapter/adapter_model.safetensors")
        content = [(record.parent / name).read_bytes() for name in files if (record.parent / name).is_file()]
        runs[record.parent.name] = repr([json.loads(record.read_text())["kind"], *content])
    return runs


def tables(root: Path) -> dict[str, str]:
    """What a study prints."""
    return {path.name: path.read_text() for path in sorted((root / "small" / "tables").iterdir())}
