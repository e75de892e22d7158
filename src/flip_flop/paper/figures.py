"""The plots of studies, each as PDF, SVG and PNG: box plots, heat maps, curves. Only this module needs matplotlib.

In heat maps bluish green is better, vermillion is worse. The two arms of the scale also differ in lightness, which
keeps them apart in grey and for every kind of colour vision. Every cell contains its signed number.
"""

import contextlib
import io
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from flip_flop.console import on_one_line, points
from flip_flop.method import BASE
from flip_flop.metrics import METRICS
from flip_flop.paper.frame import (
    average_seeds,
    by_method,
    direction,
    file_name,
    in_setting,
    methods_of,
    pairs_of,
    task_order,
    task_title,
    tasks_of,
)
from flip_flop.paper.published import PAPER_METRICS

# Widths in inches of one column and of both, in a two-column paper.
COLUMN = 3.35
PAGE = 6.9
GREY, FAINT = "#4d4d4d", "#d9d9d9"
SCALE = LinearSegmentedColormap.from_list("worse_better", ["#f08a4b", "#fbfbf7", "#005a46"])
WHITE_FROM = 220 / 256  # the place on the scale from which white text is easier to read than black
MIN_SPAN = 4.0  # points of an axis, so that a curve that does not move looks like one
_STYLE = mpl.rc_params_from_file(Path(__file__).with_name("paper.mplstyle"), use_default_template=True)
# None removes the entry: the same numbers give the same bytes.
_DATED = {"pdf": ["CreationDate", "Creator", "Producer"], "svg": ["Date", "Creator"], "png": ["Software"]}
Style = dict[str, Any]  # arguments of matplotlib
_HATCHED: Style = {"facecolor": FAINT, "edgecolor": GREY, "hatch": "////", "linewidth": 0}
_DASHED: Style = {"color": GREY, "linestyle": (0, (4, 2)), "linewidth": 1.0}
_HEATMAP = "Heat map of the change in {} by task trained on (rows) and evaluated on (columns), {} of {} pairs."
_THIN: Style = {"color": GREY, "linewidth": 0.6}
_ABOVE: Style = {"loc": "outside upper center", "frameon": False}


@dataclass(frozen=True)
class Plot:
    """A plot with its title and ``alt``, its text for screen readers."""

    name: str
    title: str
    figure: Figure
    alt: str

    def render(self, kind: str) -> bytes:
        """The file: ``pdf``, ``svg`` or ``png``."""
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(buffer, format=kind, dpi=300, metadata=dict.fromkeys(_DATED[kind]))
        return buffer.getvalue()


