"""Charts as inline SVG: small pure functions from numbers to markup.

Positions are percentages and there is no ``viewBox``: a chart takes the width that it is given, and its text keeps its
size. Colours are classes (``s0``: the first run, ``l0``: the first label), which the style sheet makes light or dark.
"""

from collections.abc import Sequence

from markupsafe import Markup

from flip_flop.console import percent, visible

NUM_SERIES = 6
NUM_LABEL_COLOURS = 7
_LANE, _MIN_ROW = 13, 32
_CELL, _CELLS_PER_LINE = 22, 16
_MARKS = (
    "M0-5.5A5.5 5.5 0 1 1 0 5.5A5.5 5.5 0 1 1 0-5.5Z",
    "M-4.7-4.7H4.7V4.7H-4.7Z",
    "M0-6L6 5H-6Z",
    "M0-6.5L6.5 0L0 6.5L-6.5 0Z",
    "M-6-5H6L0 6Z",
)


def mark(index: int, total: int) -> Markup:
    """A run's mark for a legend. Shapes differ as colours do, for eyes and printers that see no colour."""
    drawing = _marked("50%", 8.0, index, total)
    return Markup('<svg class="mark" width="16" height="16" aria-hidden="true">{}</svg>').format(drawing)


def nice_domain(values: Sequence[float]) -> tuple[float, float]:
    """An axis from a multiple of ten percent below the values to 1.

    Example:
        >>> nice_domain([0.713, 0.96])
        (0.7, 1.0)
    """
    return (min(int(min(values) * 10 + 1e-9) / 10, 0.9), 1.0)


def strip(values: Sequence[float | None], domain: tuple[float, float], reference: float | None = None) -> Markup:
    """One row of a strip chart: the base (first) is a bar through all lanes, each other run a mark on its own.

    ``domain``: the values at the left and right edge; ``reference``: where to draw the dashed line, if anywhere.
    """
    total, base = len(values), values[0]
    height = float(max(_MIN_ROW, (total - 1) * _LANE + 12))
    parts = [_upright(tick, domain, 0.0, height, "grid") for tick in _ticks(domain)]
    if reference is not None:
        parts.append(_upright(reference, domain, 0.0, height, "reference"))
    for index, value in enumerate(values):
        y = height / 2 + _LANE * (index - total / 2) * (total > 1)
        if value is None or (index == 0 and total > 1):
            continue
        if base is not None and index > 0:
            parts.append(_line((_x(base, domain), y), (_x(value, domain), y), f"link {_series_class(index, total)}"))
        parts.append(_marked(_x(value, domain), y, index, total))
    if base is not None and total > 1:
        parts.append(_upright(base, domain, 5.0, height - 5, "before"))
    return _svg("strip", height, parts)


def axis(domain: tuple[float, float], label: str) -> Markup:
    """The ticks under a strip chart, in percent; the label stands at the last."""
    ticks = _ticks(domain)
    text = Markup('<text x="{}" y="14">{}{}</text>')
    parts = [text.format(_x(tick, domain), percent(tick, 0), label if tick == ticks[-1] else "") for tick in ticks]
    return _svg("axis", 20.0, parts)


def share_bar(shares: Sequence[float], names: Sequence[str], links: Sequence[str] = ()) -> Markup:
    """A stacked bar of label shares, with the percentage in each part that has room for it.

    ``links`` are what the page's script shows for each part.
    """
    parts, titles, start = [], [], 0.0
    for index, (share, name) in enumerate(zip(shares, names, strict=True)):
        shown = visible(name, one_line=True)
        titles.append(f"{shown} {percent(share)}")
        parts.append(
            Markup('<rect x="{}%" width="{}%" height="20" class="l{}"{}><title>{}: {}</title></rect>').format(
                _number(100 * start),
                _number(100 * share),
                index % NUM_LABEL_COLOURS,
                Markup(' data-show="{}"').format(links[index]) if links and share else "",
                shown,
                percent(share),
            )
        )
        if share >= 0.22:
            middle = _number(100 * (start + share / 2))
            parts.append(Markup('<text x="{}%" y="14">{}</text>').format(middle, percent(share, 0)))
        start += share
    return Markup('<svg class="share" width="100%" height="20" role="img" aria-label="{}">{}</svg>').format(
        ", ".join(titles), Markup("").join(parts)
    )


