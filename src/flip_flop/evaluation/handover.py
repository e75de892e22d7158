"""The classifier of an audit: the template to use, or the vote, with its offsets and the settings of the prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flip_flop.evaluation.values import AuditValues
from flip_flop.hub import absolute_place
from flip_flop.record import Classifier


def classifier_of(
    run: AuditValues, names: Sequence[str], *, is_calibrated: bool, decision: str, **measured: Any
) -> Classifier | None:
    """Return the classifier of these templates, or None if the audit does not have their texts.

    Args:
        run: The audit.
        names: The templates. The label is the majority vote of several.
        is_calibrated: Whether to add the offsets of the audit, if it has any, to the scores.
        decision: Why these templates, in sentences.
        measured: Metrics of these templates on the rows of the audit, as fractions.
    """
    record = run.record
    texts = {template.name for template in record.task.templates if template.jinja}
    if not texts.issuperset(names):
        return None
    decided: dict[str, Any] = {"decision": decision, "measured": measured}
    if is_calibrated and run.calibrated:
        after = run.calibrated.metrics
        decided["calibration"] = {"method": after["method"], "label_prior": after["label_prior"]}
        decided["offsets"] = {name: tuple(after["offsets"][name]) for name in names}
    if record.adapter:
        decided["adapter"] = replace(record.adapter, path=str(record.adapter.folder))
    model = replace(record.model, name=absolute_place(record.model.name))
    return Classifier.of_run(record, names, model=model, **decided)


def vote_of(run: AuditValues, names: Sequence[str], *, is_calibrated: bool, why: str = "") -> Classifier | None:
    """Return the classifier for the vote of these templates."""
    form = run.calibrated if is_calibrated and run.calibrated else run
    kind = "vote" if form is run else "calibrated vote"
    words = f"{why} This is the {kind} of {', '.join(names)}."
    return classifier_of(run, names, is_calibrated=is_calibrated, decision=words.strip())
