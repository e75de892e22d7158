"""The paper's numbers, typed in once, agree with what its text says of them."""

import pytest

from flip_flop.studies.averages import balance, mean_change, transfers
from flip_flop.studies.paper import FIGURES, dataset_names, table1, table2, text
from flip_flop.studies.summary import paper_entries
from flip_flop.tasks.catalog import catalog_names
from tests.studies.made_results import transfer_grid


def test_table_1_has_four_methods_on_eleven_datasets():
    assert len(table1()) == 44
    assert set(dataset_names()) == set(catalog_names())
    assert {method for method, _ in table1()} == {"base", "swarm", "cce", "f2c"}


@pytest.mark.parametrize("method", ["f2c", "cce", "swarm"])
@pytest.mark.parametrize("figure", FIGURES)
def test_the_mean_changes_of_table_1_are_those_of_the_text(method, figure):
    total = 0.0
    for task in dataset_names():
        total += 100 * (table1()[method, task].figures[figure] - table1()["base", task].figures[figure])
    assert f"{total / 11:.2f}" == f"{text()[f'{method} {figure} change']:.2f}"
    own = [entry for entry in paper_entries() if entry.method == method]
    assert 100 * mean_change(own, figure) == pytest.approx(total / 11)


def test_f2c_raises_mean_f1_on_9_of_11_datasets_and_agreement_12_points_more_than_swarm():
    found = balance([entry for entry in paper_entries() if entry.method == "f2c"], "mean_f1")
    assert found.better == text()["f2c tasks with higher mean_f1"] == 9
    margin = text()["f2c observed_agreement change"] - text()["swarm observed_agreement change"]
    assert margin == pytest.approx(text()["f2c over swarm observed_agreement"])


@pytest.mark.parametrize("figure", FIGURES)
def test_table_2_first_row_is_the_mean_and_the_sum_of_the_others(figure):
    rows = [row for source, row in table2().items() if source != "all"]
    every = table2()["all"]
    assert len(rows) == 8
    mean = sum(row.improvements[figure] for row in rows) / 8
    assert 100 * mean == pytest.approx(100 * every.improvements[figure], abs=0.0006)
    assert sum(row.better[figure] for row in rows) == every.better[figure]
    assert sum(row.worse[figure] for row in rows) == every.worse[figure]
    assert all(row.better[figure] + row.worse[figure] == 10 for row in rows)


def test_a_made_grid_of_80_pairs_gives_table_2_with_its_p_and_n_counts():
    found = transfers(transfer_grid().about("transfer"))
    assert [row.source for row in found] == [None, *(source for source in table2() if source != "all")]
    assert found[0].num_pairs == 80
    for row in found:
        printed = table2()[row.source or "all"]
        for figure in FIGURES:
            assert (row.balances[figure].better, row.balances[figure].worse) == (
                printed.better[figure],
                printed.worse[figure],
            )
            assert row.improvements[figure].mean == pytest.approx(printed.improvements[figure], abs=6e-6)
