"""The frame of a study, its tables and their files: measured and published numbers, and missing audits by name."""

import csv
import io
import logging
import re
import sys
from dataclasses import replace

import numpy as np
import pytest

from flip_flop import load_run
from flip_flop.console import DEMO_NOTE
from flip_flop.method import METHODS, Method
from flip_flop.metrics import METRICS, mean_statistic, paired_bootstrap_interval
from flip_flop.metrics.agreement import instance_agreement
from flip_flop.paper import tables as grids
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.frame import average_seeds, by_method, make_frame
from flip_flop.paper.published import PAPER_METRICS, dataset_names, stated_numbers, table1, table2
from flip_flop.paper.study import MethodVariant
from flip_flop.paper.tables import make_tables, write_outputs
from flip_flop.report.table import escape
from tests.studies import small_studies
from tests.studies.made_results import MODEL, Maker, made_frame, paper_audits, study1, study2, study3, transfer_audits

PAPER = made_frame(*paper_audits())
TRANSFER = made_frame(*transfer_audits())
OWN = Method("own", "Our method", "#123456", METHODS["cce"].loss)
HOSTILE = r"\input{x} $a_b$ 50% #1 & ~^ {[*]} <\\> \"q\" `c`"


def averaged(frame, method, task):
    """The averaged row of each metric on the task trained on."""
    cells = average_seeds(frame[frame["setting"] == "own"])
    rows = cells[(cells["method"] == method) & (cells["task"] == task)]
    return {cell.metric: cell for cell in rows.itertuples()}


def cells_of(frame, setting, *columns):
    rows = frame[(frame["setting"] == setting) & (frame["metric"] == "mean_f1")]
    return list(rows[list(columns)].itertuples(index=False, name=None))


