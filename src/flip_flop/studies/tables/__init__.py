"""The studies' tables: Table 1, Table 2, study 3, the base's spread, the choice of checkpoints."""

from flip_flop.studies.tables.changes import changes_table
from flip_flop.studies.tables.latex import render_latex
from flip_flop.studies.tables.methods import methods_table
from flip_flop.studies.tables.selection import selection_table
from flip_flop.studies.tables.table import Table, render_csv, render_markdown
from flip_flop.studies.tables.templates import spread_table, unseen_table
from flip_flop.studies.tables.transfer import pairs_table, transfer_table

__all__ = [
    "Table",
    "changes_table",
    "methods_table",
    "pairs_table",
    "render_csv",
    "render_latex",
    "render_markdown",
    "selection_table",
    "spread_table",
    "transfer_table",
    "unseen_table",
]
