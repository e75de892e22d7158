"""The metrics by hand: slow loops over Python numbers, pair by pair, sharing no code with the package."""

import math

from tests.method.oracle import softmax


def agreement_of_instance(row):
    """The share of pairs of different templates that agree, by looking at every pair."""
    pairs = [(u, v) for u in range(len(row)) for v in range(u + 1, len(row))]
    return sum(row[u] == row[v] for u, v in pairs) / len(pairs)


def observed_agreement(predictions):
    return math.fsum(agreement_of_instance(row) for row in predictions) / len(predictions)


def template_agreement(predictions, u, v):
    return sum(row[u] == row[v] for row in predictions) / len(predictions)


def no_consensus_share(predictions):
    lacking = 0
    for row in predictions:
        if not any(row.count(label) > len(row) / 2 for label in row):
            lacking += 1
    return lacking / len(predictions)


def fleiss_kappa(predictions):
    """Agreement beyond what raters would reach who draw from the label shares."""
    cells = [label for row in predictions for label in row]
    by_chance = math.fsum((cells.count(label) / len(cells)) ** 2 for label in set(cells))
    return (observed_agreement(predictions) - by_chance) / (1 - by_chance)


def posix(scores):
    """Mean change of the log-probability of each template's answer under every other template."""
    values = []
    for templates in scores:
        moves = []
        for asking, row in enumerate(templates):
            for answering, own in enumerate(templates):
                if asking != answering:
                    answer = own.index(max(own))
                    moves.append(abs(math.log(softmax(row)[answer]) - math.log(softmax(own)[answer])))
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
    num_labels = len(scores[0])
    votes, weights = [0] * num_labels, [0.0] * num_labels
    for row in scores:
        votes[row.index(max(row))] += 1
    for label in range(num_labels):
        weights[label] = math.fsum(softmax(row)[label] for row in scores)
    best = 0
    for label in range(1, num_labels):
        if (votes[label], weights[label]) > (votes[best], weights[best]):
            best = label
    return best


def share(predictions, label):
    cells = [p for row in predictions for p in row]
    return cells.count(label) / len(cells)
