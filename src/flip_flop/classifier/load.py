"""Load the model of a classifier, and apply it to rows."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice

import numpy as np

from flip_flop.classifier.read import model_arguments, read_classifier, scoring_of, task_of
from flip_flop.errors import InputError
from flip_flop.evaluation.handover import answering
from flip_flop.evaluation.predict import Prediction, adjusted, prediction_rows, with_notes
from flip_flop.files import StrPath
from flip_flop.hub import is_endpoint
from flip_flop.metrics import AveragedAxis, Scores, label_probs, leads
from flip_flop.prompts import Fields, RenderedInstance
from flip_flop.record import Classifier
from flip_flop.scoring import DEFAULT_SCORING, ScoringOptions, ids_of
from flip_flop.scoring.models import ModelGiven, load_model
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.scores import CausalLMScorer, as_scorer
from flip_flop.scoring.too_long import TooLongError
from flip_flop.tasks import RenderedSplit, Rows, RowsSource, cell_text

CHUNK = 512  # rows that are scored together


def load_scorer(classifier: Classifier, model: ModelGiven | Scorer | None = None, device: str = "auto") -> Scorer:
    """Load the model and the adapter of a classifier, or take a model that is given."""
    if not isinstance(model, str | os.PathLike | None):
        return as_scorer(model)
    how = model_arguments(classifier, os.fspath(model or ""))
    place = how.pop("model")
    if is_endpoint(place):
        return as_scorer(place, how["tokenizer"])
    return CausalLMScorer(load_model(place, quantization_config=how.pop("load_in"), device=device, **how))


class LoadedClassifier:
    """A classifier with its model, which is loaded at the first prediction.

    Attributes:
        classifier: The file's content.
        task: The templates and the labels, without rows.
        scoring: The options of scoring.
        groups: The places of the templates of each answer: one, or several orders that are averaged.
    """

    def __init__(self, classifier: Classifier, load: Callable[[], Scorer], scoring: ScoringOptions = DEFAULT_SCORING):
        self.classifier = classifier
        self.abstain_below = classifier.abstain_below
        self._load = load
        self.task, self.scoring = task_of(classifier), scoring_of(classifier, scoring)
        self.groups = answering(self.task, classifier.average)

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

    def __call__(self, rows: Iterable[Fields]) -> list[Prediction]:
        """Predict the labels of rows; see :meth:`stream`."""
        return list(self.stream(rows))

    def stream(self, rows: Iterable[Fields]) -> Iterator[Prediction]:
        """Yield a prediction for each row, in order, while the rows are read in chunks.

        Returns:
            The rows of :func:`~flip_flop.predict`. A row that exceeds the context of a local model has no answers, and
            a ``note``.

        Raises:
            InputError: ``E-CLASSIFIER`` for a changed model or adapter, and the errors of rows, models and scoring.
        """
        given = iter(rows)
        start = 1
        while chunk := [*islice(given, CHUNK)]:
            loaded = RowsSource(chunk, "rows", first=start).load()
            yield from self.predict(self.render(loaded, start))
            start += len(chunk)

    def render(self, rows: Rows, start: int = 1) -> RenderedSplit:
        """Render rows under the templates of the classifier.

        Args:
            rows: The rows. Their ids are the values of the field that named the rows of the audit, or else ``input-1``,
                ``input-2``, ...
            start: The number of the first row.
        """
        ids = dict[str, None]()
        field = self.classifier.task.id_field or ""
        for number, row in enumerate(rows.rows, start):
            name = cell_text(row.fields.get(field))
            ids[f"input-{number}" if not name or name in ids else name] = None
        source = replace(rows, ids=tuple(ids))
        return self.task.with_rows(source, "input").render("input", seed=self.classifier.seed, need_labels=False)

    def predict(self, split: RenderedSplit) -> list[Prediction]:
        """Score rendered rows together, and return their predictions."""
        try:
            scored = self.scored(split.instances)
        except TooLongError as error:
            if self.scoring.too_long == "refuse":
                raise
            long = ids_of(error.found)
            fitting = [instance for instance in split.instances if instance.id not in long]
            answered = self.predict(replace(split, instances=fitting)) if fitting else []
            return with_notes(answered, split, error.found)
        return prediction_rows(scored, split, self.scoring, [*self.groups], abstain_below=self.abstain_below)

    def scored(self, instances: Sequence[RenderedInstance]) -> Scored:
        """Score instances under the templates, with offsets and averages (``E-TOO-LONG``)."""
        names = self.task.templates.names
        if self.classifier.stop_lead:
            found = self._until_certain(instances, self.classifier.stop_lead)
        else:
            found = self.raw(instances, names)
        stored = self.classifier.offsets
        offsets = np.array([stored[name] for name in names]) if stored else None
        return adjusted(found, self.groups, offsets)

    def _until_certain(self, instances: Sequence[RenderedInstance], lead: float) -> Scored:
        """Score one template after the other, without the instances whose mean has this lead."""
        names = self.task.templates.names
        values = np.full((len(instances), len(names), len(instances[0].choices[0])), -np.inf)
        passes = np.zeros(len(instances), np.int64)
        left = np.arange(len(instances))
        for place, name in enumerate(names):
            if place:
                left = left[leads(label_probs(values[left]))[:, place - 1] < lead]
            if not len(left):
                break
            asked = [instances[row].under([place]) for row in left.tolist()]
            values[left, place] = self.raw(asked, [name]).scores.values[:, 0]
            passes[left] += 1
        return Scored(Scores.of(instances, values, np.zeros(values.shape, np.int64)), passes=passes)

    def raw(self, instances: Sequence[RenderedInstance], names: Sequence[str] = ()) -> Scored:
        """Score instances under any templates (``E-TOO-LONG``). Only the first call checks scores."""
        scorer = self.scorer
        scoring = replace(self.scoring, too_long="refuse")
        found = scorer.checked_scores(instances, scoring, names=names)
        if isinstance(scorer, CausalLMScorer):
            scorer.check = False
        return found


def load_classifier(
    path: StrPath,
    model: ModelGiven | Scorer | None = None,
    *,
    templates: Sequence[str] = (),
    average: AveragedAxis | None = None,
    certify: float | None = None,
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
        average: Of an audit: average the probabilities over the orders of the options, for each of the templates.
        certify: Stop the passes of the average early; the share of the answers that must not change, such as 0.99.
        device: ``cpu``, ``cuda``, ...; ``auto`` uses a GPU if available.

    Raises:
        InputError: As :func:`read_classifier`.
    """
    classifier = read_classifier(path, templates, average, certify)
    return LoadedClassifier(classifier, lambda: load_scorer(classifier, model, device))
