"""Checks of finished scores: a few rows scored separately, preferred first tokens."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from flip_flop.console import track
from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.metrics import Scores
from flip_flop.scoring.answers import AnswerStates, answer_states
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.causal_lm import decoder_of, evaluation_mode, head_logits, unwrap
from flip_flop.scoring.loading import LoadedModel
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.scores import score_instances
from flip_flop.scoring.support import SAME_NATS, SAME_SHARE

# In units of eps, the dtype's spacing above 1. A logit from 16 to 32 is a multiple of 16 eps. The difference of two
# logits, each rounded by up to half of that, doubles for two computations, and again for the layers below.
ROUNDING_EPS = 64


def allowed_difference(model: nn.Module) -> float:
    """Return 64 eps of the model's dtype, at least 1e-3 nats: 0.5 in bfloat16, 0.063 in float16, 0.001 in float32."""
    dtype, device = unwrap(model).dtype, next(decoder_of(model).parameters()).device
    if dtype == torch.float32 and device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        dtype = torch.float16  # TF32 has the same precision
    return max(SAME_NATS, ROUNDING_EPS * torch.finfo(dtype).eps)


# Rows to check: one of 200, within these bounds, each under at most this number of templates.
MIN_ROWS, MAX_ROWS, MAX_TEMPLATES = 2, 16, 3
# Rows and tokens of preferred_tokens.
NUM_ROWS, NUM_TOKENS = 3, 5


@torch.no_grad()
def check_scores(
    model: nn.Module, scores: Scores, names: Sequence[str] = (), *, quiet: bool = True
) -> dict[str, float]:
    """Encode and score a few rows again, one row at a time with the padded backend, and compare the scores.

    Two scores may differ by :func:`allowed_difference` and 1e-5 of their value: their sums are rounded in another
    order.

    Args:
        model: The model that computed the scores.
        scores: The scores, ``[instances, templates, labels]``.
        names: Template names, for errors.
        quiet: Show no progress.

    Returns:
        The number of scores that were checked, and their largest difference in nats.

    Raises:
        InputError: ``E-SELF-CHECK`` for a larger difference.
    """
    draw, allowed = generator(0, "self-check"), allowed_difference(model)
    rows = draw.permutation(len(scores))[: int(np.clip(len(scores) // 200, MIN_ROWS, MAX_ROWS))].tolist()
    differences = []
    with track("self-check", len(rows), "instances", quiet=quiet) as advance:
        for row in rows:
            templates = draw.permutation(scores.scores.shape[1])[:MAX_TEMPLATES]
            encoded = scores.encoded[row]
            encoded = replace(encoded, answers=tuple(encoded.answers[template] for template in templates))
            with evaluation_mode(model):
                # No forward pass is larger than the packed row of the instance, for which there was memory.
                states = answer_states(model, [encoded], backend="padded", batch_tokens=len(encoded.trie))
                again = states.scores(model)[0].double().cpu().numpy()
            first = scores.scores[row, templates].astype(np.float64)
            differences.append(np.abs(first - again))
            wrong = np.argwhere(~(differences[-1] <= allowed + SAME_SHARE * np.abs(again)))
            if len(wrong):
                at = template, label = tuple(wrong[0].tolist())
                name = names[templates[template]] if names else int(templates[template]) + 1
                raise InputError(
                    "E-SELF-CHECK",
                    f"instance {scores.ids[row]!r}, template {name!r}, label {label}: the score is {first[at]:.5f} "
                    f"in this run, but {again[at]:.5f} if computed alone.",
                )
            advance(1)
    checked = np.concatenate(differences)
    return {"num_scores": checked.size, "largest_difference": float(checked.max())}


def preferred_tokens(
    loaded: LoadedModel, scores: Scores, templates: Sequence[int], options: ScoringOptions
) -> list[list[str]]:
    """Return the most probable first tokens of the answer under each of these templates, on average over a few rows."""
    rows = generator(0, "preferred-tokens").permutation(len(scores))[:NUM_ROWS].tolist()
    found: list[torch.Tensor] = []

    def read(members: Sequence[EncodedInstance], states: AnswerStates, scores: torch.Tensor) -> None:
        counts = states.token_counts.flatten()
        nodes = states.token_node[counts.cumsum(0) - counts]
        probs = head_logits(loaded.model, states.hidden[nodes]).softmax(dim=-1).cpu()
        found.append(probs.view(len(members), len(templates), -1))

    # The context of one label suffices.
    encoded = [scores.encoded[row] for row in rows]
    encoded = [replace(each, answers=tuple(each.answers[at][:1] for at in templates)) for each in encoded]
    backend, batch_tokens = options.backend, options.batch_tokens
    score_instances(loaded.model, encoded, backend=backend, batch_tokens=batch_tokens, quiet=True, visit=read)
    top = torch.cat(found).mean(dim=0).topk(NUM_TOKENS).indices
    return [[str(loaded.tokenizer.decode([token])) for token in tokens] for tokens in top.tolist()]
