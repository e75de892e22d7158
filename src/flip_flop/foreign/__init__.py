"""Results of other tools as audits: tables, samples of lm-eval, logs of Inspect."""

from flip_flop.foreign.results import from_results, load_results

__all__ = ["from_results", "load_results"]
