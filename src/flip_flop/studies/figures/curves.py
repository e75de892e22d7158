"""Study 3: on templates that training never saw, F1 with its band over templates, and agreement, over K."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from flip_flop.studies.figures.canvas import (
    COLUMN,
    FAINT,
    GREY,
    METHOD_COLOURS,
    OTHER_COLOUR,
    PAGE,
    Picture,
    axis_name,
    page,
)
from flip_flop.studies.summary import BASE, Entry, Summary, method_order, method_title, task_order

Bench = tuple[str, int]
LEAST_SPAN = 4.0  # points


def draw_curves(summary: Summary) -> Picture | None:
    """Two rows of panels, one column for each task; ``None`` where study 3 has nothing yet."""
    entries = [entry for entry in summary.about("unseen") if entry.num_templates is not None]
    benches = sorted({_bench(entry) for entry in entries}, key=lambda bench: (task_order(bench[0]), bench[1]))
    methods = sorted({entry.method for entry in entries if entry.method != BASE}, key=method_order)
    if not methods:
        return None
    width = min(PAGE, max(COLUMN, 0.5 + 1.6 * len(benches)))
    with page(width, 2.9) as figure:
        grid = figure.subplots(2, len(benches), squeeze=False, sharex="col", sharey="row")
        for column, bench in enumerate(benches):
            own = [entry for entry in entries if _bench(entry) == bench]
            for axes, what in zip(grid[:, column], ("mean_f1", "observed_agreement"), strict=True):
                _panel(axes, own, methods, what)
            twins = sum(other[0] == bench[0] for other in benches) > 1
            grid[0, column].set_title(axis_name(bench[0]) + (f" ({bench[1]})" if twins else ""))
            grid[1, column].set_xlabel("templates trained on, K")
        for row in grid:
            _widen(row[0])
        grid[0, 0].set_ylabel("mean F1, percent")
        grid[1, 0].set_ylabel("Pₒ, percent")
        seen = any(entry.method != BASE and not entry.held_out for entry in entries)
        handles = _handles(methods, seen)
        columns = len(handles) if width > 1.2 * len(handles) else 2
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    names = ", ".join(axis_name(task) for task, _ in benches)
    words = f"Mean F1 with its band of one sigma, and agreement, over the number of templates trained on: {names}."
    return Picture("unseen_templates", "Held-out templates after training on the first K", figure, words)


def _panel(axes: Axes, entries: Sequence[Entry], methods: Sequence[str], what: str) -> None:
    counts = sorted({entry.num_templates or 0 for entry in entries if entry.method != BASE})
    room = 0.12 * max(1, counts[-1] - counts[0]) if counts else 1
    axes.grid(axis="y", color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    for base in (entry for entry in entries if entry.method == BASE and what in entry.values):
        level = 100 * base.values[what][0]
        axes.axhline(level, color=GREY, linewidth=1.0, linestyle=(0, (4, 2)))
        if what == "mean_f1" and "f1_std" in base.values:
            band = 100 * base.values["f1_std"][0]
            axes.axhspan(level - band, level + band, color=GREY, alpha=0.13, linewidth=0)
    for method in methods:
        own = [entry for entry in entries if entry.method == method and what in entry.values]
        own.sort(key=lambda entry: entry.num_templates or 0)
        _curve(axes, own, what, METHOD_COLOURS.get(method, OTHER_COLOUR))
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xticks(counts)
    if counts:
        axes.set_xlim(counts[0] - room, counts[-1] + room)


def _widen(axes: Axes) -> None:
    """Give the axis a few points at least: a curve that does not move is to look like one."""
    low, high = axes.get_ylim()
    lacking = LEAST_SPAN - (high - low)
    if lacking > 0:
        axes.set_ylim(low - lacking / 2, high + lacking / 2)


def _curve(axes: Axes, entries: Sequence[Entry], what: str, colour: str) -> None:
    x = [entry.num_templates or 0 for entry in entries]
    y = [100 * spread.mean for entry in entries if (spread := entry.spread(what))]
    if what == "mean_f1":
        sigma = [100 * spread.mean if (spread := entry.spread("f1_std")) else 0.0 for entry in entries]
        low, high = [a - b for a, b in zip(y, sigma, strict=True)], [a + b for a, b in zip(y, sigma, strict=True)]
        axes.fill_between(x, low, high, color=colour, alpha=0.25, linewidth=0)
    axes.plot(x, y, color=colour, linewidth=1.4)
    for place, value, entry in zip(x, y, entries, strict=True):
        face = colour if entry.held_out else "white"
        axes.plot([place], [value], "o", color=colour, markerfacecolor=face, markersize=4, markeredgewidth=1.1)


def _handles(methods: Sequence[str], some_have_seen: bool) -> list[Line2D | Patch]:
    handles: list[Line2D | Patch] = []
    for method in methods:
        colour = METHOD_COLOURS.get(method, OTHER_COLOUR)
        handles.append(Line2D([], [], color=colour, marker="o", markersize=4, label=method_title(method)))
    if some_have_seen:
        first = METHOD_COLOURS.get(methods[0], OTHER_COLOUR)
        hollow = Line2D([], [], color=first, marker="o", markersize=4, markerfacecolor="white", linestyle="none")
        hollow.set_label("trained on these too")
        handles.append(hollow)
    base = Line2D([], [], color=GREY, linestyle=(0, (4, 2)), linewidth=1.0, label="base")
    return [*handles, base, Patch(color=GREY, alpha=0.25, label="± σ over templates")]


def _bench(entry: Entry) -> Bench:
    return entry.task, entry.audited
