"""What a run's record says of its task."""

from collections.abc import Sequence
from typing import Any

from flip_flop.files import sha256_json
from flip_flop.prompts import RenderedInstance
from flip_flop.tasks.sources import Rows
from flip_flop.tasks.task import Task


def describe_task(task: Task, split: str, rows: Rows, instances: Sequence[RenderedInstance]) -> dict[str, Any]:
    """The task, its templates' texts and its data, by digest.

    Args:
        task: With the templates in use only.
        split: The split's name.
        rows: The split's rows, as loaded.
        instances: Those in use; their digest tells two samples of one file apart.
    """
    num_labels = len(instances[0].choices[0])
    return {
        "name": task.name,
        "labels": list(task.label_values(num_labels)),
        "digest": task.digest(),
        "split": split,
        "num_instances": len(instances),
        "has_gold": any(instance.label is not None for instance in instances),
        "f1": task.f1_kind(num_labels),
        "held_out_templates": list(task.held_out_templates),
        "templates": [
            {
                "name": template.name,
                "jinja": template.jinja,
                "answer_choices": template.answer_choices,
                "digest": template.digest(),
            }
            for template in task.templates
        ],
        "data": dict(rows.provenance),
        "instances_digest": sha256_json([[instance.id, instance.prompts, instance.choices] for instance in instances]),
    }
