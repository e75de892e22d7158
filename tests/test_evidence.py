"""Evidence: the rows of its tasks; every number of a result can be computed again; the pages have these numbers."""

import json
import re
import sys
from collections import Counter
from pathlib import Path
from statistics import fmean, pstdev

import pytest
from evidence import run, tables
from evidence.prepare import write_tasks

import flip_flop
from tests.metrics import oracle
from tests.report.made_runs import open_run

pytestmark = pytest.mark.xdist_group("evidence")
NUMBER = re.compile(r"[−+±]?\d+\.\d")
RESULTS = sorted(run.RESULTS.glob("*/*/*.json"))


def test_the_tasks_have_the_rows_and_templates_of_earlier_results(language, promptsource_folder, tmp_path):
    assert [path.name for path in write_tasks(language, tmp_path)] == ["mr.yaml", "ag.yaml", "trec.yaml"]
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir() if not path.name.startswith("trec")}
    assert len(written) == 8
    assert written == {name: (language / name).read_bytes() for name in written}


def test_trec_asks_how_many_for_a_quantity_and_where_for_a_location(language, promptsource_folder, tmp_path):
    *_, task_file = write_tasks(language, tmp_path)
    rows = [json.loads(line) for line in (tmp_path / "trec_test.jsonl").read_text().splitlines()]
    for template in flip_flop.load_task(task_file).templates:
        for first, answer in (("How many", "Quantity"), ("Where", "Location")):
            asked = [row for row in rows if row["text"].startswith(first)]
            answers = [template.render(row, "label")[1][row["label"]] for row in asked]
            assert answers.count(answer) > 0.9 * len(asked) > 9


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The base and one training run of the demo, and their audits on another task, by the command."""
    folder = tmp_path_factory.mktemp("cells")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("ROWS", 12), ("EVAL_ROWS", 6)):
            patch.setattr(run, name, value)
        few = {"max_steps": 2, "per_device_train_batch_size": 3, "eval_steps": 1, "logging_steps": 1}
        patch.setattr(run, "SETTINGS", few | {"learning_rate": 3e-3})
        command(patch, folder, "demo/base-0", "demo/f2c-1", "demo_remarks/base-0", "demo_remarks/f2c_from_demo-1")
        yield folder


def command(patch, folder, *cells):
    words = ["run", "--model", "demo", "--name", "toy", "--work", folder / "work", "--results", folder / "results"]
    words += ["--rows", 52]
    patch.setattr(sys, "argv", [*map(str, words), *cells])
    run.main(standalone_mode=False)


def read(folder, cell):
    return json.loads((folder / "results" / "toy" / f"{cell}.json").read_text())


def accuracy(answers, gold):
    return fmean(answer == truth for answer, truth in zip(answers, gold, strict=True))


def macro_f1(answers, gold):
    return fmean(oracle.f1_of_label(answers, gold, label) for label in {*gold, *answers})


def recomputed(view, gold):
    """The metrics of a result by slow loops over its digits."""
    templates = list(view["predictions"].values())
    f1 = [macro_f1(answers, gold) for answers in templates]
    return {
        "observed_agreement": oracle.observed_agreement([*zip(*templates, strict=True)]),
        "accuracy": fmean(accuracy(answers, gold) for answers in templates),
        "macro_f1": fmean(f1),
        "f1_std": pstdev(f1),
        "vote_accuracy": accuracy(view["vote"], gold),
        "vote_f1": macro_f1(view["vote"], gold),
    }


def recomputed_open(view):
    """The same of open answers. An answer that cannot be read agrees with no other."""
    templates, hits = list(view["predictions"].values()), list(view["right"].values())
    rows = [[answer if answer != "-" else object() for answer in row] for row in zip(*templates, strict=True)]
    voted = [row.index(vote) for row, vote in zip(zip(*templates, strict=True), view["vote"], strict=True)]
    return {
        "observed_agreement": oracle.observed_agreement(rows),
        "accuracy": fmean(hit == "1" for hit in "".join(hits)),
        "vote_accuracy": fmean(hits[template][row] == "1" for row, template in enumerate(voted)),
        "unmapped_share": "".join(templates).count("-") / len("".join(templates)),
    }


def check(result):
    for audit in result["audits"].values():
        if "calibrated" not in audit:
            assert audit["raw"]["metrics"] == pytest.approx(recomputed_open(audit["raw"]), abs=1e-6)
            continue
        for view in (audit["raw"], audit["calibrated"]):
            assert view["metrics"] == pytest.approx(recomputed(view, audit["gold"]), abs=1e-6)
            for vote, answers in zip(view["vote"], zip(*view["predictions"].values(), strict=True), strict=True):
                assert answers.count(vote) == max(map(answers.count, answers))


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["demo/base-0", "demo/f2c-1", "demo_remarks/f2c_from_demo-1"])
def test_the_numbers_of_a_cell_follow_from_its_digits(made, cell):
    result = read(made, cell)
    assert {len(audit["gold"]) for audit in result["audits"].values()} == {52}
    assert result["audits"].keys() == {"trained", "held_out"}
    check(result)


@pytest.mark.slow
def test_a_cell_records_its_settings_versions_machine_and_date_but_no_text_and_no_path(made):
    result = read(made, "demo/f2c-1")
    assert (result["model"], result["task"], result["method"], result["seed"]) == ("toy", "demo", "f2c", 1)
    assert result["training"]["max_steps"] == 2
    assert result["training"]["num_rows"] == 12
    assert [step for step, _ in result["training"]["log"]["eval_macro_f1"]] == [0, 1, 2]
    assert {"commit", "torch", "flip_flop"} <= result["versions"].keys()
    assert result["machine"]["cpu_count"] >= 1
    assert not [words for words in (str(made), str(Path.home()), "prompts") if words in json.dumps(result)]


@pytest.mark.slow
def test_a_run_is_audited_on_a_task_on_which_it_was_not_trained(made):
    here, there = read(made, "demo/f2c-1"), read(made, "demo_remarks/f2c_from_demo-1")
    assert there["training"] == here["training"]
    task = flip_flop.load_task("demo_remarks", templates="all")
    trained = flip_flop.load_model("demo", adapter=made / "work" / "toy" / "demo" / "f2c-1" / "train" / "adapter")
    expected = flip_flop.audit(trained, task.with_templates(task.held_out_templates), limit=52, quiet=True)
    assert there["audits"]["held_out"]["raw"]["predictions"] == run.by_template(expected, expected.predictions)


def test_open_answers_are_numbered_by_row_with_those_that_are_right(tmp_path):
    texts = [["7", "7", "eight", "8"], ["1", "3", "2", "2"], ["none", "none", "5", "none"]]
    open_run(tmp_path, texts, [["8", "9"], ["4"], ["5"]])
    audit = run.numbers(run.load_run(tmp_path))
    answers, right = (
        ["".join(row) for row in zip(*audit["raw"][key].values(), strict=True)] for key in ("predictions", "right")
    )
    assert (answers, right) == (["00-1", "0122", "--0-"], ["0001", "0000", "0010"])
    check({"audits": {"trained": audit}})


@pytest.mark.slow
def test_a_table_has_the_mean_over_seeds_and_leaves_out_methods_without_a_result(made):
    trained, base = read(made, "demo/f2c-1"), read(made, "demo/base-0")
    second = made / "results" / "toy" / "demo" / "f2c-2.json"
    second.write_text(json.dumps(trained | {"audits": base["audits"]}))
    page = "before\n<!-- results toy | demo | base f2c cce | trained -->\n<!-- end of results -->\nafter"
    text = tables.with_tables(page, made / "results")
    second.unlink()
    assert tables.with_tables(page.replace("demo", "none"), made / "results") == page.replace("demo", "none")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [line[0] for line in lines] == ["model", "base", "F2C, 2 seeds"]
    runs = [trained["audits"]["trained"], base["audits"]["trained"]]
    for view, (shown, difference) in zip(("raw", "calibrated"), (lines[2][1:3], lines[2][3:]), strict=True):
        values = [recomputed(audit[view], audit["gold"]) for audit in runs]
        means = [100 * fmean(value[metric] for value in values) for metric in run.SHOWN]
        assert [float(number) for number in shown.split(" / ")] == pytest.approx(means, abs=0.051)
        above, low, high = (float(number.replace("−", "-")) for number in re.findall(r"[−+±]\d+\.\d", difference))
        vote = accuracy(base["audits"]["trained"]["calibrated"]["vote"], runs[0]["gold"])
        assert above == pytest.approx(means[1] - 100 * vote, abs=0.051)
        assert low <= above <= high
    brief = tables.with_tables(page.replace("cce | trained", "cce | trained | brief"), made / "results").splitlines()
    (first,) = [line for line in brief if line.startswith("| base |")]
    raw, above, calibrated, above_calibrated = lines[1][1:]
    raw, calibrated = (" / ".join(shown.split(" / ")[:2]) for shown in (raw, calibrated))
    assert first == f"| base | {raw} | {above} | {calibrated} | {above_calibrated} |"


@pytest.mark.slow
def test_a_table_of_changes_compares_one_template_of_each_run_with_one_of_the_base(made):
    page = "<!-- changes toy | demo_remarks | base f2c_from_demo | held_out -->\n<!-- end of changes -->"
    base, trained = (read(made, f"demo_remarks/{cell}-{seed}") for cell, seed in (("base", 0), ("f2c_from_demo", 1)))
    text = tables.with_tables(page, made / "results")
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert [line[0] for line in lines] == ["model", "base", "F2C, trained on demo, 1 seed"]
    before, after = (result["audits"]["held_out"] for result in (base, trained))
    expected = [
        [100 * recomputed(audit[view], audit["gold"])[metric] for audit in (before, after)]
        for view in ("raw", "calibrated")
        for metric in ("observed_agreement", "accuracy")
    ]
    for (old, new), shown_old, shown in zip(expected, lines[1][1:], lines[2][1:], strict=True):
        assert float(shown_old) == pytest.approx(old, abs=0.051)
        value, change, low, high = (
            float(number.replace("−", "-").replace("±", "")) for number in NUMBER.findall(shown)
        )
        assert (value, change) == (pytest.approx(new, abs=0.051), pytest.approx(new - old, abs=0.051))
        assert low <= change <= high


@pytest.mark.slow
@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "/".join(file.parts[-3:]))
def test_a_published_result_follows_from_its_digits(file):
    result = json.loads(file.read_text())
    assert [result["model"], result["task"], f"{result['method']}-{result['seed']}.json"] == list(file.parts[-3:])
    assert not result["versions"].get("commit", "").endswith("-dirty")
    check(result)


@pytest.mark.slow
@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run python -m evidence.tables"


def test_numbers_in_sentences_are_in_the_table_of_their_section():
    text = (tables.DOCS / "evidence.md").read_text(encoding="utf-8")
    for section in re.split(r"(?m)^## ", text.replace("Qwen2.5-Coder-0.5B", "Qwen")):
        lines = [line for line in section.splitlines() if not line.startswith("<!--")]
        shown = {*NUMBER.findall("\n".join(line for line in lines if line.startswith("|")))}
        said = NUMBER.findall("\n".join(line for line in lines if not line.startswith("|")))
        assert {*said} <= shown, section.splitlines()[0]


def test_steps_and_repeats_by_slow_loops():
    model, cell = tables.RESULTS / "qwen2.5-coder-0.5b-bf16", "movie_reviews/base-0"
    audits = [
        json.loads((folder / f"{cell}.json").read_text())["audits"]
        for folder in (model, model.parent / model.name[:-5])
    ]
    base = audits[0]["trained"]
    gold, (raw, calibrated) = base["gold"], ([*base[view]["predictions"].values()] for view in ("raw", "calibrated"))
    unsure = [
        row
        for row, answers in enumerate(zip(*calibrated, strict=True))
        if max(Counter(answers).values()) < 0.8 * len(answers)
    ]
    kept = [row for row in range(len(gold)) if row not in unsure]
    vote = base["calibrated"]["vote"]
    nearest = max(range(len(raw)), key=lambda template: accuracy(raw[template], vote))
    values = [
        fmean(accuracy(answers, gold) for answers in raw),
        accuracy(raw[nearest], gold),
        accuracy(calibrated[nearest], gold),
    ]
    certain = accuracy([vote[row] for row in kept], [gold[row] for row in kept])
    page = tables.with_tables(f"<!-- steps {model.name} | movie_reviews -->\n<!-- end of steps -->")
    shown = [float(line.split("|")[3].split()[0]) for line in page.splitlines() if re.search(r"\| \d+\.\d", line)]
    assert [*shown[:3], shown[7]] == pytest.approx([100 * value for value in (*values, certain)], abs=0.051)
    assert f"{certain * 100:.1f} on {100 * len(kept) / len(gold):.1f} % of the rows" in page
    repeats = tables.with_tables(
        f"<!-- repeats {model.name}/{cell} {model.name[:-5]}/{cell} -->\n<!-- end of repeats -->"
    )
    first, second = ("".join("".join(one["raw"]["predictions"].values()) for one in audit.values()) for audit in audits)
    assert f"| {sum(one != two for one, two in zip(first, second, strict=True))} of 10,000 |" in repeats


def test_table_of_averages_by_slow_loops():
    """Flips and accuracy of one template and of the averages of a base over the orders."""
    model, task = "qwen2.5-coder-0.5b-bf16", "ag_news_orders"
    audit = json.loads((tables.RESULTS / model / task / "base-0.json").read_text())["audits"]["trained"]
    page = tables.with_tables(f"<!-- averages {model} | {task} | base | trained -->\n<!-- end of averages -->")
    lines = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| base")]
    forms = ("raw", "calibrated", "average", "calibrated average")
    accuracies, flips = {}, {}
    for form, line in zip(forms, lines, strict=True):
        columns = [*audit[form]["predictions"].values()]
        levels = audit[form].get("levels", audit["levels"])
        rows = [*zip(*columns, strict=True)]
        by_order, _ = oracle.axis_flips(rows, levels, "order")
        flips[form], _ = oracle.axis_flips(rows, levels, "wording")
        accuracies[form] = fmean(accuracy(answers, audit["gold"]) for answers in columns)
        expected = [by_order, flips[form], accuracies[form]]
        assert line[1:4] == ["–" if value is None else f"{100 * value:.1f}" for value in expected]
    for form, line in zip(forms, lines, strict=True):
        for average, shown in zip(forms[2:], (line[4:6], line[6:]), strict=True):
            for own, cell in zip((flips, accuracies), shown, strict=True):
                if cell != "–":
                    difference = float(cell.split(" ")[0].replace("−", "-").replace("±", ""))
                    assert difference == pytest.approx(100 * (own[form] - own[average]), abs=0.051)
