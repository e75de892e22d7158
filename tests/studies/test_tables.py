"""Tables contain measured and published numbers, and name missing audits."""

import csv
import io
from dataclasses import replace

import pytest

from flip_flop.console import DEMO_NOTE
from flip_flop.metrics import METRICS
from flip_flop.paper import tables as grids
from flip_flop.paper.frame import colours_of, make_frame
from flip_flop.paper.output import make_tables
from flip_flop.paper.published import PAPER_METRICS, dataset_names, table1, table2
from flip_flop.paper.study import MethodVariant
from tests.studies.made_results import MODEL, Maker, made_frame, paper_audits, study1, study2, study3, transfer_audits

PAPER = made_frame(*paper_audits())
TRANSFER = made_frame(*transfer_audits())


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
def test_papers_numbers_give_its_headline_changes(method, averages, better):
    rows = rows_of(grids.changes_table(PAPER).markdown())
    start = next(number for number, row in enumerate(rows) if row[0] == method)
    average, counts = rows[start + 11], rows[start + 12]
    assert average[1] == "average, 11 tasks"
    assert [average[2], average[5], average[7]] == averages
    assert [average[4], average[6], average[9]] == [f"({value})" for value in averages]
    assert [counts[2], counts[5], counts[7]] == better


def test_best_and_worst_match_the_paper():
    rows = rows_of(grids.methods_table(PAPER).markdown())
    assert rows[0] == ["", "", *dataset_names().values(), "average"]
    body = [row for row in rows[2:] if row[1] != "(paper)"]
    lines = [(method, metric) for method in ("base", "swarm", "cce", "f2c") for metric in PAPER_METRICS]
    assert [row[1] for row in body] == [METRICS[metric].title for _, metric in lines]
    printed = table1().set_index(["method", "task", "metric"])
    for (method, metric), row in zip(lines, body, strict=True):
        for task, text in zip(dataset_names(), row[2:-1], strict=True):
            cell = printed.loc[(method, task, metric)]
            around = "**" if metric in cell["best"].split() else "*" if metric in cell["worst"].split() else ""
            assert text == f"{around}{100 * cell['paper']:.2f}{around}", (method, task, metric)


def test_table_2_matches_the_papers_counts_and_means():
    table = grids.transfer_table(TRANSFER, "f2c")
    assert table.records["improvement"].tolist() == pytest.approx(table.records["paper_improvement"].tolist(), abs=6e-6)
    rows = rows_of(table.markdown())
    assert [row[0] for row in rows[2:]] == [
        "All (80 pairs)",
        *(dataset_names()[source] for source in table2()["source"].unique() if source != "all"),
    ]
    for row, (_, printed) in zip(rows[2:], table2().groupby("source", sort=False), strict=True):
        for index, paper in enumerate(printed.itertuples()):
            change, counts, paper_change, paper_counts = row[1 + 4 * index : 5 + 4 * index]
            expected = f"{paper.paper_better}/{paper.paper_worse}"
            assert (counts, paper_counts) == (expected, f"({expected})")
            assert paper_change == f"(+{100 * paper.paper_improvement:.3f})"
            assert abs(float(change.strip("*")) - float(paper_change.strip("()"))) <= 0.006
    best = [row[0] for row in rows[2:] for column in (1, 5, 9) if row[column].startswith("**")]
    assert sorted(best) == ["COPA", "Winogrande", "Winogrande"]  # as in the paper


def test_zero_change_counts_as_unchanged():
    shared = {"method": "f2c", "source": "rte", "setting": "transfer", "base": {"mean_f1": 0.5}}
    values = {"cb": 0.5, "wsc": 0.6, "copa": 0.7, "wic": 0.4}
    audits = [shared | {"task": task, "values": {"mean_f1": value}} for task, value in values.items()]
    assert rows_of(grids.transfer_table(made_frame(*audits), "f2c").markdown())[2][1:3] == ["+5.00", "2/1"]


def test_missing_cell_is_a_dash_and_is_named():
    lost = {"is_done": False, "values": {}}
    frame = made_frame(*(a | (lost if (a["method"], a["task"]) == ("cce", "wsc") else {}) for a in paper_audits()))
    text = grids.methods_table(frame).markdown()
    rows = rows_of(text)
    column = rows[0].index("WSC")
    start = next(n for n, row in enumerate(rows) if row[0] == "CCE")
    assert [rows[start + n][column] for n in (0, 2, 4)] == ["–"] * 3
    assert [rows[start + n][-1] for n in (0, 2, 4)] == ["–"] * 3  # an average over ten is not one over eleven
    assert "3 cells without a number (a dash)." in notes_of(text)
    assert "1 audit of this table not done yet: CCE on WSC, seed 0." in notes_of(text)
    averages = [row for row in rows_of(grids.changes_table(frame).markdown()) if row[1].startswith("average")]
    assert [row[1] for row in averages] == ["average, 11 tasks", "average, 10 of 11 tasks", "average, 11 tasks"]
    assert averages[1][2] == averages[1][4].strip("()")  # the paper's average is over the same ten


