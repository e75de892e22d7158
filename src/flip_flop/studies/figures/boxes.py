"""F1 over templates: one box for each task and method, every template a dot."""

from collections.abc import Mapping, Sequence
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from flip_flop.method import BASE
from flip_flop.studies.figures.canvas import COLUMN, FAINT, GREY, PAGE, Plot, axis_name, faint_grid, page, slant
from flip_flop.studies.frame import method_colour, method_title, methods_of, tasks_of

Values = Mapping[tuple[str, str], list[float]]


def draw_boxes(f1: pd.DataFrame) -> Plot:
    """Box plots of :func:`~flip_flop.studies.frame.template_f1`: of the base alone, as in the paper, or by method."""
    groups = f1.groupby(["method", "task"], sort=False)["f1"]
    values = {key: [100 * value for value in own] for key, own in groups}
    methods, tasks = methods_of(f1), tasks_of(f1)
    return _only_base(values, tasks) if methods == [BASE.name] else _several_methods(values, methods, tasks)


def _only_base(values: Values, tasks: Sequence[str]) -> Plot:
    """Tasks from top to bottom: their names have room, and the plot fits into one column."""
    with page(COLUMN, 0.55 + 0.21 * len(tasks)) as figure:
        axes = figure.subplots()
        for position, task in enumerate(tasks):
            _box(axes, values[BASE.name, task], BASE.name, float(position), 0.62, "horizontal")
        axes.set_yticks(range(len(tasks)), [axis_name(task) for task in tasks])
        axes.set_ylim(len(tasks) - 0.4, -0.6)
        axes.set_xlim(*_limits(values))
        axes.set_xlabel(f"F1 over templates, percent ({BASE.title})")
        faint_grid(axes, "x")
        axes.tick_params(axis="y", length=0)
    alt = f"Box plots of F1 over templates of {BASE.title}, one for each of {len(tasks)} tasks."
    return Plot("f1_over_templates_base", "F1 of the base over templates", figure, alt)


def _several_methods(values: Values, methods: Sequence[str], tasks: Sequence[str]) -> Plot:
    step = 0.84 / len(methods)
    with page(min(PAGE, max(COLUMN, 0.7 + 0.62 * len(tasks))), 2.3) as figure:
        axes = figure.subplots()
        for center, task in enumerate(tasks):
            for index, method in enumerate(methods):
                if (method, task) in values:
                    position = center + step * (index - (len(methods) - 1) / 2)
                    _box(axes, values[method, task], method, position, step * 0.8)
        for center in range(1, len(tasks)):
            axes.axvline(center - 0.5, color=FAINT, linewidth=0.5)
        names = [axis_name(task) for task in tasks]
        axes.set_xticks(range(len(tasks)), names)
        slant(axes.get_xticklabels() if max(map(len, names)) > 10 else [], 20)
        axes.set_xlim(-0.5, len(tasks) - 0.5)
        axes.set_ylim(*_limits(values))
        axes.set_ylabel("F1 over templates, percent")
        faint_grid(axes, "y")
        axes.tick_params(axis="x", length=0)
        handles = [
            Patch(facecolor=method_colour(method), edgecolor=GREY, linewidth=0.6, label=method_title(method))
            for method in methods
        ]
        figure.legend(handles=handles, loc="outside upper center", ncols=len(methods), frameon=False)
    alt = f"Box plots of F1 over templates for {', '.join(map(method_title, methods))} on {len(tasks)} tasks."
    return Plot("f1_over_templates", "F1 over templates by method", figure, alt)


def _box(
    axes: Axes,
    values: list[float],
    method: str,
    position: float,
    width: float,
    orientation: Literal["vertical", "horizontal"] = "vertical",
) -> None:
    axes.boxplot(
        [values],
        positions=[position],
        widths=width,
        orientation=orientation,
        patch_artist=True,
        showfliers=False,
        manage_ticks=False,
        boxprops={"facecolor": method_colour(method), "edgecolor": GREY, "linewidth": 0.6, "alpha": 0.55},
        medianprops={"color": "black", "linewidth": 1.2, "solid_capstyle": "butt"},
        whiskerprops={"color": GREY, "linewidth": 0.6},
        capprops={"color": GREY, "linewidth": 0.6},
    )
    dots = [[position] * len(values), values]
    x, y = dots if orientation == "vertical" else dots[::-1]
    axes.plot(x, y, "o", color=GREY, markersize=1.6, markeredgewidth=0, alpha=0.8)


def _limits(values: Values) -> tuple[float, float]:
    """From the smallest value, with some room, to 100 at most: an F1 has no more."""
    found = [value for each in values.values() for value in each]
    low, high = min(found), max(found)
    room = max(2.0, 0.05 * (high - low))
    return max(-1.5, low - room), min(101.5, high + room)
