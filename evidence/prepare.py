"""Writes the tasks of movie reviews and AG News: their rows, from parquet files, and PromptSource's templates.

Usage: python -m evidence.prepare LANGUAGE [--out evidence/tasks]. This repository has no rows and no templates.
"""

import argparse
import json
import random
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import yaml

from flip_flop.files import write_text
from flip_flop.paper.data.promptsource import read_promptsource, templates_folder
from flip_flop.prompts import Template

TASKS = Path(__file__).parent / "tasks"
# A sentence and the number of its label.
Row = tuple[str, int]
HINT = (
    "Give one folder with movie_reviews.parquet (MR of github.com/harvardnlp/sent-conv-torch) and ag_news_test.parquet "
    "(github.com/mhjabreel/CharCnn_Keras), each with the columns text and label."
)
# Rows per split.
SIZES = {
    "mr": {"train": 2500, "validation": 500, "test": 1500},
    "ag": {"train": 1800, "validation": 400, "test": 1000},
}


def write_tasks(language: Path, out: Path) -> list[Path]:
    """Write both tasks with their rows, and return the task files."""
    reviews = templates_of("rotten_tomatoes")
    held_out = [reviews[index]["name"] for index in (1, 6, 9)]
    content = {
        "mr": {"labels": [0, 1], "templates": reviews, "held_out_templates": held_out},
        "ag": {"labels": [0, 1, 2, 3], "templates": templates_of("ag_news")},
    }
    task_files = []
    for name, rows in task_rows(language).items():
        data = {}
        for split, size in SIZES[name].items():
            data[split] = f"{name}_{split}.jsonl"
            lines = [json.dumps({"text": text, "label": label}) + "\n" for text, label in rows[:size]]
            write_text(out / data[split], "".join(lines))
            rows = rows[size:]
        task = {"name": name, "data": data, "label_field": "label", **content[name]}
        task_files.append(out / f"{name}.yaml")
        write_text(task_files[-1], yaml.safe_dump(task, sort_keys=False, allow_unicode=True))
    return task_files


def templates_of(dataset: str) -> list[dict[str, Any]]:
    """PromptSource's templates of a dataset that ask its question and have answers, as in a task file."""
    return [
        {"name": entry.name.strip(), "jinja": entry.jinja, "answer_choices": entry.answer_choices}
        for entry in read_promptsource(templates_folder(), dataset)
        if isinstance(entry.template, Template) and entry.original_task and entry.answer_choices
    ]


def task_rows(language: Path) -> dict[str, list[Row]]:
    """The shuffled rows of both tasks. The other half pretrained the small models of older records."""
    rng = random.Random(1)
    reviews = second_half(list(dict(read_rows(language, "movie_reviews")).items()))
    news = second_half(read_rows(language, "ag_news_test"))
    rng.shuffle(reviews)
    rng.shuffle(news)
    return {"mr": reviews, "ag": news}


def read_rows(language: Path, name: str) -> list[Row]:
    """The rows of one file, in its order.

    Raises:
        SystemExit: It is missing. The message names the public datasets.
    """
    path = language / f"{name}.parquet"
    if not path.is_file():
        sys.exit(f"There is no {path}. {HINT}")
    columns = pq.read_table(path, columns=["text", "label"]).to_pydict()
    return list(zip(columns["text"], columns["label"], strict=True))


def second_half(rows: Sequence[Row]) -> list[Row]:
    """The rows whose text has a digest in the upper half."""
    return [row for row in rows if int(sha256(row[0].encode()).hexdigest(), 16) % 1000 >= 500]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m evidence.prepare", description="Write the tasks.")
    parser.add_argument("language", type=Path, metavar="LANGUAGE", help="the folder of the parquet files")
    parser.add_argument("--out", type=Path, default=TASKS, help="the tasks' folder (default: evidence/tasks)")
    print(*write_tasks(**vars(parser.parse_args())), sep="\n")
