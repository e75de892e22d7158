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
    predicted,
    share_drift,
    template_agreement_matrix,
    vote_counts,
)
from flip_flop.metrics.bootstrap import (
    SumStatistic,
    bootstrap_interval,
    mean_statistic,
    paired_bootstrap_interval,
)
from flip_flop.metrics.calibration import (
    batch_offsets,
    calibrated,
    check_prior,
    contextual_offsets,
    find_offsets,
    prior_of_labels,
    prior_offsets,
    uniform_prior,
    vote_changes,
)
from flip_flop.metrics.data import EvalData
from flip_flop.metrics.f1 import Average, accuracy_per_template, f1_per_template, resolve_average
from flip_flop.metrics.fragility import Resolution, fragile_answers, fragile_instance_share, fragile_votes
from flip_flop.metrics.table import METRICS, Metric, summarise

__all__ = [
    "METRICS",
    "Average",
    "EvalData",
    "Metric",
    "Resolution",
    "SumStatistic",
    "accuracy_per_template",
    "batch_offsets",
    "bootstrap_interval",
    "calibrated",
    "check_prior",
    "contextual_offsets",
    "f1_per_template",
    "find_offsets",
    "fragile_answers",
    "fragile_instance_share",
    "fragile_votes",
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
    "predicted",
    "prior_of_labels",
    "prior_offsets",
    "resolve_average",
    "share_drift",
    "summarise",
    "template_agreement_matrix",
    "uniform_prior",
    "vote_changes",
    "vote_counts",
]
