"""One self-contained HTML file from audit run directories."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flip_flop.console import DEMO_NOTE, MISSING, count, percent, visible
from flip_flop.errors import InputError
from flip_flop.evaluation.run_directory import Audit, load_run
from flip_flop.files import write_text
from flip_flop.report import charts
from flip_flop.report.compare import Group, group_runs, require_comparable
from flip_flop.report.instances import PAGE_SIZE
from flip_flop.report.sections import example_section, matrix_section, share_section, strip_section
from flip_flop.report.verdict import badges, calibration_section, caveats, metric_table, more_metrics, tiles, verdict


def write_report(
    runs: Sequence[Path | str],
    out: Path | str,
    *,
    title: str | None = None,
    note: str | None = None,
    everything: bool = False,
) -> Path:
    """Write one HTML file that compares audits, readable without a network, and without the script that it has.

    Runs over the same task, split, templates and instances are compared with the first of them, which is the
    *before*; the last is the *after* of the headline and the examples. Other runs form groups of their own. The heading
    is ``title``, by default the names of the task and of the runs, and a ``note`` stands under it. The script shows the
    instances behind a number: as many as :data:`~flip_flop.report.instances.PAGE_SIZE` has room for, or ``everything``.

    Raises:
        InputError: A run is missing or broken, or no two of several runs can be compared.
    """
    groups = report_groups([load_run(run) for run in runs])
    out = Path(out)
    write_text(out, render_page(groups, title=title, note=note, everything=everything))
    return out


def render_page(
    groups: Sequence[Group], *, title: str | None = None, note: str | None = None, everything: bool = False
) -> str:
    """The page of :func:`write_report`, from the groups of :func:`report_groups`."""
    members = [run for group in groups for run in group.runs]
    size = None if everything else PAGE_SIZE // len(groups)
    script = _part("instances.js")
    # Everything is escaped: markup by autoescape, invisible characters by finalize.
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flip_flop.report", "parts"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(percent=percent, thousands="{:,}".format)
    return environment.get_template("page.html.jinja").render(
        title=title or _title(groups[0]),
        note=note,
        style=Markup(_part("style.css")),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii"),
        demo_note=DEMO_NOTE if any(run.record.model.is_demo for run in members) else None,
        groups=[_group(group, number, size) for number, group in enumerate(groups, start=1)],
        provenance=[_provenance(run) for run in members],
        template_texts=_template_texts(groups),
        version=members[0].record.flip_flop_version or "",
        num_runs=count(len(members), "audit"),
    )


def report_groups(audits: Sequence[Audit]) -> list[Group]:
    """Audits in groups; the first comparison leads, whatever stands before it.

    Raises:
        InputError: There is none, or no two of several can be compared.
    """
    if not audits:
        raise InputError("E-RUN-MISSING", "No run was named.", "Name at least one folder of `flip-flop audit`.")
    groups = group_runs(audits)
    require_comparable(groups)
    return sorted(groups, key=lambda group: not group.is_comparison)


def _part(name: str) -> str:
    return resources.files("flip_flop.report").joinpath(f"parts/{name}").read_text(encoding="utf-8")


def _title(group: Group) -> str:
    task = group.base.record.task.name
    return f"{task}: {group.base.name} → {group.after.name}" if group.is_comparison else task


def _group(group: Group, number: int, size: int | None) -> dict[str, Any]:
    total, record = len(group.runs), group.base.record
    return {
        "id": f"g{number}",
        "number": number,
        "title": "Held-out templates" if group.held_out else group.heading,
        "where": f"Model {record.model.name}, split {record.task.split}",
        "base_name": group.base.name if group.is_comparison else None,
        "after_name": group.after.name,
        "run_names": [run.name for run in group.runs],
        "marks": [charts.mark(index, total) for index in range(total)],
        "verdict": verdict(group),
        "tiles": tiles(group),
        "badges": badges(group),
        "caveats": caveats(group),
        "metrics": metric_table(group),
        "more": more_metrics(group),
        "calibration": calibration_section(group),
        "strip": strip_section(group, number),
        "matrices": matrix_section(group, number),
        "shares": share_section(group, number),
        "examples": example_section(group, number, size),
    }


def _template_texts(groups: Sequence[Group]) -> list[dict[str, str]]:
    texts: dict[tuple[str, str], dict[str, str]] = {}
    for group in groups:
        for each in group.base.record.task.templates:
            if each.name in group.base.template_names:
                text = {"name": each.name, "jinja": each.jinja, "answer_choices": each.answer_choices or ""}
                texts.setdefault((each.name, each.digest), text | {"digest": each.digest})
    return list(texts.values())


def _provenance(run: Audit) -> dict[str, Any]:
    """What was run, on what, and how to run it again: named facts in reading order."""
    record, task, model, adapter = run.record, run.record.task, run.record.model, run.record.adapter
    facts = {
        "Model": model.name,
        "Model revision": model.revision,
        "Model sha256": model.digest,
        "Parameters": model.num_parameters,
        "Data type": model.dtype,
        "Adapter": adapter and adapter.path,
        "Adapter sha256": adapter and adapter.digest,
        "Task sha256": task.digest,
        "Data": task.data.get("source"),
        "Data sha256": task.data.get("sha256"),
        "Split": f"{task.split}, {count(len(run.instance_ids), 'instance')}",
        "F1": task.f1,
        "Scoring": record.scoring,
        "Training": record.training,
        "Seed": record.seed,
        "Allowed changes": ", ".join(record.allowed_changes) or None,
        "Versions": record.versions,
        "Hardware": record.hardware,
        "Seconds": record.seconds,
        "Created": record.created,
        "Folder": run.path.resolve().name,
    }
    trained = run.method or ("adapter" if adapter else "no adapter")
    trained += " (labels)" if run.uses_labels else ""
    subtitle = (model.name, trained, count(len(run.template_names), "template"))
    return {
        "name": run.name,
        "subtitle": ", ".join(filter(None, subtitle)),
        "command": record.command or MISSING,
        "facts": [
            {"name": name, "value": words, "code": name.endswith(("sha256", "revision"))}
            for name, value in facts.items()
            if (words := _words(value)) != MISSING
        ],
    }


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
        return "; ".join(map(_words, value))
    text = visible(str(value), one_line=True)
    return f"“{text}”" if text != text.strip() or not text else text
