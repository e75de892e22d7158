"""The metrics by hand: slow loops over Python numbers, pair by pair, sharing no code with the package."""

import itertools
import math

import numpy as np

from flip_flop.metrics import Design, Scores
from tests.method.oracle import softmax


def data_of(predictions, gold=None, num_labels=3, average="auto"):
    """Evaluation data of predictions: the predicted label has nearly all of the probability."""
    predictions = np.asarray(predictions)
    scores = np.where(predictions[..., None] == np.arange(num_labels), -0.1, -3.0)
    return Scores(scores, np.full(len(predictions), -1) if gold is None else np.asarray(gold), design=Design(average))


def random_data(num_instances, num_templates=5, num_labels=3, signal=0.8):
    """Scores with a signal of the gold label, one number or one for each template."""
    random = np.random.default_rng([num_instances, num_templates, num_labels])
    gold = random.integers(num_labels, size=num_instances)
    scores = random.normal(size=(num_instances, num_templates, num_labels)) - 3
    scores[np.arange(num_instances), :, gold] += signal
    return scores, gold


def agreement_of_instance(row):
    """The share of pairs of different templates that agree, by looking at every pair."""
    pairs = [(u, v) for u in range(len(row)) for v in range(u + 1, len(row))]
    return sum(row[u] == row[v] for u, v in pairs) / len(pairs)


def observed_agreement(predictions):
    return math.fsum(agreement_of_instance(row) for row in predictions) / len(predictions)


def template_agreement(predictions, u, v):
    return sum(row[u] == row[v] for row in predictions) / len(predictions)


def no_consensus_share(predictions):
    lacking = [row for row in predictions if not any(row.count(label) > len(row) / 2 for label in row)]
    return len(lacking) / len(predictions)


def fleiss_kappa(predictions):
    """Agreement beyond what raters would reach who draw from the label shares."""
    cells = [label for row in predictions for label in row]
    by_chance = math.fsum((cells.count(label) / len(cells)) ** 2 for label in set(cells))
    return (observed_agreement(predictions) - by_chance) / (1 - by_chance)


def axis_flips(predictions, levels, axis):
    """The share of pairs of templates that differ only on an axis and give different labels; and the pairs.

    A pair with an answer that could not be read does not count.
    """
    num_flips = num_pairs = 0
    for row in predictions:
        for u, v in itertools.combinations(range(len(row)), 2):
            has_levels = axis in levels[u] and axis in levels[v]
            differ_in = [name for name in {*levels[u], *levels[v]} if levels[u].get(name) != levels[v].get(name)]
            if has_levels and differ_in == [axis] and row[u] != -1 and row[v] != -1:
                num_pairs += 1
                num_flips += row[u] != row[v]
    return (num_flips / num_pairs if num_pairs else None), num_pairs


def repeat_flips(first, second):
    """The share of answers that a second answer to the same prompt differs from, if both could be read."""
    pairs = [pair for rows in zip(first, second, strict=True) for pair in zip(*rows, strict=True) if -1 not in pair]
    return sum(one != other for one, other in pairs) / len(pairs), len(pairs)


def cohen_kappa(predicted, gold, num_labels, is_scale=False):
    """1 minus the disagreement over that of all pairs of an answer and a gold label. -1 is the farthest answer."""

    def weight(answer, label):
        farthest = (num_labels - 1) ** 2 if is_scale else 1
        return farthest if answer < 0 else (answer - label) ** 2 if is_scale else float(answer != label)

    known = [(p, g) for p, g in zip(predicted, gold, strict=True) if g != -1]
    disagreement = math.fsum(weight(p, g) for p, g in known) / len(known)
    by_chance = math.fsum(weight(p, g) for p, _ in known for _, g in known) / len(known) ** 2
    return 1 - disagreement / by_chance


def posix(scores):
    """Mean change of the log-probability of each template's answer under every other template."""
    values = []
    for templates in scores:
        moves = []
        for asking, answering in itertools.permutations(templates, 2):
            answer = answering.index(max(answering))
            moves.append(abs(math.log(softmax(asking)[answer]) - math.log(softmax(answering)[answer])))
        values.append(math.fsum(moves) / len(moves))
    return math.fsum(values) / len(values)


def ensemble(scores):
    """One instance: the label with the largest mean probability over templates."""
    probs = [softmax(row) for row in scores]
    means = [math.fsum(row[label] for row in probs) for label in range(len(scores[0]))]
    return means.index(max(means))


def f1_of_label(predicted, gold, label):
    hits = sum(p == label and g == label for p, g in zip(predicted, gold, strict=True))
    false_alarms = sum(p == label and g != label for p, g in zip(predicted, gold, strict=True))
    misses = sum(p != label and g == label for p, g in zip(predicted, gold, strict=True))
    if hits == 0:
        return 0.0
    precision, recall = hits / (hits + false_alarms), hits / (hits + misses)
    return 2 * precision * recall / (precision + recall)


def f1(predicted, gold, num_labels):
    """F1 of label 1 if there are two labels, else the mean over labels. Instances without gold are skipped."""
    known = [(p, g) for p, g in zip(predicted, gold, strict=True) if g != -1]
    predicted, gold = [p for p, _ in known], [g for _, g in known]
    if num_labels == 2:
        return f1_of_label(predicted, gold, 1)
    return math.fsum(f1_of_label(predicted, gold, c) for c in range(num_labels)) / num_labels


def majority_vote(scores):
    """One instance: most votes, then the largest sum of probabilities, then the lowest index."""
    answers, labels = [row.index(max(row)) for row in scores], range(len(scores[0]))
    weights = [math.fsum(softmax(row)[label] for row in scores) for label in labels]
    return max(labels, key=lambda label: (answers.count(label), weights[label], -label))


def share(predictions, label):
    cells = [p for row in predictions for p in row]
    return cells.count(label) / len(cells)


def batch_offsets(scores, prior=None):
    """Of each template: log prior less the log of the mean probability, less their mean over the labels."""
    found = []
    for template in range(len(scores[0])):
        offsets = []
        for label in range(len(scores[0][0])):
            mean = math.fsum(softmax(row[template])[label] for row in scores) / len(scores)
            offsets.append((math.log(prior[label]) if prior else 0.0) - math.log(mean))
        found.append([offset - math.fsum(offsets) / len(offsets) for offset in offsets])
    return found


def quantile_cut(scores, template, share_of_1):
    """Two labels: which instances a template answers with label 1, the given share of them by score difference."""
    differences = [row[template][1] - row[template][0] for row in scores]
    order = sorted(range(len(scores)), key=lambda i: differences[i], reverse=True)
    return set(order[: round(share_of_1 * len(scores))])
