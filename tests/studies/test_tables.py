"""The tables print what was measured beside what the paper printed, and count what is not there."""

import csv
import io
from dataclasses import replace

import pytest

from flip_flop.studies.paper import FIGURES, dataset_names, table1, table2
from flip_flop.studies.summary import Absent, Entry, Summary, paper_entries, summarise_results
from flip_flop.studies.tables import (
    changes_table,
    methods_table,
    pairs_table,
    render_csv,
    render_markdown,
    spread_table,
    transfer_table,
    unseen_table,
)
from flip_flop.studies.tables.notes import DEMO
from tests.studies.made_results import MODEL, Maker, study1, study2, study3, transfer_grid

PAPER = Summary(tuple(paper_entries()), (MODEL,))
TITLES = {"mean_f1": "mean F1", "f1_std": "sigma_F1", "observed_agreement": "P_o"}


def rows_of(markdown: str) -> list[list[str]]:
    """The cells of the one table in a text."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def notes_of(markdown: str) -> list[str]:
    return [line.removeprefix("- ") for line in markdown.splitlines() if line.startswith("- ")]


@pytest.mark.parametrize(
    ("method", "averages", "better"),
    [
        ("F2C", ["+8.94", "−3.29", "+11.62"], ["9/2", "10/1", "11/0"]),
        ("CCE", ["+8.36", "−3.05", "+11.68"], ["9/2", "9/2", "11/0"]),
        ("Swarm", ["+1.40", "−0.47", "−0.38"], ["5/6", "4/7", "4/7"]),
    ],
)
def test_fed_with_the_papers_numbers_the_table_prints_its_headline(method, averages, better):
    rows = rows_of(render_markdown(changes_table(PAPER)))
    start = next(number for number, row in enumerate(rows) if row[0] == method)
    average, counts = rows[start + 11], rows[start + 12]
    assert average[1] == "average, 11 tasks"
    assert [average[2], average[5], average[7]] == averages
    assert [average[4], average[6], average[9]] == [f"({value})" for value in averages]
    assert [counts[2], counts[5], counts[7]] == better


def test_best_and_worst_are_those_that_the_paper_marks():
    rows = rows_of(render_markdown(methods_table(PAPER)))
    tasks = list(dataset_names())
    assert rows[0] == ["", "", *dataset_names().values(), "average"]
    body = [row for row in rows[2:] if row[1] != "(paper)"]
    places = [(method, figure) for method in ("base", "swarm", "cce", "f2c") for figure in FIGURES]
    assert [row[1] for row in body] == [TITLES[figure] for _, figure in places]
    for (method, figure), row in zip(places, body, strict=True):
        for task, text in zip(tasks, row[2:-1], strict=True):
            cell = table1()[method, task]
            number = f"{100 * cell.figures[figure]:.2f}"
            expected = f"**{number}**" if figure in cell.best else f"*{number}*" if figure in cell.worst else number
            assert text == expected, (method, task, figure)


def test_the_papers_number_stands_below_each_cell():
    made = tuple(
        replace(e, values={k: (v[0] / 2,) for k, v in e.values.items()}) for e in paper_entries() if e.task != "cb"
    )
    rows = rows_of(render_markdown(methods_table(Summary((*made, Entry("base", "mine", None, "own", {})), (MODEL,)))))
    column = rows[0].index("RTE")
    own, printed = next((row, rows[n + 1]) for n, row in enumerate(rows) if row[:2] == ["F2C", "mean F1"])
    assert (own[column], printed[column]) == ("**40.77**", "(81.55)")
    assert printed[rows[0].index("mine")] == "–"


def test_table_2_from_a_made_grid_prints_the_papers_counts_and_means():
    rows = rows_of(render_markdown(transfer_table(transfer_grid(), "f2c")))
    assert [row[0] for row in rows[2:]] == [
        "All (80 pairs)",
        *(dataset_names()[source] for source in table2() if source != "all"),
    ]
    for row, printed in zip(rows[2:], table2().values(), strict=True):
        for place, figure in enumerate(FIGURES):
            change, counts, paper_change, paper_counts = row[1 + 4 * place : 5 + 4 * place]
            expected = f"{printed.better[figure]}/{printed.worse[figure]}"
            assert (counts, paper_counts) == (expected, f"({expected})")
            assert paper_change == f"(+{100 * printed.improvements[figure]:.3f})"
            assert abs(float(change.strip("*")) - float(paper_change.strip("()"))) <= 0.006
    best = [row[0] for row in rows[2:] for place in (1, 5, 9) if row[place].startswith("**")]
    assert sorted(best) == ["COPA", "Winogrande", "Winogrande"]  # as in the paper


def test_a_change_of_zero_is_neither_better_nor_worse():
    entries = [
        Entry("f2c", task, "rte", "transfer", {"mean_f1": (value,)}, base={"mean_f1": 0.5}, seeds=(0,))
        for task, value in (("cb", 0.5), ("wsc", 0.6), ("copa", 0.7), ("wic", 0.4))
    ]
    rows = rows_of(render_markdown(transfer_table(Summary(tuple(entries), (MODEL,)), "f2c")))
    assert rows[2][1:3] == ["+5.00", "2/1"]


def test_a_missing_cell_is_a_dash_and_is_counted_and_named():
    kept = tuple(entry for entry in paper_entries() if (entry.method, entry.task) != ("cce", "wsc"))
    absent = (Absent("cce", "wsc", "wsc", "own", None, 2),)
    text = render_markdown(methods_table(Summary(kept, (MODEL,), absent=absent)))
    rows = rows_of(text)
    column = rows[0].index("WSC")
    start = next(n for n, row in enumerate(rows) if row[0] == "CCE")
    assert [rows[start + n][column] for n in (0, 2, 4)] == ["–"] * 3
    assert [rows[start + n][-1] for n in (0, 2, 4)] == ["–"] * 3  # an average over ten is not one over eleven
    assert "3 cells without a figure (a dash)." in notes_of(text)
    assert "1 audit of this table not done yet: CCE on WSC, seed 2." in notes_of(text)
    changes = render_markdown(changes_table(Summary(kept, (MODEL,), absent=absent)))
    averages = [row for row in rows_of(changes) if row[1].startswith("average")]
    assert [row[1] for row in averages] == ["average, 11 tasks", "average, 10 of 11 tasks", "average, 11 tasks"]
    assert averages[1][2] == averages[1][4].strip("()")  # the paper's average is over the same ten


def test_an_average_says_over_how_many_tasks_it_is_where_the_figures_have_fewer():
    figures = {"mean_f1": 0.5, "f1_std": 0.1, "observed_agreement": 0.7}
    unlabelled = {"observed_agreement": 0.6}
    entries = [Entry("base", task, None, "own", {}) for task in ("mine", "yours", "whose")]
    for task, base in (("mine", figures), ("yours", figures), ("whose", unlabelled)):
        values = {figure: (value + 0.1,) for figure, value in base.items()}
        entries.append(Entry("f2c", task, task, "own", values, base=base, seeds=(0,)))
    text = render_markdown(changes_table(Summary(tuple(entries), (MODEL,))))
    average = next(row for row in rows_of(text) if row[1].startswith("average"))
    assert average[1:3] == ["average, 3 tasks", "+10.00 over 2 tasks"]
    assert (average[4], average[5]) == ("+10.00 over 2 tasks", "+10.00")
    assert "Without labels, hence without F1: whose." in notes_of(text)
    assert "2 cells without a figure (a dash)." in notes_of(text)


def test_other_instances_than_the_papers_are_said_with_their_split():
    def table(split, num_instances):
        made = [replace(e, split=split, num_instances=num_instances, audited=10) for e in paper_entries()]
        return Summary(tuple(entry for entry in made if entry.task == "rte"), (MODEL,))

    own = "Not the paper's instances: RTE 50 of test (the paper: 277 of test)."
    other = "Not the paper's instances: RTE 277 of validation (the paper: 277 of test)."
    assert own in methods_table(table("test", 50)).notes
    assert other in methods_table(table("validation", 277)).notes
    assert other in changes_table(table("validation", 277)).notes
    assert "Instances x templates, split validation: RTE 277 x 10." in methods_table(table("validation", 277)).notes
    assert not any("Not the paper's" in note for note in methods_table(table("test", 277)).notes)


def test_where_the_papers_number_stands_is_said_as_it_is():
    below, beside = methods_table(PAPER), changes_table(PAPER)
    assert sum(note.startswith("Below each number, in grey or in brackets") for note in below.notes) == 1
    assert sum(note.startswith("In the columns named paper, in grey") for note in beside.notes) == 1
    assert not any("Beside each" in note for table in (below, beside) for note in table.notes)


def test_where_no_base_was_audited_there_is_no_change():
    bare = tuple(replace(entry, base={}) for entry in paper_entries() if entry.method == "f2c")
    rows = rows_of(render_markdown(changes_table(Summary(bare, (MODEL,)))))
    assert rows[2][2] == "–"
    assert rows[-2][1:3] == ["average, 0 of 11 tasks", "–"]


def test_seeds_are_printed_as_mean_and_spread_and_said_below(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte", "my_task"), seeds=(3, 5))
    text = render_markdown(methods_table(summarise_results(results)))
    values = [100 * r.metrics["f1_std"] for r in results if (r.method, r.task) == ("cce", "my_task")]
    mean, std = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    row = next(row for n, row in enumerate(rows_of(text)) if rows_of(text)[n - 2][0] == "CCE")
    assert row[3].strip("*") == f"{mean:.2f} ± {std:.2f}"
    assert notes_of(text)[0] == f"Model: {MODEL}; 2 training seeds (3, 5)."
    assert notes_of(text)[2] == "±: sample standard deviation over training seeds."
    assert notes_of(text)[1] == "Instances x templates, split test: RTE 37 x 6, my\\_task 37 x 6."


def test_the_bases_free_vote_stands_beside_its_mean_f1(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte",))
    rows = rows_of(render_markdown(methods_table(summarise_results(results))))
    row = next(row for row in rows if row[1] == "vote F1")
    assert row[2] == f"{100 * results[0].metrics['vote_f1']:.2f}"


@pytest.mark.parametrize("is_demo", [True, False])
def test_a_toys_table_says_that_it_is_a_toys(tmp_path, is_demo):
    maker = Maker(tmp_path, is_demo=is_demo)
    summary = summarise_results([*study1(maker), *study2(Maker(tmp_path / "b", is_demo=is_demo)), *study3(maker)])
    tables = [methods_table(summary), changes_table(summary), transfer_table(summary, "f2c")]
    tables += [pairs_table(summary, "f2c"), unseen_table(summary), spread_table(summary)]
    assert all((DEMO in table.notes) == is_demo for table in tables)


def test_fewer_seeds_and_collapse_are_said(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte", "copa"), seeds=(0, 1))
    results = [r for r in results if (r.method, r.task, r.seed) != ("cce", "copa", 1)]
    summary = summarise_results(results)
    entries = tuple(replace(e, collapsed=(0,)) if (e.method, e.task) == ("f2c", "rte") else e for e in summary.entries)
    notes = notes_of(render_markdown(methods_table(replace(summary, entries=entries))))
    assert "Over fewer seeds than the others: CCE on COPA (1)." in notes
    assert "Collapsed, one label nearly everywhere: F2C on RTE." in notes


def test_study_3_prints_each_k_beside_the_base_and_all(tmp_path):
    results = study3(Maker(tmp_path))
    rows = rows_of(render_markdown(unseen_table(summarise_results(results))))[2:]
    assert [row[1] for row in rows] == ["base", "F2C, 3 templates", "F2C, 6 templates", "F2C, 10 templates (seen)"]
    values = [100 * result.metrics["observed_agreement"] for result in results]
    assert [row[7] for row in rows] == [f"{value:.2f}" for value in values]
    assert rows[1][8].replace("−", "-") == f"{values[1] - values[0]:+.2f}"


def test_the_bases_quartiles_and_their_mean_range_stand_beside_the_papers():
    f1 = {"rte": [0.1, 0.2, 0.3, 0.4, 0.5], "cb": [0.2, 0.25, 0.3, 0.7], "mine": [0.5, 0.5]}
    entries = [
        Entry("base", task, None, "own", {}, f1_per_template={str(n): v for n, v in enumerate(values)})
        for task, values in f1.items()
    ]
    rows = rows_of(render_markdown(spread_table(Summary(tuple(entries), (MODEL,)))))[2:]
    assert rows[1] == ["RTE", "10.00", "20.00", "30.00", "40.00", "50.00", "20.00", ""]
    assert rows[0][:7] == ["CB", "20.00", "23.75", "27.50", "40.00", "70.00", "16.25"]
    assert (rows[3][0], rows[3][6:]) == ("mean", [f"{(20 + 16.25 + 0) / 3:.2f}", "(13.53)"])
    assert (rows[4][0], rows[4][6:]) == ("above 15 points", ["2 of 3", "(5 of 11)"])


def test_csv_has_fractions_in_full_and_empty_cells(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte", "my_task"), seeds=(0,))
    lines = list(csv.DictReader(io.StringIO(render_csv(methods_table(summarise_results(results))))))
    place = {"method": "f2c", "task": "rte", "figure": "mean_f1"}
    line = next(line for line in lines if place.items() <= line.items())
    (metrics,) = [r.metrics for r in results if (r.method, r.task) == ("f2c", "rte")]
    assert float(line["mean"]) == metrics["mean_f1"]
    assert (line["paper"], line["std_over_seeds"], line["seeds"]) == ("0.8155", "", "0")
    assert float(line["change_low"]) <= float(line["change"]) <= float(line["change_high"])
    own = next(line for line in lines if {"method": "f2c", "task": "my_task"}.items() <= line.items())
    assert own["paper"] == own["paper_change"] == ""


def test_a_users_names_cannot_break_a_table():
    name = "a|b*[x](y)<b>_\u202e"
    entry = Entry("base", name, None, "own", dict.fromkeys(FIGURES, (0.5,)))
    trained = replace(entry, method="f2c", source=name)
    text = render_markdown(methods_table(Summary((entry, trained), (name,))))
    heading = text.splitlines()[2]
    assert heading.replace("\\|", "").count("|") == 5
    assert "\u202e" not in text
    assert "<b>" not in text
    assert "=1+1" not in render_csv(methods_table(Summary((replace(entry, task="=1+1"),), ("m",)))).replace("'=1+1", "")


def test_without_the_papers_tasks_there_are_no_columns_for_its_numbers():
    own = [replace(entry, task=f"mine_{entry.task}") for entry in paper_entries()]
    table = changes_table(Summary(tuple(own), (MODEL,)))
    assert "paper" not in [column.heading for column in table.columns]
    assert {len(row.cells) for row in table.rows} == {len(table.columns)}
    pairs = [replace(e, source=f"mine_{e.source}") for e in transfer_grid().entries]
    table = transfer_table(Summary(tuple(pairs), (MODEL,)), "f2c")
    assert [column.heading for column in table.columns] == ["trained on", *["Δ", "P/N"] * 3]


def test_another_methods_transfer_stands_in_its_own_file_without_the_papers_numbers():
    pairs = [replace(entry, method="cce") for entry in transfer_grid().entries]
    table = transfer_table(Summary(tuple(pairs), (MODEL,)), "cce")
    assert table.name == "table2_transfer_cce"
    assert table.title == "Transfer to other tasks under CCE"
    assert transfer_table(transfer_grid(), "f2c").title == "Transfer to other tasks under F2C (the paper's Table 2)"
    assert not any(cell.is_paper for row in table.rows for cell in row.cells)


def test_the_table_of_pairs_says_that_the_paper_prints_none():
    line = "The paper gives its pairs only as pictures, its heat maps."
    assert line in pairs_table(transfer_grid(), "f2c").notes
    others = [replace(entry, method="cce") for entry in transfer_grid().entries]
    assert line not in pairs_table(Summary(tuple(others), (MODEL,)), "cce").notes


def test_what_study_3s_last_row_has_seen_is_said_only_where_it_is_so(tmp_path):
    results = study3(Maker(tmp_path))
    line = "Rows marked (seen): trained on these templates too."
    assert line in unseen_table(summarise_results(results)).notes
    assert line not in unseen_table(summarise_results(results[:-1])).notes