@contextlib.contextmanager
def _page(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of this size in inches, at most as wide as the page."""
    with mpl.rc_context(_STYLE):
        yield Figure(figsize=(min(PAGE, width), height), layout="constrained")


def symbol(metric: str) -> str:
    """A metric's title as a plot has it, without mathematics.

    Example:
        >>> symbol("f1_std"), symbol("observed_agreement")
        ('σ of F1', 'Pₒ')
    """
    return METRICS[metric].title.replace("sigma_F1", "σ of F1").replace("P_o", "Pₒ")


def axis_name(task: str, limit: int = 22) -> str:
    """Return a task's name on an axis, without invisible characters and of limited length.

    Example:
        >>> axis_name("anli_r1"), axis_name("a_task_with_a_rather_long_name")
        ('ANLI R1', 'a_task_with_a_rather_…')
    """
    name = on_one_line(task_title(task))
    if len(name) <= limit:
        return name
    return name[: limit - 1] + "…"


def _slant(labels: Iterable[Text], degrees: int) -> None:
    """Turn an axis's long names, so that they end below their tick."""
    for label in labels:
        label.set(rotation=degrees, horizontalalignment="right", rotation_mode="anchor")


def draw_boxes(f1: pd.DataFrame) -> Plot:
    """One box for each task and method of :func:`~flip_flop.paper.frame.template_f1`, every template a dot.

    The base without methods has the paper's layout: tasks from top to bottom in one column.
    """
    methods = methods_of(f1)
    tasks = tasks_of(f1)
    titles = by_method(f1, "method_title")
    colours = by_method(f1, "method_colour")
    names = [axis_name(task) for task in tasks]
    step = 0.84 / len(methods)
    is_base = methods == [BASE.name]
    width, height = (COLUMN, 0.55 + 0.21 * len(tasks)) if is_base else (max(COLUMN, 0.7 + 0.62 * len(tasks)), 2.3)
    # From the smallest value, with some room, to 100 at most: an F1 has no more.
    low = 100 * f1["f1"].min()
    high = 100 * f1["f1"].max()
    room = max(2.0, 0.05 * (high - low))
    limits = (max(-1.5, low - room), min(101.5, high + room))
    words = "F1 over templates, percent"
    with _page(width, height) as figure:
        axes = figure.subplots()
        for (center, task), (index, method) in itertools.product(enumerate(tasks), enumerate(methods)):
            if values := [100 * value for value in f1.loc[(f1["task"] == task) & (f1["method"] == method), "f1"]]:
                position = center + step * (index - (len(methods) - 1) / 2)
                _box(axes, values, colours[method], position, 0.62 if is_base else 0.8 * step, is_base)
        if is_base:
            axes.set_yticks(range(len(tasks)), names)
            axes.set(ylim=(len(tasks) - 0.4, -0.6), xlim=limits, xlabel=f"{words} ({BASE.title})")
        else:
            for center in range(1, len(tasks)):
                axes.axvline(center - 0.5, color=FAINT, linewidth=0.5)
            axes.set_xticks(range(len(tasks)), names)
            _slant(axes.get_xticklabels() if max(map(len, names)) > 10 else [], 20)
            axes.set(xlim=(-0.5, len(tasks) - 0.5), ylim=limits, ylabel=words)
            of_box: Style = {"edgecolor": GREY, "linewidth": 0.6}
            handles = [Patch(facecolor=colours[method], label=titles[method], **of_box) for method in methods]
            figure.legend(handles=handles, ncols=min(len(methods), 4), **_ABOVE)
        axes.grid(axis="x" if is_base else "y")
        axes.tick_params(axis="y" if is_base else "x", length=0)
    if is_base:
        alt = f"Box plots of F1 over templates of {BASE.title}, one for each of {len(tasks)} tasks."
        return Plot("f1_over_templates_base", "F1 of the base over templates", figure, alt)
    alt = f"Box plots of F1 over templates for {', '.join(titles.values())} on {len(tasks)} tasks."
    return Plot("f1_over_templates", "F1 over templates by method", figure, alt)


def _box(axes: Axes, values: list[float], colour: str, position: float, width: float, is_flat: bool) -> None:
    axes.boxplot(
        [values],
        positions=[position],
        widths=width,
        orientation="horizontal" if is_flat else "vertical",
        patch_artist=True,
        showfliers=False,
        manage_ticks=False,
        boxprops={"facecolor": colour, "edgecolor": GREY, "linewidth": 0.6, "alpha": 0.55},
        medianprops={"color": "black", "linewidth": 1.2, "solid_capstyle": "butt"},
        whiskerprops=_THIN,
        capprops=_THIN,
    )
    x, y = [[position] * len(values), values][:: -1 if is_flat else 1]
    axes.plot(x, y, "o", color=GREY, markersize=1.6, markeredgewidth=0, alpha=0.8)


def draw_heatmaps(frame: pd.DataFrame, method: str) -> list[Plot]:
    """Draw the change by source and target: a map for each metric with a change."""
    asked = in_setting(frame, "transfer", method)
    pairs = pairs_of(asked)
    cells = average_seeds(asked)
    maps = []
    for metric in PAPER_METRICS:
        known = cells[cells["change"].notna() & (cells["metric"] == metric)]
        changes = dict(zip(zip(known["source"], known["task"], strict=True), 100 * known["change"], strict=True))
        if changes:
            title = f"Change in {symbol(metric)} on other tasks under {by_method(asked, 'method_title')[method]}"
            alt = _HEATMAP.format(symbol(metric), len(changes), len(pairs))
            maps.append(Plot(file_name(f"transfer_{metric}", method), title, _heatmap(changes, pairs, metric), alt))
    return maps


def _heatmap(changes: Mapping[Any, float], pairs: Sequence[tuple[str, str]], metric: str) -> Figure:
    sources, targets = (list(dict.fromkeys(tasks)) for tasks in zip(*pairs, strict=True))
    # Sources come first and in the order of the rows, so that the empty diagonal runs down.
    targets = sorted(targets, key=lambda task: sources.index(task) if task in sources else len(sources))
    bound = float(max(1, math.ceil(max(map(abs, changes.values())))))
    width = max(2.7, 1.6 + 0.5 * len(targets))  # room for the title
    longest = max(len(axis_name(task)) for task in targets)  # a long name takes room below the map
    with _page(width, 0.95 + 0.025 * max(0, longest - 10) + 0.235 * len(sources)) as figure:
        axes = figure.subplots()
        for (row, source), (column, target) in itertools.product(enumerate(sources), enumerate(targets)):
            change = changes.get((source, target))
            if change is None:
                if (source, target) in pairs:
                    axes.add_patch(Rectangle((column, row), 1, 1, **_HATCHED))
                continue
            place = (direction(metric) * change / bound + 1) / 2
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=SCALE(place), edgecolor="white", linewidth=0.8))
            ink = "white" if place >= WHITE_FROM else "black"
            axes.text(column + 0.5, row + 0.53, points(change / 100), color=ink, ha="center", va="center", fontsize=6.5)
        axes.set_xticks(np.arange(len(targets)) + 0.5, [*map(axis_name, targets)])
        _slant(axes.get_xticklabels() if longest > 9 else [], 30)
        axes.set_yticks(np.arange(len(sources)) + 0.5, [*map(axis_name, sources)])
        axes.set(xlim=(0, len(targets)), ylim=(len(sources), 0), xlabel="evaluated on", ylabel="trained on")
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        _colour_bar(figure, axes, bound, metric)
        if len(changes) < len(pairs):
            handle = Patch(**_HATCHED, label="not there yet")
            figure.legend(handles=[handle], loc="outside lower right", frameon=False)
    return figure


