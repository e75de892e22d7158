"""What all pictures share: the size of a page, the type, the colours, and files without a date."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flip_flop.studies.summary import task_title
from flip_flop.text import visible

FORMATS = ("pdf", "svg", "png")
COLUMN, PAGE = 3.35, 6.9  # widths in inches of one column and of both, in a two-column paper
GREY, FAINT = "#4d4d4d", "#d9d9d9"
# Okabe and Ito's colours, which differ for every kind of colour vision; the base has none.
METHOD_COLOURS = {"base": "#8c8c8c", "swarm": "#56b4e9", "cce": "#e69f00", "f2c": "#009e73"}
OTHER_COLOUR = "#cc79a7"
_STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7,
    "axes.titlesize": 8,
    "axes.labelsize": 7,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.5,
    "svg.hashsalt": "flip-flop",
    "pdf.fonttype": 42,
    "text.usetex": False,
    # A name may hold a dollar sign; what is mathematics here is written with its letters.
    "text.parse_math": False,
}
# None removes the entry: the same numbers give the same bytes.
_METADATA = {
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}


@dataclass(frozen=True)
class Picture:
    """A picture and the words that go with it; ``alt`` says what it shows to whoever cannot see it."""

    name: str
    title: str
    figure: Figure
    alt: str


@contextlib.contextmanager
def page(width: float, height: float) -> Iterator[Figure]:
    """An empty picture of this size in inches, in the house's style."""
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def picture_bytes(picture: Picture, kind: str) -> bytes:
    """The file of a picture: ``pdf``, ``svg`` or ``png``."""
    buffer = io.BytesIO()
    with mpl.rc_context({**mpl.rcParamsDefault, **_STYLE}):
        picture.figure.savefig(buffer, format=kind, dpi=300, metadata=_METADATA[kind])
    return buffer.getvalue()


def axis_name(task: str, limit: int = 22) -> str:
    """A task's name on an axis: nothing invisible in it, and not so long that it pushes the picture aside.

    Example:
        >>> axis_name("anli_r1"), axis_name("a_task_with_a_rather_long_name")
        ('ANLI R1', 'a_task_with_a_rather_…')
    """
    name = visible(task_title(task), one_line=True)
    return name if len(name) <= limit else name[: limit - 1] + "…"
