"""The model card of an adapter, which is filled from the record of its training run in ``run.json``."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData

from flip_flop.console import DEMO_NOTE, count, markdown_cell, percent, point_interval, points, visible
from flip_flop.hub import gguf_name, is_local_name
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS
from flip_flop.record import ModelRecord, RunRecord, TaskRecord

CARD = "README.md"
PROJECT = "flip-flop-consistency"
# Recorded settings that the card shows.
SETTINGS = (
    *("protocol", "votes", "vote_calibration", "label_prior", "divergence_space", "cce_weight", "jsd_weight"),
    *("vocab_weight", "labels_weight", "flip_weight_min", "flip_weight_max", "unanimous_margin", "max_cc_size"),
    *("learning_rate", "lr_scheduler_type", "weight_decay", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "num_processes", "steps", "lora_r", "lora_alpha", "lora_dropout"),
)
OF_METHOD = {"bct": ("clean_template",), "opct": ("clean_template",), "ppcl": ("clean_template", "ppcl_beta")}
SELECTED_BY = {
    "mean_f1": "by mean F1, which reads labels",
    "macro_f1": "by macro-F1, which reads labels",
    "vote_agreement": "by agreement with the base model's votes, without labels",
}
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
    task, training, model = record.task, record.training or {}, record.model
    base, validation = base_name(model), training.get("validation") or {}
    title = model_name or f"{base.rpartition('/')[2]}-{task.name}-{record.name}"
    all_tags = [PROJECT, str(record.name), "lora", "consistency", *([tags] if isinstance(tags, str) else tags or [])]
    changes = {
        name: values
        for name, values in validation.items()
        if name in METRICS and values["before"] is not None and values["after"] is not None
    }
    results = _results(task, changes)
    data = ModelCardData(
        **{
            "library_name": "peft",
            "pipeline_tag": "text-generation",
            "base_model": "/".join(base.split("/")[:2]),  # without the name of a GGUF file
            "tags": list(dict.fromkeys(all_tags)),
            "model_name": title if results else None,
            "eval_results": results or None,
        }
        | metadata
    )
    sizes = ("steps", "per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    before, after = training.get("base_value"), training.get("selected_value")
    method = METHODS.get(str(record.name))
    supervised = ("supervised_weight",) if training.get("supervised_weight") else ()
    return _card_template().render(
        metadata=data.to_yaml().strip(),
        title=title,
        base=base,
        project=PROJECT,
        demo_note=DEMO_NOTE,
        record=record,
        task=task,
        training=training,
        labels=task.label_names or task.labels,
        validation=validation,
        changes=[(METRICS[name], values) for name, values in changes.items() if METRICS[name].in_percent],
        is_open=task.answer is not None,
        selected_by=SELECTED_BY.get(by := str(training.get("selected_by", "last")), f"by {by}"),
        uses_last=by == "last",
        source=_source(str(task.data.get("source", "rows in memory"))),
        seen=math.prod(training.get(name) or 0 for name in sizes),
        settings=(*SETTINGS, *OF_METHOD.get(str(record.name), ()), *supervised),
        method_title=method.title if method else record.name,
        needs_consensus=method is None or method.needs_consensus,
        is_worse=before is not None and after is not None and after < before,
        name=json.dumps("demo" if model.is_demo else base),
        load_from=_load_from(model, base),
        revision=f", revision={json.dumps(model.revision)}" if model.revision else "",
    )


def _card_template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flip_flop.training", "."),
        autoescape=False,  # Markdown: the filters escape
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "count": count,
        "percent": percent,
        "points": points,
        "point_interval": lambda ends: point_interval(tuple(ends)),
        "visible": visible,
        "cell": markdown_cell,
        "line": _line,
        "escaped": lambda text: markdown_cell(visible(str(text), one_line=True)),
    }
    return environment.get_template("card.md.jinja")


def base_name(model: ModelRecord) -> str:
    """Return the base's name on the hub, or the last part of its path on this machine."""
    return Path(model.name).name if is_local_name(model.name) else model.name


def _load_from(model: ModelRecord, base: str) -> str:
    """The arguments of ``from_pretrained`` that load the base model."""
    gguf = gguf_name(model.name)
    if gguf is None:
        return json.dumps(base)
    folder = "path/to/its/folder" if is_local_name(model.name) else gguf.place
    return f"{json.dumps(folder)}, gguf_file={json.dumps(gguf.file)}"


def _results(task: TaskRecord, changes: Mapping[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="text-classification",
            dataset_type=_source(str(task.data.get("source", task.name))).partition(" (")[0],
            dataset_name=task.name,
            dataset_split="validation",
            metric_type=_METRIC_TYPES[name],
            metric_name=METRICS[name].title,
            metric_value=round(100 * values["after"], 2),
        )
        for name, values in changes.items()
        if name in _METRIC_TYPES
    ]


def _source(source: str) -> str:
    """A file's name without its folder; a dataset's name unchanged."""
    return _line(Path(source).name if _FILES.search(source) or Path(source).is_absolute() else source)


def _line(text: Any) -> str:
    """The text on one line, safe inside a code span."""
    return visible(str(text), one_line=True).replace("`", "'")
