"""How large a study's data are, in rows and tokens: counted where they are at hand, else as the paper has them."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.tasks import Task
from flip_flop.tasks.catalog import catalog_entry

# Tokens of the distinct sequences of one instance under all its templates, plain prompts and Qwen2.5's chat template
# (25 tokens before, 5 behind), for texts of the datasets' usual lengths: an estimate, not a count.
ASSUMED_TOKENS = {
    "rte": (972, 1272),
    "cb": (1962, 2502),
    "wsc": (491, 791),
    "copa": (738, 1218),
    "wic": (461, 761),
    "winogrande": (467, 767),
    "hellaswag": (3031, 3421),
    "storycloze": (1013, 1313),
    "anli_r1": (2238, 2778),
    "anli_r2": (2238, 2778),
    "anli_r3": (2238, 2778),
}
CHARACTERS_PER_TOKEN = 4.0
CHAT_TOKENS = 30
SAMPLE = 32

CountTokens = Callable[[str], int]


@dataclass(frozen=True)
class Sizes:
    """A task's rows and what one instance costs.

    Attributes:
        train: Rows to train on.
        validation: Rows to choose the checkpoint by.
        test: Rows to audit.
        templates: How many templates the task has that it does not hold out.
        tokens: Tokens of one instance's distinct sequences under all of them.
        at_hand: The rows were counted; else the numbers are the paper's, and the tokens an assumption.
    """

    train: int
    validation: int
    test: int
    templates: int
    tokens: float
    at_hand: bool


def count_characters(text: str) -> int:
    """Tokens of a text where there is no tokenizer."""
    return math.ceil(len(text) / CHARACTERS_PER_TOKEN)


def sizes_at_hand(task: Task, split: str, limit: int | None, count: CountTokens, chat_tokens: int) -> Sizes:
    """Count a task's rows, and the tokens of some of them.

    Args:
        task: The task.
        split: The split to be audited.
        limit: The size of the sample of each split, if any.
        count: Tokens of a text.
        chat_tokens: What a chat template adds to a prompt.
    """
    own = task.with_templates(task.training_templates.names)
    train, validation = len(own.rows("train")) if "train" in own.data else 0, 0
    if "validation" in own.data:
        validation = len(own.rows("validation"))
    train, validation = min(train, limit or train), min(validation, limit or validation)
    if not validation:
        validation = max(round(train * 0.1), 1) if train else 0
        train -= validation
    test = len(own.rows(split))
    sample = own.instances(split, limit=SAMPLE)
    tokens = sum(_tokens(instance, count, chat_tokens) for instance in sample) / len(sample)
    return Sizes(train, validation, min(test, limit or test), len(own.templates), tokens, True)


def _tokens(instance: RenderedInstance, count: CountTokens, chat_tokens: int) -> int:
    """Tokens of an instance's distinct sequences: answers of one token share one, as the last token is never read."""
    total = 0
    for prompt, choices in zip(instance.prompts, instance.choices, strict=True):
        length = count(prompt) + chat_tokens
        lengths = [count(choice) - 1 for choice in choices]
        longer = [more for more in lengths if more > 0]
        total += sum(length + more for more in longer) + (length if len(longer) < len(lengths) else 0)
    return total


def sizes_of_paper(name: str, limit: int | None, has_chat: bool) -> Sizes:
    """The paper's table and assumed lengths.

    Raises:
        InputError: ``E-TASK-UNKNOWN``.
    """
    paper = catalog_entry(name).paper
    if name not in ASSUMED_TOKENS:
        raise InputError("E-TASK-UNKNOWN", f"no lengths are known for task {name!r}.", "Put its rows at hand.")
    train, validation, test = (min(paper[split], limit or paper[split]) for split in ("train", "validation", "test"))
    tokens = float(ASSUMED_TOKENS[name][has_chat])
    return Sizes(train, validation, test, paper["templates"], tokens, False)
