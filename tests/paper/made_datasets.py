"""Synthetic rows under the hub's field names and label encodings, and templates in PromptSource's format."""

import csv
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet

from flip_flop.paper.data.catalog import catalog_entry, catalog_names
from tests.cases import read_cases

NUM_TRAIN, NUM_TEST = 60, 23
CSV_FILES = tuple(catalog_entry("storycloze").files.values())


class Made(NamedTuple):
    """The folders of the made datasets."""

    mirror: Path
    stories: Path
    promptsource: Path


def make_row(name, n):
    """Row ``n`` of a dataset."""
    nli = {"premise": f"Fact {n}.", "hypothesis": f"Claim {n}."}
    wsc = {"span1_index": 0, "span2_index": 3, "span1_text": f"Ann{n}", "span2_text": "she"}
    copa = {"choice1": f"It rained {n} times.", "choice2": f"It was dry {n} times."}
    wic = {"word": "bank", "sentence1": f"A bank, {n}.", "sentence2": f"The bank, {n}."}
    wic |= {"start1": 0, "start2": 0, "end1": 1, "end2": 1}
    ran = {"ctx_a": f"She ran {n} miles.", "ctx_b": "Then", "ctx": f"She ran {n} miles. Then"}
    endings = [f"{words} {n}" for words in ("she slept", "she ate", "it rained", "he swam")]
    source = {"source_id": "x", "split": "val", "split_type": "indomain"}
    story = {f"InputSentence{number}": f'Sentence {number}, "of {n}".' for number in range(1, 5)}
    story |= {f"RandomFifthSentenceQuiz{number}": f"Ending {number} of {n}." for number in (1, 2)}
    indexed = {"idx": n, "label": n % 2}
    rows = {
        "rte": nli | indexed,
        "cb": nli | {"idx": n, "label": n % 3},
        "anli": {"uid": "", **nli, "label": n % 3, "reason": ""},
        "wsc": {"text": f"Ann{n} said that she left.", **wsc, **indexed},
        "copa": {"premise": f"Lawn {n} was wet.", **copa, "question": "cause" if n % 3 else "effect", **indexed},
    }
    other = {
        "wic": wic | indexed,
        "winogrande": {"sentence": f"Gap {n}: _ won.", "option1": "Ann", "option2": "Bob", "answer": str(n % 2 + 1)},
        "hellaswag": {"ind": n, "activity_label": "Run", **ran, "endings": endings, **source, "label": str(n % 4)},
        "storycloze": {"InputStoryid": f"s{n}", **story, "AnswerRightEnding": n % 2 + 1},
    }
    return (rows | other)[name.split("_")[0]]


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def change_rows(made, path, change):
    """Write ``change(rows)`` into the file of a split."""
    file = made.mirror / f"{path}.parquet"
    write_rows(file, change(pyarrow.parquet.read_table(file).to_pylist()))


def rows_of(name):
    """The rows of the two official splits, which have none in common."""
    numbers = range(NUM_TRAIN), range(1000, 1000 + NUM_TEST)
    return [[make_row(name, number) for number in part] for part in numbers]


def write_mirror(folder):
    for entry in map(catalog_entry, catalog_names()):
        if entry.repo is not None:
            for official, rows in zip((entry.train_from, entry.test_from), rows_of(entry.name), strict=True):
                write_rows(folder / entry.repo / (entry.config or "default") / f"{official.split}.parquet", rows)
    return folder


def write_story_cloze(folder):
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in zip(CSV_FILES, rows_of("storycloze"), strict=True):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return folder


def write_promptsource(folder):
    for place, templates in read_cases("paper/made_templates.yaml").items():
        path = folder / place / "templates.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(templates_yaml(place, templates), encoding="utf-8")
    return folder


TEMPLATE = """\
  id-{number}: !Template
    answer_choices: {choices}
    id: id-{number}
    jinja: "{text}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [Accuracy], original_task: {original}}}
    name: {name}
    reference: ''
"""


def templates_yaml(place, templates):
    lines = [f"dataset: {place.split('/')[0]}\ntemplates:\n"]
    for number, template in enumerate(templates):
        choices = f'"{template["choices"]}"' if template["choices"] else "null"
        original = str(template["original"]).lower()
        lines.append(TEMPLATE.format(**template | {"number": number, "choices": choices, "original": original}))
    return "".join(lines)


def make_datasets(folder):
    mirror, stories = write_mirror(folder / "hub"), write_story_cloze(folder / "stories")
    return Made(mirror, stories, write_promptsource(folder / "promptsource"))
