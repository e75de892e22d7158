"""One self-contained HTML file from audit run directories."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.report import charts
from flip_flop.report.groups import Group, group_runs, require_comparable
from flip_flop.report.provenance import provenance, template_texts
from flip_flop.report.runs import load_run
from flip_flop.report.sections import example_section, matrix_section, share_section, strip_section
from flip_flop.report.verdict import badges, caveats, metric_table, more_metrics, tiles, verdict
from flip_flop.text import DEMO_NOTE, count, percent, visible


def write_report(runs: Sequence[Path | str], out: Path, *, title: str | None = None, note: str | None = None) -> Path:
    """Write one HTML file that compares audits, readable without JavaScript or a network.

    Runs over the same task, split, templates and instances are compared with the first of them, which is the
    *before*; the last is the *after* of the headline and the examples. Other runs form groups of their own.

    Args:
        runs: Run directories of ``flip-flop audit``.
        out: The file to write.
        title: The page's heading; by default the names of the task and of the runs.
        note: A sentence to put under the heading.

    Returns:
        ``out``.

    Raises:
        InputError: A run is missing or broken, or no two of several runs can be compared.
    """
    if not runs:
        raise InputError("E-RUN-MISSING", "No run was named.", "Name at least one folder of `flip-flop audit`.")
    groups = group_runs([load_run(path) for path in runs])
    require_comparable(groups)
    # The group with the first comparison leads, whatever stands before it.
    groups.sort(key=lambda group: len(group.runs) == 1)
    out = Path(out)
    write_text(out, render_page(groups, title=title, note=note))
    return out


def render_page(groups: Sequence[Group], *, title: str | None = None, note: str | None = None) -> str:
    """The page as text."""
    members = [run for group in groups for run in group.runs]
    style = resources.files("flip_flop.report").joinpath("parts/style.css").read_text(encoding="utf-8")
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
        style=Markup(style),
        demo_note=DEMO_NOTE if any(run.record["model"].get("is_demo") is True for run in members) else None,
        groups=[_group(group, f"g{number}") for number, group in enumerate(groups, start=1)],
        provenance=provenance(members),
        template_texts=template_texts(groups),
        version=members[0].record.get("flip_flop_version", ""),
        num_runs=count(len(members), "audit"),
    )


def _title(group: Group) -> str:
    task = str(group.base.record["task"]["name"])
    return task if len(group.runs) == 1 else f"{task}: {group.base.name} → {group.after.name}"


def _group(group: Group, identifier: str) -> dict[str, Any]:
    total, record = len(group.runs), group.base.record
    return {
        "id": identifier,
        "title": "Held-out templates" if group.held_out else group.heading,
        "where": f"Model {record['model'].get('name', '')}, split {record['task']['split']}",
        "base_name": group.base.name if total > 1 else None,
        "after_name": group.after.name,
        "run_names": [run.name for run in group.runs],
        "marks": [charts.mark(index, total) for index in range(total)],
        "verdict": verdict(group),
        "tiles": tiles(group),
        "badges": badges(group),
        "caveats": caveats(group),
        "metrics": metric_table(group),
        "more": more_metrics(group),
        "strip": strip_section(group),
        "matrices": matrix_section(group),
        "shares": share_section(group),
        "examples": example_section(group),
    }
