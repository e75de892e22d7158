"""The model card of an adapter, ``README.md`` in its folder: what a run's record says, and nothing else.

It has no time, path or command of the machine: the same run writes the same card.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData

from flip_flop.console import DEMO_NOTE, count, markdown_cell, percent, point_interval, points, visible
from flip_flop.hub import gguf_name, is_local_name
from flip_flop.metrics import METRICS
from flip_flop.record import ModelRecord, RunRecord

CARD = "README.md"
PROJECT = "flip-flop-consistency"
# The settings that the card has, of those that are recorded.
SETTINGS = (
    *("protocol", "votes", "vote_calibration", "label_prior", "divergence_space", "cce_weight", "jsd_weight"),
    *("vocab_weight", "labels_weight", "flip_weight_min", "flip_weight_max", "unanimous_margin", "max_cc_size"),
    *("learning_rate", "lr_scheduler_type", "weight_decay", "per_device_train_batch_size"),
    *("gradient_accumulation_steps", "num_processes", "steps", "lora_r", "lora_alpha", "lora_dropout"),
)
# What the hub calls a metric.
_METRIC_TYPES = {"observed_agreement": "observed_agreement", "mean_f1": "f1"}
_FILES = re.compile(r"\.(csv|tsv|jsonl?|parquet)$", re.IGNORECASE)


def model_card(
    record: RunRecord, *, model_name: str | None = None, tags: Iterable[str] | str | None = None, **metadata: Any
) -> str:
    """The card in Markdown, with the hub's metadata in front; from the record of a training.

    ``metadata`` are more keys of ``huggingface_hub.ModelCardData``, such as ``license``.
    """
    base = base_name(record.model)
    title = model_name or f"{base.rpartition('/')[2]}-{record.task.name}-{record.name}"
    own = [PROJECT, str(record.name), "lora", "consistency", *([tags] if isinstance(tags, str) else tags or [])]
    results = _results(record)
    data = ModelCardData(
        **{
            "library_name": "peft",
            "pipeline_tag": "text-generation",
            "base_model": "/".join(base.split("/")[:2]),  # without the name of a GGUF file
            "tags": list(dict.fromkeys(own)),
            "model_name": title if results else None,
            "eval_results": results or None,
        }
        | metadata
    )
    lines = [*_summary(record, title, base), *_changes(record), *_data(record), *_templates(record)]
    lines += [*_method(record), *_limits(record), *_loading(record, base)]
    return f"---\n{data.to_yaml().strip()}\n---\n\n" + "\n".join(lines) + "\n"


def base_name(model: ModelRecord) -> str:
    """Return the base's name on the hub, or the last part of its path, which is of this machine."""
    return Path(model.name).name if is_local_name(model.name) else model.name


def _summary(record: RunRecord, title: str, base: str) -> Iterator[str]:
    templates, labels = count(len(record.task.templates), "template"), ", ".join(map(_escaped, _labels(record)))
    yield from (f"# {_escaped(title)}", "")
    yield f"An adapter that lets `{_line(base)}` give one answer to a question, whichever of {templates} asks it."
    yield f"Task `{_line(record.task.name)}`, labels {labels}. Trained without labels by {record.name}, with"
    yield f"`{PROJECT}` {record.flip_flop_version or record.versions.get('flip_flop', '')}."
    if record.model.is_demo:
        yield from ("", f"**{DEMO_NOTE}**")


def _changes(record: RunRecord) -> Iterator[str]:
    found = _validation(record)
    yield from ("", "## Before and after", "")
    if not found:
        yield "No split was evaluated: what the training changed is not known."
        return
    yield f"On {count(found['num_instances'], 'instance')} of the validation split, which the checkpoint was chosen on"
    yield f"({_chosen_by(record)}): on other rows the change may be smaller."
    yield from ("", "| | base | with the adapter | change, 95% interval |", "|---|---|---|---|")
    for name, values in _values(found):
        change = points(values["after"] - values["before"])
        interval = f", {point_interval(tuple(values['interval']))}" if values["interval"] else ""
        title = METRICS[name].title
        yield f"| {title} | {percent(values['before'])} | {percent(values['after'])} | {change}{interval} |"
    yield from (
        "",
        "In percent. P_o: how likely two templates agree. Mean F1 and sigma_F1: mean and spread over templates.",
    )
    yield f"Vote F1: of the templates' majority. The intervals are over these {found['num_instances']} instances alone."


def _data(record: RunRecord) -> Iterator[str]:
    task, data = record.task, record.task.data
    yield from ("", "## Data", "")
    source = _source(str(data.get("source", "rows in memory")))
    digest = f" (SHA-256 `{data['sha256']}`)" if data.get("sha256") else ""
    revision = f", revision `{data['revision']}`" if data.get("revision") else ""
    yield f"- Trained on {count(task.num_instances, 'instance')} of `{source}`{revision}{digest}{_seen(record)}."
    yield f"- The rows {'have' if task.has_gold else 'have no'} gold labels; no loss reads any."
    if task.num_dropped:
        yield f"- {task.num_dropped} rows were dropped, as they render like another one."
    if task.num_too_long:
        yield f"- {task.num_too_long} rows were skipped, as they are longer than the model's context."


def _seen(record: RunRecord) -> str:
    training = record.training or {}
    names = ("steps", "per_device_train_batch_size", "gradient_accumulation_steps", "num_processes")
    seen = math.prod(training.get(name) or 0 for name in names)
    return f"; its steps saw {seen} of them at most" if seen < record.task.num_instances else ""


