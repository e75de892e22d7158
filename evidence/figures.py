"""The figures in the text of docs/evidence.md and of how-to pages, computed from the results.

Usage: python -m evidence.figures prints the sentences that a page does not have.
"""

from collections.abc import Callable, Iterator
from itertools import product
from statistics import fmean
from typing import Any

import numpy as np

from evidence import forecast, open_answers, tables
from evidence.run import FOLDER, RESULTS, SHOWN, change, scores_of
from flip_flop.console import percent, percent_interval, point_interval, points
from flip_flop.files import read_json
from flip_flop.metrics import METRICS, Scores

QWEN, QWEN_FLOAT32, SMOL = "qwen2.5-coder-0.5b-bf16", "qwen2.5-coder-0.5b", "smollm2-135m"


def stored(cell: str, part: str = "trained", model: str = QWEN) -> dict[str, Any]:
    """Return an audit of a cell."""
    return read_json(RESULTS / model / f"{cell}.json")["audits"][part]


def shown(cells: list[str], *metrics: str, view: str = "raw", **where: str) -> str:
    """Return metrics in percent, means over cells."""
    means = [fmean(stored(cell, **where)[view]["metrics"][metric] for cell in cells) for metric in metrics]
    return " / ".join(f"{100 * mean:.1f}" for mean in means)


def seeds(cell: str) -> list[str]:
    """Return a method's cells of three seeds."""
    return [f"{cell}-{seed}" for seed in range(3)]


def cells_named(method: str) -> list[str]:
    """Return a method's cells on movie reviews of the model in float32."""
    files = sorted((RESULTS / QWEN_FLOAT32 / "movie_reviews").glob(f"{method}-*.json"))
    return [f"movie_reviews/{file.stem}" for file in files]


def beside_vote(method: str, view: str, part: str) -> tuple[str, str]:
    """Return P_o and accuracy of such cells, and the difference in accuracy from the calibrated vote of their base."""
    audits = [stored(cell, part, QWEN_FLOAT32) for cell in ("movie_reviews/base-0", *cells_named(method))]
    means, difference = tables.cells_of(view, audits[1:], audits[0]["calibrated"]["vote"])
    return " / ".join(means[:2]), difference


def differences(cell: str, *models: str) -> tuple[int, str, str]:
    """Return the number of different answers of two models, and the larger change of P_o and of accuracy."""
    answers, changes = 0, []
    for part in PARTS:
        first, second = (stored(cell, part, model)["raw"] for model in models)
        for template, labels in first["predictions"].items():
            answers += sum(map(str.__ne__, labels, second["predictions"][template]))
        changes.append([abs(first["metrics"][metric] - second["metrics"][metric]) for metric in PAIR])
    return answers, *(f"{100 * max(values):.1f}" for values in zip(*changes, strict=True))


def by_gold_labels(view: str) -> tuple[str, str]:
    """Return what gold labels add to the accuracy of one template, with the interval."""
    cells = [stored(cell) for cell in ("movie_reviews/supervised-0", *seeds("movie_reviews/f2c"))]
    gold = np.array([*cells[0]["gold"]], dtype=np.int64)
    scores = [scores_of([*cell[view]["predictions"].values()], gold, 2) for cell in cells]
    value, low, high = (-number for number in change("accuracy", *scores))
    return f"{100 * value:.1f}", f"{points(high)} to {points(low)}"


def certainty(task: str, view: str) -> list[tuple[float, float]]:
    """Return the accuracy of the votes, and the share of the rows, with at least so many templates for the vote."""
    audit = stored(f"{task}/base-0")
    votes, templates = audit[view]["vote"], [*audit[view]["predictions"].values()]
    shares = [answers.count(vote) for vote, answers in zip(votes, zip(*templates, strict=True), strict=True)]

    def certain(least: int) -> tuple[float, float]:
        right = [
            vote == truth for vote, truth, share in zip(votes, audit["gold"], shares, strict=True) if share >= least
        ]
        return 100 * fmean(right), 100 * len(right) / len(votes)

    return [certain(least) for least in range(len(templates) + 1)]


def _accuracy(answers: str, gold: str) -> float:
    return fmean(map(str.__eq__, answers, gold))