def test_average_over_fewer_tasks_is_labelled():
    labelled, unlabelled = {"mean_f1": 0.5, "f1_std": 0.1, "observed_agreement": 0.7}, {"observed_agreement": 0.6}
    audits = []
    for task, base in (("mine", labelled), ("yours", labelled), ("whose", unlabelled)):
        values = {metric: value + 0.1 for metric, value in base.items()}
        audits += [{"method": "base", "task": task, "values": base}]
        audits += [{"method": "f2c", "task": task, "values": values, "base": base}]
    text = grids.changes_table(made_frame(*audits)).markdown()
    average = next(row for row in rows_of(text) if row[1].startswith("average"))
    assert average[1:3] == ["average, 3 tasks", "+10.00 over 2 tasks"]
    assert (average[4], average[5]) == ("+10.00 over 2 tasks", "+10.00")
    assert "Without labels, hence without F1: whose." in notes_of(text)
    assert "2 cells without a number (a dash)." in notes_of(text)


def test_note_names_differing_instances():
    for split, instances in (("test", 50), ("validation", 277), ("test", 277)):
        audits = paper_audits(split=split, instances=instances, template_names=tuple("abcdefghij"))
        frame = made_frame(*(audit for audit in audits if audit["task"] == "rte"))
        other = f"Not the paper's instances: RTE {instances} of {split} (the paper: 277 of test)."
        for table in (grids.methods_table(frame), grids.changes_table(frame)):
            assert (other in table.notes) == ((split, instances) != ("test", 277))
            assert f"Instances x templates, split {split}: RTE {instances} x 10." in table.notes


def test_seeds_are_printed_as_mean_and_spread(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("rte", "my_task"), seeds=(3, 5))
    text = grids.methods_table(maker.frame()).markdown()
    values = [100 * metrics["f1_std"] for metrics in maker.metrics(method="cce", task="my_task")]
    mean, std = sum(values) / 2, abs(values[0] - values[1]) / 2**0.5
    row = next(row for n, row in enumerate(rows_of(text)) if rows_of(text)[n - 2][0] == "CCE")
    assert row[3].strip("*") == f"{mean:.2f} ± {std:.2f}"
    assert notes_of(text)[0] == f"Model: {MODEL}; 2 training seeds (3, 5)."
    assert notes_of(text)[2] == "±: sample standard deviation over training seeds."
    assert notes_of(text)[1] == "Instances x templates, split test: RTE 37 x 6, my\\_task 37 x 6."


@pytest.mark.parametrize("is_demo", [True, False])
def test_demo_tables_have_a_warning(tmp_path, is_demo):
    maker = study3(study2(study1(Maker(tmp_path, is_demo=is_demo))), "cb")
    tables = list(make_tables(maker.frame()))
    assert len(tables) == 6
    assert all((DEMO_NOTE in table.notes) == is_demo for table in tables)


def test_study_3_table_has_base_each_k_and_all(tmp_path):
    maker = study3(Maker(tmp_path))
    table = grids.unseen_table(maker.frame())
    rows = rows_of(table.markdown())[2:]
    assert [row[1] for row in rows] == ["base", "F2C, 3 templates", "F2C, 6 templates", "F2C, 10 templates (seen)"]
    values = [100 * metrics["observed_agreement"] for metrics in maker.metrics()]
    assert [row[7] for row in rows] == [f"{value:.2f}" for value in values]
    assert rows[1][8].replace("−", "-") == f"{values[1] - values[0]:+.2f}"
    line = "Rows marked (seen): trained on these templates too."
    assert line in table.notes
    maker.lose(held_out=False, method="f2c")
    assert line not in grids.unseen_table(maker.frame()).notes


