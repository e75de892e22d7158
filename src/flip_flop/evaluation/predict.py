"""Predictions: the label distribution under each template, and the vote of all."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from flip_flop.evaluation.audit import resolve, score_calibrated
from flip_flop.metrics import calibrated, label_probs, majority_vote, predicted, vote_counts
from flip_flop.metrics.calibration import CalibrationChoice
from flip_flop.scoring import ModelGiven, Scorer
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.too_long import words
from flip_flop.tasks import Data


def predict(
    model: ModelGiven | Scorer,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    quiet: bool = False,
    calibrate: CalibrationChoice = "none",
    label_prior: Sequence[float] | None = None,
) -> list[dict[str, Any]]:
    """Predict a label for each instance under each template, and their majority vote: ``predict(model, data)``.

    Model and data are those of :func:`~flip_flop.audit`. Gold labels are not required:
    ``predict("demo", task.with_rows("new.csv"))``. ``calibrate`` corrects the label bias of each template before the
    vote, as in an audit.

    Returns:
        A row for each instance, with ``id``, ``vote``, ``vote_share``, ``consensus`` and ``templates``. ``vote`` is the
        label that most templates predict, ``consensus`` whether that is a strict majority. ``templates`` maps names to
        ``{"label", "probs": [L]}``. Generated answers have no ``probs``, and their ``label`` and ``vote`` are None if
        no label matches. If rows that are too long are skipped, each row also has a ``note``. In a skipped row
        ``vote``, ``vote_share`` and ``consensus`` are None, and ``templates`` is empty.
    """
    scorer, split = resolve(model, data, need_labels=False)
    scored = score_calibrated(scorer, split, scoring, calibrate, label_prior, label="predict", quiet=quiet)
    scores = scored.table.scores if scored.offsets is None else calibrated(scored.table.scores, scored.offsets)
    labels, names = split.task.label_values(scores.shape[-1]), split.task.templates.names
    probs = None if scoring.by == "generation" else label_probs(scores).round(6).tolist()
    predictions = predicted(scores)
    counts = vote_counts(predictions, len(labels))
    labels_of = [*labels, None]  # an answer that is no label is -1
    answered = {
        instance.id: {
            "id": instance.id,
            "vote": labels_of[vote],
            "vote_share": float(counts[row].max() / len(names)),
            "consensus": bool(2 * counts[row].max() > len(names)),
            "templates": {
                name: {"label": labels_of[predictions[row, column]], "probs": probs and probs[row][column]}
                for column, name in enumerate(names)
            },
        }
        for row, (instance, vote) in enumerate(zip(scored.data.instances, majority_vote(scores), strict=True))
    }
    if scoring.too_long == "refuse":
        return [*answered.values()]
    notes: dict[str, str] = {}
    for each in scored.table.too_long:
        notes.setdefault(each.id, f"too long: {words(each, names)}, the model's context is {each.limit}")
    empty: dict[str, Any] = {"vote": None, "vote_share": None, "consensus": None, "templates": {}}
    return [
        {"id": instance.id, **answered.get(instance.id, empty), "note": notes.get(instance.id, "")}
        for instance in split.instances
    ]
