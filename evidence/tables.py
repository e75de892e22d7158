"""Writes the tables of the pages from the results. Usage: python -m evidence.tables.

A table is between `<!-- KIND A ... | B ... -->` and `<!-- end of KIND -->`:

- results MODEL ... | TASK ... | METHOD ... | PART ...: the metrics of methods, means over seeds. A part is trained or
  held_out. Methods without a result are skipped. With `| brief` at the end, a table has only agreement and accuracy.
- changes MODEL ... | TASK ... | METHOD ... | PART ...: agreement and accuracy, and how they differ from those of the
  first method's first seed.
- steps MODEL | TASK ...: how often one template and the votes of a base are right.
- repeats MODEL/CELL MODEL/CELL | ...: how many answers of two runs differ.
- averages MODEL ... | TASK ... | METHOD ... | PART ...: methods next to averages of the base over the orders.
"""

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from evidence.run import AVERAGES, FOLDER, RESULTS, SHOWN, UNTUNED
from flip_flop.console import count, percent, point_interval, points
from flip_flop.files import read_json, write_text
from flip_flop.metrics import METRICS, Design, Scores

DOCS = FOLDER.parent / "docs"
PAGES = (FOLDER / "RESULTS.md", DOCS / "evidence.md", DOCS / "how-to" / "flickering.md", FOLDER.parent / "README.md")
SECTION = re.compile(r"(<!-- (results|changes|steps|repeats|averages)(.*?) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
# Names of models, tasks, methods and metrics.
NAMES = {
    "qwen2.5-coder-0.5b": "Qwen",
    "qwen2.5-coder-1.5b": "Qwen 1.5B",
    "smollm2-135m": "SmolLM2",
    "ag_news": "AG News",
    "ag_news_formats": "AG News",
    "trec": "TREC",
    "trec_formats": "TREC",
    "wic": "WiC",
    "hellaswag": "HellaSwag",
    "winogrande": "Winogrande",
    "svamp": "steps",
    "svamp_direct": "number",
    "svamp_equation": "equation",
    "cpc_grpo": "CPC-GRPO",
    "marginal_entropy": "marginal entropy",
    "f2c_paper": "F2C, `paper`",
    "f2c_labels": "F2C, `cce_space: labels`",
    "f2c_labels_4": "F2C, `cce_space: labels`, 4 steps",
    "f2c_tokens": "F2C, `cce_space: vocab`",
    "f2c_both": "F2C, `divergence_space: both`",
    "f2c_uncalibrated": "F2C, `vote_calibration: none`",
    "f2c_online": "F2C, `votes: online`",
    "f2c_slow": "F2C, `learning_rate: 1e-4`",
    "f2c_1024": "F2C, 1,024 rows in 64 steps",
    "f2c_ensemble": "F2C, ensemble as a target",
    "observed_agreement": "P_o",
    "macro_f1": "macro-F1",
    "f1_std": "std",
    "vote_accuracy": "vote",
    "vote_f1": "macro-F1 of the vote",
    "unmapped_share": "unreadable",
    "order_flips": "flips by order",
    "wording_flips": "flips by wording",
    "format_flips": "flips by format",
    "examples_flips": "flips by examples",
    "example_order_flips": "flips by their order",
    "typos_flips": "flips by typos",
    "f2c_adaptive": "F2C, adaptive",
}
UPPER = ("rte", "cb", "copa", "wsc", "anli_r1", "anli_r2", "anli_r3", "f2c", "cce", "bct", "opct", "ssd", "ttrl")
NAMES |= {word: word.replace("_", " ").upper() for word in UPPER}
NAMES |= {f"f2c_{number}": f"F2C, {number} templates" for number in (2, 3, 5)}
NAMES |= {f"f2c_{setting}_{value}": f"F2C, `{setting}: {value}`" for setting, value in UNTUNED}
# The views of an audit. Open answers are not calibrated.
VIEWS = {"raw": "", "calibrated": "calibrated: "}
# The forms of the answers of a base: one template, or an average over the orders of the options.
FORMS = {"raw": "", "calibrated": ", calibrated", **{name: f", {name}" for name in AVERAGES}}
AVERAGED = ("wording_flips", "accuracy")
# The least share of the templates that give a vote.
SHARES = {0: "", 0.8: ", vote share of at least 80 %", 1: ", unanimous"}


class Answers(NamedTuple):
    """The answers of an audit and the votes, as characters [rows, templates] and [rows, 1], and which are right."""

    labels: np.ndarray
    votes: np.ndarray
    are_right: np.ndarray
    votes_are_right: np.ndarray


def with_tables(page: str, results: Path = RESULTS) -> str:
    """Return a page with the tables of the results."""
    kinds = {
        "results": results_table,
        "changes": changes_table,
        "steps": steps_table,
        "repeats": repeats_table,
        "averages": averages_table,
    }

    def section(found: re.Match[str]) -> str:
        return found[1] + kinds[found[2]](results, *(words.split() for words in found[3].split("|"))) + found[4]

    return SECTION.sub(section, page)


def markdown(head: str, lines: list[str]) -> str:
    """Return a table with its head; an empty text without lines."""
    return "\n".join(("", head, "|---" * (head.count("|") - 1) + "|", *lines, "", "")) if lines else ""


def name_of(word: str) -> str:
    """Return the name of a model, task, method, metric or part."""
    method, _, source = word.partition("_from_")
    if source:
        return f"{name_of(method)}, trained on {name_of(source)}"
    word = re.sub("-bf16.*|_orders|_typos", "", word)
    return NAMES.get(word, word.replace("_", " "))


def audits_of(folder: Path, method: str, part: str) -> list[dict[str, Any]]:
    """Return the audits of a method on a part of the templates, one for each seed."""
    audits = [read_json(file)["audits"] for file in sorted(folder.glob(f"{method}-*.json"))]
    return [audit[part] for audit in audits if part in audit]


def answers_of(audit: dict[str, Any], view: str) -> Answers:
    """Return the answers of an audit, raw or calibrated."""
    labels, votes = characters(audit[view]["predictions"].values()), characters([audit[view]["vote"]])
    if "calibrated" in audit:
        gold = characters([audit["gold"]])
        return Answers(labels, votes, labels == gold, votes == gold)
    right = characters(audit[view]["right"].values()) == "1"
    return Answers(labels, votes, right, np.take_along_axis(right, (labels == votes).argmax(axis=1)[:, None], axis=1))


def characters(texts: Iterable[str]) -> np.ndarray:
    """Return texts as columns."""
    return np.array([list(text) for text in texts]).T


def results_table(
    results: Path, models: list[str], tasks: list[str], methods: list[str], parts: list[str], *brief: list[str]
) -> str:
    """Return a table of methods."""
    lines = []
    head = ""
    for _, line, runs, base in compared(results, models, tasks, methods, parts):
        views = [view for view in VIEWS if view in base]
        metrics = list(base["raw"]["metrics"])[: 2 if brief else None]
        vote = answers_of(base, views[-1]).votes_are_right
        differences = [difference_from(vote, [answers_of(run, view).are_right for run in runs]) for view in views]
        head = "| model"
        for view, (difference, interval) in zip(views, differences, strict=True):
            means = [percent(np.mean([run[view]["metrics"][name] for run in runs])) for name in metrics]
            line += f" | {' / '.join(means)} | {points(difference)} ({point_interval(interval)})"
            head += f" | {VIEWS[view]}{' / '.join(map(name_of, metrics))} | above the vote"
        lines.append(f"{line} |")
    return markdown(f"{head} |", lines)


def compared(results: Path, *columns: list[str]) -> Iterable[tuple[Any, ...]]:
    """Return for each line whether its method is the first, its start, its audits, and the first method's audit."""
    models, tasks, methods, parts = columns
    for model, task, part, method in product(models, tasks, parts, methods):
        runs, bases = (audits_of(results / model / task, name, part) for name in (method, methods[0]))
        if runs and bases:
            names = ((model, models), (task, tasks), (part, parts))
            place = ", ".join(name_of(name) for name, several in names if len(several) > 1)
            line = f"| {place}{place and ': '}{name_of(method)}"
            line += f", {count(len(runs), 'seed')}" if method != "base" else ""
            yield method == methods[0], line, runs, bases[0]


def changes_table(results: Path, *columns: list[str]) -> str:
    """Return a table of metrics, by default agreement and accuracy, with differences from the first method."""
    lines = []
    head = "| model |"
    shown = [*product(VIEWS, *columns[4:] or [SHOWN[:2]])]
    for view, name in shown:
        head += f" {VIEWS[view]}{name_of(name)} |"
    for is_first, line, runs, base in compared(results, *columns[:4]):
        for view, name in shown:
            before, *after = (scores_of(audit, view) for audit in (base, *runs))
            line += f" | {percent(mean_of(name, after))}"
            if not is_first:
                line += f", {change(name, before, after)}"
        lines.append(f"{line} |")
    return markdown(head, lines)


def scores_of(audit: dict[str, Any], view: str) -> Scores:
    """Return the answers of an audit as scores: 0 for the label that a template answers."""
    predictions = audit[view]["predictions"].values()
    gold, answers = (characters(texts).astype(int) for texts in ([audit["gold"]], predictions))
    is_answer = answers[..., None] == np.arange(audit["num_labels"])
    levels = audit[view].get("levels", audit.get("levels", []))
    return Scores(np.where(is_answer, 0.0, -np.inf), gold[:, 0], design=Design(levels=levels))


def mean_of(name: str, runs: list[Scores]) -> float:
    """Return a metric, mean over runs."""
    return float(np.mean([METRICS[name].value(scores) for scores in runs]))


def change(name: str, before: Scores, after: list[Scores]) -> str:
    """Return the difference of a metric from a base, mean over runs, with the paired interval."""
    difference = mean_of(name, after) - mean_of(name, [before])
    return f"{points(difference)} ({point_interval(METRICS[name].change_interval(before, *after))})"


def difference_from(vote: np.ndarray, answers: list[np.ndarray]) -> tuple[float, tuple[float, float] | None]:
    """Return the accuracy of one template, mean over runs, minus the vote's, with the paired 95% interval."""
    scores = [
        Scores(np.where(np.stack([~right, right], axis=-1), 0.0, -np.inf), np.ones(len(right), dtype=np.int64))
        for right in (vote, *answers)
    ]
    return float(np.mean(list(map(np.mean, answers))) - vote.mean()), METRICS["accuracy"].change_interval(*scores)


def steps_table(results: Path, model: list[str], tasks: list[str]) -> str:
    """Return how often one template and the votes of a base are right, and on how many rows."""
    lines: dict[str, str] = {}
    for task in tasks:
        (base,) = audits_of(results / model[0] / task, "base", "trained")
        raw, calibrated = (answers_of(base, view) for view in VIEWS)
        nearest = (raw.labels == calibrated.votes).mean(axis=0).argmax()
        cells = {
            "one template, mean over templates | 1": percent(raw.are_right.mean()),
            "the template that gives the calibrated vote most often | 1": percent(raw.are_right[:, nearest].mean()),
            "the same, calibrated | 1": percent(calibrated.are_right[:, nearest].mean()),
        }
        votes = {"majority vote": raw, "calibrated vote": calibrated}
        for (name, answers), (least, share) in product(votes.items(), SHARES.items()):
            rows = (answers.labels == answers.votes).mean(axis=1) >= least
            on = f" on {percent(rows.mean())} % of the rows" if least else ""
            cells[f"{name}{share} | all"] = f"{percent(answers.votes_are_right[rows].mean())}{on}"
        lines = {name: f"{lines.get(name, f'| {name}')} | {cell}" for name, cell in cells.items()}
    head = f"| step | passes per row | {' | '.join(map(name_of, tasks))} |"
    return markdown(head, [f"{line} |" for line in lines.values()])


def repeats_table(results: Path, *repeats: list[str]) -> str:
    """Return how many answers of two runs of a cell differ, and how much their metrics."""
    lines = []
    for cells in repeats:
        audits = [read_json(results / f"{cell}.json")["audits"] for cell in cells]
        pairs = [[audit[part]["raw"] for audit in audits] for part in audits[0]]
        answers = [["".join(view["predictions"].values()) for view in pair] for pair in pairs]
        number = sum(sum(map(str.__ne__, *texts)) for texts in answers)
        changes = [max(abs(one["metrics"][name] - two["metrics"][name]) for one, two in pairs) for name in SHOWN[:2]]
        words = f"{number} of {sum(len(text) for text, _ in answers):,}"
        lines.append(f"| {' and '.join(cells)} | {words} | {' | '.join(map(percent, changes))} |")
    return markdown("| runs | different answers | P_o, at most | accuracy, at most |", lines)


def averages_table(results: Path, *columns: list[str]) -> str:
    """Return a table of methods and of the base's averages over the orders, with differences from these averages."""
    lines = []
    for is_base, line, runs, base in compared(results, *columns):
        for form in FORMS if is_base else VIEWS:
            after = [scores_of(run, form) for run in runs]
            cells = [line + FORMS[form]]
            cells.append("–" if form in AVERAGES else percent(mean_of("order_flips", after)))
            cells += [percent(mean_of(name, after)) for name in AVERAGED]
            for average, name in product(AVERAGES, AVERAGED):
                is_same = is_base and form == average
                cells.append("–" if is_same else change(name, scores_of(base, average), after))
            lines.append(f"{' | '.join(cells)} |")
    names = ["order_flips", *AVERAGED]
    head = " | ".join(["| model", *map(name_of, names)])
    for average, name in product(AVERAGES, AVERAGED):
        head += f" | {name_of(name)}, against the {average}"
    return markdown(f"{head} |", lines)


if __name__ == "__main__":
    for page in PAGES:
        write_text(page, with_tables(page.read_text(encoding="utf-8")))
