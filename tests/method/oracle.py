"""The paper and other methods by hand: slow loops over Python numbers that share no code with the package.

Derivatives use complex steps (Squire and Trapp, SIAM Review 1998). For an analytic function
f(x + ih) = f(x) + ih f'(x) + O(h^2). With h = 1e-30 the derivative is exact to rounding. So functions take complex
numbers, and terms without gradient take ``still``, the numbers without an imaginary part. Distributions are lists of
log-probabilities.
"""

import cmath
import copy
import math

STEP = 1e-30


def exp(x):
    return cmath.exp(x) if isinstance(x, complex) else math.exp(x)


def log(x):
    return cmath.log(x) if isinstance(x, complex) else math.log(x)


def gradient(function, numbers):
    """Derivatives by nested lists of numbers, with the same nesting; ``function`` gets (moved, still)."""

    def derive(node, place):
        if isinstance(node, list):
            return [derive(inner, (*place, index)) for index, inner in enumerate(node)]
        moved = copy.deepcopy(numbers)
        row = moved
        for index in place[:-1]:
            row = row[index]
        row[place[-1]] += STEP * 1j
        return complex(function(moved, numbers)).imag / STEP

    return derive(numbers, ())


# ---- distributions ----


def log_softmax(row):
    largest = max(x.real for x in row)
    log_sum = largest + log(sum(exp(x - largest) for x in row))
    return [x - log_sum for x in row]


def softmax(row):
    return [exp(x) for x in log_softmax(row)]


def kl(log_p, log_q):
    return sum(exp(a) * (a - b) for a, b in zip(log_p, log_q, strict=True))


def mixture(rows):
    return [log(sum(exp(row[y]) for row in rows) / len(rows)) for y in range(len(rows[0]))]


def jsd(rows):
    return sum(kl(row, mixture(rows)) for row in rows) / len(rows)


def aggregate(rows, aggregation):
    """One distribution of an answer from those at its positions."""
    if aggregation == "mean_prob":
        return mixture(rows)
    return log_softmax([sum(row[y] for row in rows) / len(rows) for y in range(len(rows[0]))])


# ---- Algorithm 1 ----


def best(row):
    return max(range(len(row)), key=lambda label: (row[label], -label))


def consensus(scores):
    """(predictions, counts, label with the most votes, whether it has a strict majority)."""
    predictions = [best(row) for row in scores]
    counts = [predictions.count(label) for label in range(len(scores[0]))]
    label = best(counts)
    return predictions, counts, label, counts[label] > len(scores) / 2


def algorithm_1(scores, *, tau, k_max, f_min, f_max, t, bound="templates", predictions=None):
    """(case, T, S, w_flip), sets as sorted lists of template indices. Branch for branch as printed.

    ``bound`` "group" is line 10 of the authors' release: k is below the number of majority voters. ``predictions`` of
    generated answers are -1 for one that cannot be read; with a single answer, margins are infinite.
    """
    num_templates = len(scores)
    predictions = consensus(scores)[0] if predictions is None else predictions
    star = best([predictions.count(label) for label in range(len(scores[0]))])
    group = [v for v in range(num_templates) if predictions[v] == star]
    if len(group) <= num_templates / 2:
        return 1, [], [], 0.0
    margin = {}
    for v in group:
        others = [scores[v][c] for c in range(len(scores[v])) if c != star]
        margin[v] = scores[v][star] - max(others, default=-math.inf)
    in_order = sorted(margin.values())
    middle = len(in_order) // 2
    median = in_order[middle]
    if len(in_order) % 2 == 0:
        median = (in_order[middle - 1] + in_order[middle]) / 2
    if len(group) == num_templates and median >= tau:
        return 2, group, [], 0.0
    if len(group) < 2:
        return 3, [], [], 0.0
    k = min(k_max, (num_templates if bound == "templates" else len(group)) - 1)
    if k < 2:
        return 3, [], [], 0.0
    cc = sorted(sorted(group, key=lambda v: (-margin[v], v))[:k])
    nc = [v for v in range(num_templates) if v not in cc]
    cc_level = math.fsum(scores[v][star] for v in cc) / len(cc)
    nc_level = math.fsum(scores[v][star] for v in nc) / len(nc)
    x = (cc_level - nc_level) / t
    sigmoid = 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
    return 3, cc, nc, f_min + (f_max - f_min) * sigmoid


# ---- the losses of the paper, from logits [template][label][position] ----


def scores_of(logits, targets):
    """LL_i[v][c]: the mean log-probability of the answer's tokens (Eq. 13)."""
    scores = []
    for template, answers in enumerate(logits):
        row = []
        for label, positions in enumerate(answers):
            picked = [log_softmax(position)[targets[template][label][j]] for j, position in enumerate(positions)]
            row.append(sum(picked) / len(picked))
        scores.append(row)
    return scores


def cells(logits, label, aggregation):
    """Log-probabilities by template and position: only position 0 if the positions of an answer are aggregated."""
    per_template = []
    for answers in logits:
        rows = [log_softmax(position) for position in answers[label]]
        if aggregation != "per_position":
            rows = [aggregate(rows, aggregation)]
        per_template.append(dict(enumerate(rows)))
    return per_template


def label_cells(logits, targets):
    return [{0: log_softmax(row)} for row in scores_of(logits, targets)]


