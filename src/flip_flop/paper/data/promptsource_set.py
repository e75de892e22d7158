"""Any PromptSource set as a task, with the gold labels of a field that the user names."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import sha256_file
from flip_flop.paper.data.promptsource import FILE_NAME, filter_templates, read_promptsource, templates_folder
from flip_flop.prompts import Template
from flip_flop.tasks import HubSource, Rows, Task, TaskRequest
from flip_flop.tasks.readers import NumberedRow
from flip_flop.tasks.task import Label

log = logging.getLogger("flip_flop")

SPLITS = ("train", "validation", "test")
UNLABELLED = "-1"  # the hub's label of an unlabelled row


def load(request: TaskRequest) -> Task:
    """Load a set: the entry point ``promptsource``. Rows come from a task file, or from the hub's dataset of this name.

    Without ``label_field`` and ``labels``, which a task file gives, the rows have no gold labels.

    Raises:
        InputError: ``E-TPL-FETCH``, ``E-TASK-UNKNOWN``, ``E-TPL-EMPTY``, ``E-TASK-KEY`` (a field without labels), or an
            error of the data.
    """
    folder, name, fields = templates_folder(), request.name, dict(request.fields)
    candidates = read_promptsource(folder, name)
    sources = fields.pop("data", None)
    label_field, labels = fields.get("label_field"), fields.get("labels")
    if label_field is not None and labels is None:
        raise InputError("E-TASK-KEY", f"{name}: label_field is {label_field!r}, and labels is missing.", "Add labels.")
    if sources:
        splits = {split: source.load() for split, source in sources.items()}
    else:
        splits = _hub_rows(name, request.hub_mirror)
    if label_field is None:
        log.warning("W-NO-GOLD: %s has no gold labels. Write label_field: and labels: in a task file.", name)
    else:
        splits = {split: _without_hub_label(rows, label_field, labels or ()) for split, rows in splits.items()}
    if not sources:
        splits = _labelled_test(splits, label_field)
    rows = [row.fields for split in splits.values() for row in split.rows]
    usable = [source.template for source in candidates if source.is_usable and isinstance(source.template, Template)]
    num_labels = len(labels) if labels is not None else _num_answers(usable, rows)
    selection = filter_templates(candidates, rows, label_field=label_field, num_labels=num_labels)
    if not len(selection.kept):
        reasons = dict(selection.dropped)
        reason = next((reasons[template.name] for template in usable), "none asks for the dataset's own task")
        raise InputError(
            "E-TPL-EMPTY",
            f"{name}: no PromptSource template can be used; {reason}.",
            "Name the columns as the templates do, or write your own templates.",
        )
    source = {"promptsource": name, "sha256": sha256_file(folder / name / FILE_NAME)}
    data = {split: replace(rows, provenance={**rows.provenance, "templates": source}) for split, rows in splits.items()}
    return Task(
        **{"name": name.replace("/", "_"), **fields},
        data=data,
        templates=replace(selection.kept, value_limit=request.value_limit),
        dropped_templates=selection.dropped,
    )


def _hub_rows(name: str, mirror: Path | None) -> dict[str, Rows]:
    """Load the splits of the hub's dataset of this name; a mirror may have it under any owner."""
    repository, _, config = name.partition("/")
    error: InputError | None = None
    for place in dict.fromkeys([(repository, config or None), (name, None)]):
        splits: dict[str, Rows] = {}
        for split in SPLITS:
            try:
                splits[split] = HubSource(place[0], place[1], split, mirror=mirror).of_any_owner().load()
            except InputError as failure:
                error = error or failure
                if splits and failure.code != "E-DATA-FILE":  # damaged, not missing
                    raise
        if splits:
            return splits
    assert error is not None
    raise InputError(
        error.code, error.message, f"Name your rows in a task file: data:, and templates: {{promptsource: {name}}}."
    )


def _without_hub_label(rows: Rows, field: str, labels: Sequence[Label]) -> Rows:
    """Replace the hub's label of unlabelled rows by None."""

    def unlabelled(row: NumberedRow) -> NumberedRow:
        is_missing = str(row.fields.get(field)) == UNLABELLED and UNLABELLED not in map(str, labels)
        return row._replace(fields={**row.fields, field: None}) if is_missing else row

    return replace(rows, rows=tuple(map(unlabelled, rows.rows)))


def _labelled_test(splits: dict[str, Rows], field: str | None) -> dict[str, Rows]:
    """Use validation as the test split if the test split is missing or has no labels."""

    def is_labelled(split: str) -> bool:
        return field is not None and any(row.fields.get(field) is not None for row in splits[split].rows)

    if "validation" not in splits or ("test" in splits and (is_labelled("test") or not is_labelled("validation"))):
        return splits
    log.info("the test split is the official validation split")
    return {"test": splits["validation"]} | {key: rows for key, rows in splits.items() if key == "train"}


def _num_answers(templates: Sequence[Template], rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the most frequent number of answers in the first rows; None if no template renders."""
    sizes: Counter[int] = Counter()
    for row in rows[:200]:
        for template in templates:
            try:
                sizes[len(template.render(row, None)[1])] += 1
            except InputError:
                continue
    return sizes.most_common(1)[0][0] if sizes else None
