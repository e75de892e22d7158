"""Advice from an audit: which templates to use, and when to abstain. Its tables and sentences."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flip_flop.console import percent, visible
from flip_flop.metrics import (
    METRICS,
    MIN_LABELLED,
    bootstrap_interval,
    calibration_error_per_template,
    chance_f1,
    label_probs,
    risk_coverage,
    vote_margin,
    vote_share,
)

NEAR = 0.8  # the coverage that the sentence on abstention is for, or the closest one
MAX_LISTED = 3


def template_rows(found: Any) -> list[dict[str, Any]]:
    """Return a row per template, best first."""
    ranking, labels = found.template_ranking, found.label_names
    labelled = found.data.labelled
    has_errors = len(labelled) > 0 and not found.data.is_generated
    errors = calibration_error_per_template(labelled) if has_errors else None
    mass, tokens = (found.metrics.get(f"{name}_per_template") or {} for name in ("own_label_mass", "prompt_tokens"))
    rows = []
    for rank, at in enumerate(ranking.order, start=1):
        name, bias = found.template_names[at], None if ranking.bias is None else ranking.bias[at]
        difference, low, high = ranking.differences[at] or (None, None, None)
        row = {
            "template": name,
            "rank": rank,
            "fault": ranking.faults[at],
            "agreement": float(ranking.agreement[at]) if len(ranking.order) > 1 else None,
            "f1": None if ranking.f1 is None else float(ranking.f1[at]),
            "difference": difference,
            "low": low,
            "high": high,
            "label_preference": None if bias is None else float(np.abs(bias).sum() / 2),
            "preferred_label": None if bias is None else labels[int(bias.argmax())],
            "constancy": float(ranking.constancy[at]),
            "top_label": labels[ranking.top_label[at]],
            "ece": None if errors is None else float(errors[at]),
            "own_label_mass": mass.get(name),
            "prompt_tokens": tokens.get(name),
        }
        rows.append(row)
    return rows


def instance_rows(found: Any) -> dict[str, Any]:
    """Return the columns of a table with a row per instance."""
    data, gold = found.data, [None if label < 0 else found.label_name(int(label)) for label in found.gold]
    probs = label_probs(data.scores)
    is_vote = data.votes[:, None, None] == np.arange(data.num_labels)
    lead = (probs * is_vote).sum(axis=2) - np.where(is_vote, -np.inf, probs).max(axis=2, initial=0.0)
    worst, differs = lead.argmin(axis=1), lead.min(axis=1) < lead.max(axis=1)
    answers = np.take_along_axis(data.predictions, worst[:, None], axis=1)[:, 0]
    return {
        "id": found.instance_ids,
        "vote": [found.label_name(int(vote)) for vote in data.votes],
        "confidence": vote_share(data),
        "margin": None if data.is_generated else vote_margin(data),
        "gold": gold,
        "worst_template": [found.template_names[at] if own else None for at, own in zip(worst, differs, strict=True)],
        "worst_label": [
            found.label_name(int(label)) if own else None for label, own in zip(answers, differs, strict=True)
        ],
    }


def coverage_rows(found: Any) -> list[dict[str, Any]]:
    """Return a row per threshold of the vote share and of the margin. Without gold labels accuracy is None."""
    data = found.data.labelled if len(found.data.labelled) else found.data
    measures = {"vote share": vote_share} | ({} if data.is_generated else {"margin": vote_margin})
    return [
        {
            "by": by,
            "threshold": threshold,
            "coverage": coverage,
            "accuracy": 1 - risk if (data.gold >= 0).all() else None,
        }
        for by, measure in measures.items()
        for threshold, coverage, risk in risk_coverage(measure(data), data.votes != data.gold).tolist()
    ]


def template_advice(found: Any) -> str:
    """Return a sentence that names the template to use and those to drop, or an empty text for a single template."""
    ranking, names = found.template_ranking, found.template_names
    if len(names) < 2:
        return ""
    best, *others = ranking.order
    reason = _objection(found)
    if reason:
        words = f"No template is recommended: {reason}"
    else:
        words = f"Use {names[best]}: F1 {percent(ranking.f1[best])} on {len(found.data.labelled)} labelled instances"
        close = [names[at] for at in others if not ranking.faults[at] and ranking.differences[at][2] >= 0]
        words += f", not clearly above {_listed(close)}" if close else ""
    faults = dict.fromkeys(fault for at in others if (fault := ranking.faults[at]))
    dropped = [f"{_listed([names[at] for at in others if ranking.faults[at] == fault])} ({fault})" for fault in faults]
    if dropped and not ranking.faults[best]:
        words += f"; {'without calibration, ' if found.calibrated else ''}drop {', '.join(dropped)}"
    return visible(f"{words}.", one_line=True)


def _objection(found: Any) -> str:
    """Return why the best template is not recommended, or an empty text."""
    ranking, data = found.template_ranking, found.data.labelled
    best = ranking.order[0]
    if ranking.faults[best]:
        return "all are constant"
    if not ranking.by_f1:
        return f"this takes {MIN_LABELLED} labelled instances, and the audit has {len(data)}"
    single, metric = data.single(best), METRICS["mean_f1"]
    start = f"F1 {percent(metric.value(single))} of {found.template_names[best]}, the best, is"
    low, _ = bootstrap_interval(metric.statistic, single, confidence=1 - 0.05 / len(ranking.order))
    if low <= chance_f1(single):
        return f"{start} not clearly above {percent(chance_f1(single))}, the F1 of answers that ignore the input"
    if found.calibrated:
        after = found.calibrated.data.labelled.single(best)
        low, _ = metric.change_interval(single, after) or (0.0, 0.0)
        if low > 0:
            return f"{start} {percent(metric.value(after))} with calibration"
    return ""


def abstention_advice(found: Any) -> str:
    """Return a sentence on the accuracy of the most confident votes, or an empty text for fewer than 50 gold labels."""
    run = found.calibrated or found
    points = [row for row in coverage_rows(run) if row["by"] == "vote share"]
    *chosen, every = points
    if len(run.data.labelled) < MIN_LABELLED or not chosen:
        return ""
    point = min(chosen, key=lambda row: abs(row["coverage"] - NEAR))
    share = math.floor(100 * point["threshold"] + 1e-9) / 100
    calibrate = f"--calibrate {run.metrics['method']} " if found.calibrated else ""
    reached, overall = percent(point["accuracy"]), percent(every["accuracy"])
    words = (
        f"Abstain on {percent(1 - point['coverage'])} % (predict {calibrate}--abstain-below {share:g}): accuracy of "
        f"the {_calibrated(found)}vote {reached} instead of {overall}"
    )
    return f"{words}{'' if point['accuracy'] > every['accuracy'] else ', so that abstaining does not help'}."


def _calibrated(found: Any) -> str:
    return "calibrated " if found.calibrated or "offsets" in found.metrics else ""


def _listed(names: Sequence[str]) -> str:
    more = [f"{len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    *first, last = [*names[:MAX_LISTED], *more]
    return f"{', '.join(first)} and {last}" if first else last
