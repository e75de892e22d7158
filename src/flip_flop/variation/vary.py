"""Task files of variants, and paraphrases by a language model, whose texts are untrusted."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from flip_flop.prompts import LintRow, Template, lint_templates
from flip_flop.strict_yaml import read_yaml
from flip_flop.tasks import Task
from flip_flop.variation.axes import UNCHANGED


@dataclass(frozen=True)
class VariedTemplate:
    """A template made from another.

    Attributes:
        template: The template; None for an invalid text.
        text: The text of a paraphrase, or the change of the format, for a table.
        made: How a paraphrase was made, for the task file.
        rejected: The reason to reject it, or empty.
    """

    name: str
    template: Template | None
    text: str = ""
    made: Mapping[str, Any] = field(default_factory=dict)
    rejected: str = ""


def kept_templates(found: Sequence[VariedTemplate]) -> list[Template]:
    """Return the templates that are not rejected."""
    return [variant.template for variant in found if variant.template and not variant.rejected]


def vary_templates(task: Task, rows: Sequence[LintRow], axes: Mapping[str, Any]) -> tuple[Task, list[VariedTemplate]]:
    """Return the task with the variants along the axes that lint accepts, and a list of all variants."""
    varied = task.with_axes(axes)
    found = []
    for template in varied.templates:
        if template.name not in task.templates.names:
            change = template.levels.get("format", UNCHANGED)
            found.append(VariedTemplate(template.name, template, "" if change == UNCHANGED else change))
    return judge(varied, rows, found)


def judge(task: Task, rows: Sequence[LintRow], variants: Sequence[VariedTemplate]) -> tuple[Task, list[VariedTemplate]]:
    """Lint a task with its variants, and reject variants with errors: return the task without them, and all."""
    errors: dict[str, str] = {}
    for finding in lint_templates(task.templates, rows, label_field=task.label_field, num_labels=task.num_labels):
        if finding.is_error:
            errors.setdefault(finding.template, f"{finding.code} {finding.message}")
    judged = [replace(variant, rejected=variant.rejected or errors.get(variant.name, "")) for variant in variants]
    rejected = {variant.name for variant in judged if variant.rejected}
    return task.with_templates(name for name in task.templates.names if name not in rejected), judged


def varied_task_text(source: Path, out: Path, task: Task, found: Sequence[VariedTemplate]) -> str:
    """Return the text of the task file ``out``: ``source`` with the templates of the task, without comments.

    ``metadata`` has the origin of a paraphrase. Paths are relative to the folder of ``out``.
    """
    document = read_yaml(source)
    there = Path(os.path.relpath(source.parent, out.parent))
    for split, entry in document["data"].items():
        if isinstance(entry, str):
            document["data"][split] = (there / entry).as_posix()
        elif "path" in entry:
            document["data"][split] = entry | {"path": (there / entry["path"]).as_posix()}
    document["name"] = task.name
    document.pop("axes", None)  # the templates are their variants
    entries = {}
    if isinstance(document["templates"], list):
        entries = {entry["name"]: entry for entry in document["templates"]}
    elif task.labels is not None:  # write the labels that the task found
        document |= {"label_field": task.label_field, "labels": list(task.labels)}
    for variant in found:
        if variant.made:
            entries[variant.name] = {"metadata": dict(variant.made)}
    document["templates"] = [entries.get(template.name, {}) | template.entry for template in task.templates]
    if task.held_out_templates:
        document["held_out_templates"] = list(task.held_out_templates)
    number = len(kept_templates(found))
    head = f"# {source.name} with {number} new templates, made by flip-flop templates vary.\n"
    return head + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)
