"""What all plots share: the size of a page, the type, the colours, and files without a date."""

import contextlib
import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from flip_flop.metrics import METRICS
from flip_flop.studies.frame import task_title
from flip_flop.text import visible

COLUMN, PAGE = 3.35, 6.9  # widths in inches of one column and of both, in a two-column paper
GREY, FAINT = "#4d4d4d", "#d9d9d9"
_STYLE = mpl.rc_params_from_file(Path(__file__).with_name("paper.mplstyle"), use_default_template=True)
# None removes the entry: the same numbers give the same bytes.
_METADATA = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Plot:
    """A plot and the words that go with it; ``alt`` says what it shows to whoever cannot see it."""

    name: str
    title: str
    figure: Figure
    alt: str

    def render(self, kind: str) -> bytes:
        """The file: ``pdf``, ``svg`` or ``png``."""
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            self.figure.savefig(buffer, format=kind, dpi=300, metadata=_METADATA[kind])
        return buffer.getvalue()


@contextlib.contextmanager
def page(width: float, height: float) -> Iterator[Figure]:
    """An empty figure of this size in inches."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def symbol(metric: str) -> str:
    """A metric's title as a plot has it, without mathematics.

    Example:
        >>> symbol("f1_std"), symbol("observed_agreement")
        ('σ of F1', 'Pₒ')
    """
    return METRICS[metric].title.replace("sigma_F1", "σ of F1").replace("P_o", "Pₒ")


def slant(labels: Iterable[Text], degrees: int) -> None:
    """Turn an axis's long names, so that they end below their tick."""
    for label in labels:
        label.set(rotation=degrees, horizontalalignment="right", rotation_mode="anchor")


def faint_grid(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Lines across the plot, behind it."""
    axes.grid(axis=axis, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)


def axis_name(task: str, limit: int = 22) -> str:
    """A task's name on an axis: nothing invisible in it, and not so long that it pushes the plot aside.

    Example:
        >>> axis_name("anli_r1"), axis_name("a_task_with_a_rather_long_name")
        ('ANLI R1', 'a_task_with_a_rather_…')
    """
    name = visible(task_title(task), one_line=True)
    return name if len(name) <= limit else name[: limit - 1] + "…"
