"""Drafting: a task file from a data file, with phrasings of its kind to begin with."""

from flip_flop.drafting.columns import Columns, find_columns
from flip_flop.drafting.draft import Draft, draft_task
from flip_flop.drafting.phrasings import KINDS

__all__ = ["KINDS", "Columns", "Draft", "draft_task", "find_columns"]
