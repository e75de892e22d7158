"""Make evaluation data from predictions: the predicted label has nearly all of the probability."""

import numpy as np

from flip_flop.metrics import Scores


def data_of(predictions, gold=None, num_labels=3, average="auto"):
    predictions = np.asarray(predictions)
    scores = np.where(predictions[..., None] == np.arange(num_labels), -0.1, -3.0)
    return Scores(scores, np.full(len(predictions), -1) if gold is None else np.asarray(gold), average)