def calibration_adds(task: str) -> float:
    """Return the points of accuracy that calibration adds to the base."""
    before, after = (stored(f"{task}/base-0")[view]["metrics"]["accuracy"] for view in ("raw", "calibrated"))
    return 100 * (after - before)


PARTS = ("trained", "held_out")
PAIR, THREE = SHOWN[:2], SHOWN[:3]
CAL = {"view": "calibrated"}


def of_the_evidence() -> Iterator[str]:
    """Yield sentences about the methods and tasks."""
    answers, agreement, right = differences("movie_reviews/base-0", QWEN_FLOAT32, QWEN)
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
    added = {folder.name: calibration_adds(folder.name) for folder in (RESULTS / QWEN).iterdir()}
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
    for words, view, part in (
        ("one template has P_o / accuracy {}, {} from the calibrated vote.", "raw", "trained"),
        ("Calibrated, it has {}, {} from it.", "calibrated", "trained"),
        ("Under held-out templates, it has {}, {} from their calibrated vote.", "raw", "held_out"),
    ):
        yield words.format(*beside_vote("f2c_1024", view, part))
    by_seed = [shown([cell], "accuracy", model=QWEN_FLOAT32) for cell in cells_named("f2c_1024")]
    yield f"The accuracies of the seeds are {' and '.join(by_seed)}."
    trained, unseen = (beside_vote("f2c_ensemble", "raw", part) for part in PARTS)
    yield "one template has {} ({} from the calibrated vote)".format(*trained) + f", and {unseen[0]} under held-out"
    one, calibrated = (shown(base, *PAIR, view=view, model="qwen2.5-coder-1.5b") for view in ("raw", "calibrated"))
    votes = shown(base, "vote_accuracy", model="qwen2.5-coder-1.5b", **CAL)
    yield f"without training, {one}, calibrated {calibrated}, and its calibrated vote an accuracy of {votes}."
    of_labels, four = (shown(seeds(f"ag_news/{name}"), *PAIR) for name in ("f2c_labels", "f2c_labels_4"))
    yield f"AG News has {of_labels} instead of {shown(f2c_news, *PAIR)}, and {four} after four steps."
    judge = [shown([f"facts/{cell}"], *PAIR, **small) for cell in ("base-0", "f2c-0", "cce-0")]
    one, all_runs = QWEN_FLOAT32, (["base-0"], ["f2c-0", "cce-0"])
    right = [
        [100 * stored(f"facts/{cell}", part, one)["raw"]["metrics"]["accuracy"] for cell, part in product(cells, PARTS)]
        for cells in all_runs
    ]
    before, after = (f"{min(values):.0f} to {max(values):.0f} %" for values in right)
    yield f"of its verdicts, {before} were right before and {after} are after."
    yield "SmolLM2-135M-Instruct guesses: P_o / accuracy are {} before, {} after F2C and {} after CCE.".format(*judge)


def of_flickering() -> Iterator[str]:
    """Yield sentences about votes."""
    steps = []
    for task, least in (("movie_reviews", 6), ("ag_news", 5)):
        base, raw, calibrated = stored(f"{task}/base-0"), certainty(task, "raw"), certainty(task, "calibrated")
        vote, templates = base["calibrated"]["vote"], base["raw"]["predictions"]
        nearest = max(templates, key=lambda name: _accuracy(templates[name], vote))
        values = [_accuracy(base[view]["predictions"][nearest], base["gold"]) for view in ("raw", "calibrated")]
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