def rows_of(table) -> list[list[str]]:
    """The cells of the Markdown of a table."""
    lines = [line for line in table.markdown().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


# ---- the frame ----


def test_an_own_method_has_its_title_and_colour_as_long_as_it_can_be_imported(tmp_path, monkeypatch):
    reference = f"{__name__}:OWN"
    plan = small_studies.plan(small_studies.small(methods=("base", reference)))
    frame = make_frame(StudyFolder(tmp_path), plan)
    assert (by_method(frame, "method_title")[reference], by_method(frame, "method_colour")[reference]) == (
        "Our method",
        "#123456",
    )
    monkeypatch.delattr(sys.modules[__name__], "OWN")
    frame = make_frame(StudyFolder(tmp_path), plan)
    assert by_method(frame, "method_title")[reference] == reference


def test_variants_have_colours_that_no_other_method_has(tmp_path):
    variants = {name: MethodVariant(method="f2c") for name in ("a", "b")}
    study = small_studies.small(methods=("base", "bct", "opct", "a", "b"), variants=variants, protocol="recommended")
    frame = make_frame(StudyFolder(tmp_path), small_studies.plan(study))
    assert len(set(by_method(frame, "method_colour").values())) == 5


@pytest.fixture(scope="session")
def studies(tmp_path_factory):
    """Random results of studies 1, 2 and 3 in one folder, and their frame."""
    maker = Maker(tmp_path_factory.mktemp("studies"), is_demo=True)
    study3(study2(study1(maker, tasks=("rte", "copa", "[own]_task"))), "cb")
    return maker, maker.frame()


def test_seeds_are_averaged_with_sample_deviation(studies):
    maker, frame = studies
    values = [metrics["mean_f1"] for metrics in maker.metrics(method="cce", task="copa")]
    cell = averaged(frame, "cce", "copa")["mean_f1"]
    assert cell.seeds == (0, 1)
    assert (cell.mean, cell.std_over_seeds) == pytest.approx((np.mean(values), np.std(values, ddof=1)))
    (base,) = maker.metrics(method="base", task="copa")
    assert cell.change == cell.improvement == pytest.approx(np.mean(values) - base["mean_f1"])
    sigma = averaged(frame, "f2c", "rte")["f1_std"]
    assert sigma.change < 0 < sigma.improvement

    table = grids.methods_table(frame)
    rows = rows_of(table)
    row = next(row for n, row in enumerate(rows) if rows[n - 2][0] == "CCE")  # sigma_F1, below F1 and the paper's
    std = averaged(frame, "cce", "rte")["f1_std"]
    assert row[rows[0].index("RTE")].strip("*") == f"{100 * std.mean:.2f} ± {100 * std.std_over_seeds:.2f}"
    assert {f"Model: {MODEL}; 2 training seeds (0, 1).", DEMO_NOTE} < set(table.notes)
    assert "±: sample standard deviation over training seeds." in table.notes
    assert "Split test; instances per task: 37." in table.notes


def test_interval_is_paired_over_instances(studies):
    maker, frame = studies
    runs = [maker.runs(method=method, task="rte", source=source) for method, source in (("base", None), ("f2c", "rte"))]
    before, *after = [load_run(run).predictions for of_method in runs for run in of_method]
    assert len(after) == 2
    agreement = mean_statistic(instance_agreement, bounds=(0.0, 1.0))
    expected = paired_bootstrap_interval(agreement, [before], *([answers] for answers in after))
    cell = averaged(frame, "f2c", "rte")["observed_agreement"]
    assert (cell.change_low, cell.change_high) == pytest.approx(expected)


def test_audits_on_a_different_task_are_transfer(studies):
    _, frame = studies
    pairs = [("rte", "copa"), ("rte", "wsc"), ("copa", "rte"), ("copa", "wsc")]
    assert sorted(cells_of(frame, "transfer", "source", "task")) == sorted(pairs)
    assert frame.loc[(frame["setting"] == "transfer") & (frame["template"] == ""), "base"].notna().all()


def test_study_3_has_base_each_k_and_all_templates(studies):
    maker, frame = studies
    expected = [("base", 0, False), ("f2c", 3, True), ("f2c", 6, True), ("f2c", 10, False)]
    assert cells_of(frame, "unseen", "method", "k", "held_out") == expected
    table = grids.unseen_table(frame)
    rows = rows_of(table)[2:]
    assert [row[1] for row in rows] == ["base", "F2C, 3 templates", "F2C, 6 templates", "F2C, 10 templates (seen)"]
    values = [100 * metrics["observed_agreement"] for metrics in maker.metrics(task="cb")]
    assert [row[7] for row in rows] == [f"{value:.2f}" for value in values]
    assert rows[1][8].replace("−", "-") == f"{values[1] - values[0]:+.2f}"
    assert "Rows marked (seen): trained on these templates too." in table.notes


def test_runs_on_different_instances_are_not_compared(tmp_path):
    maker = Maker(tmp_path)
    maker.audit("base", "rte")
    maker.num_instances = 31
    maker.audit("f2c", "rte", seed=0)
    cell = averaged(maker.frame(), "f2c", "rte")["mean_f1"]
    assert np.isnan([cell.change, cell.change_low, cell.change_high]).all()


@pytest.mark.slow
def test_incomplete_audit_has_rows_without_values(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("cb", "rte"), methods=("f2c",))
    maker.lose(method="f2c", task="cb", seed=0)
    maker.lose(method="f2c", task="rte", seed=1)
    frame = maker.frame()
    missing = frame[~frame["is_done"]].sort_values("position", kind="stable")
    assert cells_of(missing, "own", "task", "seed") == [("cb", 0), ("rte", 1)]
    assert missing["value"].isna().all()
    assert averaged(frame, "f2c", "rte")["mean_f1"].seeds == (0,)


def test_templates_that_every_training_run_has_seen_are_study_3(tmp_path):
    task = str(small_studies.write_task(tmp_path, name="tickets"))
    subsets = {task: {"train_first": (3, None), "held_out": ("t0", "t1")}}
    made = small_studies.plan(small_studies.small(tasks=(task,), template_subsets=subsets))
    frame = make_frame(StudyFolder(tmp_path), made)
    assert cells_of(frame, "unseen", "method", "k") == [("base", 0), ("cce", 3), ("cce", 4)]


# ---- the paper's numbers ----


def test_papers_numbers_give_its_headline_changes():
    rows = rows_of(grids.changes_table(PAPER))
    for method, title, averages, better in (
        ("f2c", "F2C", ["+8.94", "−3.29", "+11.62"], ["9/2", "10/1", "11/0"]),
        ("cce", "CCE", ["+8.36", "−3.05", "+11.68"], ["9/2", "9/2", "11/0"]),
        ("swarm", "Swarm", ["+1.40", "−0.47", "−0.38"], ["5/6", "4/7", "4/7"]),
    ):
        start = next(number for number, row in enumerate(rows) if row[0] == title)
        average, counts = rows[start + 11], rows[start + 12]
        assert average[1] == "average, 11 tasks"
        assert [average[2], average[5], average[7]] == averages
        assert [average[4], average[6], average[9]] == [f"({value})" for value in averages]
        assert [counts[2], counts[5], counts[7]] == better
        stated = [stated_numbers()[f"{method} {metric} change"] for metric in PAPER_METRICS]
        assert [f"{value:+.2f}".replace("-", "−") for value in stated] == averages


def test_best_and_worst_match_the_paper():
    rows = rows_of(grids.methods_table(PAPER))
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
    rows = rows_of(table)
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


# ---- tables of other numbers ----


def test_zero_change_counts_as_unchanged():
    shared = {"method": "f2c", "source": "rte", "setting": "transfer", "base": {"mean_f1": 0.5}}
    values = {"cb": 0.5, "wsc": 0.6, "copa": 0.7, "wic": 0.4}
    audits = [shared | {"task": task, "values": {"mean_f1": value}} for task, value in values.items()]
    assert rows_of(grids.transfer_table(made_frame(*audits), "f2c"))[2][1:3] == ["+5.00", "2/1"]


def test_rounding_errors_are_no_change():
    audits = [{"method": "base", "task": "mine", "values": {"mean_f1": 0.37}}]
    same = {"method": "f2c", "task": "mine", "values": {"mean_f1": 0.37}, "base": {"mean_f1": 0.37}}
    audits += [same | {"seed": seed} for seed in range(3)]  # their mean is not exactly 0.37
    rows = rows_of(grids.changes_table(made_frame(*audits)))
    assert next(row for row in rows if row[1] == "better/worse")[2] == "0/0"


def test_papers_numbers_stand_only_beside_its_templates():
    values = dict.fromkeys(PAPER_METRICS, 0.5)
    audits = [{"method": "base", "task": "rte", "values": values}]
    held_out = {"setting": "held_out", "held_out": True, "template_names": tuple("abcdefghij")}
    audits += [audit | held_out for audit in audits]
    audits += [{"method": "base", "task": "copa", "values": values, "template_names": ("t0", "t1")}]
    records = grids.methods_table(made_frame(*audits)).records
    known = records[records["paper"].notna() & (records["metric"] == "mean_f1")]
    assert known[["task", "setting"]].to_numpy().tolist() == [["rte", "own"]]


@pytest.mark.slow
def test_missing_cell_is_a_dash():
    lost = {"is_done": False, "values": {}}
    frame = made_frame(*(a | (lost if (a["method"], a["task"]) == ("cce", "wsc") else {}) for a in paper_audits()))
    table = grids.methods_table(frame)
    rows = rows_of(table)
    column = rows[0].index("WSC")
    start = next(n for n, row in enumerate(rows) if row[0] == "CCE")
    # An average over ten is not one over eleven.
    assert [[rows[start + n][place] for n in (0, 2, 4)] for place in (column, -1)] == [["–"] * 3] * 2
    assert "1 audit of this table not done yet." in table.notes
    averages = [row for row in rows_of(grids.changes_table(frame)) if row[1] == "average, 11 tasks"]
    assert [" over " in row[2] for row in averages] == [False, True, False]
    assert averages[1][2] == averages[1][4].strip("()") + " over 10 tasks"  # the paper's average is over the same ten


def test_notes_name_cells_over_fewer_seeds_and_instances_that_are_not_the_papers():
    values = dict.fromkeys(("mean_f1", "f1_std", "observed_agreement"), 0.5)
    audits = [{"method": "base", "task": task, "values": values, "instances": 277} for task in ("rte", "wic")]
    for task, seeds in (("rte", (0, 1, 2)), ("wic", (1,))):
        made = {"method": "f2c", "task": task, "values": values, "base": values, "instances": 277}
        audits += [made | {"seed": seed, "is_done": seed in seeds} for seed in range(3)]
    notes = grids.methods_table(made_frame(*audits)).notes
    assert notes[2:4] == [
        "Over fewer seeds than the others: F2C on WiC (1).",
        "Not the paper's instances: WiC 277 of test.",
    ]
    assert "2 audits of this table not done yet." in notes


@pytest.mark.parametrize(
    ("changes", "table", "shown"),
    [
        (
            {"setting": "transfer", "source": "cb"},
            lambda frame: grids.transfer_table(frame, "f2c"),
            "F2C from CB on RTE",
        ),
        ({"setting": "unseen", "k": 5, "held_out": True}, grids.unseen_table, "F2C, 5 templates, on RTE"),
    ],
)
def test_notes_name_the_training_run_of_a_cell(changes, table, shown):
    values = {"values": dict.fromkeys(PAPER_METRICS, 0.5), "collapsed": True}
    audit = {"method": "f2c", "task": "rte"} | values | changes
    other = audit | ({"source": "copa"} if "source" in changes else {"k": 10})
    notes = table(made_frame(*(other | {"seed": seed} for seed in (0, 1)), audit)).notes
    assert f"Over fewer seeds than the others: {shown} (1)." in notes
    assert any(note.startswith("Collapsed") and shown in note for note in notes)


def test_average_over_fewer_tasks_is_labelled():
    labelled, unlabelled = {"mean_f1": 0.5, "f1_std": 0.1, "observed_agreement": 0.7}, {"observed_agreement": 0.6}
    audits = []
    for task, base in (("average", labelled), ("yours", labelled), ("whose", unlabelled)):
        values = {metric: value + 0.1 for metric, value in base.items()}
        audits += [{"method": "base", "task": task, "values": base}]
        audits += [{"method": "f2c", "task": task, "values": values, "base": base}]
    table = grids.changes_table(made_frame(*audits))
    average = next(row for row in rows_of(table) if row[1].startswith("average,"))
    assert average[1:3] == ["average, 3 tasks", "+10.00 over 2 tasks"]
    assert (average[4], average[5]) == ("+10.00 over 2 tasks", "+10.00")
    assert "A dash: no labels, hence no F1, or no such audit yet." in table.notes


def test_notes_name_split_sizes_and_collapsed_audits():
    audits = paper_audits(split="validation", instances=1277)
    audits = [audit | {"collapsed": audit["method"] == "cce"} for audit in audits if audit["task"] == "rte"]
    frame = made_frame(*audits, {"method": "base", "task": "mine", "instances": 50, "split": "validation"})
    for table in (grids.methods_table(frame), grids.changes_table(frame)):
        assert "Split validation; instances per task: 50 to 1,277." in table.notes
        assert "Collapsed, one label nearly everywhere or for each template: CCE on RTE." in table.notes


def test_spread_table_has_quartiles_and_the_papers_range():
    f1 = {"rte": [0.1, 0.2, 0.3, 0.4, 0.5], "cb": [0.2, 0.25, 0.3, 0.7], "mine": [0.5, 0.5]}
    named = {task: {str(n): value for n, value in enumerate(values)} for task, values in f1.items()}
    audits = [{"method": "base", "task": task, "f1": values} for task, values in named.items()]
    table = grids.spread_table(made_frame(*audits))
    rows = rows_of(table)[2:]
    assert rows[1] == ["RTE", "10.00", "20.00", "30.00", "40.00", "50.00", "20.00"]
    assert rows[0] == ["CB", "20.00", "23.75", "27.50", "40.00", "70.00", "16.25"]
    assert (rows[3][0], rows[3][6]) == ("mean", f"{(20 + 16.25 + 0) / 3:.2f}")
    assert (rows[4][0], rows[4][6]) == ("above 15 points", "2 of 3")
    assert "The paper's mean range over its eleven datasets: 13.53; above 15 points: 5 of 11." in table.notes


def test_csv_has_unrounded_fractions(studies):
    maker, frame = studies
    lines = list(csv.DictReader(io.StringIO(grids.methods_table(frame).csv())))
    lines = {(line["method"], line["task"]): line for line in lines if line["metric"] == "mean_f1"}
    base, trained, own = lines["base", "rte"], lines["f2c", "rte"], lines["f2c", "[own]_task"]
    (metrics,) = maker.metrics(method="base", task="rte")
    assert float(base["mean"]) == metrics["mean_f1"]
    assert (base["std_over_seeds"], base["seeds"], trained["seeds"], trained["paper"]) == ("", "", "0 1", "0.8155")
    assert float(trained["change_low"]) <= float(trained["change"]) <= float(trained["change_high"])
    assert own["paper"] == own["paper_change"] == ""


@pytest.mark.slow
def test_variants_keep_titles_and_order(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("rte",), seeds=(0,), methods=("f2c", "frozen", "cce"))
    variants = {"frozen": MethodVariant(method="f2c", title="F2C, frozen", colour="#123456")}
    changes = {"methods": ("base", "cce", "frozen", "f2c"), "variants": variants}
    study = maker.plan.study.model_copy(update=changes)
    frame = make_frame(maker.folder, replace(maker.plan, study=study))
    assert by_method(frame, "method_colour")["frozen"] == "#123456"
    for shown, expected in (
        (frame, ["Base", "CCE", "F2C, frozen", "F2C"]),
        (maker.frame(), ["Base", "CCE", "F2C", "frozen"]),
    ):
        assert [row[0] for row in rows_of(grids.methods_table(shown))[2:] if row[0]] == expected


@pytest.mark.slow
def test_held_out_templates_have_separate_rows(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("mine", "other"), seeds=(0,), methods=("f2c",))
    maker.audit("base", "mine", shown=(3, 10), held_out=True)
    maker.audit("f2c", "mine", seed=0, shown=(3, 10), held_out=True)
    study = maker.plan.study.model_copy(update={"audit_held_out": True})
    tables = {table.name: table for table in make_tables(make_frame(maker.folder, replace(maker.plan, study=study)))}
    rows = rows_of(tables["table1_methods"])
    assert [row[0] for row in rows[2:] if row[0]] == ["Base", "F2C", "Base (held out)", "F2C (held out)"]
    of_other = [row[rows[0].index("other")] for row in rows[2:]]
    assert (all(of_other[:7]), any(of_other[7:])) == (True, False)
    assert "dash" not in "\n".join(tables["table1_methods"].notes)
    assert [bool(row[-1]) for row in rows[2:]] == [bool(row[rows[0].index("other")]) for row in rows[2:]]
    changes = [row[:2] for row in rows_of(tables["table1_changes_held_out"])[2:]]
    assert changes == [["F2C (held out)", "mine"], ["", "average, 1 task"], ["", "better/worse"]]
    assert "study3_unseen_templates" not in tables


# ---- Markdown and LaTeX ----


def test_untrusted_names_cannot_break_a_table():
    name = "a|b*[x](y)<b>_\u202e"
    audit = {"method": "base", "task": name, "values": dict.fromkeys(PAPER_METRICS, 0.5), "model": name}
    text = grids.methods_table(made_frame(audit, audit | {"method": "f2c"})).markdown()
    assert text.splitlines()[2].replace("\\|", "").count("|") == 5
    assert [part for part in ("\u202e", "<b>") if part in text] == []
    table = grids.methods_table(made_frame(audit | {"task": "=1+1"}))
    assert "=1+1" not in table.csv().replace("'=1+1", "")
    assert escape("a_b & 50%") == r"a\_b \& 50\%"
    assert escape("[x]*") == "{[}x{]}{*}"
    assert escape("\\end{x}\u202e") == r"\textbackslash{}end\{x\}\textbackslash{}u202e"


def test_symbols_in_names_are_not_mathematics():
    name = "org/F2C_P_o_F1"
    table = grids.methods_table(made_frame({"method": "base", "task": "F1_x", "values": {}, "model": name}))
    caption = re.search(r"\\caption\{(.*)\}", replace(table, notes=[*table.notes, "F2C: mean F1, P_o."]).latex())[1]
    assert r"Model: org/F2C\_P\_o\_F1." in caption
    assert r"F$^2$C: $\overline{F_1}$, $P_o$." in caption


@pytest.fixture(scope="module")
def tables(studies):
    made = [*make_tables(made_frame(*paper_audits(model=HOSTILE))), *make_tables(studies[1])]
    assert [DEMO_NOTE in table.notes for table in made] == [False] * 2 + [True] * 6
    return made


@pytest.mark.slow
def test_latex_is_well_formed(tables):
    for table in tables:
        text = table.latex()
        columns = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text).group(1)
        lines = [line.strip().removesuffix(r"\\") for line in text.splitlines() if line.endswith(r"\\")]
        assert len(lines) == sum(map(bool, table.rows)) + 1 + any(column.group for column in table.columns)
        for line in lines:
            spans = re.findall(r"\\multicolumn\{(\d+)\}", line)
            cells = len(re.split(r"(?<!\\)&", line)) - len(spans) + sum(map(int, spans))
            assert cells == len(columns) == len(table.columns)
        bare = re.sub(r"\\[{}]", "", text)
        assert bare.count("{") == bare.count("}")
    text = tables[0].latex()  # of the paper's numbers
    assert text.count("ForestGreen") == text.count("BrickRed") == 33
    assert r"\textbf{\textcolor{ForestGreen}{90.84}}" in text
    assert r"$\overline{F_1}$" in text


