"""Evaluation: audits, predictions, and run directories. Import from its modules: reading a run needs no torch."""
