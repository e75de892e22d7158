"""Writes the tables of README.md, docs/evidence.md and evidence/RESULTS.md. Usage: python -m evidence.tables.

A table is between `<!-- results MODEL | TASK ... | METHOD ... | PART ... -->` and `<!-- end of results -->`. A part is
trained or held_out. It skips methods without a result. Metrics are means over seeds. A sentence below it compares F2C
with the calibrated vote of the base. With `| brief` at the end, a method has one line, which names its task and part
if there are several.
"""

import re
import textwrap
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from evidence.run import FOLDER, RESULTS, SHOWN, change, scores_of
from flip_flop.console import count, percent, point_interval, points
from flip_flop.files import read_json, write_text

PAGES = (FOLDER / "RESULTS.md", FOLDER.parent / "docs" / "evidence.md", FOLDER.parent / "README.md")
SECTION = re.compile(r"(<!-- results (.*?) -->\n).*?(<!-- end of results -->)", re.DOTALL)
HEAD = """
| task | templates, rows | model | P_o / accuracy / macro-F1 | std | vote | above the calibrated vote |
|---|---|---|---|---|---|---|
"""
BRIEF = """
| model | P_o / accuracy | above the calibrated vote | calibrated: P_o / accuracy | above the calibrated vote |
|---|---|---|---|---|
"""
TASKS = {
    **{task: task.replace("_", " ").upper() for task in ("rte", "cb", "copa", "wsc", "anli_r1", "anli_r2", "anli_r3")},
    **{"ag_news": "AG News", "wic": "WiC", "hellaswag": "HellaSwag", "winogrande": "Winogrande"},
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


def with_tables(page: str, results: Path = RESULTS) -> str:
    """Return a page with the tables of the results."""

    def section(found: re.Match[str]) -> str:
        (model,), tasks, methods, parts, *brief = (words.split() for words in found[2].split("|"))
        lines, claims = [], []
        for task, part, method in product(tasks, parts, methods):
            runs, base = (runs_of(results / model / task, name, part) for name in (method, "base"))
            if runs and base:
                vote = base[0]["calibrated"]["vote"]
                if brief:
                    names = [_words(name) for name, all_names in ((task, tasks), (part, parts)) if len(all_names) > 1]
                    lines.append(_brief_line(", ".join(names), method, runs, vote))
                    continue
                lines += _lines(task, part, method, runs, vote)
                claims += [_claim(task, part, runs, vote)] if method == "f2c" else []
        text = "\n".join(textwrap.wrap(_CLAIM.format("; ".join(claims)), 140)) + "\n\n" if claims else ""
        return found[1] + (f"{BRIEF if brief else HEAD}{''.join(lines)}\n{text}" if lines else "") + found[3]

    return SECTION.sub(section, page)


def runs_of(folder: Path, method: str, part: str) -> list[dict[str, Any]]:
    """Return the audits of a method on a part of the templates, one for each seed."""
    audits = [read_json(file)["audits"] for file in sorted(folder.glob(f"{method}-*.json"))]
    return [audit[part] for audit in audits if part in audit]


def _difference(runs: list[dict[str, Any]], view: str, vote: str) -> tuple[float, float, float]:
    """Return the mean accuracy of one template minus the accuracy of the vote, with the ends of its interval."""
    gold, num_labels = np.array(list(runs[0]["gold"]), dtype=np.int64), runs[0]["num_labels"]
    answers = [scores_of(list(run[view]["predictions"].values()), gold, num_labels) for run in runs]
    value, low, high = change("accuracy", scores_of([vote], gold, num_labels), *answers)
    return value, low, high


def _words(name: str) -> str:
    return TASKS.get(name, name.replace("_", " "))


def _claim(task: str, part: str, runs: list[dict[str, Any]], vote: str) -> str:
    """Return where the accuracy of one template of F2C is, next to the calibrated vote."""
    value, low, high = _difference(runs, "raw", vote)
    place = ("a higher" if value > 0 else "a lower") if low > 0 or high < 0 else "no clearly different"
    return f"{place} accuracy on {_words(task)} ({_words(part)} templates)"


def _title(method: str, runs: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the title of a method and the number of its seeds."""
    return TITLES.get(method, method), f", {count(len(runs), 'seed')}" if method != "base" else ""


def _brief_line(place: str, method: str, runs: list[dict[str, Any]], vote: str) -> str:
    cells = [cells_of(view, runs, vote) for view in ("raw", "calibrated")]
    parts = " | ".join(f"{' / '.join(means[:2])} | {difference}" for means, difference in cells)
    return f"| {f'{place}: ' if place else ''}{''.join(_title(method, runs))} | {parts} |\n"


def _lines(task: str, part: str, method: str, runs: list[dict[str, Any]], vote: str) -> list[str]:
    """Return the lines of a method: means over its seeds, and their paired difference in accuracy from the vote."""
    title, seeds = _title(method, runs)
    words = f"{len(runs[0]['raw']['predictions'])} {_words(part)}, {len(runs[0]['gold']):,}"
    cells = [cells_of(view, runs, vote) for view in ("raw", "calibrated")]
    return [
        f"| {_words(task)} | {words} | {title}{view}{seeds} | {' / '.join(means[:3])} | {means[3]} "
        f"| {' / '.join(means[4:])} | {difference} |\n"
        for view, (means, difference) in zip(("", ", calibrated"), cells, strict=True)
    ]


def cells_of(view: str, runs: list[dict[str, Any]], vote: str) -> tuple[list[str], str]:
    """Return the metrics, means over seeds, and the difference in accuracy from the vote, as texts."""
    value, *interval = _difference(runs, view, vote)
    means = [percent(np.mean([run[view]["metrics"][name] for run in runs])) for name in SHOWN]
    return means, f"{points(value)} ({point_interval(interval)})"


if __name__ == "__main__":
    for page in PAGES:
        write_text(page, with_tables(page.read_text(encoding="utf-8")))