def from_mixture(students, members, teachers, targets, divergence):
    """The mean over (template, position) of the divergence between a member's row and the mixture of the targets'."""
    total, count = 0.0, 0
    for v in members:
        for j in students[v]:
            rows = [teachers[u][j] for u in targets if j in teachers[u]]
            if rows:
                total += divergence(students[v][j], mixture(rows))
                count += 1
    return total / count


def f2c(logits, still, targets, label, split, variant, release=False):
    """(cce, jsd, flip), with the weights 0.7 and 1.3."""
    case, cc, nc, flip_weight = split
    if case == 1:
        return 0.0, 0.0, 0.0
    counts = [len(answers[label]) if variant["cce_reduction"] == "sum" else 1 for answers in logits]
    scale = len(logits[0]) if release else 1
    scores = scores_of(logits, targets)
    cce = 0.7 * sum(-row[label] * count for row, count in zip(scores, counts, strict=True)) / len(logits) / scale
    if not cc:
        return cce, 0.0, 0.0
    if variant["divergence_space"] == "labels":
        q, fixed = label_cells(logits, targets), label_cells(still, targets)
    else:
        aggregation = "per_position" if release else variant["answer_aggregation"]
        q, fixed = (cells(some, label, aggregation) for some in (logits, still))
    agreement = 1.3 * from_mixture(q, cc, q, cc, symmetric if release else kl) / scale
    if not nc:
        return cce, agreement, 0.0
    flip = from_mixture(q, nc, fixed, cc, reverse if release else kl)
    return cce, agreement, flip_weight * flip / scale


# ---- the authors' release ----


def reverse(q, m):
    return kl(m, q)


def symmetric(q, m):
    return (kl(q, m) + kl(m, q)) / 2


def swarm_release(logits, still):
    """KL from the mixture of all templates, without gradient, to each template, for every label's answer."""
    everyone, num_labels = range(len(logits)), len(logits[0])
    pairs = [(cells(logits, c, "per_position"), cells(still, c, "per_position")) for c in range(num_labels)]
    return sum(from_mixture(q, everyone, m, everyone, reverse) for q, m in pairs) / num_labels


# ---- methods of other papers, from scores [template][label]: a list of terms ----


def average(rows):
    return [sum(row[y] for row in rows) / len(rows) for y in range(len(rows[0]))]


def answer_nll(scores, case, label):
    """Of each template: over the tokens of its answer, over the labels, or the sum of both."""
    losses = []
    for row, counts in zip(scores, case["token_counts"], strict=True):
        of_tokens = -row[label] * (counts[label] if case["cce_reduction"] == "sum" else 1)
        of_labels = -log_softmax(row)[label]
        losses.append({"vocab": of_tokens, "labels": of_labels, "both": of_tokens + of_labels}[case["cce_space"]])
    return losses


def bct(scores, still, case):
    nll = answer_nll(scores, case, best(case["vote_scores"][case["clean"]]))
    others = [value for template, value in enumerate(nll) if template != case["clean"]]
    return [sum(others) / len(others)]


def opct(scores, still, case):
    target = log_softmax(case["vote_scores"][case["clean"]])
    others = [kl(log_softmax(row), target) for template, row in enumerate(scores) if template != case["clean"]]
    return [sum(others) / len(others)]


def ssd(scores, still, case):
    labels = [best(row) for row in case["vote_scores"]]
    return [sum(answer_nll(scores, case, label)[v] for v, label in enumerate(labels)) / len(labels)]


def ttrl(scores, still, case):
    return [-sum(softmax(row)[case["consensus"]] for row in scores) / len(scores)]


def cpc_grpo(scores, still, case):
    total = 0
    for v, row in enumerate(scores):
        rewards = average([other for u, other in enumerate(still) if u != v])
        mean = math.fsum(rewards) / len(rewards)
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        for probability, reward in zip(softmax(row), rewards, strict=True):
            total -= probability * (reward - mean) / (deviation + 1e-4) / len(scores)
    return [total]


def swarm_l2(scores, still, case):
    target = average([softmax(row) for row in still])
    return [-sum(weight * log_softmax(row)[y] for row in scores for y, weight in enumerate(target)) / len(scores)]


def swarm_l1_l2(scores, still, case):
    """``swarm`` with every template as teacher: its student's score is not normalised over the labels."""
    target = average([softmax(row) for row in still])
    first = -sum(weight * row[y] for row in scores for y, weight in enumerate(target)) / len(scores)
    return [first, *swarm_l2(scores, still, case)]


def marginal_entropy(scores, still, case):
    return [-sum(p * log(p) for p in average([softmax(row) for row in scores]))]


def supervised(scores, still, case):
    return [sum(answer_nll(scores, case, case["gold"])) / len(scores)]


def paft(scores, still, case):
    return [answer_nll(scores, case, case["gold"])[case["drawn"]["paft"][0]]]


def ppcl_pair(scores, case):
    """(nll, Jensen-Shannon divergence) of the clean template and the first other template of the draw."""
    clean = case["clean"]
    pair = clean, next(template for template in case["drawn"]["ppcl"] if template != clean)
    nll = answer_nll(scores, case, case["gold"])
    return sum(nll[template] for template in pair), jsd([log_softmax(scores[template]) for template in pair])


def ppcl(scores, still, case):
    (nll, js), (fixed_nll, fixed_js) = ppcl_pair(scores, case), ppcl_pair(still, case)
    return [nll, case["beta"] * fixed_nll / fixed_js * js]
