"""Writes the tasks of movie reviews, AG News and TREC: their rows, from parquet files, and PromptSource's templates.

Usage: python -m evidence.prepare LANGUAGE [--out evidence/tasks]. This repository has no rows and no templates.
"""

import json
import random
import sys
from hashlib import sha256
from pathlib import Path

import click
import pandas as pd
import yaml

from flip_flop.files import write_text
from flip_flop.paper.data.promptsource import read_promptsource, templates_folder
from flip_flop.prompts import Template

HINT = (
    "Give one folder with movie_reviews.parquet and trec_train.parquet (MR and TREC of "
    "github.com/harvardnlp/sent-conv-torch) and ag_news_test.parquet (github.com/mhjabreel/CharCnn_Keras), each with "
    "the columns text and label."
)
# The file, the dataset of the templates, the held-out templates, and the rows of each split.
SOURCES = {
    "mr": ("movie_reviews", "rotten_tomatoes", (1, 6, 9), {"train": 2500, "validation": 500, "test": 1500}),
    "ag": ("ag_news_test", "ag_news", (), {"train": 1800, "validation": 400, "test": 1000}),
    "trec": ("trec_train", "trec", (), {"train": 1500, "validation": 300, "test": 500}),
}


def write_tasks(language: Path, out: Path) -> list[Path]:
    """Write the tasks with their rows, and return the task files.

    The rows are shuffled. Rows whose text has a digest in the lower half are skipped: those of movie reviews and AG
    News pretrained the small models of older records.

    Raises:
        SystemExit: A file is missing. The message names the public datasets.
    """
    rng, task_files = random.Random(1), []
    for name, (file, dataset, held_out, sizes) in SOURCES.items():
        path = language / f"{file}.parquet"
        if not path.is_file():
            sys.exit(f"There is no {path}. {HINT}")
        table = pd.read_parquet(path, columns=["text", "label"]).drop_duplicates("text")
        if name == "trec":  # PromptSource's answers have numbers before locations.
            table["label"] = table["label"].replace({4: 5, 5: 4})
        rows = [
            row for row in table.to_dict("records") if int(sha256(row["text"].encode()).hexdigest(), 16) % 1000 >= 500
        ]
        rng.shuffle(rows)
        # Templates that ask the dataset's question and have answers. The rows of TREC have no fine labels.
        templates = [
            {
                "name": entry.name.strip(),
                "jinja": entry.jinja.replace("label_coarse", "label"),
                "answer_choices": entry.answer_choices,
            }
            for entry in read_promptsource(templates_folder(), dataset)
            if isinstance(entry.template, Template) and entry.original_task and entry.answer_choices
            if "label_fine" not in entry.jinja
        ]
        for split, size in sizes.items():
            write_text(out / f"{name}_{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows[:size]))
            rows = rows[size:]
        task = {
            "name": name,
            "data": {split: f"{name}_{split}.jsonl" for split in sizes},
            "label_field": "label",
            "labels": sorted({int(label) for label in table["label"]}),
            "templates": templates,
            **({"held_out_templates": [templates[index]["name"] for index in held_out]} if held_out else {}),
        }
        task_files.append(out / f"{name}.yaml")
        write_text(task_files[-1], yaml.safe_dump(task, sort_keys=False, allow_unicode=True))
    return task_files


@click.command()
@click.argument("language", type=Path)
@click.option("--out", type=Path, default=Path(__file__).parent / "tasks", help="The tasks' folder (evidence/tasks).")
def main(**folders: Path) -> None:
    """Write the tasks. LANGUAGE is the folder of the parquet files."""
    print(*write_tasks(**folders), sep="\n")


if __name__ == "__main__":
    main()
