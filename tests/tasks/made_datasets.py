"""Synthetic rows under the hub's field names and label encodings, and templates in PromptSource's format."""

import csv
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


def _nli(index, num_labels):
    return {"premise": f"Fact {index}.", "hypothesis": f"Claim {index}.", "idx": index, "label": index % num_labels}


def _anli(index):
    return {"uid": "", **{key: _nli(index, 3)[key] for key in ("premise", "hypothesis", "label")}, "reason": ""}


def _wsc(index):
    spans = {"span1_index": 0, "span2_index": 3, "span1_text": f"Ann{index}", "span2_text": "she"}
    return {"text": f"Ann{index} said that she left.", **spans, "idx": index, "label": index % 2}


def _copa(index):
    choices = {"choice1": f"It rained {index} times.", "choice2": f"It was dry {index} times."}
    question = "cause" if index % 3 else "effect"
    return {"premise": f"Lawn {index} was wet.", **choices, "question": question, "idx": index, "label": index % 2}


def _wic(index):
    places = {"start1": 0, "start2": 0, "end1": 1, "end2": 1}
    sentences = {"sentence1": f"A bank, {index}.", "sentence2": f"The bank, {index}."}
    return {"word": "bank", **sentences, **places, "idx": index, "label": index % 2}


def _winogrande(index):
    return {"sentence": f"Gap {index}: _ won.", "option1": "Ann", "option2": "Bob", "answer": str(index % 2 + 1)}


def _hellaswag(index):
    context = {"ctx_a": f"She ran {index} miles.", "ctx_b": "Then", "ctx": f"She ran {index} miles. Then"}
    endings = [f"{word} {index}" for word in ("she slept", "she ate", "it rained", "he swam")]
    sources = {"source_id": "x", "split": "val", "split_type": "indomain"}
    return {"ind": index, "activity_label": "Run", **context, "endings": endings, **sources, "label": str(index % 4)}


def _story_cloze(index):
    sentences = {f"InputSentence{number}": f'Sentence {number}, "of {index}".' for number in range(1, 5)}
    endings = {f"RandomFifthSentenceQuiz{number}": f"Ending {number} of {index}." for number in (1, 2)}
    return {"InputStoryid": f"s{index}", **sentences, **endings, "AnswerRightEnding": index % 2 + 1}


def _nli_texts(choices):
    return [
        ("b claim", "{{premise}} Then: {{hypothesis}}? ||| {{ answer_choices[label] }}", choices, True),
        ("a truth", "{{hypothesis}} Given {{premise}}? ||| {{ answer_choices[label] }}", choices, True),
        ("c other task", "Write on {{premise}} ||| {{hypothesis}}", "", False),
    ]


