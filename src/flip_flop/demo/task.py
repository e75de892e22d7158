"""The demo's tasks as :class:`~flip_flop.tasks.Task`: templates from ``task.yaml``, rows from the generator."""

from dataclasses import dataclass, replace

from flip_flop.demo import demo_task_path
from flip_flop.demo.reviews import MIN_STRENGTH, make_rows
from flip_flop.errors import InputError, nearest
from flip_flop.tasks import RowsSource, Task, load_task


@dataclass(frozen=True)
class Variant:
    """One of the tasks that the embedded model can answer.

    Attributes:
        name: The task's name in tables.
        num_clauses: Remarks per review, one or three.
        least: How far from zero the strengths' sum of a review is at least.
        seed_shift: Added to the seed: other reviews.
        templates: The templates that are not held out; None is all of them.
        description: One sentence.
    """

    name: str
    num_clauses: int = 3
    least: float = MIN_STRENGTH
    seed_shift: int = 0
    templates: tuple[str, ...] | None = None
    description: str = ""


VARIANTS = {
    "demo": Variant("hotel_reviews"),
    "demo_remarks": Variant(
        "hotel_remarks",
        num_clauses=1,
        seed_shift=1000,
        description="Is a hotel review of one remark negative (0) or positive (1)?",
    ),
    "demo_clear": Variant(
        "clear_hotel_reviews",
        least=1.5,
        seed_shift=2000,
        templates=("sentiment", "true_or_false", "complaint", "feeling", "recommended"),
        description="Is a short hotel review that leaves no doubt negative (0) or positive (1)?",
    ),
}


def demo_task(seed: int = 0, name: str = "demo") -> Task:
    """An embedded task.

    Args:
        seed: Another seed gives other reviews.
        name: ``demo``, or another of :data:`VARIANTS`: shorter reviews, or clear ones under fewer templates.

    Raises:
        InputError: ``E-TASK-UNKNOWN``.

    Example:
        >>> task = demo_task()
        >>> len(task.training_templates), len(task.held_out_templates)
        (8, 3)
        >>> clear = demo_task(name="demo_clear")
        >>> clear.name, len(clear.training_templates)
        ('clear_hotel_reviews', 5)
    """
    if name not in VARIANTS:
        raise InputError("E-TASK-UNKNOWN", f"the demo has no task {name!r}.", nearest(name, VARIANTS))
    variant, task = VARIANTS[name], load_task(demo_task_path())
    seed += variant.seed_shift
    made = {
        split: RowsSource(
            make_rows(split, seed, variant.num_clauses, variant.least), f"demo reviews, {split}, seed {seed}"
        )
        for split in task.data
    }
    task = replace(task, name=variant.name, data=made, description=variant.description or task.description)
    if variant.templates is None:
        return task
    return task.with_templates([*variant.templates, *task.held_out_templates])
