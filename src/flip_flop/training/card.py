"""The record of a training run in ``run.json``, and the model card, which is filled from this record."""

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from huggingface_hub import EvalResult, ModelCardData
from torch import Tensor, nn

from flip_flop.console import DEMO_NOTE, count, markdown_cell, percent, point_interval, points, versions, visible
from flip_flop.hub import gguf_name, is_local_name
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS, Scores, is_collapsed
from flip_flop.record import ModelRecord, RunRecord, TaskRecord
from flip_flop.scoring.distributed import world_size
from flip_flop.training.checkpoints import recorded_settings
from flip_flop.training.config import SELECTED
from flip_flop.training.selection import selected_evaluation

if TYPE_CHECKING:
    from flip_flop.training.trainer import F2CTrainer  # which imports this module

CARD = "README.md"
PROJECT = "flip-flop-consistency"
# Metrics before and after training.
SHOWN = ("observed_agreement", "mean_f1", "f1_std", "vote_f1")
SHOWN_OPEN = ("observed_agreement", "accuracy", "vote_accuracy", "unmapped_share", "answer_length")
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


def training_record(trainer: "F2CTrainer", change: dict[str, Any] | None, survey: Any = None) -> dict[str, Any]:
    """Return the ``training`` of ``run.json``: settings, steps, selection, first votes, and ``validation``."""
    best, metric = trainer.state.best_model_checkpoint, trainer.args.metric_for_best_model
    criterion = trainer.criterion.by if trainer.args.load_best_model_at_end else "last"
    evaluation = selected_evaluation(trainer.state) if metric in SELECTED else {}
    states = trainer.optimizer.state.values() if trainer.optimizer is not None else ()
    return recorded_settings(trainer.args) | {
        "uses_labels": trainer.args.uses_labels,
        "num_processes": world_size(),
        "dropout_depends_on_processes": world_size() > 1 and has_dropout(trainer.adapted),
        "steps": trainer.state.global_step,
        "collapsed_at_step": trainer.stop_on_collapse.step(trainer.state),
        "stopped_early": trainer.state.global_step < trainer.state.max_steps,
        "adapter_dtype": _dtypes(value for value in trainer.adapted.parameters() if value.requires_grad),
        "optimizer_dtype": _dtypes(
            value
            for state in states
            for value in state.values()
            if isinstance(value, Tensor) and value.dim() > 0  # without step counts
        ),
        "selected_by": criterion if metric in SELECTED else metric,
        "selected_checkpoint": None if best is None else Path(best).name,
        "selected_value": evaluation.get("eval_selection", trainer.state.best_metric),
        "base_value": evaluation.get("eval_base_selection"),
        "survey": survey,
        "votes_digest": trainer.model_scores.first_votes.digest if trainer.is_frozen else None,
        "validation": change,
        "evaluation_seconds": round(trainer.evaluation_seconds, 2),  # part of the run's seconds
    }


def has_dropout(model: nn.Module) -> bool:
    """Whether a layer or the attention has dropout."""
    in_attention = getattr(getattr(model, "config", None), "attention_dropout", 0.0)
    return bool(in_attention) or any(isinstance(layer, nn.Dropout) and layer.p > 0 for layer in model.modules())


def change_on_validation(trainer: "F2CTrainer") -> dict[str, Any] | None:
    """Compare the base and the trained model on the validation split; ``None`` without evaluations.

    By name: ``before`` and ``after``, fractions, and ``interval``, the paired 95% interval of their difference. All
    processes take part in the scoring. Open answers are generated for a few rows.
    """
    dataset, more = trainer.eval_instances, dict[str, Any]()
    if trainer.base_answers is not None:
        before, after = trainer.base_answers, trainer.validation_answers(trainer.args, "trained")
        more["collapsed"] = bool((after.answers < 0).all()) or is_collapsed(after.answers, after.num_answers)
        keys = after.answer_keys[:, :, None]
        is_known = (keys == before.answer_keys[:, None, :]) & (keys >= 0)
        more["base_answer_share"] = float(is_known.any(axis=2).mean())
    elif dataset is None or trainer.args.eval_strategy == "no":
        return None
    else:
        tables = (trainer.model_scores.validation_votes.uncalibrated, trainer.model_scores.score_validation())
        before, after = (Scores(table.scores, dataset.gold, trainer.task_record.f1) for table in tables)
    changes = {
        name: {
            "before": METRICS[name].value(before),
            "after": METRICS[name].value(after),
            "interval": METRICS[name].change_interval(before, after),
        }
        for name in (SHOWN_OPEN if trainer.open_validation else SHOWN)
    }
    return {"num_instances": len(after)} | more | changes


def describe(trainer: "F2CTrainer", change: dict[str, Any] | None, survey: Any = None) -> RunRecord:
    """Return the record of a trainer, which may have rows without a task."""
    validation = trainer.eval_instances
    return RunRecord(
        kind="train",
        name=trainer.method.name,
        task=trainer.task_record,
        model=trainer.loaded.record,
        scoring={
            "delimiter": trainer.train_instances.delimiter,
            "chat_template": trainer.encoder.uses_chat_template,
            "prompts_digest": trainer.train_instances.digest,
            "validation_prompts_digest": None if validation is None else validation.digest,
            "backend": trainer.backend,
        },
        training=training_record(trainer, change, survey),
        seed=trainer.args.seed,
        versions=versions(),
    )


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))


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
