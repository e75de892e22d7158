"""The model card of an adapter, which is filled from the record of its training run in ``run.json``."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from flip_flop.console import DEMO_NOTE, count, markdown_cell, on_one_line, percent, point_interval, points, visible
from flip_flop.hub import gguf_name, is_local_name
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS
from flip_flop.prompts import fields_of
from flip_flop.record import Facts, ModelRecord, RunRecord, TaskRecord
from flip_flop.texts import render

CARD = "README.md"
PROJECT = "flip-flop-consistency"
# The hub's names of metrics.
_METRIC_TYPES = {"observed_agreement": "observed_agreement", "mean_f1": "f1"}
_FILES = re.compile(r"\.(csv|tsv|jsonl?|parquet)$", re.IGNORECASE)


def model_card(
    record: RunRecord, *, model_name: str | None = None, tags: Iterable[str] | str | None = None, **metadata: Any
) -> str:
    """Fill the model card from the record of a training run. The same run gives the same card on every machine.

    Args:
        record: The record.
        model_name: The title; by default made of base model, task and method.
        tags: Further tags.
        metadata: Further keys of ``huggingface_hub.ModelCardData``, such as ``license``.
    """
    training = record.training or {}
    validation = training.get("validation") or {}
    base = base_name(record.model)
    title = model_name or f"{base.rpartition('/')[2]}-{record.task.name}-{record.name}"
    more_tags = [tags] if isinstance(tags, str) else tags or []
    known = {name: values for name, values in validation.items() if name in METRICS}
    changes = {name: values for name, values in known.items() if None not in (values["before"], values["after"])}
    results = _results(record.task, changes)
    of_hub = {
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "base_model": "/".join(base.split("/")[:2]),  # without the name of a GGUF file
        "tags": list(dict.fromkeys([PROJECT, str(record.name), "lora", "consistency", *more_tags])),
        "model_name": title if results else None,
        "eval_results": results or None,
    }
    card_data = ModelCardData(**of_hub | metadata).to_yaml().strip()
    source = _source(str(record.task.data.get("source", "rows in memory")))
    name = record.model.name
    filters = {
        "count": count,
        "percent": percent,
        "points": points,
        "point_interval": lambda ends: point_interval(tuple(ends)),
        "visible": visible,
        "cell": markdown_cell,
        "json": json.dumps,
        "line": _line,
        "escaped": lambda text: markdown_cell(on_one_line(str(text))),
    }
    text = render(
        "flip_flop.training",
        "card.md.jinja",
        filters=filters,
        metadata=card_data,
        title=title,
        base=base,
        demo_note=DEMO_NOTE,
        record=record,
        training=training,
        validation=validation,
        changes=changes,
        metrics=METRICS,
        source=source,
        method=METHODS.get(str(record.name)),
        fields=_example_row(record.task),
        is_local=is_local_name(name),
        is_gguf=gguf_name(name) is not None,
    )
    return f"{text}\n"


def base_name(model: ModelRecord) -> str:
    """Return the base's name on the hub, or the last part of its path on this machine."""
    if is_local_name(model.name):
        return Path(model.name).name
    return model.name


def _example_row(task: TaskRecord) -> dict[str, str] | None:
    """Return a row with the fields of the first template, or None if the texts of templates are unknown."""
    if not all(template.jinja for template in task.templates):
        return None
    prompt = task.templates[0].jinja.split("|||")[0]
    return dict.fromkeys(sorted(fields_of(prompt)), "...")


def _results(task: TaskRecord, changes: Facts) -> list[EvalResult]:
    source = _source(str(task.data.get("source", task.name)))
    results = []
    for name in filter(_METRIC_TYPES.get, changes):
        result = EvalResult(
            task_type="text-classification",
            dataset_type=source.partition(" (")[0],
            dataset_name=task.name,
            dataset_split="validation",
            metric_type=_METRIC_TYPES[name],
            metric_name=METRICS[name].title,
            metric_value=round(100 * changes[name]["after"], 2),
        )
        results.append(result)
    return results


def _source(source: str) -> str:
    """A file's name without its folder; a dataset's name unchanged."""
    return _line(Path(source).name if _FILES.search(source) or Path(source).is_absolute() else source)


def _line(text: Any) -> str:
    """The text on one line, safe inside a code span."""
    return on_one_line(str(text)).replace("`", "'")