def of_the_tutorial() -> Iterator[str]:
    """Yield sentences about settings of the tutorial, and its formats."""
    small = {"model": SMOL}
    raw_base, calibrated_base, raw, calibrated = (
        shown([f"movies_formats/{cell}"], *THREE, **small, view=view)
        for cell, view in product(("base-0", "f2c-42"), ("raw", "calibrated"))
    )
    yield f"one template has P_o / accuracy / macro-F1 {raw}, and calibrated {calibrated}."
    yield f"The base has {raw_base}, and calibrated {calibrated_base}."
    others, f2c = (
        [f"movies/{cell}" for cell in cells]
        for cells in (("cce-42", "f2c_uncalibrated-42", "f2c_both-42", "f2c_tokens-42"), ("f2c-1", "f2c-2", "f2c-42"))
    )
    for words, where in (
        ("an accuracy of {}. The seeds of F2C have {}.", small),
        ("these methods have {}, and F2C {}.", {**small, **CAL, "part": "held_out"}),
    ):
        values = [[float(shown([cell], "accuracy", **where)) for cell in cells] for cells in (others, f2c)]
        yield words.format(*(f"{min(numbers):.1f} to {max(numbers):.1f}" for numbers in values))
    slow = shown(["movies/f2c_slow-42"], "accuracy", **small)
    yield f"a third of the learning rate gives {slow}."
    one_label = [
        percent(max(map(answers.count, "01")) / len(answers), 0)
        for cell in ("f2c_online", "swarm")
        for answers in ["".join(stored(f"movies/{cell}-42", **small)["raw"]["predictions"].values())]
    ]
    yield "collapse: {} % of the answers under trained templates are one label, and {} % after swarm.".format(
        *one_label
    )


def of_the_forecast() -> Iterator[str]:
    """Yield sentences about the forecast of a run's success."""
    runs = forecast.read_runs()
    yield f"searches {len(runs)} runs of 16 steps"
    groups = ("task", "method")
    task, method = (100 * forecast.hit_rate(runs, "calibrated", group, 4) for group in groups)
    yield f"correctly for {task:.0f} % (another task) and {method:.0f} % (another method)"
    yield f"*always* is right for {100 * (runs['calibrated'] > 0).mean():.0f} %"
    half = [100 * forecast.hit_rate(runs, "raw", group, 8) for group in groups]
    yield "For the raw base at step 8: {:.0f} %, {:.0f} % and {:.0f} %.".format(*half, 100 * (runs["raw"] > 0).mean())


def open_runs(result: dict[str, Any]) -> list[Scores]:
    """Return the runs of a result on open answers under all templates."""
    return [open_answers.scores_of(run, [*run["answers"]]) for run in result["runs"].values()]


def against(before: Scores, after: Scores, metric: str = "accuracy") -> tuple[str, str]:
    """Return the change of a metric in points, and its interval."""
    value, *interval = change(metric, before, after)
    return points(value), point_interval(interval)


def of_open_answers() -> Iterator[str]:
    """Yield rows of tables and sentences about open answers."""
    results = {path.stem: read_json(path) for path in sorted((FOLDER / "open").glob("*capitals*.json"))}
    for result in results.values():
        seen, runs = result["training"]["templates"], result["runs"]
        model = "Qwen, " if result["model"].startswith("qwen") else ""
        held_out = [name for name in runs["base"]["answers"] if name not in seen]
        for title, names in ((f"{len(seen)} trained", seen), (f"{len(held_out)} held out", held_out)):
            for method, audit in runs.items():
                values = " | ".join(f"{value:.1f}" for value in open_answers.numbers(audit, names).values())
                yield f"| {model}{title}, {tables.TITLES.get(method, method)} | {values} |"
    shares = [results[name]["training"]["survey"]["consensus_share"] for name in ("capitals", "qwen-capitals")]
    yield f"{percent(shares[0], 0)} and {percent(shares[1], 0)} % of the training rows had a strict majority."
    yield f"over {results['capitals']['training']['num_rows']} unlabelled places"
    for name, words in (("capitals", "{}, 95 % interval {}"), ("qwen-capitals", "{}, {}")):
        before, after = open_runs(results[name])
        first, second = (percent(run.right.mean()) for run in (before, after))
        yield f"accuracy rises from {first} to {second} ({words.format(*against(before, after))})"
        yield f"of the eight had {percent(results[name]['vote_accuracy']['base'])} before"
    before, after = open_runs(results["capitals"])
    yield "is not clearly different from it ({}, {}).".format(*against(before.voted, after))
    smol = [results["capitals"]["runs"][method]["right"].values() for method in ("base", "f2c")]
    best = [100 * max(fmean(map(int, hits)) for hits in templates) for templates in smol]
    yield f"rises from {best[0]:.1f} to {best[1]:.1f}."
    cells = (("capitals-ssd", "ssd"), ("capitals", "f2c"), ("qwen-capitals-ssd", "ssd"))
    votes = (100 * results[name]["vote_accuracy"][method] for name, method in cells)
    yield "Its vote of the eight has {:.1f} for SmolLM2 (F2C's {:.1f}) and {:.1f} for Qwen.".format(*votes)


