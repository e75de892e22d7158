"""The studies' plots, each as PDF, SVG and PNG: box plots, heat maps, curves. Only this package needs matplotlib."""

from flip_flop.studies.figures.boxes import draw_boxes
from flip_flop.studies.figures.canvas import Plot
from flip_flop.studies.figures.curves import draw_curves
from flip_flop.studies.figures.heatmaps import draw_heatmaps

__all__ = ["Plot", "draw_boxes", "draw_curves", "draw_heatmaps"]
