"""Load a classifier, and apply it to rows."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import numpy as np

from flip_flop.arrays import Offsets
from flip_flop.cli.options import ModelOptions
from flip_flop.errors import InputError, look_up
from flip_flop.evaluation.handover import classifier_of
from flip_flop.evaluation.predict import prediction_rows, with_notes
from flip_flop.evaluation.run_directory import load_run
from flip_flop.hub import SERVED, is_endpoint
from flip_flop.prompts import Template, TemplateSet
from flip_flop.reading import AnswerFormat
from flip_flop.record import CLASSIFIER_FILE, Classifier
from flip_flop.scoring import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.models import ModelGiven
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
    for file in (folder, folder / CLASSIFIER_FILE, folder / ADAPTER / CLASSIFIER_FILE):
        if file.is_file() and templates:
            raise InputError("E-CLASSIFIER", f"{file} is decided.", "Select templates of the folder of an audit.")
        if file.is_file():
            return Classifier.read(file)
    run = load_run(folder)
    found = run.decision.classifier
    if templates:
        names = run.template_names if ALL in templates else templates
        for name in names:
            look_up(name, dict.fromkeys(run.template_names), "E-TASK-UNKNOWN", "there is no template")
        found = classifier_of(run, names, is_calibrated=run.voting is not run)
    if found is None:
        raise InputError("E-CLASSIFIER", f"{folder} does not have the texts of its templates.", "Audit a task.")
    return found


def task_of(classifier: Classifier) -> Task:
    """Return the task of a classifier without data (``E-CLASSIFIER`` for templates with other texts)."""
    record = classifier.task
    templates = list[Template]()
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
    stored = classifier.scoring
    is_served = classifier.model.endpoint is not None
    how = {key: stored[key] for key in ("prompt_date", "by", "api") if key in stored}
    if how.get("by") == "generation":
        how.pop("api", None)
    # A server without a tokenizer here uses its own chat template.
    if not is_served or stored.get("tokenizer"):
        how["chat_template"] = "on" if stored.get("chat_template") else "off"
    return replace(options, too_long="refuse" if is_served else "skip", **how)


def model_options(classifier: Classifier, given: ModelOptions) -> ModelOptions:
    """Return options that load the measured model, from the given place if there is one."""
    model = classifier.model
    adapter = classifier.adapter
    if model.endpoint is not None:
        place = given.model or f"{SERVED}{model.endpoint}#{model.name}"
        return replace(given, model=place, tokenizer=classifier.scoring.get("tokenizer"))
    bits, _, dtype = (model.dtype or "auto").rpartition(", ")
    return replace(
        given,
        model=given.model or model.name,
        revision=None if given.model else model.revision,
        dtype=dtype,
        load_in=next((kind for kind in get_args(LoadIn) if kind == bits), None),
        adapter=adapter.folder if adapter else None,
    )


def load_scorer(classifier: Classifier, model: ModelGiven | Scorer | None = None, device: str = "auto") -> Scorer:
    """Load the model and the adapter of a classifier, or take a model that is given."""
    if not isinstance(model, str | os.PathLike | None):
        return as_scorer(model)
    options = model_options(classifier, ModelOptions(model=os.fspath(model or ""), device=device))
    if is_endpoint(options.model):
        return options.scorer(quiet=True)
    return CausalLMScorer(replace(options.load(), store=None))


class LoadedClassifier:
    """A classifier with its model, which is loaded at the first prediction.

    Attributes:
        classifier: The file's content.
        task: The templates and the labels, without rows.
        scoring: The options of scoring.
    """

    def __init__(self, classifier: Classifier, load: Callable[[], Scorer], scoring: ScoringOptions = DEFAULT_SCORING):
        self.classifier = classifier
        self.abstain_below = classifier.abstain_below
        self._load = load
        self.task, self.scoring = task_of(classifier), scoring_of(classifier, scoring)

    @cached_property
    def scorer(self) -> Scorer:
        """The model, loaded, and compared with the measured one where the digests are known (``E-CLASSIFIER``)."""
        scorer = self._load()
        measured = self.classifier
        changed = "model" if measured.model.differs_from(scorer.record) else None
        if getattr(measured.adapter, "digest", None) != getattr(scorer.adapter, "digest", None):
            changed = "adapter"
        if changed:
            raise InputError(
                "E-CLASSIFIER",
                f"the {changed} of {scorer.record.name} is not the one that was measured.",
                "Restore its weights, or audit these and use that audit.",
            )
        return scorer

    @property
    def offsets(self) -> Offsets | None:
        """Nats that are added to the scores, ``[templates, labels]``."""
        stored = self.classifier.offsets
        if stored:
            return np.array([stored[name] for name in self.task.templates.names])
        return None

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
        """Yield each prediction with its row. The rows of a chunk are scored together."""
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
        ids = dict[str, None]()
        field = self.classifier.task.id_field
        for number, row in enumerate(rows.rows, start):
            name = cell_text(row.fields.get(field)) if field else ""
            ids[f"input-{number}" if not name or name in ids else name] = None
        source = replace(rows, ids=tuple(ids))
        return self.task.with_rows(source, "input").render("input", seed=self.classifier.seed, need_labels=False)

    def predict(self, split: RenderedSplit) -> list[dict[str, Any]]:
        """Score rendered rows together, and return their predictions. Only the first call checks scores."""
        scorer = self.scorer
        names = self.task.templates.names
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
