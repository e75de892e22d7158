"""The paper by hand: slow loops over Python floats, formula by formula, sharing no code with the package."""

import math


def softmax(row):
    largest = max(row)
    terms = [math.exp(x - largest) for x in row]
    return [term / math.fsum(terms) for term in terms]


def prediction(row):
    best = 0
    for c in range(1, len(row)):
        if row[c] > row[best]:
            best = c
    return best


def consensus(scores):
    """(predictions, counts, label with the most votes, whether it has a strict majority)."""
    predictions = [prediction(row) for row in scores]
    counts = [0] * len(scores[0])
    for label in predictions:
        counts[label] += 1
    label = counts.index(max(counts))
    return predictions, counts, label, counts[label] > len(scores) / 2


def algorithm_1(scores, *, tau, k_max, f_min, f_max, t):
    """(case, T, S, w_flip), sets as sorted lists of template indices. Branch for branch as printed."""
    num_templates = len(scores)
    predictions, _, star, _ = consensus(scores)
    group = [v for v in range(num_templates) if predictions[v] == star]
    if len(group) <= num_templates / 2:
        return 1, [], [], 0.0
    margin = {}
    for v in group:
        others = [scores[v][c] for c in range(len(scores[v])) if c != star]
        margin[v] = scores[v][star] - max(others)
    in_order = sorted(margin.values())
    middle = len(in_order) // 2
    median = in_order[middle]
    if len(in_order) % 2 == 0:
        median = (in_order[middle - 1] + in_order[middle]) / 2
    if len(group) == num_templates and median >= tau:
        return 2, group, [], 0.0
    if len(group) < 2:
        return 3, [], [], 0.0
    k = min(k_max, num_templates - 1)
    if k < 2:
        return 3, [], [], 0.0
    cc = sorted(sorted(group, key=lambda v: (-margin[v], v))[:k])
    nc = [v for v in range(num_templates) if v not in cc]
    cc_level = math.fsum(scores[v][star] for v in cc) / len(cc)
    nc_level = math.fsum(scores[v][star] for v in nc) / len(nc)
    x = (cc_level - nc_level) / t
    sigmoid = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
    return 3, cc, nc, f_min + (f_max - f_min) * sigmoid


def kl(p, q):
    total = []
    for a, b in zip(p, q, strict=True):
        if a == 0:
            continue
        if b == 0:
            return math.inf
        total.append(a * math.log(a / b))
    return math.fsum(total)


def mixture(distributions):
    size = len(distributions)
    return [math.fsum(q[y] for q in distributions) / size for y in range(len(distributions[0]))]


def jsd(distributions):
    average = mixture(distributions)
    return math.fsum(kl(q, average) for q in distributions) / len(distributions)


def aggregate(token_probs, reading):
    """One distribution of an answer from those at its positions."""
    if reading == "mean_prob":
        return mixture(token_probs)
    size = len(token_probs)
    products = []
    for y in range(len(token_probs[0])):
        product = 1.0
        for position in token_probs:
            product *= position[y] ** (1 / size)
        products.append(product)
    return [x / math.fsum(products) for x in products]


def f2c(nll, q, split, *, cce_weight, jsd_weight):
    """(cce, jsd, flip) of one instance, from what :func:`algorithm_1` returns."""
    case, cc, nc, flip_weight = split
    if case == 1:
        return 0.0, 0.0, 0.0
    cce = cce_weight * math.fsum(nll) / len(nll)
    agreement = jsd_weight * jsd([q[t] for t in cc]) if cc else 0.0
    if case == 2 or not nc:
        return cce, agreement, 0.0
    target = mixture([q[t] for t in cc])
    return cce, agreement, flip_weight * math.fsum(kl(q[s], target) for s in nc) / len(nc)


def swarm(scores, teacher_scores, teachers):
    """Teachers have separate scores: a gradient check moves a student's scores and keeps its teachers' fixed."""
    total = []
    for student, its_teachers in enumerate(teachers):
        for teacher in its_teachers:
            probs = softmax(teacher_scores[teacher])
            for c, prob in enumerate(probs):
                total.append(-prob * scores[student][c] / len(its_teachers) / len(teachers))
    return math.fsum(total)


def finite_differences(function, matrix, step=1e-6):
    """Central differences of a function of a list of lists, row by row in one list."""
    gradient = []
    for i, row in enumerate(matrix):
        for j in range(len(row)):
            up = [list(r) for r in matrix]
            down = [list(r) for r in matrix]
            up[i][j] += step
            down[i][j] -= step
            gradient.append((function(up) - function(down)) / (2 * step))
    return gradient
