"""Synthetic rows under the hub's field names and label encodings, and templates in PromptSource's format."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

Row = dict[str, Any]


class Made(NamedTuple):
    """Where the made datasets lie."""

    mirror: Path
    stories: Path
    promptsource: Path


def _nli(index: int, num_labels: int) -> Row:
    return {"premise": f"Fact {index}.", "hypothesis": f"Claim {index}.", "idx": index, "label": index % num_labels}


def _anli(index: int) -> Row:
    return {"uid": "", **{key: _nli(index, 3)[key] for key in ("premise", "hypothesis", "label")}, "reason": ""}


def _wsc(index: int) -> Row:
    spans = {"span1_index": 0, "span2_index": 3, "span1_text": f"Ann{index}", "span2_text": "she"}
    return {"text": f"Ann{index} said that she left.", **spans, "idx": index, "label": index % 2}


def _copa(index: int) -> Row:
    choices = {"choice1": f"It rained {index} times.", "choice2": f"It was dry {index} times."}
    question = "cause" if index % 3 else "effect"
    return {"premise": f"Lawn {index} was wet.", **choices, "question": question, "idx": index, "label": index % 2}


def _wic(index: int) -> Row:
    places = {"start1": 0, "start2": 0, "end1": 1, "end2": 1}
    sentences = {"sentence1": f"A bank, {index}.", "sentence2": f"The bank, {index}."}
    return {"word": "bank", **sentences, **places, "idx": index, "label": index % 2}


def _winogrande(index: int) -> Row:
    return {"sentence": f"Gap {index}: _ won.", "option1": "Ann", "option2": "Bob", "answer": str(index % 2 + 1)}


def _hellaswag(index: int) -> Row:
    context = {"ctx_a": f"She ran {index} miles.", "ctx_b": "Then", "ctx": f"She ran {index} miles. Then"}
    endings = [f"{word} {index}" for word in ("she slept", "she ate", "it rained", "he swam")]
    sources = {"source_id": "x", "split": "val", "split_type": "indomain"}
    return {"ind": index, "activity_label": "Run", **context, "endings": endings, **sources, "label": str(index % 4)}


def _story_cloze(index: int) -> Row:
    sentences = {f"InputSentence{number}": f'Sentence {number}, "of {index}".' for number in range(1, 5)}
    endings = {f"RandomFifthSentenceQuiz{number}": f"Ending {number} of {index}." for number in (1, 2)}
    return {"InputStoryid": f"s{index}", **sentences, **endings, "AnswerRightEnding": index % 2 + 1}


def _nli_texts(choices: str) -> list[tuple[str, str, str, bool]]:
    return [
        ("b claim", "{{premise}} Then: {{hypothesis}}? ||| {{ answer_choices[label] }}", choices, True),
        ("a truth", "{{hypothesis}} Given {{premise}}? ||| {{ answer_choices[label] }}", choices, True),
        ("c other task", "Write on {{premise}} ||| {{hypothesis}}", "", False),
    ]


_ENDINGS = "{{endings | join(' ||| ')}}"

# Name: mirror path, a function of a row's number, PromptSource's folder, template texts.
MADE: dict[str, tuple[str, Callable[[int], Row], str, list[tuple[str, str, str, bool]]]] = {
    "rte": ("aps/super_glue/rte", lambda index: _nli(index, 2), "super_glue/rte", _nli_texts("Yes ||| No")),
    "cb": ("aps/super_glue/cb", lambda index: _nli(index, 3), "super_glue/cb", _nli_texts("Yes ||| No ||| Maybe")),
    "anli": ("facebook/anli/plain_text", _anli, "anli", _nli_texts("Yes ||| Maybe ||| No")),
    "wsc": (
        "aps/super_glue/wsc.fixed",
        _wsc,
        "super_glue/wsc.fixed",
        [
            ("p is", "{{text}} {{span2_text}} is {{span1_text}}? ||| {{ answer_choices[label] }}", "No ||| Yes", True),
            ("mean", "{{span1_text}} in: {{text}} ||| {{ answer_choices[label] }}", "False ||| True", True),
        ],
    ),
    "copa": (
        "aps/super_glue/copa",
        _copa,
        "super_glue/copa",
        [
            ("which", "{{premise}} {{question}}? ||| {{ answer_choices[label] }}", "{{choice1}} ||| {{choice2}}", True),
            ("other", "{{question}} of {{premise}}", "{{choice1}} ||| {{choice2}}", True),
            ("causes", "{% if question == 'cause' %}Why? {{premise}}{% endif %}", "{{choice1}} ||| {{choice2}}", True),
        ],
    ),
    "wic": (
        "aps/super_glue/wic",
        _wic,
        "super_glue/wic",
        [
            ("same", "{{sentence1}} {{sentence2}} {{word}}? ||| {{ answer_choices[label] }}", "No ||| Yes", True),
            ("sense", "{{word}}: {{sentence1}} {{sentence2}}", "False ||| True", True),
        ],
    ),
    "winogrande": (
        "allenai/winogrande/winogrande_xl",
        _winogrande,
        "winogrande/winogrande_xl",
        [
            ("gap", "{{sentence}} Who? ||| {{answer_choices[answer | int - 1]}}", "{{option1}} ||| {{option2}}", True),
            ("fill", "Fill: {{sentence}}", "{{option1}} ||| {{option2}}", True),
        ],
    ),
    "hellaswag": (
        "Rowan/hellaswag/default",
        _hellaswag,
        "hellaswag",
        [
            ("ends", "{{ctx}} ... ||| {{answer_choices[label | int()]}}", _ENDINGS, True),
            ("drawn", "{{ ['So', 'Thus', 'Now'] | choice }}: {{ctx}}", _ENDINGS, True),
            ("numbered", "{{ctx}} {{endings[0]}}", "Ending 1 ||| Ending 2 ||| Ending 3 ||| Ending 4", True),
        ],
    ),
}
STORY_TEXTS = [
    ("next", "{{input_sentence_1}} {{input_sentence_4}} Next? ||| {{answer_choices[answer_right_ending - 1]}}"),
    ("end", "{{input_sentence_2}} {{input_sentence_3}} The end:"),
]
SPLITS = {"anli": [(f"train_r{k}", f"dev_r{k}") for k in (1, 2, 3)]}
CSV_FILES = (
    "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
    "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
)


def write_rows(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def write_mirror(folder: Path, *, train: int = 60, test: int = 23) -> Path:
    """Every dataset of the hub, with so many rows; train and test have none in common."""
    for name, (place, make, _, _) in MADE.items():
        for train_split, test_split in SPLITS.get(name, [("train", "validation")]):
            write_rows(folder / place / f"{train_split}.parquet", [make(index) for index in range(train)])
            write_rows(folder / place / f"{test_split}.parquet", [make(1000 + index) for index in range(test)])
    return folder


def write_story_cloze(folder: Path, *, train: int = 60, test: int = 23) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in zip(CSV_FILES, (range(train), range(1000, 1000 + test)), strict=True):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_story_cloze(0)))
            writer.writeheader()
            writer.writerows(_story_cloze(number) for number in numbers)
    return folder


def write_promptsource(folder: Path) -> Path:
    texts = {place: templates for _, _, place, templates in MADE.values()}
    story_choices = "{{sentence_quiz1}} ||| {{sentence_quiz2}}"
    texts["story_cloze/2016"] = [(name, text, story_choices, True) for name, text in STORY_TEXTS]
    for place, templates in texts.items():
        path = folder / place / "templates.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(templates_yaml(place, templates), encoding="utf-8")
    return folder


def templates_yaml(place: str, templates: list[tuple[str, str, str, bool]]) -> str:
    lines = [f"dataset: {place.split('/')[0]}", "templates:"]
    for number, (name, text, choices, own) in enumerate(templates):
        lines += [
            f"  id-{number}: !Template",
            f'    answer_choices: "{choices}"' if choices else "    answer_choices: null",
            f"    id: id-{number}",
            f'    jinja: "{text}"',
            "    metadata: !TemplateMetadata",
            "      choices_in_prompt: false",
            "      metrics: [Accuracy]",
            f"      original_task: {str(own).lower()}",
            f"    name: {name}",
            "    reference: ''",
        ]
    return "\n".join(lines) + "\n"


def make_datasets(folder: Path) -> Made:
    mirror, stories = write_mirror(folder / "hub"), write_story_cloze(folder / "stories")
    return Made(mirror, stories, write_promptsource(folder / "promptsource"))
