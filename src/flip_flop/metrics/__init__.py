"""Metrics: agreement, F1 over templates, the vote, collapse, and intervals. Pure functions on arrays."""

from flip_flop.metrics.agreement import (
    FLIP_RATE,
    count_flips,
    instance_agreement,
    is_collapsed,
    label_probs,
    label_shares,
    majority_vote,
    predicted,
    share_drift,
    template_agreement_matrix,
    vote_counts,
)
from flip_flop.metrics.axes import AveragedAxis, AxisKey, AxisRow, along, axis_rows, forms_of, mean_over, order_groups
from flip_flop.metrics.bootstrap import (
    SumStatistic,
    bootstrap_interval,
    column_intervals,
    mean_statistic,
    paired_bootstrap_interval,
)
from flip_flop.metrics.calibration import (
    MIN_INSTANCES,
    CalibrationChoice,
    OptionPlaces,
    batch_offsets,
    calibrated,
    check_calibration,
    check_prior,
    find_offsets,
    offsets_that_change,
    option_places,
    prior_of_labels,
    uniform_prior,
    vote_changes,
)
from flip_flop.metrics.certainty import (
    MIN_LABELLED,
    TemplateRanking,
    calibration_error_per_template,
    decidable,
    rank_templates,
    reliability,
    resampled_per_template,
    risk_coverage,
    vote_margin,
    vote_share,
)
from flip_flop.metrics.data import AXES, TAGS, Design, Scores, gold_of
from flip_flop.metrics.early_stop import certified_lead, leads
from flip_flop.metrics.f1 import Average, accuracy_per_template, chance_f1, f1_per_template, resolve_average
from flip_flop.metrics.table import ALIASES, BETWEEN_RUNS, METRICS, Metric, add_metric, answers_by_position, summarise

__all__ = ["METRICS", "Design", "Metric", "Scores", "add_metric", "mean_statistic"]
