"""The classifier of an audit: the template to use, or the vote, with its offsets and the settings of the prompts."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from flip_flop.errors import InputError, log
from flip_flop.evaluation.values import AuditValues
from flip_flop.hub import absolute_place
from flip_flop.metrics import AveragedAxis, Design, certified_lead, label_probs, order_groups
from flip_flop.record import Classifier
from flip_flop.tasks import Task


def classifier_of(
    run: AuditValues,
    names: Sequence[str],
    why: str = "",
    average: AveragedAxis | None = None,
    certify: float | None = None,
    /,
    *,
    is_calibrated: bool,
    **measured: Any,
) -> Classifier | None:
    """Return the classifier of these templates, or None if the audit does not have their texts.

    Args:
        run: The audit.
        names: The templates. The label is the majority vote of several.
        why: The reason for these templates, in sentences.
        average: Average over the orders of the options. A template stands for all its orders.
        certify: Stop the passes of the average early; the share of the answers that must not change.
        is_calibrated: Whether to add the offsets of the audit, if it has any, to the scores.
        measured: Metrics of a single template on the rows of the audit, as fractions.
    """
    model = run.record.model
    adapter = run.record.adapter
    decided: dict[str, Any] = {"measured": measured, "decision": why, "average": average}
    decided["model"] = replace(model, name=absolute_place(model.name))
    form = run.calibrated if is_calibrated else None
    if form is not None:
        decided |= {
            "offsets": form.metrics["offsets"],
            "calibration": {name: form.metrics[name] for name in ("method", "label_prior")},
        }
    kind = "calibrated vote" if form else "vote"
    if average is not None:
        kind = "mean over the orders"
        names = _with_orders(run, names)
    if not measured:
        decided["decision"] = f"{why} This is the {kind} of {', '.join(names)}.".strip()
    if certify is not None:
        decided["stop_lead"] = _stop_lead(run, names, certify)
    if adapter is not None:
        decided["adapter"] = replace(adapter, path=str(adapter.folder))
    return Classifier.of_run(run.record, names, **decided)


def _with_orders(run: AuditValues, names: Sequence[str]) -> list[str]:
    """Return templates and all that differ from them in nothing but the order."""
    found = list[str]()
    for group in order_groups(run.data.design):
        members = [run.template_names[place] for place in group]
        if not {*members}.isdisjoint(names):
            found += members
    return found


def _stop_lead(run: AuditValues, names: Sequence[str], confidence: float) -> float | None:
    """Return the certified lead of an early stop, or warn that there is none."""
    orders = run.data.select([run.template_names.index(name) for name in names])
    if [len(group) > 1 for group in order_groups(orders.design)] != [True]:
        where = "--certify needs one template in several orders of its options."
        raise InputError("E-CLASSIFIER", where, "Select it with --templates.")
    lead = certified_lead(label_probs(orders.values), confidence)
    if lead is None:
        log.warning("W-CERTIFY: no early stop is certified on %d rows: all passes are done.", len(orders))
    return lead


def answering(task: Task, average: AveragedAxis | None) -> dict[str, list[int]]:
    """Return the places of the templates of each answer: one, or several orders that are averaged.

    Raises:
        InputError: ``E-AXIS`` if there is nothing to average.
    """
    names = task.templates.names
    groups = [[place] for place in range(len(names))]
    if average is not None:
        groups = order_groups(Design(levels=[template.levels for template in task.templates]))
        if len(groups) == len(names) or task.answer:
            where = f"task {task.name!r}: no template has several orders of its options."
            raise InputError("E-AXIS", where, "Add --axis order=4.")
    return {names[group[0]]: group for group in groups}
