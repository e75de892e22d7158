"""The embedded tasks: templates from ``task.yaml``, rows from the generator; the embedded model answers them."""

from dataclasses import dataclass, replace
from pathlib import Path

from flip_flop.tasks.embedded.reviews import MIN_STRENGTH, make_rows
from flip_flop.tasks.sources import RowsSource
from flip_flop.tasks.task import Task
from flip_flop.tasks.task_file import read_task_file

TASK_FILE = Path(__file__).parent / "task.yaml"


@dataclass(frozen=True)
class Variant:
    """Reviews of one or three remarks, and the templates that are not held out (None: all).

    The remarks' strengths sum to at least ``minimum`` from zero; ``seed_shift`` is added to the seed.
    """

    name: str
    num_clauses: int = 3
    minimum: float = MIN_STRENGTH
    seed_shift: int = 0
    templates: tuple[str, ...] | None = None
    description: str = ""


EMBEDDED = {
    "demo": Variant("hotel_reviews"),
    "demo_remarks": Variant(
        "hotel_remarks",
        num_clauses=1,
        seed_shift=1000,
        description="Is a hotel review of one remark negative (0) or positive (1)?",
    ),
    "demo_clear": Variant(
        "clear_hotel_reviews",
        minimum=1.5,
        seed_shift=2000,
        templates=("sentiment", "true_or_false", "complaint", "feeling", "recommended"),
        description="Is a short hotel review that leaves no doubt negative (0) or positive (1)?",
    ),
}


def embedded_task(name: str = "demo", seed: int = 0) -> Task:
    """One of :data:`EMBEDDED`; another seed gives other reviews."""
    variant, task = EMBEDDED[name], read_task_file(TASK_FILE)
    seed += variant.seed_shift
    made = {
        split: RowsSource(
            make_rows(split, seed, variant.num_clauses, variant.minimum), f"demo reviews, {split}, seed {seed}"
        )
        for split in task.data
    }
    task = replace(task, name=variant.name, data=made, description=variant.description or task.description)
    if variant.templates is None:
        return task
    return task.with_templates([*variant.templates, *task.held_out_templates])
