"""Change by source and target, one map for each metric: bluish green is better, vermillion is worse.

The two arms of the scale differ in lightness as well as in hue, so that they stay apart in grey and for every kind of
colour vision; and every cell has its number with its sign.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from flip_flop.metrics import METRICS
from flip_flop.studies.figures.canvas import COLUMN, FAINT, GREY, PAGE, Plot, axis_name, page, slant, symbol
from flip_flop.studies.frame import average_seeds, direction, file_name, in_setting, method_title, pairs_of
from flip_flop.studies.paper import PAPER_METRICS
from flip_flop.text import points

Pair = tuple[str, str]
WORSE, EVEN, BETTER = "#f08a4b", "#fbfbf7", "#005a46"
SCALE = LinearSegmentedColormap.from_list("worse_better", [WORSE, EVEN, BETTER])
_ALT = "Heat map of the change in {} by task trained on (rows) and evaluated on (columns), {} of {} pairs."
_HATCHED: dict[str, Any] = {"facecolor": FAINT, "edgecolor": GREY, "hatch": "////", "linewidth": 0}
_SIDE = 0.5  # a cell's width in inches, where the page has room
_HEIGHT = 0.235
_MIN_WIDTH = 2.7  # the title's


def draw_heatmaps(frame: pd.DataFrame, method: str) -> list[Plot]:
    """A map for each metric that some pair has a change in."""
    asked = in_setting(frame, "transfer", method)
    pairs, cells = pairs_of(asked), average_seeds(asked)
    known = cells[cells["change"].notna()]
    maps = []
    for metric in PAPER_METRICS:
        own = known[known["metric"] == metric]
        changes = dict(zip(zip(own["source"], own["task"], strict=True), 100 * own["change"], strict=True))
        if changes:
            figure = _draw(changes, pairs, metric)
            title = f"Change in {symbol(metric)} on other tasks under {method_title(method)}"
            alt = _ALT.format(symbol(metric), len(changes), len(pairs))
            maps.append(Plot(file_name(f"transfer_{metric}", method), title, figure, alt))
    return maps


def _draw(changes: Mapping[Pair, float], pairs: Sequence[Pair], metric: str) -> Figure:
    sources, targets = (list(dict.fromkeys(tasks)) for tasks in zip(*pairs, strict=True))
    # Sources first, as the rows stand, so that the empty diagonal runs down; then those that are targets only.
    targets = [task for task in dict.fromkeys([*sources, *targets]) if task in targets]
    bound = float(max(1, math.ceil(max(abs(change) for change in changes.values()))))
    width = min(PAGE, max(_MIN_WIDTH, 1.6 + _SIDE * len(targets)))
    longest = max(len(axis_name(task)) for task in targets)
    below = 0.025 * max(0, longest - 10)  # inches that a long name takes below the map
    with page(width, 0.95 + below + _HEIGHT * len(sources)) as figure:
        axes = figure.subplots()
        for row, source in enumerate(sources):
            for column, target in enumerate(targets):
                change = changes.get((source, target))
                if change is not None:
                    colour = SCALE((direction(metric) * change / bound + 1) / 2)
                    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
                    ink = "white" if luminance(colour[:3]) < 0.2 else "black"
                    centre: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 6.5}
                    axes.text(column + 0.5, row + 0.53, points(change / 100), color=ink, **centre)
                elif (source, target) in pairs:
                    axes.add_patch(Rectangle((column, row), 1, 1, **_HATCHED))
        axes.set_xlim(0, len(targets))
        axes.set_ylim(len(sources), 0)
        axes.set_xticks(np.arange(len(targets)) + 0.5, [axis_name(task) for task in targets])
        slant(axes.get_xticklabels() if longest > 9 else [], 30)
        axes.set_yticks(np.arange(len(sources)) + 0.5, [axis_name(task) for task in sources])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("evaluated on")
        axes.set_ylabel("trained on")
        _colour_bar(figure, axes, bound, metric)
        if len(changes) < len(pairs):
            handle = Patch(**_HATCHED, label="not there yet")
            if width > COLUMN + 1:
                corner: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1), "borderaxespad": 0.1}
                axes.legend(handles=[handle], frameon=False, **corner)
            else:
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


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2).

    Example:
        >>> luminance((1.0, 1.0, 1.0)), luminance((0.0, 0.0, 0.0))
        (1.0, 0.0)
    """
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return round(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2], 12)
