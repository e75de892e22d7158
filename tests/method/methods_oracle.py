"""Slow loops over Python numbers for the methods of other papers. They share no code with the package.

A function gets the scores as a list of rows twice: ``moved`` for terms with gradient and ``still`` for those without.
Derivatives use complex steps, as in :mod:`tests.method.readings_oracle`.
"""

import cmath
import math

STEP = 1e-30


def softmax(row):
    largest = max(x.real for x in row)
    terms = [cmath.exp(x - largest) for x in row]
    return [term / sum(terms) for term in terms]


def log(x):
    return cmath.log(x) if isinstance(x, complex) else math.log(x)


def best(row):
    return max(range(len(row)), key=lambda label: (row[label], -label))


def kl(p, q):
    return sum(a * (log(a) - log(b)) for a, b in zip(p, q, strict=True))


def mean_of(rows):
    return [sum(row[y] for row in rows) / len(rows) for y in range(len(rows[0]))]


def answer_nll(moved, case, label):
    """Of each template: over the tokens of its answer, over the labels, or the sum of both."""
    found = []
    for row, counts in zip(moved, case["token_counts"], strict=True):
        of_tokens = -row[label] * (counts[label] if case["cce_reduction"] == "sum" else 1)
        of_labels = -log(softmax(row)[label])
        found.append({"vocab": of_tokens, "labels": of_labels, "both": of_tokens + of_labels}[case["cce_space"]])
    return found


def bct(moved, still, case):
    nll = answer_nll(moved, case, best(case["vote_scores"][case["clean"]]))
    others = [value for template, value in enumerate(nll) if template != case["clean"]]
    return [sum(others) / len(others)]


def opct(moved, still, case):
    target = softmax(case["vote_scores"][case["clean"]])
    others = [kl(softmax(row), target) for template, row in enumerate(moved) if template != case["clean"]]
    return [sum(others) / len(others)]


def ttrl(moved, still, case):
    return [-sum(softmax(row)[case["consensus"]] for row in moved) / len(moved)]


def cpc_grpo(moved, still, case):
    total = 0
    for v, row in enumerate(moved):
        rewards = mean_of([other for u, other in enumerate(still) if u != v])
        mean = math.fsum(rewards) / len(rewards)
        deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards))
        for probability, reward in zip(softmax(row), rewards, strict=True):
            total -= probability * (reward - mean) / (deviation + 1e-4) / len(moved)
    return [total]


def swarm_l2(moved, still, case):
    target = mean_of([softmax(row) for row in still])
    total = 0
    for row in moved:
        for weight, probability in zip(target, softmax(row), strict=True):
            total -= weight * log(probability) / len(moved)
    return [total]


def swarm_l1_l2(moved, still, case):
    """``swarm`` with every template as teacher: its student's score is not normalised over the labels."""
    target = mean_of([softmax(row) for row in still])
    swarm = -sum(weight * row[y] for row in moved for y, weight in enumerate(target)) / len(moved)
    return [swarm, *swarm_l2(moved, still, case)]


def marginal_entropy(moved, still, case):
    return [-sum(p * log(p) for p in mean_of([softmax(row) for row in moved]))]


def supervised(moved, still, case):
    return [sum(answer_nll(moved, case, case["gold"])) / len(moved)]


def paft(moved, still, case):
    return [answer_nll(moved, case, case["gold"])[case["drawn"]["paft"][0]]]


def js_of(pair):
    middle = mean_of(pair)
    return sum(kl(each, middle) for each in pair) / 2


def ppcl(moved, still, case):
    clean = case["clean"]
    other = next(template for template in case["drawn"]["ppcl"] if template != clean)
    (nll, js), (fixed_nll, fixed_js) = (
        (
            sum(answer_nll(rows, case, case["gold"])[template] for template in (clean, other)),
            js_of([softmax(rows[template]) for template in (clean, other)]),
        )
        for rows in (moved, still)
    )
    return [nll, case["beta"] * fixed_nll / fixed_js * js]


def gradient(function, rows, case):
    """The derivative of the sum of a loss's terms by each score, with the other arguments fixed."""
    found = []
    for v, row in enumerate(rows):
        found.append([])
        for label in range(len(row)):
            moved = [[complex(x) for x in each] for each in rows]
            moved[v][label] += complex(0, STEP)
            found[v].append(complex(sum(function(moved, rows, case))).imag / STEP)
    return found
