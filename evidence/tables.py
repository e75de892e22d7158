"""Writes the tables of the pages from the results. Usage: python -m evidence.tables.

A table is between `<!-- KIND A ... | B ... -->` and `<!-- end of KIND -->`:

- results MODEL ... | TASK ... | METHOD ... | PART ...: the metrics of methods, means over seeds. A part is trained or
  held_out. Methods without a result are skipped. A sentence below compares F2C with the calibrated vote of the base.
  With `| brief` at the end, a method has one line, which names its model, task and part if there are several.
- steps MODEL | TASK ...: how often one template and the votes of a base are right.
- repeats CELL MODEL MODEL | ...: how many answers of two runs of a cell differ.
- forecast: how often the rules of evidence.forecast are right.
"""

import re
import textwrap
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from evidence import forecast
from evidence.run import FOLDER, RESULTS, SHOWN
from flip_flop.console import count, percent, point_interval, points
from flip_flop.files import read_json, write_text
from flip_flop.metrics import METRICS, Scores

DOCS = FOLDER.parent / "docs"
PAGES = (FOLDER / "RESULTS.md", DOCS / "evidence.md", DOCS / "how-to" / "flickering.md", FOLDER.parent / "README.md")
SECTION = re.compile(r"(<!-- (results|steps|repeats|forecast)(.*?) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)
HEAD = "| task | templates, rows | model | P_o / accuracy / macro-F1 | std | vote | above the calibrated vote |"
BRIEF = (
    "| model | P_o / accuracy | above the calibrated vote | calibrated: P_o / accuracy | above the calibrated vote |"
)
OPEN = "| model | P_o / accuracy | above the vote of the base | vote | unreadable |"
WORDS = {
    **{"qwen2.5-coder-0.5b": "Qwen", "qwen2.5-coder-1.5b": "Qwen 1.5B", "smollm2-135m": "SmolLM2"},
    **{task: task.replace("_", " ").upper() for task in ("rte", "cb", "copa", "wsc", "anli_r1", "anli_r2", "anli_r3")},
    **{"ag_news": "AG News", "wic": "WiC", "hellaswag": "HellaSwag", "winogrande": "Winogrande", "svamp": "steps"},
    **{"svamp_direct": "number", "svamp_equation": "equation"},
}
_CLAIM = "Next to the base's calibrated vote, one template of F2C has {}."
TITLES = {
    **{method: method.upper() for method in ("f2c", "cce", "bct", "opct", "ssd", "ttrl")},
    **{"cpc_grpo": "CPC-GRPO", "marginal_entropy": "marginal entropy", "f2c_paper": "F2C, `paper`"},
    **{"f2c_labels": "F2C, `cce_space: labels`", "f2c_labels_4": "F2C, `cce_space: labels`, 4 steps"},
    **{"f2c_tokens": "F2C, `cce_space: vocab`", "f2c_both": "F2C, `divergence_space: both`"},
    **{"f2c_uncalibrated": "F2C, `vote_calibration: none`"},
    **{"f2c_online": "F2C, `votes: online`", "f2c_slow": "F2C, `learning_rate: 1e-4`"},
    **{"f2c_1024": "F2C, 1,024 rows in 64 steps", "f2c_ensemble": "F2C, ensemble as a target"},
}
# The least share of the templates that give a vote.
SHARES = {0: "", 0.8: ", vote share of at least 80 %", 1: ", unanimous"}
# What an audit in a result has.
AuditResult = dict[str, Any]


def with_tables(page: str, results: Path = RESULTS) -> str:
    """Return a page with the tables of the results."""
    kinds = {"results": results_table, "steps": steps_table, "repeats": repeats_table, "forecast": forecast_table}

    def section(found: re.Match[str]) -> str:
        return found[1] + kinds[found[2]](results, *(words.split() for words in found[3].split("|"))) + found[4]

    return SECTION.sub(section, page)


def markdown(head: str, lines: list[str]) -> str:
    """Return a table with its head."""
    return "\n".join(("", head, "|---" * (head.count("|") - 1) + "|", *lines, "", ""))


def runs_of(folder: Path, method: str, part: str) -> list[AuditResult]:
    """Return the audits of a method on a part of the templates, one for each seed."""
    audits = [read_json(file)["audits"] for file in sorted(folder.glob(f"{method}-*.json"))]
    return [audit[part] for audit in audits if part in audit]


def scores_of(audit: AuditResult, view: str) -> Scores:
    """Return the predictions of an audit as scores."""
    labels, gold = (_numbers(audit[view]["predictions"].values()), _numbers([audit["gold"]])[:, 0])
    answered = {"key": labels, "exact": _numbers(audit[view]["right"].values()) == 1} if "right" in audit[view] else {}
    return Scores(_certain(labels, audit), gold, average="macro", answered=answered)


def vote_of(audit: AuditResult, view: str) -> Scores:
    """Return the votes of an audit as the answers of one template."""
    scores = scores_of(audit, view)
    if scores.answered:
        return scores.voted
    return Scores(_certain(_numbers([audit[view]["vote"]]), audit), scores.gold, average="macro")


def _numbers(texts: Iterable[str]) -> np.ndarray:
    return np.array([["0123456789".find(digit) for digit in text] for text in texts], dtype=np.int64).T


def _certain(labels: np.ndarray, audit: AuditResult) -> np.ndarray:
    return np.where(labels[..., None] == np.arange(audit["num_labels"]), 0.0, -np.inf)


def results_table(
    results: Path, models: list[str], tasks: list[str], methods: list[str], parts: list[str], *brief: list[str]
) -> str:
    """Return a table of methods, and a sentence on F2C."""
    lines, claims, head = [], [], BRIEF if brief else HEAD
    for model, task, part, method in product(models, tasks, parts, methods):
        runs, bases = (runs_of(results / model / task, name, part) for name in (method, "base"))
        if not runs or not bases:
            continue
        title, seeds = TITLES.get(method, method), f", {count(len(runs), 'seed')}" if method != "base" else ""
        names = ((model, models), (task, tasks), (part, parts))
        place = ", ".join(_words(name) for name, several in names if len(several) > 1)
        cells = [cells_of(view, runs, bases[0]) for view in views_of(bases[0])]
        if len(cells) == 1:
            head, ((agreement, accuracy, vote, unreadable), above) = OPEN, cells[0]
            lines.append(f"| {place}: {title}{seeds} | {agreement} / {accuracy} | {above} | {vote} | {unreadable} |")
        elif brief:
            shown = " | ".join(f"{' / '.join(means[:2])} | {above}" for means, above in cells)
            lines.append(f"| {place}{place and ': '}{title}{seeds} | {shown} |")
        else:
            rows = f"{_words(task)} | {len(runs[0]['raw']['predictions'])} {_words(part)}, {len(runs[0]['gold']):,}"
            for view, (means, above) in zip(("", ", calibrated"), cells, strict=True):
                shown = f"{' / '.join(means[:3])} | {means[3]} | {' / '.join(means[4:])}"
                lines.append(f"| {rows} | {title}{view}{seeds} | {shown} | {above} |")
            claims += [_claim(_words(task), _words(part), runs, bases[0])] if method == "f2c" else []
    text = "\n".join(textwrap.wrap(_CLAIM.format("; ".join(claims)), 140)) + "\n\n" if claims else ""
    return markdown(head, lines) + text if lines else ""


def views_of(audit: AuditResult) -> list[str]:
    """Return the views of an audit. Open answers are not calibrated."""
    return [view for view in ("raw", "calibrated") if view in audit]


def cells_of(view: str, runs: list[AuditResult], base: AuditResult) -> tuple[list[str], str]:
    """Return the metrics, means over seeds, and the difference in accuracy from the vote, as texts."""
    value, *interval = _difference(view, runs, base)
    means = [percent(np.mean([run[view]["metrics"][name] for run in runs])) for name in runs[0][view]["metrics"]]
    return means, f"{points(value)} ({point_interval(interval)})"


def _difference(view: str, runs: list[AuditResult], base: AuditResult) -> tuple[float, float, float]:
    """Return the accuracy of one template minus the accuracy of the base's vote, with the ends of its interval."""
    vote, *answers = vote_of(base, views_of(base)[-1]), *(scores_of(run, view) for run in runs)
    before, *after = (run.right.mean() for run in (vote, *answers))
    low, high = METRICS["accuracy"].change_interval(vote, *answers) or (np.nan, np.nan)
    return float(np.mean(after) - before), low, high


def _claim(task: str, part: str, runs: list[AuditResult], base: AuditResult) -> str:
    """Return where the accuracy of one template of F2C is, next to the calibrated vote."""
    value, low, high = _difference("raw", runs, base)
    place = ("a higher" if value > 0 else "a lower") if low > 0 or high < 0 else "no clearly different"
    return f"{place} accuracy on {task} ({part} templates)"


def _words(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def steps_table(results: Path, model: list[str], tasks: list[str]) -> str:
    """Return how often one template and the votes of a base are right, and on how many rows."""
    lines: dict[str, str] = {}
    for task in tasks:
        (base,) = runs_of(results / model[0] / task, "base", "trained")
        raw, calibrated = ((scores_of(base, view), vote_of(base, view)) for view in views_of(base))
        nearest = (raw[0].predictions == calibrated[1].predictions).mean(axis=0).argmax()
        cells = {
            "one template, mean over templates | 1": percent(raw[0].right.mean()),
            "the template that gives the calibrated vote most often | 1": percent(raw[0].right[:, nearest].mean()),
            "the same, calibrated | 1": percent(calibrated[0].right[:, nearest].mean()),
        }
        votes = {"majority vote": raw, "calibrated vote": calibrated}
        for (name, (scores, vote)), (least, share) in product(votes.items(), SHARES.items()):
            rows = (scores.predictions == vote.predictions).mean(axis=1) >= least
            on = f" on {percent(rows.mean())} % of the rows" if least else ""
            cells[f"{name}{share} | all"] = f"{percent(vote.right[rows].mean())}{on}"
        lines = {name: f"{lines.get(name, f'| {name}')} | {cell}" for name, cell in cells.items()}
    head = f"| step | passes per row | {' | '.join(map(_words, tasks))} |"
    return markdown(head, [f"{line} |" for line in lines.values()])


def repeats_table(results: Path, *repeats: list[str]) -> str:
    """Return how many answers of two runs of a cell differ, and how much their metrics."""
    lines = []
    for cell, *models in repeats:
        parts = zip(*(read_json(results / model / f"{cell}.json")["audits"].values() for model in models), strict=True)
        pairs = [[audit["raw"] for audit in part] for part in parts]
        answers = [["".join(view["predictions"].values()) for view in pair] for pair in pairs]
        number = sum(sum(map(str.__ne__, *texts)) for texts in answers)
        changes = [max(abs(one["metrics"][name] - two["metrics"][name]) for one, two in pairs) for name in SHOWN[:2]]
        words = f"{number} of {sum(len(text) for text, _ in answers):,}"
        lines.append(f"| {cell} | {' and '.join(models)} | {words} | {' | '.join(map(percent, changes))} |")
    return markdown("| cell | models | different answers | P_o, at most | accuracy, at most |", lines)


def forecast_table(results: Path, *_: list[str]) -> str:
    """Return how often the rules of the forecast are right."""
    runs = forecast.read_runs(results)
    lines = []
    for view, step in product(("calibrated", "raw"), (4, 8)):
        rates = (forecast.hit_rate(runs, view, group, step) for group in ("task", "method"))
        shown = " | ".join(percent(rate) for rate in (*rates, (runs[view] > 0).mean()))
        lines.append(f"| the {view} base | {step} | {shown} |")
    return markdown("| gain over | evaluations up to step | of another task | of another method | *always* |", lines)


if __name__ == "__main__":
    for page in PAGES:
        write_text(page, with_tables(page.read_text(encoding="utf-8")))