# ---- the files ----

TABLES = ["base_spread", "study3_unseen_templates", "table1_changes", "table1_methods", "table2_pairs"]
MAPS = ["transfer_f1_std", "transfer_mean_f1", "transfer_observed_agreement"]
STARTS = {".pdf": b"%PDF-", ".svg": b"<?xml", ".png": b"\x89PNG", ".md": b"### ", ".tex": b"% Needs", ".csv": b""}
KINDS = {"tables": {".csv", ".md", ".tex"}, "figures": {".pdf", ".png", ".svg"}}


def write(maker, out):
    return write_outputs(maker.frame(), maker.plan.study, out)


def names(files, folder):
    return sorted({path.stem for path in files if path.parent.name == folder})


def base_alone(maker):
    return study1(maker, tasks=("rte", "cb"), methods=())


@pytest.mark.slow
def test_outputs_are_files_that_a_page_links(studies, tmp_path):
    maker, _ = studies
    files = write(maker, tmp_path)
    assert names(files, "tables") == [*TABLES, "table2_transfer"]
    assert names(files, "figures") == ["f1_over_templates", "f1_over_templates_base", *MAPS, "unseen_templates"]
    assert {folder: {path.suffix for path in files if path.parent.name == folder} for folder in KINDS} == KINDS
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(files)
    content = {path: path.read_bytes() for path in files}
    assert all(written.startswith(STARTS[path.suffix]) for path, written in content.items() if path.stem != "index")

    page = files[0].read_text(encoding="utf-8")
    assert page.startswith("# made\n\nMade rows, nothing else.\n\n**The model is a toy")
    linked = set(re.findall(r"\]\(([^)]+)\)", page))
    assert all((tmp_path / target).is_file() for target in linked)
    assert {f"figures/{path.name}" for path in files if path.suffix == ".png"} <= linked
    texts = [content[path].decode().rstrip() for path in files if path.suffix == ".md" and path.stem != "index"]
    assert all(text in page for text in texts)


