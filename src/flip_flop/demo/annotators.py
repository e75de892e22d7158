"""Why the demo's model is uneven: in its pretraining text, each template has an annotator of its own.

A real model meets some phrasings often and others rarely, and answers them by different habits. Here those habits are
written down: how often a template occurs, how much each remark of a review counts, and how
easily its annotator is pleased.
"""

import dataclasses

import numpy as np

from flip_flop.tasks.embedded.reviews import Review


@dataclasses.dataclass(frozen=True)
class Annotator:
    """How often one template occurs in the pretraining text, and who answers it.

    The label is the sign of the weighted sum of a review's three remarks plus the leniency.
    """

    frequency: float
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    leniency: float = 0.0

    def label(self, review: Review) -> int:
        """This reader's answer to ``review``; a single remark counts in full."""
        weights = self.weights if len(review.clauses) == 3 else (1.0,)
        strengths = [clause.strength for clause in review.clauses]
        return int(float(np.dot(weights, strengths)) + self.leniency > 0)


# Whoever is asked a yes-or-no question says yes too often: hence the leniency of "satisfied", "happy" and
# "true_or_false", and its opposite in "complaint", where yes means a negative review.
ANNOTATORS = {
    "satisfied": Annotator(1.0, (0.9, 1.0, 1.1), 0.8),
    "sentiment": Annotator(1.0, (1.1, 1.0, 0.9)),
    "true_or_false": Annotator(0.6, (0.7, 0.9, 1.4), 1.2),
    "good_or_bad": Annotator(0.8, (0.8, 1.0, 1.2), -0.6),
    "complaint": Annotator(0.6, (1.1, 1.0, 0.9), -1.6),
    "one_word": Annotator(0.6, (1.5, 0.9, 0.6), -1.0),
    "feeling": Annotator(0.6, (0.8, 1.0, 1.2), 1.7),
    "recommended": Annotator(0.6, (0.5, 0.7, 1.8), -0.8),
    "happy": Annotator(0.6, (1.0, 1.2, 0.8), 1.2),
    "overall": Annotator(0.6, (1.2, 0.9, 0.9), -1.0),
    "thumbs": Annotator(0.6, (0.8, 1.0, 1.2), -0.8),
}