def of_word_problems() -> Iterator[str]:
    """Yield the rows of the table of SVAMP, and what training changes under held-out templates."""
    rows = (
        ("svamp-direct", "SmolLM2, number"),
        ("qwen-svamp-direct", "Qwen, number"),
        ("qwen-svamp", "Qwen, steps"),
        ("svamp-equation", "SmolLM2, equation"),
        ("svamp-equation-ssd", "SmolLM2, equation"),
        ("svamp-equation-ttrl", "SmolLM2, equation"),
        ("qwen-svamp-equation-ssd", "Qwen, equation"),
        ("qwen-svamp-equation-ttrl", "Qwen, equation"),
        ("qwen-svamp-equation", "Qwen, equation"),
    )
    for name, title in rows:
        result = read_json(FOLDER / "open" / f"{name}.json")
        for method, audit in result["runs"].items():
            values = [*open_answers.numbers(audit, list(audit["answers"])).values()]
            values.append(100 * result["vote_accuracy"][method])
            trained = "" if method == "base" else f", {tables.TITLES[method]}"
            yield f"| {title}{trained} | {' | '.join(f'{value:.1f}' for value in values)} |"
    held_out = [name for name in result["runs"]["base"]["answers"] if name not in result["training"]["templates"]]
    audits = [open_answers.numbers(audit, held_out) for audit in result["runs"].values()]
    first, second = (f"{audit['observed_agreement']:.1f} / {audit['accuracy']:.1f}" for audit in audits)
    yield f"from {first} to {second}."
    before, after = open_runs(result)
    training = result["training"]
    yield f"F2C took {training['seconds'] / 60:.0f} minutes on one core (one pass over {training['num_rows']} problems"
    yield f"{percent(training['survey']['consensus_share'], 0)} % had a strict majority)"
    (right, right_interval), (agreed, interval) = (
        against(before, after, metric) for metric in ("accuracy", "observed_agreement")
    )
    yield f"Accuracy rises by {right[1:]} (95 % interval {right_interval}), P_o by {agreed[1:]} ({interval})."
    yield "One phrasing is not clearly different from the vote of the base ({}, {}).".format(
        *against(before.voted, after)
    )
    (steps,) = open_runs(read_json(FOLDER / "open" / "qwen-svamp.json"))
    vote, one = (
        (percent(run.right.mean()), percent_interval(METRICS["accuracy"].interval(run))) for run in (steps.voted, steps)
    )
    yield f"it is right for {vote[0]} % (95 % interval {vote[1]}), one phrasing for {one[0]} ({one[1]})"


def of_the_judge() -> Iterator[str]:
    """Yield the flips by wording, the only difference of the templates of facts."""
    for part, words in (("trained", "from {} % to {} %"), ("held_out", "not seen from {} % to {} %")):
        audits = [stored(f"facts/{cell}", part, QWEN_FLOAT32)["raw"] for cell in ("base-0", "f2c-0")]
        flips = [f"{100 * (1 - audit['metrics']['observed_agreement']):.1f}" for audit in audits]
        yield words.format(*flips)


PAGES: dict[Callable[[], Iterator[str]], str] = {
    of_the_evidence: "evidence.md",
    of_the_tutorial: "evidence.md",
    of_the_forecast: "evidence.md",
    of_open_answers: "evidence.md",
    of_word_problems: "evidence.md",
    of_the_judge: "how-to/judges.md",
    of_flickering: "how-to/flickering.md",
}


def missing(sentences: Callable[[], Iterator[str]]) -> list[str]:
    """Return the sentences that their page does not have."""
    text = " ".join((FOLDER.parent / "docs" / PAGES[sentences]).read_text(encoding="utf-8").split())
    return [sentence for sentence in sentences() if " ".join(sentence.split()) not in text]


if __name__ == "__main__":
    print("\n".join(sentence for sentences in PAGES for sentence in missing(sentences)))