def _colour_bar(figure: Figure, axes: Axes, bound: float, metric: str) -> None:
    is_reversed = not METRICS[metric].higher_is_better
    values = ScalarMappable(Normalize(-bound, bound), SCALE.reversed() if is_reversed else SCALE)
    bar = figure.colorbar(values, ax=axes, fraction=0.035, pad=0.015, aspect=12, ticks=[-bound, 0, bound])
    bar.ax.set_yticklabels([points(tick / 100, 0) for tick in (-bound, 0, bound)])
    if is_reversed:
        bar.ax.invert_yaxis()
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    axes.set_title(f"Δ {symbol(metric)}, points{', lower is better' if is_reversed else ''}", loc="left")


def draw_curves(frame: pd.DataFrame) -> list[Plot]:
    """Draw study 3 with a column for each task: F1 with its band over unseen templates, and agreement, by K."""
    asked = in_setting(frame, "unseen")
    cells = average_seeds(asked)
    trained = cells[cells["method"] != BASE.name]
    if trained.empty:
        return []
    colours = {method: by_method(asked, "method_colour")[method] for method in methods_of(trained)}
    # The mean of F1 and its sigma over templates side by side, by cell.
    keys = ["task", "templates", "method", "k", "held_out"]
    wide = (100 * cells.pivot(index=keys, columns="metric", values="mean")).reset_index()
    eval_sets = sorted({*zip(wide["task"], wide["templates"], strict=True)}, key=lambda e: (task_order(e[0]), e[1]))
    tasks = [task for task, _ in eval_sets]
    width = max(COLUMN, 0.5 + 1.6 * len(eval_sets))
    with _page(width, 2.9) as figure:
        grid = figure.subplots(2, len(eval_sets), squeeze=False, sharex="col", sharey="row")
        for column, (task, templates) in enumerate(eval_sets):
            cells_of_task = wide[(wide["task"] == task) & (wide["templates"] == templates)]
            _panel(grid[0, column], cells_of_task, colours, "mean_f1")
            _panel(grid[1, column], cells_of_task, colours, "observed_agreement")
            grid[0, column].set_title(axis_name(task) + (f" ({templates})" if tasks.count(task) > 1 else ""))
            grid[1, column].set_xlabel("templates trained on, K")
        for axes, metric in zip(grid[:, 0], ("mean_f1", "observed_agreement"), strict=True):
            axes.set_ylabel(f"{symbol(metric)}, percent")
            low, high = axes.get_ylim()
            room = max(0.0, MIN_SPAN - (high - low)) / 2
            axes.set_ylim(low - room, high + room)
        handles = _handles(by_method(asked, "method_title"), colours, has_seen=not trained["held_out"].all())
        figure.legend(handles=handles, ncols=len(handles) if min(PAGE, width) > 1.2 * len(handles) else 2, **_ABOVE)
    names = ", ".join(map(axis_name, tasks))
    alt = f"Mean F1 with its band of one sigma, and agreement, over the number of templates trained on: {names}."
    return [Plot("unseen_templates", "Held-out templates after training on the first K", figure, alt)]


