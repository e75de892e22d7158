"""How often 95 % intervals contain the true value: ``python -m benchmarks.coverage``.

Models with a known accuracy answer instances of varying difficulty under several templates. The difficulty is shared by
the templates, and so is the label of most wrong answers. The true value is that of 200,000 instances. The first table
has the share of intervals that contain it, of single metrics and of the change between two models. The second table has
the share of audits with templates of equal accuracy in which the ranking shows a difference, and the third table the
share of wrong decisions.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from flip_flop.console import align_columns
from flip_flop.evaluation.decision import Decision
from flip_flop.evaluation.result import Audit
from flip_flop.files import generator
from flip_flop.metrics import METRICS, Scores, rank_templates
from flip_flop.record import ModelRecord, RunRecord, TaskRecord

LABELS = {"3, one frequent": (0.8, 0.1, 0.1), "4, balanced": (0.25,) * 4}
ROWS, TEMPLATES, POPULATION = (20, 50, 100, 300), 5, 200_000
VALUES = ("macro_f1", "vote_f1", "observed_agreement", "accuracy")
CHANGES = ("macro_f1", "observed_agreement")
ACCURACIES, SAME_WRONG_LABEL = (0.7, 0.75), 0.6
RANKED_ROWS, RANKED_TEMPLATES = 60, 10
NUM_SIMULATIONS = 1000


def simulate(
    random: np.random.Generator,
    num_rows: int,
    shares: Sequence[float],
    num_templates: int,
    accuracies: Sequence[float] = ACCURACIES,
    spread: float = 0.4,
) -> list[Scores]:
    """Return scores of models on the same instances. Their templates have log-odds of an answer within ``spread``."""
    gold = random.choice(len(shares), size=num_rows, p=shares)
    difficulty = random.normal(size=(num_rows, 1)) + np.linspace(-spread, spread, num_templates)
    common = random.integers(1, len(shares), size=(num_rows, 1))
    found = []
    for accuracy in accuracies:
        chance = 1 / (1 + np.exp(difficulty) * (1 - accuracy) / accuracy)
        is_right = random.random((num_rows, num_templates)) < chance
        other = random.integers(1, len(shares), size=(num_rows, num_templates))
        steps = np.where(random.random((num_rows, num_templates)) < SAME_WRONG_LABEL, common, other)
        found.append(scores_of((gold[:, None] + np.where(is_right, 0, steps)) % len(shares), gold, len(shares)))
    return found


def scores_of(
    predictions: Int[np.ndarray, "instances templates"], gold: Int[np.ndarray, " instances"], num_labels: int
) -> Scores:
    """Return scores with these predictions."""
    return Scores(np.where(predictions[..., None] == np.arange(num_labels), -0.1, -3.0), gold)


def coverage(num_rows: int, shares: Sequence[float], simulations: int) -> dict[str, float]:
    """Return the share of the intervals that contain the true value, by metric and by change of a metric."""
    random = generator(0, "benchmarks/coverage", num_rows, str(shares))
    population = simulate(random, POPULATION, shares, TEMPLATES)
    truth = {name: [METRICS[name].value(data) for data in population] for name in VALUES}
    hits = dict.fromkeys([*VALUES, *(f"change of {name}" for name in CHANGES)], 0)
    for _ in range(simulations):
        first, second = simulate(random, num_rows, shares, TEMPLATES)
        for name in VALUES:
            hits[name] += contains(METRICS[name].interval(first), truth[name][0])
        for name in CHANGES:
            change = truth[name][1] - truth[name][0]
            hits[f"change of {name}"] += contains(METRICS[name].change_interval(first, second), change)
    return {name: number / simulations for name, number in hits.items()}


def contains(interval: tuple[float, float] | None, value: float) -> bool:
    """Return whether there is an interval, with the value."""
    return interval is not None and interval[0] <= value <= interval[1]


def false_differences(shares: Sequence[float], simulations: int, *, with_gold: bool) -> float:
    """Return the share of audits in which the ranking of equally accurate templates has an interval without 0."""
    random = generator(0, "benchmarks/coverage ranking", str(shares))
    number = 0
    for _ in range(simulations):
        (data,) = simulate(random, RANKED_ROWS, shares, RANKED_TEMPLATES, (0.75,), spread=0)
        found = rank_templates(data if with_gold else Scores(data.values, np.full(len(data), -1)))
        number += any(not contains(each[1:], 0) for each in found.differences if each is not None)
    return number / simulations


def decision_of(data: Scores) -> Decision:
    """Return the decision of an audit without calibration."""
    names = tuple(str(number) for number in range(data.values.shape[1]))
    task = TaskRecord(name="simulated", labels=tuple(range(data.num_labels)), digest="", split="test", templates=())
    record = RunRecord(kind="audit", task=task, model=ModelRecord())
    return Audit(record, {}, Scores(data.values, data.gold), names).decision


def wrong_decisions(num_rows: int, shares: Sequence[float], simulations: int) -> dict[str, float]:
    """Return the share of wrong decisions for four kinds of templates.

    *equal*: the decision calls one template better than another. *one better*: template 4 answers 85 % of the rows
    correctly, the others 70 %, and the decision calls another template better. *guessing*, *constant*: it chooses one.
    """
    random = generator(0, "benchmarks/coverage decisions", num_rows, str(shares))
    wrong = dict.fromkeys(("equal", "one better", "guessing", "constant"), 0)
    for _ in range(simulations):
        (data,) = simulate(random, num_rows, shares, RANKED_TEMPLATES, (0.75,), spread=0)
        decision = decision_of(data)
        wrong["equal"] += decision.template is not None and len(decision.close) < RANKED_TEMPLATES - 1
        worse, better = simulate(random, num_rows, shares, RANKED_TEMPLATES, (0.7, 0.85), spread=0)
        predictions = worse.predictions.copy()
        predictions[:, 4] = better.predictions[:, 4]
        decision = decision_of(scores_of(predictions, worse.gold, len(shares)))
        named = {decision.template, *(name for name, _ in decision.close)}
        wrong["one better"] += decision.template is not None and "4" not in named
        guesses = random.choice(len(shares), size=predictions.shape, p=shares)
        wrong["guessing"] += decision_of(scores_of(guesses, worse.gold, len(shares))).template is not None
        constant = np.zeros_like(predictions)
        wrong["constant"] += decision_of(scores_of(constant, worse.gold, len(shares))).template is not None
    return {name: number / simulations for name, number in wrong.items()}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--simulations", type=int, default=NUM_SIMULATIONS)
    simulations = parser.parse_args().simulations
    lines = []
    for title, shares in LABELS.items():
        for num_rows in ROWS:
            found = coverage(num_rows, shares, simulations)
            lines.append([title, str(num_rows), *(f"{100 * share:.1f}" for share in found.values())])
    print(f"Coverage of 95 % intervals in percent, {simulations} simulations, {TEMPLATES} templates\n")
    print(align_columns([["labels", "rows", *found], *lines], num_left=1, rule=True))
    print(f"\nA difference between equal templates in percent, {RANKED_ROWS} rows, {RANKED_TEMPLATES} templates\n")
    for title, shares in LABELS.items():
        by_f1, by_agreement = (false_differences(shares, simulations, with_gold=each) for each in (True, False))
        print(f"{title}: {100 * by_f1:.1f} by F1, {100 * by_agreement:.1f} by agreement")

    print(f"\nWrong decisions in percent, {RANKED_TEMPLATES} templates\n")
    for title, shares in LABELS.items():
        for num_rows in ROWS:
            wrong = wrong_decisions(num_rows, shares, simulations)
            print(f"{title}, {num_rows} rows: {', '.join(f'{name} {100 * part:.1f}' for name, part in wrong.items())}")


if __name__ == "__main__":
    main()
