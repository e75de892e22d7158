"""The demo's task as a :class:`~flip_flop.tasks.Task`: templates from ``task.yaml``, rows from the generator."""

from flip_flop.demo import demo_rows, demo_task_path
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import RowsSource, Task
from flip_flop.tasks.strict_yaml import read_yaml

SPLITS = ("train", "validation", "test")


def demo_task(seed: int = 0) -> Task:
    """The embedded task.

    Args:
        seed: Another seed gives other reviews.

    Example:
        >>> task = demo_task()
        >>> len(task.training_templates), len(task.held_out_templates)
        (8, 3)
    """
    document = read_yaml(demo_task_path())
    return Task(
        name=document["name"],
        description="Is a short hotel review, all in all, positive? Made by a seeded generator.",
        templates=TemplateSet(tuple(Template(**template) for template in document["templates"])),
        data={split: RowsSource(demo_rows(split, seed), f"demo reviews, {split}, seed {seed}") for split in SPLITS},
        labels=tuple(document["labels"]),
        label_field=document["label_field"],
        id_field="id",
        held_out_templates=tuple(document["held_out_templates"]),
    )
