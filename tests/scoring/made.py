"""Instances to score."""

from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import PromptEncoder


def rows(count=5):
    """5 instances, 3 templates, 2 labels of one and several tokens; prompts of different lengths."""
    return [
        RenderedInstance(
            id=f"row-{number}",
            prompts=(
                f"The food was {'very ' * number}good. Positive?",
                f"Question: {'room ' * (7 - number)}is it dirty? Answer:",
                "Hypothesis",
            ),
            choices=(("No", "Yes"), ("False", "True, guaranteed"), ("Never", "Maybe, not sure")),
            label=None,
        )
        for number in range(count)
    ]


def instances(tokenizer, count=5):
    return [PromptEncoder(tokenizer).encode(row) for row in rows(count)]
