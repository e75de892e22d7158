"""Score every label under every template: mean log-probability of the answer's tokens, in nats (Eq. 13)."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from flip_flop.console import track
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import distributed
from flip_flop.scoring.answers import AnswerStates, answer_states, pack
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.causal_lm import evaluation_mode, require_finite
from flip_flop.scoring.loading import LoadedModel
from flip_flop.scoring.options import DEFAULT_SCORING, Backend, ScoringOptions
from flip_flop.scoring.support import choose_backend
from flip_flop.scoring.too_long import refuse_or_skip
from flip_flop.scoring.trie import shared_beginning

log = logging.getLogger("flip_flop")

WINDOW = 8  # forward passes whose instances are sorted by length


def score(
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    options: ScoringOptions = DEFAULT_SCORING,
    *,
    names: Sequence[str] = (),
    label: str = "scoring",
    quiet: bool = True,
    shared: bool = False,
) -> Scores:
    """Score rendered instances, all with the same numbers of templates and labels.

    Args:
        loaded: The model.
        instances: The instances. Those that are too long are refused, or left out of the scores.
        options: The scoring options.
        names: Template names, for errors.
        label: The name of the progress bar.
        quiet: Show no progress.
        shared: Divide the work between the processes of a launcher. All processes call this, and all get all scores.
    """
    encoder = loaded.encoder(options.chat_template, options.prompt_date or "")
    encoded, too_long = encoder.encode_all(instances)
    refuse_or_skip(too_long, len(instances), options.too_long, names)
    how: dict[str, Any] = {"batch_tokens": options.batch_tokens, "label": label, "quiet": quiet}
    if shared:
        # Chosen from all instances, so that all processes use the same backend.
        backend = choose_backend(loaded.model, encoded, options.backend)
        own = distributed.shard(encoded) or encoded[:1]
        parts = distributed.all_results(lambda: score_instances(loaded.model, own, backend=backend, **how))
        found = join_scores(parts, len(encoded))
    else:
        found = score_instances(loaded.model, encoded, backend=options.backend, **how)
    settings = {
        "delimiter": encoder.delimiter_of(instances[0].chat),
        "chat_template": encoder.uses_chat_template,
        "prompt_date": encoder.date,
        "bos": encoder.bos is not None,
        "backend": found.settings["backend"],
        "batch_tokens": options.batch_tokens,
        "boundary_merged": found.settings["boundary_merged"],
    }
    return replace(found, instances=encoded.read, too_long=tuple(too_long), settings=settings, encoded=encoded)


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
) -> Scores:
    """Score every label of every instance under every template.

    The result does not depend on the order of the instances. It depends on ``batch_tokens``, the tokens of one forward
    pass, only by rounding. An instance is never divided. The model is in evaluation mode. Models that the packed
    backend cannot serve exactly are scored by the padded one. ``visit`` gets the instances, states and scores of each
    forward pass.

    Raises:
        InputError: ``E-NONFINITE`` with the instance's id if the model's output is not finite.
    """
    backend = choose_backend(model, instances, backend)
    read: list[EncodedInstance] = []
    scores: list[np.ndarray] = []
    counts: list[np.ndarray] = []
    lengths: list[list[int]] = []
    merged = 0
    with contextlib.ExitStack() as stack:
        stack.enter_context(evaluation_mode(model))
        if backend == "packed":
            stack.enter_context(packed_attention(model))
        advance = stack.enter_context(track(label, len(instances), "instances", quiet=quiet))
        for window in _windows(instances, WINDOW * batch_tokens):
            # Only the id and the label: the tokens of a whole set need too much memory.
            read += [replace(instance, answers=()) for instance in window]
            scores += [np.empty(0)] * len(window)
            counts += [np.empty(0)] * len(window)
            lengths += [instance.prompt_tokens for instance in window]
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
            # One copy per window: while a device computes a forward pass, the CPU prepares the next one.
            batch, batch_counts = (torch.cat(parts) for parts in zip(*found, strict=True))
            batch = require_finite(batch.float().cpu(), [window[index].id for index in order])
            for index, of_it, its_counts in zip(order, batch.numpy(), batch_counts.numpy(), strict=True):
                scores[index - len(window)], counts[index - len(window)] = of_it, its_counts
    settings = {"backend": backend, "boundary_merged": merged}
    return Scores.of(read, np.stack(scores), np.stack(counts), prompt_tokens=np.array(lengths), settings=settings)


def join_scores(parts: Sequence[Scores], length: int) -> Scores:
    """Join the scores that processes computed for their :func:`~flip_flop.scoring.distributed.shard`."""
    first, own = parts[0], parts[:length]  # with more processes than instances, the others have no part
    scores = np.empty((length, *first.scores.shape[1:]), np.float32)
    counts = np.empty(scores.shape, np.int64)
    gold, ids = np.empty(length, np.int64), [""] * length
    lengths = np.empty(scores.shape[:2], np.int64)
    for number, part in enumerate(own):
        rows = slice(number, None, len(parts))
        assert part.token_counts is not None
        scores[rows], counts[rows], gold[rows], ids[rows] = part.scores, part.token_counts, part.gold, part.ids
        lengths[rows] = part.prompt_tokens
    settings = {**first.settings, "boundary_merged": sum(part.settings["boundary_merged"] for part in own)}
    return Scores(scores, gold, token_counts=counts, prompt_tokens=lengths, ids=tuple(ids), settings=settings)


def _windows(instances: Iterable[EncodedInstance], max_nodes: int) -> Iterator[list[EncodedInstance]]:
    """Yield the instances in order, in groups of at most ``max_nodes``. Only one group is in memory."""
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
