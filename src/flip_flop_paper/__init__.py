"""Studies: the paper's grids of runs, its tables and figures beside the paper's numbers."""