_STORY_ENDINGS = "{{sentence_quiz1}} ||| {{sentence_quiz2}}"
# PromptSource's folder: names, texts, answers, whether it is the original task.
_TEXTS = {
    "super_glue/rte": _nli_texts("Yes ||| No"),
    "super_glue/cb": _nli_texts("Yes ||| No ||| Maybe"),
    "anli": _nli_texts("Yes ||| Maybe ||| No"),
    "super_glue/wsc.fixed": [
        ("p is", "{{text}} {{span2_text}} is {{span1_text}}? ||| {{ answer_choices[label] }}", "No ||| Yes", True),
        ("mean", "{{span1_text}} in: {{text}} ||| {{ answer_choices[label] }}", "False ||| True", True),
    ],
    "super_glue/copa": [
        ("which", "{{premise}} {{question}}? ||| {{ answer_choices[label] }}", "{{choice1}} ||| {{choice2}}", True),
        ("other", "{{question}} of {{premise}}", "{{choice1}} ||| {{choice2}}", True),
        ("causes", "{% if question == 'cause' %}Why? {{premise}}{% endif %}", "{{choice1}} ||| {{choice2}}", True),
    ],
    "super_glue/wic": [
        ("same", "{{sentence1}} {{sentence2}} {{word}}? ||| {{ answer_choices[label] }}", "No ||| Yes", True),
        ("sense", "{{word}}: {{sentence1}} {{sentence2}}", "False ||| True", True),
    ],
    "winogrande/winogrande_xl": [
        ("gap", "{{sentence}} Who? ||| {{answer_choices[answer | int - 1]}}", "{{option1}} ||| {{option2}}", True),
        ("fill", "Fill: {{sentence}}", "{{option1}} ||| {{option2}}", True),
    ],
    "hellaswag": [
        ("ends", "{{ctx}} ... ||| {{answer_choices[label | int()]}}", "{{endings | join(' ||| ')}}", True),
        ("drawn", "{{ ['So', 'Thus', 'Now'] | choice }}: {{ctx}}", "{{endings | join(' ||| ')}}", True),
        ("numbered", "{{ctx}} {{endings[0]}}", "Ending 1 ||| Ending 2 ||| Ending 3 ||| Ending 4", True),
    ],
    "story_cloze/2016": [
        ("next", "{{input_sentence_4}} Next? ||| {{answer_choices[answer_right_ending - 1]}}", _STORY_ENDINGS, True),
        ("end", "{{input_sentence_2}} {{input_sentence_3}} The end:", _STORY_ENDINGS, True),
    ],
}
# Name: the path in the mirror, and a function of a row's number.
MADE = {
    "rte": ("aps/super_glue/rte", lambda index: _nli(index, 2)),
    "cb": ("aps/super_glue/cb", lambda index: _nli(index, 3)),
    "anli": ("facebook/anli/plain_text", _anli),
    "wsc": ("aps/super_glue/wsc.fixed", _wsc),
    "copa": ("aps/super_glue/copa", _copa),
    "wic": ("aps/super_glue/wic", _wic),
    "winogrande": ("allenai/winogrande/winogrande_xl", _winogrande),
    "hellaswag": ("Rowan/hellaswag/default", _hellaswag),
}
SPLITS = {"anli": [(f"train_r{k}", f"dev_r{k}") for k in (1, 2, 3)]}
CSV_FILES = (
    "cloze_test_val__spring2016 - cloze_test_ALL_val.csv",
    "cloze_test_test__spring2016 - cloze_test_ALL_test.csv",
)


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)


def write_mirror(folder, *, train=60, test=23):
    """Every dataset of the hub, with so many rows; train and test have none in common."""
    for name, (place, make) in MADE.items():
        for train_split, test_split in SPLITS.get(name, [("train", "validation")]):
            write_rows(folder / place / f"{train_split}.parquet", [make(index) for index in range(train)])
            write_rows(folder / place / f"{test_split}.parquet", [make(1000 + index) for index in range(test)])
    return folder


def write_story_cloze(folder, *, train=60, test=23):
    folder.mkdir(parents=True, exist_ok=True)
    for name, numbers in zip(CSV_FILES, (range(train), range(1000, 1000 + test)), strict=True):
        with (folder / name).open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(_story_cloze(0)))
            writer.writeheader()
            writer.writerows(_story_cloze(number) for number in numbers)
    return folder


def write_promptsource(folder):
    for place, templates in _TEXTS.items():
        path = folder / place / "templates.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(templates_yaml(place, templates), encoding="utf-8")
    return folder


def templates_yaml(place, templates):
    entries = [
        f"""\
  id-{number}: !Template
    answer_choices: {f'"{choices}"' if choices else "null"}
    id: id-{number}
    jinja: "{text}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [Accuracy], original_task: {str(own).lower()}}}
    name: {name}
    reference: ''
"""
        for number, (name, text, choices, own) in enumerate(templates)
    ]
    return f"dataset: {place.split('/')[0]}\ntemplates:\n{''.join(entries)}"


def make_datasets(folder):
    mirror, stories = write_mirror(folder / "hub"), write_story_cloze(folder / "stories")
    return Made(mirror, stories, write_promptsource(folder / "promptsource"))
