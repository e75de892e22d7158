"""The report as one HTML file, and its charts as SVG files."""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape

from flip_flop.console import DEMO_NOTE, count, on_one_line, percent, percent_interval, point_interval, points, visible
from flip_flop.errors import InputError
from flip_flop.evaluation.result import Audit, template_rows
from flip_flop.files import new_folder, write_text
from flip_flop.metrics import METRICS
from flip_flop.record import TemplateRecord
from flip_flop.report import instances
from flip_flop.report.audit_tables import assumption, constant_count
from flip_flop.report.axes import LEGEND
from flip_flop.report.compare import AuditComparison, Run, as_audits, group_runs, require_comparable
from flip_flop.report.pairing import data_differences
from flip_flop.report.sections import caveats, chart_section, report_section, table_caption


def write_report(
    runs: Run | Iterable[Run],
    out: Path | str,
    *,
    title: str | None = None,
    note: str | None = None,
    everything: bool = False,
) -> Path:
    """Write one HTML file that compares audits. It works offline, and without its script it still shows all numbers.

    Runs over the same task, split, templates and instances are compared with the first of them, and the headline and
    the examples show the last. Other runs form separate groups.

    Args:
        runs: Audits, or folders of ``flip-flop audit``.
        out: The file; it is replaced.
        title: The heading; by default the names of the task and of the runs.
        note: A paragraph below the heading.
        everything: Embed all instances for the script, not only :data:`~flip_flop.report.instances.PAGE_SIZE`.

    Raises:
        InputError: A run is missing or broken, or no two of several runs can be compared.
    """
    out = Path(out)
    write_text(out, render_page(report_groups(as_audits(runs)), title=title, note=note, everything=everything))
    return out


def render_page(
    groups: Sequence[AuditComparison], *, title: str | None = None, note: str | None = None, everything: bool = False
) -> str:
    """The page of :func:`write_report` for the groups of :func:`report_groups`."""
    size = None if everything else instances.PAGE_SIZE // len(groups)
    script = _part("instances.js")
    templates: dict[tuple[str, str], tuple[TemplateRecord, list[str]]] = {}
    runs = [run for group in groups for run in group.runs]
    for run in runs:
        for text in run.record.task.templates:
            if text.name in run.template_names:
                templates.setdefault((text.name, text.digest), (text, []))[1].append(run.name)
    digest = hashlib.sha256(script.encode("utf-8")).digest()
    sections = [report_section(group, number, size) for number, group in enumerate(groups, start=1)]
    page = _environment().get_template("page.html.jinja")
    return page.render(
        title=title,
        note=note,
        style=Markup(_part("style.css") + _part("charts.css")),
        script=Markup(script),
        script_hash=base64.b64encode(digest).decode("ascii"),
        groups=sections,
        runs=runs,
        templates=templates.values(),
    )


def write_figures(groups: Sequence[AuditComparison], folder: Path) -> Path:
    """Write the charts of each group as SVG files into a new or replaced folder: templates, labels and agreement."""
    colours = dict(re.findall(r"(--[\w-]+): ([^;]+);", _part("style.css").split("}", 1)[0]))
    rules = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], _part("charts.css"))
    style = Markup(f"text{{font:12px sans-serif;fill:{colours['--ink']}}}{rules}")
    drawn: Any = _environment().get_template("figures.svg.jinja").make_module({"style": style})
    with new_folder(folder) as out:
        for number, group in enumerate(groups, start=1):
            section = chart_section(group)
            figures = {"templates": drawn.templates(section)}
            if not group.is_open:
                figures["labels"] = drawn.labels(section)
            for run in range(len(group.runs) if len(section["names"]) > 1 else 0):
                figures[f"agreement-{run + 1}"] = drawn.agreement(section, run)
            for name, figure in figures.items():
                write_text(out / f"g{number}-{name}.svg", figure)
    return folder


def report_groups(audits: Sequence[Audit]) -> list[AuditComparison]:
    """Group audits; groups with several runs come first.

    Raises:
        InputError: ``audits`` is empty, or no two of several can be compared.
    """
    if not audits:
        raise InputError("E-RUN-MISSING", "No run was named.", "Name at least one folder of `flip-flop audit`.")
    groups = group_runs(audits)
    require_comparable(groups)
    return sorted(groups, key=lambda group: not group.is_comparison)


def _environment() -> jinja2.Environment:
    """The parts of the page. Autoescape covers markup, and ``finalize`` covers invisible characters."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("flip_flop.report", "parts"),
        extensions=["jinja2.ext.do"],
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=lambda value: visible(value) if isinstance(value, str) else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        percent=percent,
        percent_interval=percent_interval,
        points=points,
        point_interval=point_interval,
        thousands="{:,}".format,
        number=lambda value: f"{value:.2f}".rstrip("0").rstrip("."),
        one_line=lambda text: on_one_line(str(text)),
        sentence=_sentence,
        count_of=count,
        in_words=_in_words,
        margins=instances.margins,
    )
    environment.globals.update(
        METRICS=METRICS,
        LEGEND=LEGEND,
        DEMO_NOTE=DEMO_NOTE,
        show=_show,
        assumption=assumption,
        constant_count=constant_count,
        data_differences=data_differences,
        caveats=caveats,
        instances=instances,
        table_caption=table_caption,
        template_rows=template_rows,
    )
    return environment


def _sentence(text: str) -> Markup:
    """A sentence in which options and names of metrics have no line break."""
    shown = str(escape(on_one_line(text)))
    return Markup(re.sub(r"--[a-z-]+|macro-F1", r'<span class="unbroken">\g<0></span>', shown))


def _part(name: str) -> str:
    return resources.files("flip_flop.report").joinpath(f"parts/{name}").read_text(encoding="utf-8")


def _show(group: Mapping[str, Any], **filters: int | str) -> str:
    """The filters of the page's script, as a link."""
    return f"#show?{urlencode({'g': group['number'], **filters})}"


def _in_words(value: object) -> str:
    """A value of a record in words; quotation marks show leading and trailing white space."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_in_words(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list | tuple):
        return "; ".join(map(_in_words, value))
    text = on_one_line(str(value))
    if text != text.strip() or not text:
        return f"“{text}”"
    return text
