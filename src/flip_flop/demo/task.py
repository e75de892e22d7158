"""The demo's task as a :class:`~flip_flop.tasks.Task`: templates from ``task.yaml``, rows from the generator."""

from dataclasses import replace

from flip_flop.demo import demo_rows, demo_task_path
from flip_flop.tasks import RowsSource, Task, load_task


def demo_task(seed: int = 0) -> Task:
    """The embedded task.

    Args:
        seed: Another seed gives other reviews.

    Example:
        >>> task = demo_task()
        >>> len(task.training_templates), len(task.held_out_templates)
        (8, 3)
    """
    task = load_task(demo_task_path())
    made = {split: RowsSource(demo_rows(split, seed), f"demo reviews, {split}, seed {seed}") for split in task.data}
    return replace(task, data=made)
