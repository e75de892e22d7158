"""Metrics: agreement, F1 over templates, the vote, collapse, and intervals. Pure functions on arrays."""

from flip_flop.metrics.agreement import (
    agreement_statistic,
    instance_agreement,
    no_consensus_share,
    no_consensus_statistic,
    observed_agreement,
    template_agreement_matrix,
    vote_counts,
)
from flip_flop.metrics.bootstrap import bootstrap_interval, paired_bootstrap_interval
from flip_flop.metrics.collapse import is_collapsed, label_shares, label_shares_per_template, share_drift
from flip_flop.metrics.f1 import (
    Average,
    accuracy_per_template,
    accuracy_statistic,
    f1_per_template,
    f1_std,
    mean_f1,
    mean_f1_statistic,
)
from flip_flop.metrics.summary import summarise
from flip_flop.metrics.sums import SumStatistic, mean_over_runs
from flip_flop.metrics.table import METRICS, Metric
from flip_flop.metrics.vote import majority_vote

__all__ = [
    "METRICS",
    "Average",
    "Metric",
    "SumStatistic",
    "accuracy_per_template",
    "accuracy_statistic",
    "agreement_statistic",
    "bootstrap_interval",
    "f1_per_template",
    "f1_std",
    "instance_agreement",
    "is_collapsed",
    "label_shares",
    "label_shares_per_template",
    "majority_vote",
    "mean_f1",
    "mean_f1_statistic",
    "mean_over_runs",
    "no_consensus_share",
    "no_consensus_statistic",
    "observed_agreement",
    "paired_bootstrap_interval",
    "share_drift",
    "summarise",
    "template_agreement_matrix",
    "vote_counts",
]
