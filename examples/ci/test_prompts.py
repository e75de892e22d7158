"""A test of prompts. `python test_prompts.py` stores an audit, and `pytest test_prompts.py` compares the task with it.

Replace the model and the task by yours, and commit the stored audit. Prompts may change: rows are paired by id.
"""

from pathlib import Path

import pytest

from flip_flop import Audit, audit, compare

MODEL = "demo"
TASK = Path(__file__).parents[1] / "reviews" / "task.yaml"
STORED = Path(__file__).parent / "stored"


@pytest.fixture(scope="module")
def run() -> Audit:
    """The audit of the present prompts."""
    return audit(MODEL, TASK, quiet=True)


def test_templates_agree(run: Audit) -> None:
    """Two templates seldom give different answers."""
    agreement = run.value("observed_agreement")
    assert agreement is not None
    assert agreement > 0.6


@pytest.mark.parametrize("metric", ["macro_f1", "vote_f1"])
def test_prompts_are_not_worse_than_the_stored_ones(run: Audit, metric: str) -> None:
    """The interval of the change is not below 0."""
    comparison = compare(STORED, run)
    change = comparison.difference(metric, comparison.after)
    assert change is not None
    assert change.interval is not None
    assert change.interval[1] >= 0, str(comparison)


if __name__ == "__main__":
    audit(MODEL, TASK).write(STORED)
