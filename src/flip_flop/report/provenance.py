"""What was run, on what, and how to run it again."""

from collections.abc import Mapping, Sequence
from typing import Any

from flip_flop.report.groups import Group
from flip_flop.report.runs import Run
from flip_flop.report.text import MISSING, count, visible


def provenance(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The record of each run as named facts, in reading order."""
    return [
        {
            "name": run.name,
            "subtitle": _subtitle(run),
            "command": str(run.record.get("command") or MISSING),
            "facts": [fact for fact in _facts(run) if fact["value"] != MISSING],
        }
        for run in runs
    ]


def template_texts(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Every template that was asked with, once."""
    texts: dict[tuple[str, str], dict[str, Any]] = {}
    for group in groups:
        asked = set(group.base.template_names)
        for template in group.base.record["task"]["templates"]:
            if template["name"] not in asked:
                continue
            digest = str(template.get("digest") or "")
            texts.setdefault(
                (str(template["name"]), digest),
                {
                    "name": str(template["name"]),
                    "jinja": str(template.get("jinja", "")),
                    "choices": str(template.get("answer_choices", "")),
                    "digest": digest,
                },
            )
    return list(texts.values())


def _subtitle(run: Run) -> str:
    model = str(run.record["model"].get("name", ""))
    adapter = run.method or ("adapter" if run.record.get("adapter") else "no adapter")
    templates = count(len(run.template_names), "template")
    return ", ".join(part for part in (model, adapter, templates) if part)


def _facts(run: Run) -> list[dict[str, Any]]:
    record, task, model = run.record, run.record["task"], run.record["model"]
    adapter, data = _mapping(record.get("adapter")), _mapping(task.get("data"))
    return [
        _fact("Model", model.get("name")),
        _fact("Model revision", model.get("revision"), code=True),
        _fact("Model sha256", model.get("digest"), code=True),
        _fact("Parameters", model.get("num_parameters")),
        _fact("Data type", model.get("dtype")),
        _fact("Adapter", adapter.get("path")),
        _fact("Adapter sha256", adapter.get("digest"), code=True),
        _fact("Task sha256", task.get("digest"), code=True),
        _fact("Data", data.get("source")),
        _fact("Data sha256", data.get("sha256"), code=True),
        _fact("Split", f"{task['split']}, {count(len(run.instance_ids), 'instance')}"),
        _fact("F1", task.get("f1")),
        _fact("Scoring", record["scoring"]),
        _fact("Training", record.get("training")),
        _fact("Seed", record.get("seed")),
        _fact("Versions", record.get("versions")),
        _fact("Hardware", record.get("hardware")),
        _fact("Seconds", record.get("seconds")),
        _fact("Created", record.get("created")),
        _fact("Folder", run.path.resolve().name),
    ]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _fact(name: str, value: object, *, code: bool = False) -> dict[str, Any]:
    return {"name": name, "value": _words(value), "code": code}


def _words(value: object) -> str:
    """A value of a record in words; a text that begins or ends with space stands in quotation marks."""
    if value is None or value == {}:
        return MISSING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return "; ".join(_words(item) for item in value)
    text = visible(str(value), one_line=True)
    return f"“{text}”" if text != text.strip() or not text else text
