"""Reference scores: one answer at a time, the forward pass of the whole model, all logits, float64."""

import torch


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
