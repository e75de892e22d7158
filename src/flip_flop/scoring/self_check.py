"""A second look at a few rows: scores without sharing tokens between sequences, and preferred first tokens."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from flip_flop.console import track
from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.answers import AnswerStates, answer_states
from flip_flop.scoring.causal_lm import evaluation_mode, head_logits
from flip_flop.scoring.models import LoadedModel
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.resolution import stated_resolution
from flip_flop.scoring.scorer import ScoreTable, score_instances
from flip_flop.scoring.support import SAME_NATS, SAME_SHARE
from flip_flop.scoring.tokens import EncodedInstance

# Rows to check: one of 200, within these bounds, each under at most this number of templates.
MIN_ROWS, MAX_ROWS, MAX_TEMPLATES = 2, 16, 3
# Rows and tokens of preferred_tokens.
NUM_ROWS, NUM_TOKENS = 3, 5


@torch.no_grad()
def check_scores(
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    table: ScoreTable,
    options: ScoringOptions,
    names: Sequence[str] = (),
    *,
    quiet: bool = True,
) -> dict[str, float]:
    """Encode and score a few rows again, one row at a time with the padded back end, and compare with the table.

    Two scores may differ by twice the dtype's resolution, and in any case by 1e-3 nats and 1e-5 of their value: their
    sums are rounded in another order.

    Args:
        loaded: The model that computed the table.
        instances: The rows of the table, ``[instances]``.
        table: Scores in nats, ``[instances, templates, labels]``.
        options: The scoring options of the run.
        names: Template names, for errors.
        quiet: Show no progress.

    Returns:
        The number of scores that were checked, and their largest difference in nats.

    Raises:
        InputError: ``E-SELF-CHECK`` for a larger difference.
    """
    encoder, draw = loaded.encoder(options.chat_template), generator(0, "self-check")
    allowed, differences = max(SAME_NATS, 2 * stated_resolution(loaded.model)), []
    rows = draw.permutation(len(instances))[: int(np.clip(len(instances) // 200, MIN_ROWS, MAX_ROWS))]
    with track("self-check", len(rows), "instances", quiet=quiet) as advance:
        for row in rows:
            templates = draw.permutation(table.scores.shape[1])[:MAX_TEMPLATES]
            encoded = encoder.encode(instances[row])
            encoded = replace(encoded, answers=tuple(encoded.answers[template] for template in templates))
            with evaluation_mode(loaded.model):
                # No forward is larger than the packed row of the instance, for which there was memory.
                states = answer_states(loaded.model, [encoded], backend="padded", batch_tokens=len(encoded.trie))
                again = states.scores(loaded.model)[0].double().cpu().numpy()
            first = table.scores[row, templates].astype(np.float64)
            differences.append(np.abs(first - again))
            wrong = np.argwhere(~(differences[-1] <= allowed + SAME_SHARE * np.abs(again)))
            if len(wrong):
                at = template, label = tuple(wrong[0].tolist())
                name = names[templates[template]] if names else int(templates[template]) + 1
                raise InputError(
                    "E-SELF-CHECK",
                    f"instance {instances[row].id!r}, template {name!r}, label {label}: the score is {first[at]:.5f} "
                    f"in this run, but {again[at]:.5f} if computed alone.",
                )
            advance(1)
    checked = np.concatenate(differences)
    return {"num_scores": checked.size, "largest_difference": float(checked.max())}


def preferred_tokens(
    loaded: LoadedModel, instances: Sequence[RenderedInstance], templates: Sequence[int], options: ScoringOptions
) -> list[list[str]]:
    """Return the most probable first tokens of the answer under each of these templates, on average over a few rows."""
    encoder, rows = loaded.encoder(options.chat_template), generator(0, "preferred-tokens").permutation(len(instances))
    found: list[torch.Tensor] = []

    def read(members: Sequence[EncodedInstance], states: AnswerStates, scores: torch.Tensor) -> None:
        counts = states.token_counts.flatten()
        nodes = states.token_node[counts.cumsum(0) - counts]
        probs = head_logits(loaded.model, states.hidden[nodes]).softmax(dim=-1).cpu()
        found.append(probs.view(len(members), len(templates), -1))

    # The context of one label suffices.
    encoded = [encoder.encode(instances[row]) for row in rows[:NUM_ROWS]]
    encoded = [replace(each, answers=tuple(each.answers[at][:1] for at in templates)) for each in encoded]
    backend, batch_tokens = options.backend, options.batch_tokens
    score_instances(loaded.model, encoded, backend=backend, batch_tokens=batch_tokens, quiet=True, visit=read)
    top = torch.cat(found).mean(dim=0).topk(NUM_TOKENS).indices
    return [[str(loaded.tokenizer.decode([token])) for token in tokens] for tokens in top.tolist()]
