"""The page's charts as SVG files that stand alone: light colours, names and numbers beside them."""

import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup

from flip_flop.console import percent, visible
from flip_flop.files import new_folder, write_text
from flip_flop.report import charts
from flip_flop.report.compare import Group
from flip_flop.report.sections import matrix_section, share_section, strip_section

_NAME, _CHART, _VALUE, _TOP = 190, 400, 62, 34  # widths of a figure's columns, and the height of its heading
_DRAWN = (".axis", ".grid", ".reference", ".link", ".before", ".dot", ".share text", ".l0")


def write_figures(groups: Sequence[Group], folder: Path) -> Path:
    """Write each group's ``templates``, ``agreement`` and ``labels``, as SVG, into a folder that is new or replaced."""
    with new_folder(folder) as out:
        for number, group in enumerate(groups, start=1):
            for name, figure in _figures(group, number).items():
                write_text(out / f"g{number}-{name}.svg", figure)
    return folder


def _figures(group: Group, number: int) -> dict[str, str]:
    total = len(group.runs)
    legend = [(charts.mark(index, total), run.name) for index, run in enumerate(group.runs)]
    found = {"templates": _strips(strip_section(group, number), legend)}
    found["labels"] = _shares(share_section(group, number), group)
    matrices = matrix_section(group, number)
    for index, (name, table) in enumerate(matrices["runs"], start=1):
        found[f"agreement-{index}"] = _heat(matrices, name, table)
    return found


def _strips(section: dict[str, Any], legend: Sequence[tuple[Markup, str]]) -> str:
    width, y, parts = _NAME + _CHART + 40 + _VALUE * len(legend), float(_TOP), []
    for index, (mark, name) in enumerate(legend):
        x = _NAME + _CHART + 40 + _VALUE * (index + 1)
        parts += [_text(x, 20, name, "end"), Markup('<g transform="translate({} 24)">{}</g>').format(x - 16, mark)]
    for row in section["rows"]:
        height = float(re.findall(r'height="([\d.]+)"', row["chart"])[0])
        parts.append(_text(0, y + 12 + height / 2, row["name"]))
        parts.append(_nested(_NAME, y + 8, _CHART, height, row["chart"]))
        for index, (value, _) in enumerate(row["values"]):
            x = _NAME + _CHART + 40 + _VALUE * (index + 1)
            parts.append(_text(x, y + 12 + height / 2, percent(value), "end"))
        y += height
    parts.append(_nested(_NAME, y + 8, _CHART, 20, section["axis"]))
    return _figure(section["title"], width, y + 36, parts)


def _shares(section: dict[str, Any], group: Group) -> str:
    each, parts, y = 200, [], float(_TOP)
    for index, name in enumerate(section["labels"]):
        parts.append(Markup('<rect class="l{}" x="{}" y="8" width="12" height="12"/>').format(index % 7, 130 * index))
        parts.append(_text(130 * index + 18, 18, name))
    for index, run in enumerate(group.runs):
        parts.append(_text(_NAME + (each + 16) * index, y + 12, run.name))
    for row in section["rows"]:
        y += 26
        parts.append(_text(0, y + 14, row["name"]))
        width = each if len(row["bars"]) == len(group.runs) else (each + 16) * len(group.runs) - 16
        for index, bar in enumerate(row["bars"]):
            parts.append(_nested(_NAME + (each + 16) * index, y, width, 20, bar))
    return _figure("What each template answers", _NAME + (each + 16) * len(group.runs), y + 30, parts)


def _heat(section: dict[str, Any], name: str, table: Sequence[Sequence[tuple[float, str]]]) -> str:
    parts, cell = [_text(0, 20, name)], 34
    for i, line in enumerate(table):
        y = _TOP + cell * i
        parts.append(_text(0, y + 22, f"{i + 1} {section['names'][i]}"))
        parts.append(_text(_NAME + cell * i + 16, 28, str(i + 1), "middle"))
        for j, (value, _) in enumerate(line):
            if i != j:
                strength = round((value - section["low"]) / (1 - section["low"]), 3)
                square = '<rect x="{}" y="{}" width="32" height="32" rx="3" fill="#2e91cc" fill-opacity="{}"/>'
                parts.append(Markup(square).format(_NAME + cell * j, y, strength))
                parts.append(_text(_NAME + cell * j + 16, y + 21, percent(value, 0), "middle"))
    return _figure(f"Which templates agree, {name}", _NAME + cell * len(table), _TOP + cell * len(table) + 6, parts)


def _nested(x: float, y: float, width: float, height: float, chart: Markup) -> Markup:
    drawn = re.sub(r' data-show="[^"]*"', "", chart)
    return Markup('<svg x="{}" y="{}" width="{}" height="{}" overflow="visible">{}</svg>').format(
        x, y, width, height, Markup(drawn)
    )


def _text(x: float, y: float, text: str, anchor: str = "start") -> Markup:
    return Markup('<text x="{}" y="{}" text-anchor="{}">{}</text>').format(x, y, anchor, visible(text, one_line=True))


def _figure(title: str, width: float, height: float, parts: Sequence[Markup]) -> str:
    frame = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-8 0 {} {}" width="{}" height="{}" role="img">'
        "<title>{}</title><style>{}</style>{}</svg>\n"
    )
    shown = visible(title, one_line=True)
    size = (round(width + 16), round(height))
    return Markup(frame).format(*size, *size, shown, Markup(_style()), Markup("").join(parts))


def _style() -> str:
    """The style sheet's rules for charts, with the light colours in place of their names."""
    sheet = resources.files("flip_flop.report").joinpath("parts/style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"(--[\w-]+): ([^;]+);", sheet.split("}", 1)[0]))
    rules = "".join(line for line in sheet.splitlines() if line.startswith(_DRAWN))
    rules = re.sub(r"var\((--[\w-]+)\)", lambda name: colours[name[1]], rules)
    return f"text{{font:12px sans-serif;fill:{colours['--ink']}}}{rules}"
