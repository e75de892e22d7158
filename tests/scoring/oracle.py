"""Instances to score, and their scores one answer at a time: all logits of the whole model, in float64."""

import torch

from flip_flop import PromptEncoder
from flip_flop.prompts import RenderedInstance


def naive_scores(model, instances):
    """Eq. 13 as a loop: ``[instance][template][label]``."""
    result = []
    with torch.no_grad():
        for instance in instances:
            rows = []
            for template in instance.answers:
                cells = []
                for answer in template:
                    ids = torch.tensor([list(answer.context) + list(answer.tokens)])
                    logits = model(input_ids=ids).logits[0].double()
                    total = 0.0
                    for offset, token in enumerate(answer.tokens):
                        row = logits[len(answer.context) + offset - 1]
                        total += float(row[token]) - float(torch.log(torch.exp(row - row.max()).sum()) + row.max())
                    cells.append(total / len(answer.tokens))
                rows.append(cells)
            result.append(rows)
    return result


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
