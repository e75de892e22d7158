"""Scores of every label under every template: mean log-probability of the answer's tokens, in nats (Eq. 13)."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Int64
from torch import nn

from flip_flop.console import track
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import distributed
from flip_flop.scoring.answers import AnswerStates, answer_states, pack
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.causal_lm import evaluation_mode, require_finite
from flip_flop.scoring.encoder import EncodedInstance
from flip_flop.scoring.loading import LoadedModel
from flip_flop.scoring.options import DEFAULT_SCORING, Backend, ScoringOptions
from flip_flop.scoring.support import choose_backend
from flip_flop.scoring.too_long import TooLong, refuse_or_skip
from flip_flop.scoring.trie import shared_beginning

log = logging.getLogger("flip_flop")

WINDOW = 8  # forwards whose instances are put in the order of their lengths


@dataclass(frozen=True)
class ScoreTable:
    """Scores of a set of instances.

    Attributes:
        scores: Mean log-probability of each answer's tokens, in nats.
        token_counts: The tokens of each answer; 0 where answers were generated.
        num_merged: How many answers' first token spanned the join of prompt and answer.
        too_long: What was left out as too long for the model.
        settings: What ``run.json`` says of how prompts were put to the model.
    """

    scores: Float32[np.ndarray, "instances templates labels"]
    token_counts: Int64[np.ndarray, "instances templates labels"]
    num_merged: int = 0
    backend: Backend = "packed"
    too_long: tuple[TooLong, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def own_label_mass(self) -> Float[np.ndarray, "instances templates"]:
        """Probability that a template's answer is one of its own labels, whole: sum over labels of p(y_c | x)."""
        return np.exp(self.scores.astype(np.float64) * self.token_counts).sum(axis=-1)


def score(
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    options: ScoringOptions = DEFAULT_SCORING,
    *,
    names: Sequence[str] = (),
    label: str = "scoring",
    quiet: bool = True,
    shared: bool = False,
) -> ScoreTable:
    """Score rendered instances, all with the same numbers of templates and labels; ``label`` names the progress bar.

    The table is of the instances that are not skipped as too long. ``names`` are the templates', for errors. Where the
    work is ``shared``, all processes of a launcher call this, each scores its part, and all have the whole table.
    """
    encoder = loaded.encoder(options.chat_template)
    encoded, too_long = encoder.encode_all(instances)
    refuse_or_skip(too_long, len(instances), options.too_long, names)
    # By all instances: the processes score in one way.
    backend = choose_backend(loaded.model, encoded, options.backend) if shared else options.backend

    def score_part() -> ScoreTable:
        part = (distributed.shard(encoded) or encoded[:1]) if shared else encoded
        return score_instances(
            loaded.model, part, backend=backend, batch_tokens=options.batch_tokens, label=label, quiet=quiet
        )

    table = join_tables(distributed.all_results(score_part), len(encoded)) if shared else score_part()
    settings = {
        "delimiter": encoder.delimiter_of(instances[0].chat),
        "chat_template": encoder.uses_chat_template,
        "bos": encoder.bos is not None,
        "backend": table.backend,
        "batch_tokens": options.batch_tokens,
        "boundary_merged": table.num_merged,
    }
    return replace(table, too_long=tuple(too_long), settings=settings)


@torch.no_grad()
def score_instances(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = DEFAULT_SCORING.batch_tokens,
    label: str = "scoring",
    quiet: bool = False,
    visit: Callable[[Sequence[EncodedInstance], AnswerStates, torch.Tensor], None] | None = None,
) -> ScoreTable:
    """Score every label of every instance under every template.

    The result does not depend on the order of the instances, nor, but for rounding, on ``batch_tokens``, the tokens of
    one forward; an instance is never divided. The model is read in evaluation mode. ``packed`` gives way to ``padded``
    for models that it cannot serve exactly. ``visit`` gets the instances, states and scores of each forward,
    those on the CPU: what else is read of them takes no second one.

    Raises:
        InputError: ``E-NONFINITE`` where the model's output is not finite, with the instance's id.
    """
    backend = choose_backend(model, instances, backend)
    scores: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    merged = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        if backend == "packed":
            stack.enter_context(packed_attention(model))
        advance = stack.enter_context(track(label, len(instances), "instances", quiet=quiet))
        for window in _windows(instances, WINDOW * batch_tokens):
            scores += [np.empty(0)] * len(window)
            counts += [np.empty(0)] * len(window)
            merged += sum(instance.num_merged for instance in window)
            shared = shared_beginning([instance.trie for instance in window])
            sizes = [len(instance.trie) - shared for instance in window]
            waiting = list(pack(sizes, batch_tokens - shared))[::-1]
            order: list[int] = []
            found: list[tuple[torch.Tensor, torch.Tensor]] = []
            while waiting:
                indices = waiting.pop()
                members = [window[index] for index in indices]
                try:
                    states = answer_states(model, members, backend=backend, batch_tokens=batch_tokens, shared=shared)
                    answers = states.scores(model)
                except torch.OutOfMemoryError:
                    if len(indices) == 1:
                        raise
                    tokens = sum(sizes[index] for index in indices)
                    batch_tokens = shared + tokens // 2
                    log.warning("W-MEMORY: %d tokens do not fit; forwards now have %d", shared + tokens, batch_tokens)
                    left = [index for group in [*waiting, indices] for index in group]
                    parts = pack([sizes[index] for index in left], tokens // 2)
                    waiting = [[left[at] for at in part] for part in parts][::-1]
                    continue
                if visit is not None:
                    answers = require_finite(answers.cpu(), [instance.id for instance in members])
                    visit(members, states, answers)
                order += indices
                found.append((answers, states.token_counts))
                advance(len(indices))
            # Only now, and at once: while a device computes a forward, the CPU prepares the next.
            batch, batch_counts = (torch.cat(parts) for parts in zip(*found, strict=True))
            batch = require_finite(batch.float().cpu(), [window[index].id for index in order])
            for index, of_it, its_counts in zip(order, batch.numpy(), batch_counts.numpy(), strict=True):
                scores[index - len(window)], counts[index - len(window)] = of_it, its_counts
    return ScoreTable(np.stack(scores), np.stack(counts), merged, backend)


def join_tables(parts: Sequence[ScoreTable], length: int) -> ScoreTable:
    """The whole table from the parts that :func:`~flip_flop.scoring.distributed.shard` gave to the processes."""
    scores = np.empty((length, *parts[0].scores.shape[1:]), dtype=parts[0].scores.dtype)
    counts = np.empty((length, *parts[0].token_counts.shape[1:]), dtype=parts[0].token_counts.dtype)
    own = parts[:length]  # beyond, a process had nothing of its own to score
    for number, part in enumerate(own):
        scores[number :: len(parts)], counts[number :: len(parts)] = part.scores, part.token_counts
    return ScoreTable(scores, counts, sum(part.num_merged for part in own), parts[0].backend)


def _windows(instances: Iterable[EncodedInstance], max_nodes: int) -> Iterator[list[EncodedInstance]]:
    """The instances in order, in groups of so many nodes: what is encoded where it is read is not all kept."""
    window: list[EncodedInstance] = []
    total = 0
    for instance in instances:
        if window and total + len(instance.trie) > max_nodes:
            yield window
            window, total = [], 0
        window.append(instance)
        total += len(instance.trie)
    if window:
        yield window
