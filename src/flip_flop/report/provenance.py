"""What was run, on what, and how to run it again."""

from collections.abc import Mapping, Sequence
from typing import Any

from flip_flop.report.groups import Group
from flip_flop.report.runs import Run
from flip_flop.text import MISSING, count, visible


def provenance(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The record of each run as named facts, in reading order."""
    return [
        {
            "name": run.name,
            "subtitle": _subtitle(run),
            "command": str(run.record.get("command") or MISSING),
            "facts": _facts(run),
        }
        for run in runs
    ]


def template_texts(groups: Sequence[Group]) -> list[dict[str, str]]:
    """Every template that was used, once."""
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for group in groups:
        for template in group.base.record["task"]["templates"]:
            if template["name"] in group.base.template_names:
                text = {key: str(template.get(key) or "") for key in ("name", "jinja", "answer_choices", "digest")}
                texts.setdefault((text["name"], text["digest"]), text)
    return list(texts.values())


def _subtitle(run: Run) -> str:
    model = str(run.record["model"].get("name", ""))
    adapter = run.method or ("adapter" if run.record.get("adapter") else "no adapter")
    templates = count(len(run.template_names), "template")
    return ", ".join(part for part in (model, adapter, templates) if part)


def _facts(run: Run) -> list[dict[str, Any]]:
    record, task, model = run.record, run.record["task"], run.record["model"]
    adapter, data = _mapping(record.get("adapter")), _mapping(task.get("data"))
    facts = {
        "Model": model.get("name"),
        "Model revision": model.get("revision"),
        "Model sha256": model.get("digest"),
        "Parameters": model.get("num_parameters"),
        "Data type": model.get("dtype"),
        "Adapter": adapter.get("path"),
        "Adapter sha256": adapter.get("digest"),
        "Task sha256": task.get("digest"),
        "Data": data.get("source"),
        "Data sha256": data.get("sha256"),
        "Split": f"{task['split']}, {count(len(run.instance_ids), 'instance')}",
        "F1": task.get("f1"),
        "Scoring": record["scoring"],
        "Training": record.get("training"),
        "Seed": record.get("seed"),
        "Versions": record.get("versions"),
        "Hardware": record.get("hardware"),
        "Seconds": record.get("seconds"),
        "Created": record.get("created"),
        "Folder": run.path.resolve().name,
    }
    return [
        {"name": name, "value": words, "code": name.endswith(("sha256", "revision"))}
        for name, value in facts.items()
        if (words := _words(value)) != MISSING
    ]


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


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
