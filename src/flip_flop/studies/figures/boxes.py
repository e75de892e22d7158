"""F1 over templates: one box for each task and method, every template a dot."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

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
from flip_flop.studies.summary import BASE, Summary, method_order, method_title

Values = Mapping[tuple[str, str], list[float]]


def draw_boxes(summary: Summary, *, all_methods: bool) -> Picture | None:
    """Box plots of F1 over templates; ``None`` where no task has gold labels.

    Args:
        summary: A study's entries.
        all_methods: Every method beside the base, or the base alone (the paper's appendix).
    """
    entries = [entry for entry in summary.about("own") if entry.f1_per_template]
    entries = [entry for entry in entries if all_methods or entry.method == BASE]
    if not entries:
        return None
    values = {(entry.method, entry.task): [100 * f1 for f1 in entry.f1_per_template.values()] for entry in entries}
    methods = sorted({method for method, _ in values}, key=method_order)
    tasks = [task for task in summary.tasks("own") if any((method, task) in values for method in methods)]
    if len(methods) == 1:
        return _one_method(values, methods[0], tasks)
    return _several_methods(values, methods, tasks)


def _one_method(values: Values, method: str, tasks: Sequence[str]) -> Picture:
    """Tasks from top to bottom: their names have room, and the picture fits into one column."""
    with page(COLUMN, 0.55 + 0.21 * len(tasks)) as figure:
        axes = figure.subplots()
        for number, task in enumerate(tasks):
            _box(axes, values.get((method, task), []), float(number), 0.62, method, vertical=False)
        axes.set_yticks(range(len(tasks)), [axis_name(task) for task in tasks])
        axes.set_ylim(len(tasks) - 0.4, -0.6)
        axes.set_xlim(*_limits(values))
        axes.set_xlabel(f"F1 over templates, percent ({method_title(method)})")
        axes.grid(axis="x", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="y", length=0)
    words = f"Box plots of F1 over templates of {method_title(method)}, one for each of {len(tasks)} tasks."
    return Picture("f1_over_templates_base", "F1 of the base over templates", figure, words)


def _several_methods(values: Values, methods: Sequence[str], tasks: Sequence[str]) -> Picture:
    width = min(PAGE, max(COLUMN, 0.7 + 0.62 * len(tasks)))
    step = 0.84 / len(methods)
    with page(width, 2.3) as figure:
        axes = figure.subplots()
        for number, task in enumerate(tasks):
            for place, method in enumerate(methods):
                position = number + step * (place - (len(methods) - 1) / 2)
                _box(axes, values.get((method, task), []), position, step * 0.8, method, vertical=True)
        for number in range(1, len(tasks)):
            axes.axvline(number - 0.5, color=FAINT, linewidth=0.5)
        long_names = max(len(axis_name(task)) for task in tasks) > 10
        axes.set_xticks(range(len(tasks)), [axis_name(task) for task in tasks], rotation=20 if long_names else 0)
        if long_names:
            for label in axes.get_xticklabels():
                label.set(horizontalalignment="right", rotation_mode="anchor")
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        axes.set_ylim(*_limits(values))
        axes.set_ylabel("F1 over templates, percent")
        axes.grid(axis="y", color=FAINT, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.tick_params(axis="x", length=0)
        handles: list[Patch | Line2D] = [
            Patch(facecolor=_colour(method), edgecolor=GREY, linewidth=0.6, label=method_title(method))
            for method in methods
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(methods), frameon=False)
    names = ", ".join(method_title(method) for method in methods)
    words = f"Box plots of F1 over templates for {names} on {len(tasks)} tasks."
    return Picture("f1_over_templates", "F1 over templates by method", figure, words)


def _box(axes: Axes, values: Sequence[float], position: float, width: float, method: str, *, vertical: bool) -> None:
    if not values:
        return
    axes.boxplot(
        [list(values)],
        positions=[position],
        widths=width,
        orientation="vertical" if vertical else "horizontal",
        patch_artist=True,
        showfliers=False,
        manage_ticks=False,
        boxprops={"facecolor": _colour(method), "edgecolor": GREY, "linewidth": 0.6, "alpha": 0.55},
        medianprops={"color": "black", "linewidth": 1.2, "solid_capstyle": "butt"},
        whiskerprops={"color": GREY, "linewidth": 0.6},
        capprops={"color": GREY, "linewidth": 0.6},
    )
    places = [position] * len(values)
    x, y = (places, values) if vertical else (values, places)
    axes.plot(x, y, "o", color=GREY, markersize=1.6, markeredgewidth=0, alpha=0.8)


def _colour(method: str) -> str:
    return METHOD_COLOURS.get(method, OTHER_COLOUR)


def _limits(values: Values) -> tuple[float, float]:
    """From the smallest value, with some room, to 100 at most: an F1 has no more."""
    found = [value for each in values.values() for value in each]
    low, high = min(found), max(found)
    room = max(2.0, 0.05 * (high - low))
    return max(-1.5, low - room), min(101.5, high + room)
