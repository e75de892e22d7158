"""The best of several training runs is compared with an interval for the choice."""

import numpy as np
import pytest

from flip_flop import compare
from flip_flop.evaluation.result import Audit
from flip_flop.metrics import METRICS, Design, Scores, paired_bootstrap_interval
from flip_flop.record import AdapterRecord, ModelRecord, RunRecord, TaskRecord, TemplateRecord
from flip_flop.report.compare import mean_difference

NAMES = ("plain", "terse", "long")
TASK = TaskRecord(
    name="made", labels=(0, 1), digest="ab", split="test", templates=tuple(TemplateRecord(name=name) for name in NAMES)
)


def run_of(name, predictions, gold, adapter=None):
    scores = np.where(np.arange(2) == predictions[..., None], -0.1, -2.0).astype(np.float32)
    data = Scores(scores, gold, design=Design("macro"))
    metrics = {name: METRICS[name].value(data) for name in ("macro_f1", "observed_agreement")}
    record = RunRecord(kind="audit", name=name, task=TASK, model=ModelRecord(name="made"), adapter=adapter)
    return Audit(record, metrics, data, NAMES)


def equal_runs(seed, number, rows=80):
    """A base and trained runs that are each right with the same probability."""
    random = np.random.default_rng(seed)
    gold = random.integers(2, size=rows)
    answers = [np.where(random.random((rows, 3)) < 0.75, gold[:, None], 1 - gold[:, None]) for _ in range(number + 1)]
    names, trained = ["base", *map(str, range(number))], AdapterRecord(method="f2c")
    return [
        run_of(name, one, gold, trained if name != "base" else None) for name, one in zip(names, answers, strict=True)
    ]


def test_the_interval_of_the_best_of_ten_runs_is_one_of_ten_that_hold_together():
    runs = equal_runs(0, 10)
    best = max(runs[1:], key=lambda run: run.value("macro_f1"))
    alone, among = (mean_difference("macro_f1", runs[0], [best], choices=number) for number in (1, 10))
    statistic = METRICS["macro_f1"].statistic
    expected = paired_bootstrap_interval(statistic, [runs[0].data], [best.data], confidence=0.995)
    assert among.interval == pytest.approx(expected)
    assert among.interval[0] < alone.interval[0] < alone.interval[1] < among.interval[1]
    verdict = compare(*runs).verdict
    assert (
        f"at best {100 * best.value('macro_f1'):.1f} with {best.name} ({among.words()} for the best of 10)" in verdict
    )
    only = compare(runs[0], best).verdict
    assert f"({alone.words()})." in only


@pytest.mark.slow
def test_training_that_changes_nothing_seldom_helps_in_the_best_of_ten_runs():
    """The interval of each alone claims it in one of eight cases, of all together in at most one of forty."""
    helped = {1: 0, 10: 0}
    for seed in range(60):
        base, *runs = equal_runs(seed, 10)
        best = max(runs, key=lambda run: run.value("macro_f1"))
        for choices in helped:
            change = mean_difference("macro_f1", base, [best], choices=choices)
            helped[choices] += change.place == "above"
    assert helped[1] >= 4
    assert helped[10] <= 3
