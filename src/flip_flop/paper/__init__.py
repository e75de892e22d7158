"""Reproduction of the paper: grids of runs, with tables and figures that contain the published numbers."""