def answer_cells(
    labels: Sequence[int], margins: Sequence[float], wrong: Sequence[bool], titles: Sequence[str]
) -> Markup:
    """One cell per template: the colour is its answer, the strength its margin, a cross marks a wrong one."""
    parts = []
    for index, (label, margin, is_wrong, title) in enumerate(zip(labels, margins, wrong, titles, strict=True)):
        line, column = divmod(index, _CELLS_PER_LINE)
        x, y = column * _CELL, line * _CELL
        size = f'x="{x + 0.5}" y="{y + 0.5}" width="19" height="19" rx="4"'
        colour = f"l{label % NUM_LABEL_COLOURS}"
        strength = _number(0.2 + 0.8 * min(1.0, margin))
        cross = f'<path class="cross" d="M{x + 7} {y + 7}l6 6m0-6l-6 6"/>' if is_wrong else ""
        cell = f'<rect class="edge {colour}" {size}/><rect class="{colour}" {size} fill-opacity="{strength}"/>{cross}'
        parts.append(Markup("<g><title>{}</title>{}</g>").format(visible(title, one_line=True), Markup(cell)))
    lines = -(-len(labels) // _CELLS_PER_LINE)
    width = min(len(labels), _CELLS_PER_LINE) * _CELL
    return Markup('<svg class="cells" width="{}" height="{}" aria-hidden="true">{}</svg>').format(
        width, lines * _CELL, Markup("").join(parts)
    )


def _svg(kind: str, height: float, parts: Sequence[Markup]) -> Markup:
    return Markup('<svg class="{}" width="100%" height="{}" aria-hidden="true">{}</svg>').format(
        kind, _number(height), Markup("").join(parts)
    )


def _series_class(index: int, total: int) -> str:
    """The colour of a run: the base is neutral, the last run has the accent, those between share the rest."""
    if index == 0:
        return "s0"
    return "s1" if index == total - 1 else f"s{2 + (index - 1) % (NUM_SERIES - 2)}"


def _marked(x: str, y: float, index: int, total: int) -> Markup:
    if index == 0 and total > 1:
        path = '<path class="before" d="M0-6.5V6.5"/>'
    else:
        shape = 0 if index == total - 1 else 1 + (index - 1) % (len(_MARKS) - 1)
        path = f'<path class="dot {_series_class(index, total) if index else "s1"}" d="{_MARKS[shape]}"/>'
    return Markup('<svg x="{}" y="{}" overflow="visible">{}</svg>').format(x, _number(y), Markup(path))


def _line(start: tuple[str, float], end: tuple[str, float], kind: str) -> Markup:
    return Markup('<line class="{}" x1="{}" y1="{}" x2="{}" y2="{}"/>').format(
        kind, start[0], _number(start[1]), end[0], _number(end[1])
    )


def _upright(value: float, domain: tuple[float, float], top: float, bottom: float, kind: str) -> Markup:
    return _line((_x(value, domain), top), (_x(value, domain), bottom), kind)


def _ticks(domain: tuple[float, float]) -> list[float]:
    step = 1 if domain[1] - domain[0] < 0.55 else 2
    low, high = round(domain[0] * 10), round(domain[1] * 10)
    return [tick / 10 for tick in sorted(range(high, low - 1, -step))]


def _x(value: float, domain: tuple[float, float]) -> str:
    return f"{_number(100 * (value - domain[0]) / (domain[1] - domain[0]))}%"


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
