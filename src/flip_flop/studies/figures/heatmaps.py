"""Change by source and target, one map for each figure: bluish green is better, vermillion is worse.

The two arms of the scale differ in lightness as well as in hue, so that they stay apart in grey and for every kind of
colour vision; and every cell has its number with its sign.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from flip_flop.studies.figures.canvas import COLUMN, FAINT, GREY, PAGE, Picture, axis_name, page
from flip_flop.studies.paper import FIGURES
from flip_flop.studies.summary import LESS_IS_BETTER, Entry, Summary, method_title
from flip_flop.studies.tables.transfer import pair_entries
from flip_flop.text import points

WORSE, EVEN, BETTER = "#f08a4b", "#fbfbf7", "#005a46"
SCALE = LinearSegmentedColormap.from_list("worse_better", [WORSE, EVEN, BETTER])
SYMBOLS = {"mean_f1": "mean F1", "f1_std": "σ of F1", "observed_agreement": "Pₒ"}
_ALT = "Heat map of the change in {} by task trained on (rows) and evaluated on (columns), {} of {} pairs."
_SIDE = 0.5  # a cell's width in inches, where the page has room
_HEIGHT = 0.235
_LEAST = 2.7  # the title's width


def draw_heatmaps(summary: Summary, method: str) -> list[Picture]:
    """A map for each figure that some pair has."""
    entries, pairs = pair_entries(summary, method), summary.pairs(method)
    return [
        _heatmap(entries, pairs, figure, method)
        for figure in FIGURES
        if any(entry.change(figure) is not None for entry in entries.values())
    ]


def _heatmap(
    entries: Mapping[tuple[str, str], Entry], pairs: Sequence[tuple[str, str]], figure: str, method: str
) -> Picture:
    sources = list(dict.fromkeys(source for source, _ in pairs))
    targets = _in_order(pairs)
    changes = {pair: 100 * change for pair, entry in entries.items() if (change := entry.change(figure)) is not None}
    bound = float(max(1, math.ceil(max(abs(change) for change in changes.values()))))
    sign = -1 if figure in LESS_IS_BETTER else 1
    width = min(PAGE, max(_LEAST, 1.6 + _SIDE * len(targets)))
    longest = max(len(axis_name(task)) for task in targets)
    slant = 0.025 * max(0, longest - 10)  # inches that a long name takes below the map
    with page(width, 0.95 + slant + _HEIGHT * len(sources)) as picture:
        axes = picture.subplots()
        for row, source in enumerate(sources):
            for column, target in enumerate(targets):
                change = changes.get((source, target))
                asked = (source, target) in pairs
                _cell(axes, row, column, None if change is None else (change, sign * change / bound), asked)
        axes.set_xlim(0, len(targets))
        axes.set_ylim(len(sources), 0)
        axes.set_xticks(np.arange(len(targets)) + 0.5, [axis_name(task) for task in targets])
        for label in axes.get_xticklabels() if longest > 9 else []:
            label.set(rotation=30, horizontalalignment="right", rotation_mode="anchor")
        axes.set_yticks(np.arange(len(sources)) + 0.5, [axis_name(task) for task in sources])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("evaluated on")
        axes.set_ylabel("trained on")
        _colour_bar(picture, axes, bound, figure)
        if len(changes) < len(pairs):
            handle = Patch(facecolor=FAINT, edgecolor=GREY, hatch="////", linewidth=0, label="not there yet")
            if width > COLUMN + 1:
                axes.legend(
                    handles=[handle], loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1, frameon=False
                )
            else:
                picture.legend(handles=[handle], loc="outside lower right", frameon=False)
    name = f"transfer_{figure}" if method == "f2c" else f"transfer_{figure}_{method}"
    title = f"Change in {SYMBOLS[figure]} on other tasks under {method_title(method)}"
    return Picture(name, title, picture, _ALT.format(SYMBOLS[figure], len(changes), len(pairs)))


def _in_order(pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Sources first, as the rows stand, so that the empty diagonal runs down; then those that are targets only."""
    sources = [source for source, _ in pairs]
    targets = {target for _, target in pairs}
    ordered = [*(source for source in sources if source in targets), *(target for _, target in pairs)]
    return list(dict.fromkeys(ordered))


def _cell(axes: Axes, row: int, column: int, value: tuple[float, float] | None, asked: bool) -> None:
    if value is None:
        if asked:
            axes.add_patch(Rectangle((column, row), 1, 1, facecolor=FAINT, edgecolor=GREY, hatch="////", linewidth=0))
        return
    change, better = value
    colour = SCALE((better + 1) / 2)
    axes.add_patch(Rectangle((column, row), 1, 1, facecolor=colour, edgecolor="white", linewidth=0.8))
    ink = "white" if luminance(colour[:3]) < 0.2 else "black"
    text = points(change / 100)
    axes.text(column + 0.5, row + 0.53, text, color=ink, ha="center", va="center", fontsize=6.5)


def _colour_bar(picture: Figure, axes: Axes, bound: float, figure: str) -> None:
    scale = SCALE.reversed() if figure in LESS_IS_BETTER else SCALE
    values = ScalarMappable(Normalize(-bound, bound), scale)
    bar = picture.colorbar(values, ax=axes, fraction=0.035, pad=0.015, aspect=12, ticks=[-bound, 0, bound])
    bar.ax.set_yticklabels([points(tick / 100, 0) for tick in (-bound, 0, bound)])
    if figure in LESS_IS_BETTER:
        bar.ax.invert_yaxis()
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0)
    lower = ", lower is better" if figure in LESS_IS_BETTER else ""
    axes.set_title(f"Δ {SYMBOLS[figure]}, points{lower}", loc="left")


def luminance(colour: Sequence[float]) -> float:
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2).

    Example:
        >>> luminance((1.0, 1.0, 1.0)), luminance((0.0, 0.0, 0.0))
        (1.0, 0.0)
    """
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return round(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2], 12)