def _templates(record: RunRecord) -> Iterator[str]:
    yield from ("", "## Templates", "")
    if not any(template.jinja for template in record.task.templates):
        yield f"{len(record.task.templates)}, whose texts are not recorded: the rows came rendered."
        return
    for template in record.task.templates:
        yield from (f"`{_line(template.name)}`, answers `{_line(template.answer_choices or '')}`:", "", "~~~~jinja")
        yield from (visible(template.jinja).replace("~~~~", "~~~ ~"), "~~~~", "")
    if record.task.held_out_templates:
        yield f"Held out from training: {_escaped(', '.join(record.task.held_out_templates))}."


def _method(record: RunRecord) -> Iterator[str]:
    training = record.training or {}
    yield from ("", "## Method and settings", "")
    yield f"`{record.name}`: the templates' majority on an unlabelled row is its pseudo-label, and all templates are"
    yield "trained toward it (Flip-Flop Consistency, ACL 2026)."
    survey = training.get("survey")
    if survey:
        shares = " / ".join(
            f"{_escaped(label)} {percent(share)}"
            for label, share in zip(_labels(record), survey["vote_label_shares"], strict=True)
        )
        instances = count(survey["num_instances"], "instance")
        yield f"First votes, over {instances}: consensus on {percent(survey['consensus_share'])} %; labels {shares} %."
    yield from ("", "| setting | value |", "|---|---|")
    for name in SETTINGS:
        if training.get(name) is not None:
            yield f"| {name} | {markdown_cell(str(training[name]))} |"
    yield f"| seed | {record.seed} |"
    yield f"| prompts in the chat template | {'yes' if record.scoring.get('chat_template') else 'no'} |"
    yield f"| data type of the base | {record.model.dtype} |"
    libraries = ", ".join(f"{name} {record.versions[name]}" for name in ("torch", "transformers", "peft"))
    yield f"| versions | {libraries} |"


def _limits(record: RunRecord) -> Iterator[str]:
    yield from ("", "## Limits", "")
    yield "- It learns the base's majority: where most templates are wrong together, all of them come to be."
    yield "- Phrasings that it was not trained on may gain nothing, or lose. Audit those that you use."
    yield "- It is for this question and these answers; what else the base does may change, and was not measured."
    if record.allowed_changes:
        yield f"- The run was resumed although these had changed: {', '.join(record.allowed_changes)}."
    for found in filter(None, [_worse(record)]):
        yield f"- {found}"


def _worse(record: RunRecord) -> str | None:
    before, chosen = ((record.training or {}).get(name) for name in ("base_value", "selected_value"))
    if before is None or chosen is None or chosen >= before:
        return None
    return "**On validation it is worse than its base**, by what the checkpoint is chosen by."


def _loading(record: RunRecord, base: str) -> Iterator[str]:
    name = json.dumps("demo" if record.model.is_demo else base)
    revision = f", revision={json.dumps(record.model.revision)}" if record.model.revision else ""
    place = name
    if gguf := gguf_name(record.model.name):
        folder = "path/to/its/folder" if is_local_name(record.model.name) else gguf.place
        place = f"{json.dumps(folder)}, gguf_file={json.dumps(gguf.file)}"
    yield from ("", "## How to load it", "")
    if not record.model.is_demo:
        yield from ("```python", "from peft import PeftModel", "from transformers import AutoModelForCausalLM", "")
        yield f"base = AutoModelForCausalLM.from_pretrained({place}{revision})"
        yield from ('model = PeftModel.from_pretrained(base, "path/to/this/folder")', "```", "")
    yield from ("To measure it, on your own phrasings too:", "", "```python")
    yield from ("from flip_flop import audit, load_model", "")
    yield f'found = audit(load_model({name}, adapter="path/to/this/folder"{revision}), "task.yaml")'
    yield "```"


def _results(record: RunRecord) -> list[EvalResult]:
    task, source = record.task, _source(str(record.task.data.get("source", record.task.name)))
    return [
        EvalResult(
            task_type="text-classification",
            dataset_type=source.partition(" (")[0],
            dataset_name=task.name,
            dataset_split="validation",
            metric_type=_METRIC_TYPES[name],
            metric_name=METRICS[name].title,
            metric_value=round(100 * values["after"], 2),
        )
        for name, values in _values(_validation(record))
        if name in _METRIC_TYPES
    ]


def _validation(record: RunRecord) -> Mapping[str, Any]:
    return (record.training or {}).get("validation") or {}


def _values(found: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The metrics that have a value before and after."""
    for name, values in found.items():
        if name in METRICS and values["before"] is not None and values["after"] is not None:
            yield name, values


def _chosen_by(record: RunRecord) -> str:
    by = (record.training or {}).get("selected_by")
    return {
        "mean_f1": "by mean F1, which reads labels",
        "macro_f1": "by macro-F1, which reads labels",
        "agreement": "by agreement, without labels",
        "vote_agreement": "by agreement with the base model's votes, without labels",
    }.get(str(by), "the last one was kept")


def _source(source: str) -> str:
    """A file's name without its folder; a dataset's as it is."""
    return _line(Path(source).name if _FILES.search(source) or Path(source).is_absolute() else source)


def _labels(record: RunRecord) -> Sequence[Any]:
    return record.task.label_names or record.task.labels


def _escaped(text: Any) -> str:
    """On one line of Markdown, none of its characters read as Markdown or HTML."""
    return markdown_cell(visible(str(text), one_line=True))


def _line(text: Any) -> str:
    return visible(str(text), one_line=True).replace("`", "'")
