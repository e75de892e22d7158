"""The classifier of an audit: the template to use, or the vote, with its offsets and the settings of the prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flip_flop.evaluation.values import AuditValues
from flip_flop.hub import absolute_place
from flip_flop.record import Classifier


def classifier_of(
    run: AuditValues, names: Sequence[str], why: str = "", *, is_calibrated: bool, **measured: Any
) -> Classifier | None:
    """Return the classifier of these templates, or None if the audit does not have their texts.

    Args:
        run: The audit.
        names: The templates. The label is the majority vote of several.
        why: The reason for these templates, in sentences.
        is_calibrated: Whether to add the offsets of the audit, if it has any, to the scores.
        measured: Metrics of a single template on the rows of the audit, as fractions.
    """
    model = run.record.model
    adapter = run.record.adapter
    decided: dict[str, Any] = {"measured": measured, "decision": why}
    decided["model"] = replace(model, name=absolute_place(model.name))
    form = run.calibrated if is_calibrated else None
    if form is not None:
        decided["offsets"] = form.metrics["offsets"]
        decided["calibration"] = {name: form.metrics[name] for name in ("method", "label_prior")}
    if not measured:
        kind = "calibrated vote" if form else "vote"
        decided["decision"] = f"{why} This is the {kind} of {', '.join(names)}.".strip()
    if adapter is not None:
        decided["adapter"] = replace(adapter, path=str(adapter.folder))
    return Classifier.of_run(run.record, names, **decided)
