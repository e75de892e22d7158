"""Metrics: agreement, F1 over templates, the vote, collapse, and intervals. Pure functions on arrays."""

from flip_flop.metrics.agreement import (
    instance_agreement,
    instance_posix,
    is_collapsed,
    label_probs,
    label_shares,
    label_shares_per_template,
    lacks_consensus,
    majority_vote,
    observed_agreement,
    share_drift,
    template_agreement_matrix,
    vote_counts,
)
from flip_flop.metrics.bootstrap import SumStatistic, bootstrap_interval, mean_statistic, paired_bootstrap_interval
from flip_flop.metrics.f1 import Average, accuracy_per_template, f1_per_template, resolve_average
from flip_flop.metrics.table import METRICS, EvalData, Metric, summarise

__all__ = [
    "METRICS",
    "Average",
    "EvalData",
    "Metric",
    "SumStatistic",
    "accuracy_per_template",
    "bootstrap_interval",
    "f1_per_template",
    "instance_agreement",
    "instance_posix",
    "is_collapsed",
    "label_probs",
    "label_shares",
    "label_shares_per_template",
    "lacks_consensus",
    "majority_vote",
    "mean_statistic",
    "observed_agreement",
    "paired_bootstrap_interval",
    "resolve_average",
    "share_drift",
    "summarise",
    "template_agreement_matrix",
    "vote_counts",
]
