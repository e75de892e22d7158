"""Scoring as others do it. Each takes a model and instances, and gives ``[instances, templates, labels]``."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from benchmarks.models import make_tokenizer
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance

Scorer = Callable[[Sequence[EncodedInstance]], np.ndarray]

HARNESS_BATCHES = (8, 16, 32, 64)
# Tokens of one forward of the strong peer, padding included.
BATCH_TOKENS = 4096
# Rows of one pass of the strong peer through the head where no gradient is kept.
HEAD_ROWS = 64


def answers_of(instances: Sequence[EncodedInstance]) -> list[EncodedAnswer]:
    """All answers, by instance, template and label."""
    return [answer for instance in instances for row in instance.answers for answer in row]


def table(values: Sequence[float], instances: Sequence[EncodedInstance]) -> np.ndarray:
    """Values of answers in the order of :func:`answers_of`, as ``[instances, templates, labels]``."""
    first = instances[0].answers
    return np.array(values, dtype=np.float64).reshape(len(instances), len(first), len(first[0]))


# ---- lm-eval ----


def harness_scorer(model: PreTrainedModel, batch_size: int) -> Scorer:
    """lm-eval's HFLM from token ids, with its cache of logits; its sums are divided by the number of tokens."""
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    harness = HFLM(pretrained=model, tokenizer=make_tokenizer(), backend="causal", batch_size=batch_size)
    assert harness.logits_cache

    def score(instances: Sequence[EncodedInstance]) -> np.ndarray:
        answers = answers_of(instances)
        requests = [(("", ""), list(answer.context), list(answer.tokens)) for answer in answers]
        found = harness._loglikelihood_tokens(requests, disable_tqdm=True)
        return table([total / len(answer.tokens) for (total, _), answer in zip(found, answers, strict=True)], instances)

    return score


def best_harness_batch(model: PreTrainedModel, instances: Sequence[EncodedInstance]) -> int:
    """The batch size with which lm-eval is fastest on a sample, the first call not counted."""
    distinct = len({answer.inputs for answer in answers_of(instances)})
    # A batch larger than all there is is the same batch: the smallest of those stands for them.
    sizes = [size for size in HARNESS_BATCHES if size // 2 < distinct or size == HARNESS_BATCHES[0]]
    if len(sizes) == 1:
        return sizes[0]
    harness_scorer(model, sizes[0])(instances[:1])
    seconds = {}
    for size in sizes:
        scorer = harness_scorer(model, size)
        start = time.perf_counter()
        scorer(instances)
        seconds[size] = time.perf_counter() - start
    return min(seconds, key=lambda size: seconds[size])


# ---- naive: what a first implementation does ----


def right_padded(sequences: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Token ids ``[sequences, longest]``; a causal model needs no mask for what stands behind."""
    width = max(map(len, sequences))
    rows = [functional.pad(torch.tensor(list(ids)), (0, width - len(ids))) for ids in sequences]
    return torch.stack(rows).to(device)


def naive_log_probs(model: nn.Module, answers: Sequence[EncodedAnswer]) -> list[Tensor]:
    """One padded batch with logits and log-softmax at every position; of each answer ``[tokens, vocab]``."""
    ids = right_padded([answer.inputs for answer in answers], next(model.parameters()).device)
    log_probs = model(input_ids=ids, use_cache=False).logits.float().log_softmax(dim=-1)
    return [log_probs[place, len(a.context) - 1 : len(a.inputs)] for place, a in enumerate(answers)]


def mean_of_targets(log_probs: Tensor, answer: EncodedAnswer) -> Tensor:
    """The mean log-probability of an answer's tokens, from ``[tokens, vocab]``."""
    return log_probs.gather(1, torch.tensor(answer.tokens, device=log_probs.device)[:, None]).mean()


@torch.no_grad()
def naive_scores(model: nn.Module, instances: Sequence[EncodedInstance]) -> np.ndarray:
    """A padded batch for each instance, one sequence for each answer, full logits."""
    values = []
    for instance in instances:
        answers = answers_of([instance])
        found = naive_log_probs(model, answers)
        values += [float(mean_of_targets(part, answer)) for part, answer in zip(found, answers, strict=True)]
    return table(values, instances)


# ---- strong: all that can be had without sharing what sequences begin with ----


@dataclass(frozen=True)
class Rows:
    """Hidden states where answers' tokens are predicted.

    Attributes:
        states: ``[rows, width]``, each row once.
        tokens_of: For each answer, the rows of its tokens.
    """

    states: Tensor
    tokens_of: list[list[int]]


def strong_rows(model: nn.Module, answers: Sequence[EncodedAnswer]) -> Rows:
    """Equal sequences merged, sorted by length, in right-padded batches; states at answers' rows only."""
    causal_lm = model.get_base_model() if hasattr(model, "get_base_model") else model
    device = next(model.parameters()).device
    positions: dict[tuple[int, ...], dict[int, None]] = {}
    for answer in answers:
        positions.setdefault(answer.inputs, {}).update(
            dict.fromkeys(range(len(answer.context) - 1, len(answer.inputs)))
        )
    row_of: dict[tuple[tuple[int, ...], int], int] = {}
    pieces = []
    for batch in _batches(sorted(positions, key=len, reverse=True)):
        states = causal_lm.model(input_ids=right_padded(batch, device), use_cache=False).last_hidden_state
        places = [(line, position) for line, sequence in enumerate(batch) for position in positions[sequence]]
        lines, columns = torch.tensor(places, device=device).unbind(dim=1)
        pieces.append(states[lines, columns])
        row_of |= {(batch[line], column): len(row_of) + n for n, (line, column) in enumerate(places)}
    tokens_of = [
        [row_of[answer.inputs, position] for position in range(len(answer.context) - 1, len(answer.inputs))]
        for answer in answers
    ]
    return Rows(torch.cat(pieces), tokens_of)


def _batches(sequences: Sequence[tuple[int, ...]]) -> Iterator[list[tuple[int, ...]]]:
    batch: list[tuple[int, ...]] = []
    for sequence in sequences:
        if batch and len(batch[0]) * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(sequence)
    yield batch


def strong_log_probs(model: nn.Module, answers: Sequence[EncodedAnswer]) -> list[Tensor]:
    """Of each answer ``[tokens, vocab]``, with the head at answers' rows only."""
    rows = strong_rows(model, answers)
    log_probs = model.get_output_embeddings()(rows.states).float().log_softmax(dim=-1)
    return [log_probs[part] for part in rows.tokens_of]


@torch.no_grad()
def strong_scores(model: nn.Module, instances: Sequence[EncodedInstance]) -> np.ndarray:
    """All instances at once, the head's rows in chunks."""
    answers = answers_of(instances)
    rows = strong_rows(model, answers)
    row = torch.tensor([place for part in rows.tokens_of for place in part], device=rows.states.device)
    target = torch.tensor([token for answer in answers for token in answer.tokens], device=rows.states.device)
    order = row.argsort()
    found = torch.empty(len(row), device=rows.states.device)
    for start in range(0, len(rows.states), HEAD_ROWS):
        logits = model.get_output_embeddings()(rows.states[start : start + HEAD_ROWS]).float()
        # The tokens of these rows stand together once tokens are sorted by row.
        first, last = torch.searchsorted(row[order], torch.tensor([start, start + HEAD_ROWS], device=row.device))
        mine = order[first:last]
        found[mine] = logits[row[mine] - start, target[mine]] - logits.logsumexp(dim=-1)[row[mine] - start]
    parts = found.cpu().split([len(answer.tokens) for answer in answers])
    return table([float(part.mean()) for part in parts], instances)
