"""Self-check: compute some of a run's scores a second time, without sharing tokens between sequences."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from flip_flop.errors import InputError
from flip_flop.options import ScoringOptions
from flip_flop.progress import track
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import generator
from flip_flop.scoring.answers import answer_states
from flip_flop.scoring.causal_lm import evaluation_mode
from flip_flop.scoring.models import LoadedModel
from flip_flop.scoring.resolution import stated_resolution
from flip_flop.scoring.scorer import ScoreTable
from flip_flop.scoring.support import SAME_NATS, SAME_SHARE

# Rows to check: one of 200, within these bounds, each under at most this number of templates.
MIN_ROWS, MAX_ROWS, MAX_TEMPLATES = 2, 16, 3


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
