"""The embedded tasks: short hotel reviews, made by ``evidence/demo_reviews.py``. The embedded model answers them."""

import gzip
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip_flop.tasks.sources import RowsSource
from flip_flop.tasks.task import Task
from flip_flop.tasks.task_file import read_task_file

FOLDER = Path(__file__).parent
# What differs from task.yaml.
EMBEDDED: dict[str, Mapping[str, Any]] = {
    "demo": {},
    "demo_remarks": {
        "name": "hotel_remarks",
        "description": "Is a hotel review of one remark negative (0) or positive (1)?",
    },
    "demo_clear": {
        "name": "clear_hotel_reviews",
        "description": "Is a short hotel review that leaves no doubt negative (0) or positive (1)?",
    },
}
CLEAR_TEMPLATES = ("sentiment", "true_or_false", "complaint", "feeling", "recommended")


def embedded_task(name: str = "demo") -> Task:
    """Return one of :data:`EMBEDDED`: 500 rows for training, 200 for validation and 300 for testing."""
    task = read_task_file(FOLDER / "task.yaml")
    rows: dict[str, list[dict[str, Any]]] = {split: [] for split in task.data}
    with gzip.open(FOLDER / "rows.jsonl.gz", "rt", encoding="utf-8") as file:
        for row in map(json.loads, file):
            if row.pop("task") == name:
                rows[row.pop("split")].append(row)
    data = {split: RowsSource(rows[split], f"demo reviews, {split}") for split in task.data}
    task = replace(task, **{"data": data, **EMBEDDED[name]})
    return task.with_templates([*CLEAR_TEMPLATES, *task.held_out_templates]) if name == "demo_clear" else task
