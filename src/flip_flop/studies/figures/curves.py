"""Study 3: on templates that training never saw, F1 with its band over templates, and agreement, over K."""

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from flip_flop.method import BASE
from flip_flop.studies.figures.canvas import COLUMN, GREY, PAGE, Plot, axis_name, faint_grid, page, symbol
from flip_flop.studies.frame import average_seeds, in_setting, method_colour, method_title, methods_of, task_order

METRICS_DRAWN = ("mean_f1", "observed_agreement")
MIN_SPAN = 4.0  # points
DASHED = (0, (4, 2))


def draw_curves(frame: pd.DataFrame) -> list[Plot]:
    """A plot with two rows of panels, one column for each task; none where study 3 has nothing yet."""
    cells = average_seeds(in_setting(frame, "unseen"))
    trained = cells[cells["method"] != BASE.name]
    methods = methods_of(trained)
    if not methods:
        return []
    # The mean of F1 and its sigma over templates side by side, by cell.
    wide = cells.pivot(index=["task", "templates", "method", "k", "held_out"], columns="metric", values="mean")
    wide = (100 * wide).reset_index()
    eval_sets = sorted({*zip(wide["task"], wide["templates"], strict=True)}, key=lambda e: (task_order(e[0]), e[1]))
    width = min(PAGE, max(COLUMN, 0.5 + 1.6 * len(eval_sets)))
    with page(width, 2.9) as figure:
        grid = figure.subplots(2, len(eval_sets), squeeze=False, sharex="col", sharey="row")
        for column, (task, templates) in enumerate(eval_sets):
            own = wide[(wide["task"] == task) & (wide["templates"] == templates)]
            for axes, metric in zip(grid[:, column], METRICS_DRAWN, strict=True):
                _panel(axes, own, methods, metric)
            is_one_of_two = sum(other == task for other, _ in eval_sets) > 1
            grid[0, column].set_title(axis_name(task) + (f" ({templates})" if is_one_of_two else ""))
            grid[1, column].set_xlabel("templates trained on, K")
        for axes, metric in zip(grid[:, 0], METRICS_DRAWN, strict=True):
            axes.set_ylabel(f"{symbol(metric)}, percent")
            low, high = axes.get_ylim()
            missing = MIN_SPAN - (high - low)
            if missing > 0:  # a curve that does not move is to look like one
                axes.set_ylim(low - missing / 2, high + missing / 2)
        handles = _handles(methods, has_seen=not trained["held_out"].all())
        columns = len(handles) if width > 1.2 * len(handles) else 2
        figure.legend(handles=handles, loc="outside upper center", ncols=columns, frameon=False)
    names = ", ".join(axis_name(task) for task, _ in eval_sets)
    alt = f"Mean F1 with its band of one sigma, and agreement, over the number of templates trained on: {names}."
    return [Plot("unseen_templates", "Held-out templates after training on the first K", figure, alt)]


def _panel(axes: Axes, cells: pd.DataFrame, methods: Sequence[str], metric: str) -> None:
    counts = sorted(cells.loc[cells["method"] != BASE.name, "k"].unique())
    room = 0.12 * max(1, counts[-1] - counts[0]) if counts else 1
    known = cells[cells[metric].notna()]
    faint_grid(axes, "y")
    for base in known[known["method"] == BASE.name].to_dict("records"):
        level, band = base[metric], base["f1_std"]
        axes.axhline(level, color=GREY, linewidth=1.0, linestyle=DASHED)
        if metric == "mean_f1" and not pd.isna(band):
            axes.axhspan(level - band, level + band, color=GREY, alpha=0.13, linewidth=0)
    for method in methods:
        own, colour = known[known["method"] == method].sort_values("k", kind="stable"), method_colour(method)
        x, y = own["k"], own[metric]
        if metric == "mean_f1":
            band = own["f1_std"].fillna(0.0)
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.25, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1.4)
        for k, value, held_out in zip(x, y, own["held_out"], strict=True):
            face = colour if held_out else "white"
            axes.plot([k], [value], "o", color=colour, markerfacecolor=face, markersize=4, markeredgewidth=1.1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xticks(counts)
    if counts:
        axes.set_xlim(counts[0] - room, counts[-1] + room)


def _handles(methods: Sequence[str], *, has_seen: bool) -> list[Any]:
    dot: dict[str, Any] = {"marker": "o", "markersize": 4}
    hollow: dict[str, Any] = dot | {"markerfacecolor": "white", "linestyle": "none", "label": "trained on these too"}
    return [
        *(Line2D([], [], color=method_colour(method), label=method_title(method), **dot) for method in methods),
        *([Line2D([], [], color=method_colour(methods[0]), **hollow)] if has_seen else []),
        Line2D([], [], color=GREY, linestyle=DASHED, linewidth=1.0, label="base"),
        Patch(color=GREY, alpha=0.25, label="± σ over templates"),
    ]
