"""Read a classifier, its task and its options, without a model."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from flip_flop.errors import InputError, require_known
from flip_flop.evaluation.handover import answering, classifier_of
from flip_flop.evaluation.run_directory import load_run
from flip_flop.files import Json, StrPath
from flip_flop.hub import SERVED, is_endpoint
from flip_flop.metrics import AveragedAxis
from flip_flop.prompts import Template, TemplateSet
from flip_flop.reading import AnswerFormat
from flip_flop.record import CLASSIFIER_FILE, Classifier
from flip_flop.scoring.options import DEFAULT_SCORING, LoadIn, ScoringOptions
from flip_flop.tasks import Task

ADAPTER = "adapter"
ALL = "all"


def read_classifier(
    path: StrPath,
    templates: Sequence[str] = (),
    average: AveragedAxis | None = None,
    certify: float | None = None,
) -> Classifier:
    """Read the classifier of an audit, a training run, an adapter or an export.

    Args:
        path: The folder of one of them, or a ``classifier.json``.
        templates: Of an audit: use these templates instead of the decided ones, or ``["all"]``. Several vote. Offsets
            are used unless the audit decided for a template without them.
        average: Of an audit: average over the orders of these templates, or of the decided ones, without offsets.
        certify: Stop the passes of this average early; the share of the answers that must not change.

    Raises:
        InputError: ``E-RUN-MISSING`` if there is none; ``E-RUN-BROKEN`` for a damaged file; ``E-CLASSIFIER`` if the
            texts of the templates are unknown; ``E-TASK-UNKNOWN`` for another template; ``E-AXIS`` without orders.
    """
    folder = Path(path)
    for file in (folder, folder / CLASSIFIER_FILE, folder / ADAPTER / CLASSIFIER_FILE):
        if file.is_file() and (templates or average or certify):
            raise InputError("E-CLASSIFIER", f"{file} is decided.", "Give these options with the folder of an audit.")
        if file.is_file():
            return Classifier.read(file)
    run = load_run(folder)
    found = run.decision.classifier
    names = run.template_names if ALL in templates else templates
    require_known(names, run.template_names, "E-TASK-UNKNOWN", "there is no template")
    if certify is not None:
        average = "order"
    if average is not None and not names:
        names = [run.decision.template] if run.decision.template else run.template_names
    if names:
        is_calibrated = average is None and run.voting is not run
        found = classifier_of(run, names, "", average, certify, is_calibrated=is_calibrated)
    if found is None:
        raise InputError("E-CLASSIFIER", f"{folder} does not have the texts of its templates.", "Audit a task.")
    answering(task_of(found), average)
    return found


def task_of(classifier: Classifier) -> Task:
    """Return the task of a classifier without data (``E-CLASSIFIER`` for templates with other texts)."""
    record = classifier.task
    templates = []
    for item in record.templates:
        template = Template(item.name, item.jinja, item.answer_choices, item.levels or {})
        if template.digest() != item.digest:
            words = f"the text of template {item.name!r} has changed since it was measured."
            raise InputError("E-CLASSIFIER", words, "Audit the new text.")
        templates.append(template)
    return Task(
        record.name,
        TemplateSet(tuple(templates), record.data.get("prompt_value_limit")),
        labels=None if record.answer else record.labels,
        label_names=record.label_names,
        answer=AnswerFormat(**record.answer) if record.answer else None,
        extract=record.extract,
        system=record.system,
        assistant_prefix=record.assistant_prefix,
        chat_template_kwargs=record.chat_template_kwargs or {},
    )


def scoring_of(classifier: Classifier, options: ScoringOptions = DEFAULT_SCORING) -> ScoringOptions:
    """Return options of scoring with the prompts that were measured. Rows that are too long are skipped if possible."""
    stored = classifier.scoring
    is_served = classifier.model.endpoint is not None
    how = {key: stored[key] for key in ("prompt_date", "by", "api") if key in stored}
    if how.get("by") == "generation":
        how.pop("api", None)
    # A server without a tokenizer here uses its own chat template.
    if not is_served or stored.get("tokenizer"):
        how["chat_template"] = "on" if stored.get("chat_template") else "off"
    return replace(options, too_long="refuse" if is_served else "skip", **how)


def model_arguments(classifier: Classifier, place: str = "") -> Json:
    """Return the arguments that load the measured model, from another ``place`` if there is one."""
    model = classifier.model
    measured = model.name
    if model.endpoint is not None:
        measured = f"{SERVED}{model.endpoint}#{model.name}"
    if is_endpoint(place or measured):
        return {"model": place or measured, "tokenizer": classifier.scoring.get("tokenizer")}
    bits, _, dtype = (model.dtype or "auto").rpartition(", ")
    return {
        "model": place or measured,
        "revision": None if place else model.revision,
        "dtype": dtype,
        "load_in": bits if bits in get_args(LoadIn) else None,
        "adapter": classifier.adapter.folder if classifier.adapter else None,
    }
