"""Evaluation: audits, predictions, and the run directories they leave."""

from flip_flop.evaluation.audit import audit
from flip_flop.evaluation.predict import predict, write_predictions
from flip_flop.evaluation.run_directory import Audit, check_out

__all__ = ["Audit", "audit", "check_out", "predict", "write_predictions"]