def test_spread_table_has_quartiles_and_the_papers_range():
    f1 = {"rte": [0.1, 0.2, 0.3, 0.4, 0.5], "cb": [0.2, 0.25, 0.3, 0.7], "mine": [0.5, 0.5]}
    named = {task: {str(n): value for n, value in enumerate(values)} for task, values in f1.items()}
    audits = [{"method": "base", "task": task, "f1": values} for task, values in named.items()]
    rows = rows_of(grids.spread_table(made_frame(*audits)).markdown())[2:]
    assert rows[1] == ["RTE", "10.00", "20.00", "30.00", "40.00", "50.00", "20.00", ""]
    assert rows[0][:7] == ["CB", "20.00", "23.75", "27.50", "40.00", "70.00", "16.25"]
    assert (rows[3][0], rows[3][6:]) == ("mean", [f"{(20 + 16.25 + 0) / 3:.2f}", "(13.53)"])
    assert (rows[4][0], rows[4][6:]) == ("above 15 points", ["2 of 3", "(5 of 11)"])


def test_csv_has_unrounded_fractions(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("rte", "my_task"), seeds=(0,))
    lines = list(csv.DictReader(io.StringIO(grids.methods_table(maker.frame()).csv())))
    line_of = {"method": "f2c", "task": "rte", "metric": "mean_f1"}
    line = next(line for line in lines if line_of.items() <= line.items())
    (metrics,) = maker.metrics(method="f2c", task="rte")
    assert float(line["mean"]) == metrics["mean_f1"]
    assert (line["paper"], line["std_over_seeds"], line["seeds"]) == ("0.8155", "", "0")
    assert float(line["change_low"]) <= float(line["change"]) <= float(line["change_high"])
    own = next(line for line in lines if {"method": "f2c", "task": "my_task"}.items() <= line.items())
    assert own["paper"] == own["paper_change"] == ""


def test_untrusted_names_cannot_break_a_table():
    name = "a|b*[x](y)<b>_\u202e"
    audit = {"method": "base", "task": name, "values": dict.fromkeys(PAPER_METRICS, 0.5), "model": name}
    text = grids.methods_table(made_frame(audit, audit | {"method": "f2c"})).markdown()
    assert text.splitlines()[2].replace("\\|", "").count("|") == 5
    assert "\u202e" not in text
    assert "<b>" not in text
    table = grids.methods_table(made_frame(audit | {"task": "=1+1"}))
    assert "=1+1" not in table.csv().replace("'=1+1", "")


def test_variants_keep_titles_and_order(tmp_path):
    maker = Maker(tmp_path)
    study1(maker, tasks=("rte",), seeds=(0,), methods=("f2c", "frozen", "cce"))
    variants = {"frozen": MethodVariant(method="f2c", title="F2C, frozen", colour="#123456")}
    changes = {"methods": ("base", "cce", "frozen", "f2c"), "variants": variants}
    study = maker.plan.study.model_copy(update=changes)
    frame = make_frame(maker.folder, replace(maker.plan, study=study))
    assert colours_of(frame)["frozen"] == "#123456"
    rows = rows_of(grids.methods_table(frame).markdown())
    heads = [row[0] for row in rows[2:] if row[0]]
    assert heads == ["Base", "CCE", "F2C, frozen", "F2C"]
    of_others = [row[0] for row in rows_of(grids.methods_table(maker.frame()).markdown())[2:] if row[0]]
    assert of_others == ["Base", "CCE", "F2C", "frozen"]


def test_held_out_templates_have_separate_rows(tmp_path):
    maker = Maker(tmp_path)
    study1(maker, tasks=("mine", "other"), seeds=(0,), methods=("f2c",))
    maker.audit("base", "mine", shown=(3, 10), held_out=True)
    maker.audit("f2c", "mine", seed=0, shown=(3, 10), held_out=True)
    study = maker.plan.study.model_copy(update={"audit_held_out": True})
    frame = make_frame(maker.folder, replace(maker.plan, study=study))
    tables = {table.name: table.markdown() for table in make_tables(frame)}
    rows = rows_of(tables["table1_methods"])
    assert [row[0] for row in rows[2:] if row[0]] == ["Base", "F2C", "Base (held out)", "F2C (held out)"]
    of_other = [row[rows[0].index("other")] for row in rows[2:]]
    assert all(of_other[:7])
    assert not any(of_other[7:])
    notes = "\n".join(notes_of(tables["table1_methods"]))
    assert "mine 37 x 6, mine (held out) 37 x 3, other 37 x 6." in notes
    assert "dash" not in notes
    changes = rows_of(tables["table1_changes_held_out"])
    assert [row[:2] for row in changes[2:]] == [
        ["F2C (held out)", "mine"],
        ["", "average, 1 task"],
        ["", "better/worse"],
    ]
    assert "study3_unseen_templates" not in tables
