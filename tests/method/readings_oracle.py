"""Slow loops over Python numbers for every reading of the losses. They share no code with the package.

Derivatives use complex steps (Squire and Trapp, SIAM Review 1998). For an analytic function
f(x + ih) = f(x) + ih f'(x) + O(h^2). With h = 1e-30 the derivative is exact to rounding. Functions take ``still``, the
logits without the imaginary part, for terms without gradient.
"""

import cmath

from tests.method import oracle

STEP = 1e-30


def log_softmax(row):
    largest = max(x.real for x in row)
    log_sum = largest + cmath.log(sum(cmath.exp(x - largest) for x in row))
    return [x - log_sum for x in row]


def kl(log_p, log_q):
    return sum(cmath.exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def mixture(rows):
    return [cmath.log(sum(cmath.exp(row[y]) for row in rows) / len(rows)) for y in range(len(rows[0]))]


def scores(logits, targets):
    """LL_i[v][c]: the mean log-probability of the answer's tokens (Eq. 13)."""
    found = []
    for template, answers in enumerate(logits):
        row = []
        for label, positions in enumerate(answers):
            picked = [log_softmax(position)[targets[template][label][j]] for j, position in enumerate(positions)]
            row.append(sum(picked) / len(picked))
        found.append(row)
    return found


def cells(logits, label, aggregation):
    """Log-probabilities by template and position: only position 0 if the positions of an answer are aggregated."""
    found = []
    for answers in logits:
        rows = [log_softmax(position) for position in answers[label]]
        if aggregation == "mean_log_prob":
            rows = [log_softmax([sum(row[y] for row in rows) / len(rows) for y in range(len(rows[0]))])]
        elif aggregation == "mean_prob":
            rows = [mixture(rows)]
        found.append(dict(enumerate(rows)))
    return found


def label_cells(logits, targets):
    return [{0: log_softmax(row)} for row in scores(logits, targets)]


def from_mixture(own, members, others, targets, divergence):
    """The mean over (template, position) of the divergence between a member's row and the mixture of the targets'."""
    total, count = 0.0, 0
    for v in members:
        for j in own[v]:
            rows = [others[u][j] for u in targets if j in others[u]]
            if rows:
                total += divergence(own[v][j], mixture(rows))
                count += 1
    return total / count


FORWARD = {"forward": kl, "reverse": lambda q, m: kl(m, q), "mean": kl}
DIVERGENCES = FORWARD | {"symmetric": lambda q, m: (kl(q, m) + kl(m, q)) / 2}


def split(logits, targets, bound, **settings):
    """Algorithm 1 of the scores, its line 10 by either bound."""
    real = [[score.real for score in row] for row in scores(logits, targets)]
    predictions, _, star, _ = oracle.consensus(real)
    if bound == "group":
        group = sum(prediction == star for prediction in predictions)
        k = min(settings["k_max"], group - 1)
        found = oracle.algorithm_1(real, **(settings | {"k_max": max(k, 2)}))
        if found[0] == 3 and k < 2:
            found = 3, [], [], 0.0
        return star, found
    return star, oracle.algorithm_1(real, **settings)


def f2c(logits, still, targets, decided, reading):
    """(cce, jsd, flip), with the weights 0.7 and 1.3."""
    label, (case, cc, nc, flip_weight) = decided
    if case == 1:
        return 0.0, 0.0, 0.0
    own = scores(logits, targets)
    counts = [len(answers[label]) if reading["cce_reduction"] == "sum" else 1 for answers in logits]
    scale = len(logits[0]) if reading["divide_by_labels"] else 1
    cce = 0.7 * sum(-row[label] * count for row, count in zip(own, counts, strict=True)) / len(logits) / scale
    if not cc:
        return cce, 0.0, 0.0
    if reading["divergence_space"] == "labels":
        q, fixed = label_cells(logits, targets), label_cells(still, targets)
    else:
        q, fixed = (cells(some, label, reading["answer_aggregation"]) for some in (logits, still))
    agreement = 1.3 * from_mixture(q, cc, q, cc, DIVERGENCES[reading["jsd"]]) / scale
    if not nc:
        return cce, agreement, 0.0
    target = fixed if reading["detach_cc_mixture"] else q
    flip = from_mixture(q, nc, target, cc, DIVERGENCES[reading["flip_direction"]])
    return cce, agreement, flip_weight * flip / scale


def swarm(logits, still, targets, reading):
    """KL from the mixture of all templates, without gradient, to each template, for every label's answer."""
    everyone = range(len(logits))
    if reading["swarm_space"] == "labels":
        pairs = [(label_cells(logits, targets), label_cells(still, targets))]
    else:
        labels = range(len(logits[0]))
        pairs = [tuple(cells(some, c, reading["answer_aggregation"]) for some in (logits, still)) for c in labels]
    return sum(from_mixture(q, everyone, m, everyone, DIVERGENCES["reverse"]) for q, m in pairs) / len(pairs)


def gradient(function, logits):
    """Derivatives by the logits, with the same nesting; ``function`` gets the logits with and without gradient."""
    return [
        [
            [
                [_derivative(function, logits, (v, c, j, y)) for y in range(len(position))]
                for j, position in enumerate(positions)
            ]
            for c, positions in enumerate(answers)
        ]
        for v, answers in enumerate(logits)
    ]


def _derivative(function, logits, place):
    v, c, j, y = place
    moved = [[[list(position) for position in positions] for positions in answers] for answers in logits]
    moved[v][c][j][y] += STEP * 1j
    return complex(function(moved, logits)).imag / STEP
