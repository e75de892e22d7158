"""Evidence: the rows of its tasks; every number of a result can be computed again; the pages have these numbers."""

import json
import sys
from itertools import product
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from evidence import forecast, open_answers, run, tables
from evidence.prepare import write_judged_facts, write_tasks

from flip_flop.console import points
from tests.metrics import oracle

pytestmark = pytest.mark.xdist_group("evidence")
RESULTS = sorted(run.RESULTS.glob("*/*/*.json"))


def test_the_tasks_have_the_rows_and_templates_of_earlier_results(language, promptsource_folder, tmp_path):
    assert [path.name for path in write_tasks(language, tmp_path)] == ["mr.yaml", "ag.yaml"]
    written = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(written) == 8
    assert written == {name: (language / name).read_bytes() for name in written}


def test_half_of_the_judged_answers_are_right_and_no_question_is_in_two_files(tmp_path):
    names = ["Ada", "Bo", "Cy", "Di"]
    facts = [{"relation": "P36", "subject": f"{name}{n}", "object": name} for n in range(200) for name in names]
    other = {"relation": "P140", "subject": "Zen", "object": "Buddhism"}
    pq.write_table(pa.Table.from_pylist([*facts, facts[0] | {"object": "Bo"}, other]), tmp_path / "facts.parquet")
    files = write_judged_facts(tmp_path / "facts.parquet", tmp_path)
    test, validation, train = ([json.loads(line) for line in file.read_text().splitlines()] for file in files)
    assert [len(test), len(validation), len(train)] == [400, 100, 256]
    assert len({row["question"] for row in [*test, *validation, *train]}) == 756
    assert {row["verdict"] for row in train} == {None}
    for row in [*test, *validation]:
        right = row["question"].removeprefix("What is the capital of ").startswith(row["answer"])
        assert row["verdict"] == ("pass" if right else "fail")
    assert 160 < sum(row["verdict"] == "pass" for row in test) < 240  # four standard deviations


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The base and one training run of the demo, by the command."""
    folder = tmp_path_factory.mktemp("cells")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("TEST_ROWS", 52), ("ROWS", 12), ("EVAL_ROWS", 6)):
            patch.setattr(run, name, value)
        few = {"max_steps": 2, "per_device_train_batch_size": 3, "eval_steps": 1, "logging_steps": 1}
        patch.setattr(run, "SETTINGS", few | {"learning_rate": 3e-3})
        command(patch, folder, "demo/base-0", "demo/f2c-1")
        yield folder


def command(patch, folder, *cells):
    words = ["run", "--model", "demo", "--name", "toy", "--work", folder / "work", "--results", folder / "results"]
    patch.setattr(sys, "argv", [*map(str, words), "--cells", *cells])
    return run.main()


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


def check(result):
    for audit in result["audits"].values():
        for view in (audit["raw"], audit["calibrated"]):
            assert view["metrics"] == pytest.approx(recomputed(view, audit["gold"]), abs=1e-6)
            for vote, answers in zip(view["vote"], zip(*view["predictions"].values(), strict=True), strict=True):
                assert answers.count(vote) == max(map(answers.count, answers))


@pytest.mark.slow
@pytest.mark.parametrize("cell", ["demo/base-0", "demo/f2c-1"])
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
def test_the_difference_from_the_calibrated_vote_is_that_of_the_same_rows(made):
    for part, audit in read(made, "demo/f2c-1")["audits"].items():
        vote = read(made, "demo/base-0")["audits"][part]["calibrated"]["vote"]
        for name in ("raw", "calibrated"):
            value, low, high = audit[name]["against_calibrated_vote"]["accuracy"]
            assert value == pytest.approx(audit[name]["metrics"]["accuracy"] - accuracy(vote, audit["gold"]))
            assert low <= value <= high


@pytest.mark.slow
def test_a_table_has_the_mean_over_seeds_and_leaves_out_methods_without_a_result(made):
    trained, base = read(made, "demo/f2c-1"), read(made, "demo/base-0")
    second = made / "results" / "toy" / "demo" / "f2c-2.json"
    second.write_text(json.dumps(trained | {"audits": base["audits"]}))
    page = "before\n<!-- results toy | demo | base f2c cce | trained -->\n<!-- end of results -->\nafter"
    text = tables.with_tables(page, made / "results")
    second.unlink()
    assert tables.with_tables(page.replace("demo", "none"), made / "results") == page.replace("demo", "none")
    lines = [[cell.strip() for cell in line.split("|")] for line in text.splitlines() if line.startswith("| demo")]
    assert [line[3] for line in lines] == ["base", "base, calibrated", "F2C, 2 seeds", "F2C, calibrated, 2 seeds"]
    runs = [trained["audits"]["trained"], base["audits"]["trained"]]
    for line, name in zip(lines[2:], ("raw", "calibrated"), strict=True):
        values = [recomputed(audit[name], audit["gold"]) for audit in runs]
        means = [100 * fmean(value[metric] for value in values) for metric in run.SHOWN]
        shown = [float(number) for cell in line[4:7] for number in cell.split(" / ")]
        assert shown == pytest.approx(means, abs=0.051)
    brief = tables.with_tables(page.replace("cce | trained", "cce | trained | brief"), made / "results").splitlines()
    (base,) = [line for line in brief if line.startswith("| base |")]
    raw, calibrated = ([line[4].split(" / ")[:2], line[7]] for line in lines[:2])
    assert base == f"| base | {' / '.join(raw[0])} | {raw[1]} | {' / '.join(calibrated[0])} | {calibrated[1]} |"


@pytest.mark.parametrize("file", RESULTS, ids=lambda file: "/".join(file.parts[-3:]))
def test_a_published_result_follows_from_its_digits(file):
    result = json.loads(file.read_text())
    assert [result["model"], result["task"], f"{result['method']}-{result['seed']}.json"] == list(file.parts[-3:])
    assert not result["versions"]["commit"].endswith("-dirty")
    check(result)


@pytest.mark.slow
@pytest.mark.parametrize("page", tables.PAGES, ids=lambda page: page.name)
def test_the_tables_of_a_page_are_those_of_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert tables.with_tables(text) == text, "run python -m evidence.tables"


QWEN, SMOL = "qwen2.5-coder-0.5b-bf16", "smollm2-135m"


def stored(cell, part="trained", model=QWEN):
    return json.loads((run.RESULTS / model / f"{cell}.json").read_text())["audits"][part]


def shown(cells, *metrics, view="raw", **where):
    """Metrics in percent, means over cells."""
    means = [fmean(stored(cell, **where)[view]["metrics"][metric] for cell in cells) for metric in metrics]
    return " / ".join(f"{100 * mean:.1f}" for mean in means)


def seeds(cell):
    return [f"{cell}-{seed}" for seed in range(3)]


def differences(cell, *models):
    """The number of different answers of two models, and the larger change of P_o and of accuracy in the two parts."""
    answers, changes = 0, []
    for part in ("trained", "held_out"):
        first, second = (stored(cell, part, model)["raw"] for model in models)
        for template, labels in first["predictions"].items():
            answers += sum(map(str.__ne__, labels, second["predictions"][template]))
        changes.append([abs(first["metrics"][metric] - second["metrics"][metric]) for metric in PAIR])
    return answers, *(f"{100 * max(values):.1f}" for values in zip(*changes, strict=True))


def by_gold_labels(view):
    """What gold labels add to the accuracy of one template, with the interval."""
    cells = [stored(cell) for cell in ("movie_reviews/supervised-0", *seeds("movie_reviews/f2c"))]
    gold = np.array([*cells[0]["gold"]], dtype=np.int64)
    scores = [run.scores_of([*cell[view]["predictions"].values()], gold, 2) for cell in cells]
    value, low, high = (-change for change in run.change("accuracy", *scores))
    return f"{100 * value:.1f}", f"{points(high)} to {points(low)}"


def certainty(task, view):
    """The accuracy of the votes, and the share of the rows, with at least so many templates for the vote."""
    audit = stored(f"{task}/base-0")
    votes, templates = audit[view]["vote"], [*audit[view]["predictions"].values()]
    shares = [answers.count(vote) for vote, answers in zip(votes, zip(*templates, strict=True), strict=True)]

    def certain(least):
        right = [
            vote == truth for vote, truth, share in zip(votes, audit["gold"], shares, strict=True) if share >= least
        ]
        return 100 * fmean(right), 100 * len(right) / len(votes)

    return [certain(least) for least in range(len(templates) + 1)]


def calibration_adds(task):
    before, after = (stored(f"{task}/base-0")[view]["metrics"]["accuracy"] for view in ("raw", "calibrated"))
    return 100 * (after - before)


PAIR, THREE = run.SHOWN[:2], run.SHOWN[:3]
CAL = {"view": "calibrated"}


def figures_of_the_evidence():
    answers, agreement, right = differences("movie_reviews/base-0", "qwen2.5-coder-0.5b", QWEN)
    yield f"{answers} of the base's 10,000 answers to movie reviews differ, P_o by {agreement} and accuracy by {right}."
    answers, agreement, right = differences("movie_reviews/f2c-0", f"{QWEN}-highest", QWEN)
    yield f"differed in {answers} of 10,000 answers, P_o by up to {agreement} and accuracy by up to {right}."
    base, small = ["movie_reviews/base-0"], {"model": SMOL}
    f2c = [f"movie_reviews/f2c-{seed}" for seed in range(3)]
    one = [shown(cell, "accuracy", **small, **view) for cell, view in product((base, f2c), ({}, CAL))]
    yield "has an accuracy of {} ({} calibrated), and {} ({}) after F2C, the mean of three seeds".format(*one)
    vote, held_out = (shown(base, "vote_accuracy", part=part, **small, **CAL) for part in ("trained", "held_out"))
    f2c_held_out = shown(f2c, "accuracy", part="held_out", **small)
    yield f"the calibrated vote of its base has {vote}."
    yield f"Under held-out templates F2C reaches {f2c_held_out}, the vote {held_out}."
    added = {folder.name: calibration_adds(folder.name) for folder in (run.RESULTS / QWEN).iterdir()}
    reviews, news, rte = (added.pop(task) for task in ("movie_reviews", "ag_news", "rte"))
    assert len(added) == 9
    yield f"adds {reviews:.1f}, {news:.1f} and {rte:.1f} points of accuracy on reviews, AG News and RTE, and " + (
        f"−{-min(added.values()):.1f} to +{max(added.values()):.1f} on the nine tasks"
    )
    f2c, f2c_news = seeds("movie_reviews/f2c"), seeds("ag_news/f2c")
    yield (
        f"The calibrated vote of F2C ({shown(f2c, 'vote_accuracy', **CAL)}) equals its target "
        f"({shown(base, 'vote_accuracy', **CAL)})."
    )
    (raw, raw_interval), (calibrated, interval) = map(by_gold_labels, ("raw", "calibrated"))
    yield f"gold labels add {raw} points to one template ({raw_interval}), calibrated {calibrated} ({interval})."
    target = shown(["ag_news/base-0"], "vote_accuracy", **CAL)
    yield f"On AG News F2C exceeds its target, {shown(f2c_news, 'vote_accuracy', **CAL)} against {target}."
    constant, nearly = (
        "".join(stored(f"movie_reviews/{method}-0")["raw"]["predictions"].values())
        for method in ("cpc_grpo", "marginal_entropy")
    )
    assert {*constant} == {"0"}
    yield f"marginal entropy in {100 * nearly.count('0') / len(nearly):.0f} %."
    yield "Swarm has P_o {} and accuracy {} on RTE.".format(*shown(["rte/swarm-0"], *PAIR).split(" / "))
    of_labels, four = (shown(seeds(f"ag_news/{name}"), *PAIR) for name in ("f2c_labels", "f2c_labels_4"))
    yield f"AG News has {of_labels} instead of {shown(f2c_news, *PAIR)}, and {four} after four steps."
    raw_base, calibrated_base, raw, calibrated = (
        shown([f"movies_formats/{cell}"], *THREE, **small, view=view)
        for cell, view in product(("base-0", "f2c-42"), ("raw", "calibrated"))
    )
    yield f"the calibrated base ({calibrated_base}) unless calibrated: {raw} and {calibrated}."
    yield f"The raw base has {raw_base}."


def figures_of_flickering():
    steps = []
    for task, least in (("movie_reviews", 6), ("ag_news", 5)):
        base, raw, calibrated = stored(f"{task}/base-0"), certainty(task, "raw"), certainty(task, "calibrated")
        vote, templates = base["calibrated"]["vote"], base["raw"]["predictions"]
        nearest = max(templates, key=lambda name: accuracy(templates[name], vote))
        values = [accuracy(base[view]["predictions"][nearest], base["gold"]) for view in ("raw", "calibrated")]
        steps.append(
            [
                shown([f"{task}/base-0"], "accuracy"),
                *(f"{100 * value:.1f}" for value in values),
                *(f"{votes[0][0]:.1f}" for votes in (raw, calibrated)),
                "{:.1f} on {:.1f} % of the rows".format(*calibrated[least]),
            ]
        )
        assert len(templates) == 7
    for reviews, news in zip(*steps, strict=True):
        yield f" | {reviews} | {news} |"
    unanimous = [certainty(task, "calibrated")[7] for task in ("movie_reviews", "ag_news")]
    (right, rows), (right_news, rows_news) = unanimous
    yield (
        f"{100 - right:.0f} and {100 - right_news:.0f} of 100 unanimous votes ({rows:.0f} % of the reviews, "
        f"{rows_news:.0f} % of the news) are wrong"
    )
    yield f"AG News has an accuracy of {raw[least][0]:.1f} at a vote share of 71 % and {raw[0][0]:.1f} overall"
    wic = certainty("wic", "calibrated")
    yield f"WiC has {wic[0][0]:.1f} overall and {wic[-1][0]:.1f} if the votes are unanimous"
    above = tables.with_tables(f"<!-- results {QWEN} | ag_news | f2c | trained -->\n<!-- end of results -->")
    yield f"is {float(above.split('| +')[1].split()[0]):.0f} points above it on AG News"


def figures_of_the_forecast():
    runs = forecast.read_runs()
    yield f"searches {len(runs)} runs of 16 steps"
    groups = ("task", "method")
    task, method = (100 * forecast.hit_rate(runs, "calibrated", group, 4) for group in groups)
    yield f"correctly for {task:.0f} % (another task) and {method:.0f} % (another method)"
    yield f"*always* is right for {100 * (runs['calibrated'] > 0).mean():.0f} %"
    half = [100 * forecast.hit_rate(runs, "raw", group, 8) for group in groups]
    yield "For the raw base at step 8: {:.0f} %, {:.0f} % and {:.0f} %.".format(*half, 100 * (runs["raw"] > 0).mean())


@pytest.mark.parametrize(
    ("page", "figures"),
    [
        ("evidence.md", figures_of_the_evidence),
        ("evidence.md", figures_of_the_forecast),
        ("how-to/flickering.md", figures_of_flickering),
    ],
)
def test_the_figures_in_the_text_are_those_of_the_results(page, figures):
    text = " ".join((run.FOLDER.parent / "docs" / page).read_text(encoding="utf-8").split())
    assert [figure for figure in figures() if figure not in text] == []


@pytest.mark.parametrize(("numbers", "right"), [([1, 2, 8, 9] * 3, 1), ([1, 2, 8, 9, 9, 8, 2, 1], 0)])
def test_the_forecast_of_a_group_comes_from_the_other_groups(numbers, right):
    gains = [-1, -1, 1, 1] * (len(numbers) // 4)
    runs = pd.DataFrame(
        {"raw": gains, "task": [place // 4 for place in range(len(gains))], "eval_vote_drift 4": numbers}
    )
    runs["eval_vote_drift 8"] = gains
    assert forecast.hit_rate(runs, "raw", "task", 4) == right
    assert forecast.hit_rate(runs, "raw", "task", 8) == 1


def test_the_figures_of_open_answers_follow_from_the_stored_answers():
    page = (run.FOLDER.parent / "docs" / "evidence.md").read_text(encoding="utf-8")
    for path in sorted((run.FOLDER / "open").glob("capitals*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        seen, runs = result["training"]["templates"], result["runs"]
        held_out = [name for name in runs["base"]["answers"] if name not in seen]
        for title, names in ((f"{len(seen)} trained", seen), (f"{len(held_out)} held out", held_out)):
            for method, audit in runs.items():
                of_one = open_answers.numbers(audit, names)
                shown = " | ".join(f"{value:.1f}" for value in of_one.values())
                model = tables.TITLES.get(method, method)
                assert f"| {title}, {model} | {shown} |" in page, path
        assert {len(text) for audit in runs.values() for text in audit["answers"].values()} == {150}
    result = json.loads((run.FOLDER / "open" / "capitals.json").read_text(encoding="utf-8"))
    base, trained = result["runs"]["base"], result["runs"]["f2c"]
    before, after = (open_answers.numbers(audit, list(base["answers"]))["accuracy"] for audit in (base, trained))
    assert f"accuracy rises from {before:.1f} to {after:.1f} (+{after - before:.1f}, " in page
    best = [100 * max(fmean(map(int, hits)) for hits in audit["right"].values()) for audit in (base, trained)]
    assert f"rises from {best[0]:.1f} to {best[1]:.1f}." in page
    votes = json.loads((run.FOLDER / "open" / "capitals-ssd.json").read_text(encoding="utf-8"))["vote_accuracy"]
    of_f2c = result["vote_accuracy"]["f2c"]
    assert f"its vote of the eight has {100 * votes['ssd']:.1f}, F2C's {100 * of_f2c:.1f}." in page
    assert f"The vote of the eight had {100 * result['vote_accuracy']['base']:.1f} before" in page
