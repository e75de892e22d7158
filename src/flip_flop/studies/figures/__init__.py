"""The studies' pictures, each as PDF, SVG and PNG: box plots, heat maps, curves."""

from flip_flop.studies.figures.boxes import draw_boxes
from flip_flop.studies.figures.canvas import FORMATS, Picture, picture_bytes
from flip_flop.studies.figures.curves import draw_curves
from flip_flop.studies.figures.heatmaps import draw_heatmaps

__all__ = ["FORMATS", "Picture", "draw_boxes", "draw_curves", "draw_heatmaps", "picture_bytes"]
