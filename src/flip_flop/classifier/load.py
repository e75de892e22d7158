"""Load a classifier, and apply it to rows."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from flip_flop.arrays import Offsets
from flip_flop.errors import InputError, look_up
from flip_flop.evaluation.handover import vote_of
from flip_flop.evaluation.predict import prediction_rows, with_notes
from flip_flop.evaluation.run_directory import load_run
from flip_flop.hub import SERVED, is_endpoint
from flip_flop.lazy import from_wing
from flip_flop.prompts import Template, TemplateSet
from flip_flop.reading import AnswerFormat
from flip_flop.record import CLASSIFIER_FILE, Classifier
from flip_flop.scoring import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.models import ModelGiven, load_model
from flip_flop.scoring.options import LoadIn
from flip_flop.scoring.scorer import Scorer
from flip_flop.scoring.scores import CausalLMScorer, as_scorer
from flip_flop.scoring.too_long import TooLongError
from flip_flop.tasks import RenderedSplit, Rows, RowsSource, Task, cell_text
from flip_flop.tasks.readers import NumberedRow

CHUNK = 512  # rows that are scored together
ADAPTER = "adapter"
ALL = "all"


def read_classifier(path: str | os.PathLike[str], templates: Sequence[str] = ()) -> Classifier:
    """Read the classifier of an audit, a training run, an adapter or an export.

    Args:
        path: The folder of one of them, or a ``classifier.json``.
        templates: Of an audit: use these templates instead of the decided ones, or ``["all"]``. Several vote. Offsets
            are used unless the audit decided for a template without them.

    Raises:
        InputError: ``E-RUN-MISSING`` if there is none; ``E-RUN-BROKEN`` for a damaged file; ``E-CLASSIFIER`` if the
            texts of the templates are unknown; ``E-TASK-UNKNOWN`` for another template.
    """
    folder = Path(path)
    files = [folder / CLASSIFIER_FILE, folder / ADAPTER / CLASSIFIER_FILE]
    file = folder if folder.is_file() else next((file for file in files if file.is_file()), None)
    if file is not None:
        if templates:
            raise InputError("E-CLASSIFIER", f"{file} is decided.", "Select templates of the folder of an audit.")
        return Classifier.read(file)
    run = load_run(folder)
    found = run.decision.classifier
    if templates:
        by_name = {name: name for name in run.template_names}
        names = [look_up(name, by_name, "E-TASK-UNKNOWN", "there is no template") for name in templates if name != ALL]
        found = vote_of(run, names or run.template_names, is_calibrated=run.voting is not run)
    if found is None:
        raise InputError("E-CLASSIFIER", f"{folder} does not have the texts of its templates.", "Audit a task.")
    return found


def task_of(classifier: Classifier) -> Task:
    """Return the task of a classifier without data (``E-CLASSIFIER`` for templates with other texts)."""
    record, templates = classifier.task, list[Template]()
    for item in record.templates:
        template = Template(item.name, item.jinja, item.answer_choices)
        if template.digest() != item.digest:
            raise InputError(
                "E-CLASSIFIER",
                f"the text of template {item.name!r} has changed since it was measured.",
                "Audit the new text.",
            )
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
    stored, is_served = classifier.scoring, classifier.model.endpoint is not None
    how = {key: stored[key] for key in ("prompt_date", "by", "api") if key in stored}
    if how.get("by") == "generation":
        how.pop("api")
    # A server without a tokenizer here uses its own chat template.
    if not is_served or stored.get("tokenizer"):
        how["chat_template"] = "on" if stored.get("chat_template") else "off"
    return replace(options, too_long="refuse" if is_served else "skip", **how)


def model_options(classifier: Classifier, place: str | None = None) -> dict[str, Any]:
    """Return the fields of ``ModelOptions`` that load the measured model, or the same model from another place."""
    model, adapter = classifier.model, classifier.adapter
    if model.endpoint is not None:
        served = f"{SERVED}{model.endpoint}#{model.name}"
        return {"model": place or served, "tokenizer": classifier.scoring.get("tokenizer")}
    bits, _, dtype = (model.dtype or "auto").rpartition(", ")
    return {
        "model": place or model.name,
        "revision": None if place else model.revision,
        "dtype": dtype,
        "load_in": bits if bits in get_args(LoadIn) else None,
        "adapter": adapter and adapter.folder,
    }


def load_scorer(classifier: Classifier, model: ModelGiven | Scorer | None = None, device: str = "auto") -> Scorer:
    """Load the model and the adapter of a classifier, or take a model that is given."""
    if not isinstance(model, str | os.PathLike | None):
        return as_scorer(model)
    how = model_options(classifier, None if model is None else os.fspath(model))
    name = how.pop("model")
    if is_endpoint(name):
        served: Scorer = from_wing("EndpointScorer")(name, **how)
        return served
    return CausalLMScorer(load_model(name, device=device, quantization_config=how.pop("load_in"), **how))


def check_weights(classifier: Classifier, scorer: Scorer) -> None:
    """Refuse another model or adapter than the measured one, where their digests are known (``E-CLASSIFIER``)."""
    changed = "model" if classifier.model.differs_from(scorer.record) else None
    if getattr(classifier.adapter, "digest", None) != getattr(scorer.adapter, "digest", None):
        changed = "adapter"
    if changed:
        raise InputError(
            "E-CLASSIFIER",
            f"the {changed} of {scorer.record.name} is not the one that was measured.",
            "Restore its weights, or audit these and use that audit.",
        )


class LoadedClassifier:
    """A classifier with its model, which is loaded at the first prediction.

    Attributes:
        classifier: The file's content.
        task: The templates and the labels, without rows.
        scoring: The options of scoring.
    """

    def __init__(
        self,
        classifier: Classifier,
        load: Callable[[], Scorer] | None = None,
        scoring: ScoringOptions = DEFAULT_SCORING,
    ):
        self.classifier, self.abstain_below = classifier, classifier.abstain_below
        self.task, self.scoring = task_of(classifier), scoring_of(classifier, scoring)
        self._load = load or partial(load_scorer, classifier)

    @cached_property
    def scorer(self) -> Scorer:
        """The model, loaded and compared with the measured one."""
        scorer = self._load()
        check_weights(self.classifier, scorer)
        return scorer

    @property
    def offsets(self) -> Offsets | None:
        """Nats that are added to the scores, ``[templates, labels]``."""
        stored = self.classifier.offsets
        return np.array([stored[name] for name in self.task.templates.names]) if stored else None

    def __call__(self, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Predict the labels of rows; see :meth:`stream`."""
        return list(self.stream(rows))

    def stream(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield a prediction for each row, in order, while the rows are read in chunks.

        Returns:
            The rows of :func:`~flip_flop.predict`. A row that exceeds the context of a local model has no answers, and
            a ``note``.

        Raises:
            InputError: ``E-CLASSIFIER`` for a changed model or adapter, and the errors of rows, models and scoring.
        """
        given = iter(rows)
        chunks = iter(lambda: [*islice(given, CHUNK)], [])
        for prediction, _ in self.answer(RowsSource(chunk, "rows").load() for chunk in chunks):
            yield prediction

    def answer(self, chunks: Iterable[Rows]) -> Iterator[tuple[dict[str, Any], NumberedRow]]:
        """Yield each row with its prediction; the rows of a chunk are scored together."""
        start = 1
        for rows in chunks:
            yield from zip(self.predict(self.render(rows, start)), rows.rows, strict=True)
            start += len(rows)

    def render(self, rows: Rows, start: int = 1) -> RenderedSplit:
        """Render rows under the templates of the classifier.

        Args:
            rows: The rows. Their ids are the values of the field that named the rows of the audit, or else ``input-1``,
                ``input-2``, ...
            start: The number of the first row.
        """
        ids, field = dict[str, None](), self.classifier.task.id_field
        for number, row in enumerate(rows.rows, start):
            name = cell_text(row.fields.get(field)) if field else ""
            ids[f"input-{number}" if not name or name in ids else name] = None
        source = replace(rows, ids=tuple(ids))
        return self.task.with_rows(source, "input").render("input", seed=self.classifier.seed, need_labels=False)

    def predict(self, split: RenderedSplit) -> list[dict[str, Any]]:
        """Score rendered rows together, and return their predictions. Only the first call checks scores."""
        scorer, names = self.scorer, self.task.templates.names
        try:
            scored = scorer.checked_scores(split.instances, self.scoring, names=names, quiet=True)
        except TooLongError as error:
            if self.scoring.too_long == "refuse":
                raise
            return with_notes({}, split, error.found)  # all rows of the chunk
        if isinstance(scorer, CausalLMScorer):
            scorer.check = False
        return prediction_rows(scored, split, self.scoring, offsets=self.offsets, abstain_below=self.abstain_below)


def load_classifier(
    path: str | os.PathLike[str],
    model: ModelGiven | Scorer | None = None,
    *,
    templates: Sequence[str] = (),
    device: str = "auto",
) -> LoadedClassifier:
    """Load what an audit or a training run decided, as a function from rows to predictions.

    >>> classify = load_classifier("out/audit")  # doctest: +SKIP
    >>> classify([{"text": "My screen is black."}])[0]["vote"]  # doctest: +SKIP
    'display'

    Args:
        path: The folder of an audit, a training run, an adapter or an export, or a ``classifier.json``.
        model: The place of the model if it has moved, or a loaded model. Its weights must be those that were measured.
        templates: Use these templates instead of the decided ones, or ``["all"]``. Several vote.
        device: ``cpu``, ``cuda``, ...; ``auto`` uses a GPU if available.

    Raises:
        InputError: As :func:`read_classifier`.
    """
    classifier = read_classifier(path, templates)
    return LoadedClassifier(classifier, lambda: load_scorer(classifier, model, device))
