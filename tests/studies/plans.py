"""Plans of small studies on the demo's tasks, opened in this process."""

from pathlib import Path

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


def small(common=SHORT, **changes) -> Study:
    settings = {"common": common, **changes.pop("settings", {})}
    fields = {"name": "small", "tasks": ("demo_clear",), "methods": ("base", "cce"), "model": "demo", "limit": 22}
    return Study(settings=settings, **(fields | changes))


def plan(study: Study | None = None, setup: Setup = DEMO):
    return make_plan(study or small(), setup)


def keys(*arguments, **more) -> dict[str, str]:
    return {f"{cell.kind} {cell.label}": cell.key for cell in plan(*arguments, **more).cells}


def write_task(path: Path, *, name="tickets", prompt="{{ text }}?", rows=12, shift=0, held_out=()) -> Path:
    """Write a task file and its data."""
    path.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", rows), ("test", rows - 3)):
        lines = [f"number {shift + index} of {split},{index % 2}" for index in range(count)]
        (path / f"{split}.csv").write_text("text,label\n" + "\n".join(lines) + "\n")
    templates = [
        f'  - {{name: t{index}, jinja: "{index} {prompt}", answer_choices: "No ||| Yes"}}' for index in range(4)
    ]
    text = f"name: {name}\ndata: {{train: train.csv, test: test.csv}}\nlabel_field: label\nlabels: [0, 1]\ntemplates:\n"
    ending = f"held_out_templates: [{', '.join(held_out)}]\n" if held_out else ""
    (path / "task.yaml").write_text(text + "\n".join(templates) + "\n" + ending)
    return path / "task.yaml"