def _panel(axes: Axes, cells: pd.DataFrame, colours: Mapping[str, str], metric: str) -> None:
    counts = sorted(cells.loc[cells["method"] != BASE.name, "k"].unique())
    known = cells[cells[metric].notna()]
    axes.grid(axis="y")
    for base in known[known["method"] == BASE.name].to_dict("records"):
        level = base[metric]
        band = base["f1_std"]
        axes.axhline(level, **_DASHED)
        if metric == "mean_f1" and not pd.isna(band):
            axes.axhspan(level - band, level + band, color=GREY, alpha=0.13, linewidth=0)
    for method, colour in colours.items():
        line = known[known["method"] == method].sort_values("k", kind="stable")
        x = line["k"]
        y = line[metric]
        if metric == "mean_f1":
            band = line["f1_std"].fillna(0.0)
            axes.fill_between(x, y - band, y + band, color=colour, alpha=0.25, linewidth=0)
        axes.plot(x, y, color=colour, linewidth=1.4)
        for k, value, held_out in zip(x, y, line["held_out"], strict=True):
            face = colour if held_out else "white"
            axes.plot([k], [value], "o", color=colour, markerfacecolor=face, markersize=4, markeredgewidth=1.1)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xticks(counts)
    if counts:
        room = 0.12 * max(1, counts[-1] - counts[0])
        axes.set_xlim(counts[0] - room, counts[-1] + room)


def _handles(titles: Mapping[str, str], colours: Mapping[str, str], *, has_seen: bool) -> list[Any]:
    dot: Style = {"marker": "o", "markersize": 4}
    handles: list[Any] = []
    for method, colour in colours.items():
        handles.append(Line2D([], [], color=colour, label=titles[method], **dot))
    if has_seen:
        hollow = dot | {"markerfacecolor": "white", "linestyle": "none", "label": "trained on these too"}
        handles.append(Line2D([], [], color=next(iter(colours.values())), **hollow))
    band = Patch(color=GREY, alpha=0.25, label="± σ over templates")
    return [*handles, Line2D([], [], label="base", **_DASHED), band]
