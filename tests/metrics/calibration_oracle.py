"""Calibration by hand: loops over Python numbers, sharing no code with the package."""

import math

from tests.method.oracle import softmax


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