@pytest.mark.slow
def test_outputs_are_reproducible_and_replace_outdated_ones(tmp_path):
    out, maker = tmp_path / "out", base_alone(Maker(tmp_path / "runs"))
    write(study1(study2(study3(Maker(tmp_path / "outdated"), "cb")), tasks=("rte",)), out)
    of_user = [out / "tables" / "notes.md", out / "tables" / "table2_transfer_new.csv", out / "figures" / "photo.png"]
    for path in of_user:
        path.write_text("mine")
    files = write(maker, out)
    assert {path for path in out.rglob("*") if path.is_file()} == {*files, *of_user}
    content = {path: path.read_bytes() for path in files}
    maker.cells = dict(reversed(maker.cells.items()))  # in any order
    assert write(maker, out) == files
    assert {path: path.read_bytes() for path in files} == content


def test_tables_without_matplotlib(tmp_path, monkeypatch, caplog):
    for name in [name for name in sys.modules if name.startswith(("matplotlib", "flip_flop.paper.figures"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with caplog.at_level(logging.WARNING, "flip_flop"):
        files = write(base_alone(Maker(tmp_path / "runs")), tmp_path / "out")
    assert (names(files, "tables"), names(files, "figures")) == (["base_spread"], [])
    assert "-m pip install 'matplotlib>=" in caplog.text


def test_the_text_of_the_paper_agrees_with_its_tables():
    stated = stated_numbers()
    assert stated["f2c tasks with higher mean_f1"] == 9
    margin = stated["f2c observed_agreement change"] - stated["swarm observed_agreement change"]
    assert margin == pytest.approx(stated["f2c over swarm observed_agreement"])
    for _, rows in table2().groupby("metric"):
        every, *others = rows.set_index("source").itertuples()
        assert (every.Index, len(others)) == ("all", 8)
        mean = np.mean([row.paper_improvement for row in others])
        assert mean == pytest.approx(every.paper_improvement, abs=6e-6)
        pairs = np.array([[row.paper_better, row.paper_worse] for row in others])
        assert (pairs.sum(axis=0) == [every.paper_better, every.paper_worse]).all()
        assert (pairs.sum(axis=1) == 10).all()
