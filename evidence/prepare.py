"""Writes the tasks of the studies: their rows, out of the parquet files, and their templates.

Usage: python -m evidence.prepare LANGUAGE [--out evidence/tasks]. Nothing of either is kept in this repository.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from evidence.rows import Row, target_rows, with_prior
from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.paper.data.promptsource import read_promptsource, templates_folder
from flip_flop.prompts import Template

TASKS = Path(__file__).parent / "tasks"
OWN = Path(__file__).parent / "subjectivity_templates.yaml"
# The sizes of the unlabelled pool, and the shares of the label 1, of which there is a task each.
SIZES = (100, 250, 500, 1000, 2500)
PRIORS = (0.2, 0.35, 0.5, 0.65, 0.8)
# TREC's labels in the order of PromptSource's answers, which have quantities before locations.
TREC_LABELS = [0, 1, 2, 3, 5, 4]


def templates_of(dataset: str) -> list[dict[str, str]]:
    """PromptSource's templates of a dataset that ask its own question and have answers, as a task file lists them."""
    found = read_promptsource(templates_folder(), dataset)
    return [
        {"name": each.name.strip(), "jinja": each.jinja, "answer_choices": each.answer_choices}
        for each in found
        if isinstance(each.template, Template) and each.original_task and each.answer_choices
    ]


def write_tasks(folder: Path, out: Path) -> list[Path]:
    """Write every task, and return their files."""
    rows = target_rows(folder)
    own = yaml.safe_load(OWN.read_text(encoding="utf-8"))
    reviews, news = templates_of("rotten_tomatoes"), templates_of("ag_news")
    questions = [each for each in templates_of("trec") if "label_fine" not in each["jinja"]]
    held_out = [reviews[index]["name"] for index in (1, 6, 9)]

    def task(name: str, labels: Sequence[int], templates: Any, held_out: Sequence[str] = (), **data: str) -> Path:
        splits = {split: data.get(split, f"{name}_{split}.jsonl") for split in ("train", "validation", "test")}
        content: dict[str, Any] = {"name": name, "data": splits, "label_field": "label", "labels": list(labels)}
        content |= {"templates": templates} | ({"held_out_templates": list(held_out)} if held_out else {})
        return _write(out / f"{name}.yaml", yaml.safe_dump(content, sort_keys=False, allow_unicode=True))

    for name, splits in rows.items():
        _write_rows(out, name, splits)
    written = [
        task("mr", (0, 1), reviews, held_out),
        task("ag", (0, 1, 2, 3), news),
        task("subj", (0, 1), own["templates"], own["held_out_templates"]),
        task("trec", TREC_LABELS, questions),
    ]
    other = {split: f"mr_{split}.jsonl" for split in ("validation", "test")}
    for size in SIZES:
        name = f"mr_rows_{size}"
        _write_rows(out, name, {"train": rows["mr"]["train"][:size]})
        written.append(task(name, (0, 1), reviews, held_out, **other))
    for prior in PRIORS:
        name = f"mr_prior_{round(100 * prior)}"
        _write_rows(out, name, {split: _of_prior(found, prior) for split, found in rows["mr"].items()})
        written.append(task(name, (0, 1), reviews, held_out))
    return written


def _of_prior(rows: Sequence[Row], prior: float) -> list[Row]:
    """As many rows for each prior: what the rarer label suffices for under the most uneven one."""
    rarer = min(sum(label == wanted for _, label in rows) for wanted in (0, 1))
    return with_prior(rows, int(rarer / max(PRIORS)), prior)


def _write_rows(out: Path, name: str, splits: Mapping[str, Sequence[Row]]) -> None:
    for split, rows in splits.items():
        lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows]
        _write(out / f"{name}_{split}.jsonl", "".join(lines))


def _write(path: Path, text: str) -> Path:
    write_text(path, text)
    return path


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m evidence.prepare", description="Write the studies' tasks.")
    parser.add_argument("language", type=Path, metavar="LANGUAGE", help="the folder of the parquet files")
    parser.add_argument("--out", type=Path, default=TASKS, help="the tasks' folder (default: evidence/tasks)")
    given = parser.parse_args()
    try:
        print("\n".join(map(str, write_tasks(given.language, given.out))))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
