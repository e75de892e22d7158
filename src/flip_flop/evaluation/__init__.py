"""Evaluation: audits, predictions, and the run directories they leave."""

from flip_flop.evaluation.audit import Audit, audit
from flip_flop.evaluation.predict import predict, write_predictions
from flip_flop.evaluation.records import check_out, write_run

__all__ = ["Audit", "audit", "check_out", "predict", "write_predictions", "write_run"]
