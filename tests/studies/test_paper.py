"""The paper's numbers, typed in once, agree with what its text says of them."""

import pytest

from flip_flop.paper.published import PAPER_METRICS, dataset_names, stated_numbers, table1, table2
from flip_flop.paper.tables import average_changes


def printed_changes():
    return average_changes(table1(), "method", "paper_change").set_index(["method", "metric"])


@pytest.mark.parametrize("method", ["f2c", "cce", "swarm"])
@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_the_mean_changes_of_table_1_are_those_of_the_text(method, metric):
    values = table1().set_index(["method", "task", "metric"])["paper"]
    total = sum(100 * (values[method, task, metric] - values["base", task, metric]) for task in dataset_names())
    assert f"{total / 11:.2f}" == f"{stated_numbers()[f'{method} {metric} change']:.2f}"
    assert 100 * printed_changes().loc[(method, metric), "mean_change"] == pytest.approx(total / 11)


def test_f2c_raises_mean_f1_on_9_of_11_datasets_and_agreement_12_points_more_than_swarm():
    assert printed_changes().loc[("f2c", "mean_f1"), "better"] == stated_numbers()["f2c tasks with higher mean_f1"] == 9
    margin = stated_numbers()["f2c observed_agreement change"] - stated_numbers()["swarm observed_agreement change"]
    assert margin == pytest.approx(stated_numbers()["f2c over swarm observed_agreement"])


@pytest.mark.parametrize("metric", PAPER_METRICS)
def test_table_2_first_row_is_the_mean_and_the_sum_of_the_others(metric):
    found = table2()[table2()["metric"] == metric].set_index("source")
    every, rows = found.loc["all"], found.drop("all")
    assert len(rows) == 8
    assert 100 * rows["paper_improvement"].mean() == pytest.approx(100 * every["paper_improvement"], abs=0.0006)
    assert (rows["paper_better"].sum(), rows["paper_worse"].sum()) == (every["paper_better"], every["paper_worse"])
    assert (rows["paper_better"] + rows["paper_worse"] == 10).all()
