"""One pass of the decoder over a batch of instances, and which of its states predict which tokens of which answers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.method.divergences import to_device
from flip_flop.scoring.attention import Layout, packed_attention
from flip_flop.scoring.causal_lm import decoder_of, head_logits, token_log_probs, unwrap
from flip_flop.scoring.encoder import EncodedInstance
from flip_flop.scoring.options import DEFAULT_SCORING, Backend
from flip_flop.scoring.trie import TokenTrie, join

# Floating-point operations of a forward that is worth what it costs to start one; an order of magnitude, by device.
WORTHWHILE_FLOPS = {"cpu": 2e9, "cuda": 2e13}


@dataclass(frozen=True)
class AnswerStates:
    """The decoder's hidden state of each node of a batch's tries, and the answers to read from them.

    ``token_node``, ``token_target`` and ``token_counts`` are those of :class:`~flip_flop.scoring.trie.TokenTrie`, on
    the CPU; the states are on the model's device.
    """

    hidden: Float[Tensor, "nodes width"]
    token_node: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, counted over the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel()), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerStates":
        """The answers of one instance of the batch alone, or those of one label."""
        labels = slice(None) if label is None else slice(label, label + 1)
        wanted = torch.zeros_like(self.token_counts, dtype=torch.bool)
        wanted[instance, :, labels] = True
        mine = wanted.flatten()[self.token_owner]
        return replace(
            self,
            token_node=self.token_node[mine],
            token_target=self.token_target[mine],
            token_counts=self.token_counts[instance : instance + 1, :, labels],
        )

    def scores(self, model: nn.Module) -> Float[Tensor, "instances templates labels"]:
        """Mean log-probability of each answer's tokens (Eq. 13), in float32, with gradient where it is enabled."""
        picked = token_log_probs(model, self.hidden, self.token_node, self.token_target)
        sums = torch.zeros(self.token_counts.numel(), dtype=picked.dtype, device=picked.device)
        owner, counts = (to_device(part, picked.device) for part in (self.token_owner, self.token_counts))
        return sums.index_add(0, owner, picked).view(counts.shape) / counts

    def token_log_softmax(self, model: nn.Module) -> Float[Tensor, "tokens vocab"]:
        """The distribution over the vocabulary that each answer token is drawn from, as log-probabilities."""
        nodes, row = self.token_node.unique(return_inverse=True)
        nodes, row = (to_device(part, self.hidden.device) for part in (nodes, row))
        return head_logits(model, self.hidden[nodes]).log_softmax(dim=-1)[row]


def answer_states(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = DEFAULT_SCORING.batch_tokens,
    shared: int = 0,
) -> AnswerStates:
    """One pass of the decoder over a batch of whole instances, with gradient where it is enabled.

    All have the same numbers of templates and labels. ``packed`` forwards them as one row, whatever its length;
    ``padded`` in batches of sequences, of at most ``batch_tokens`` with padding. Where a sequence is as long as
    :func:`rotary_limit` or longer, all are read for each answer alone. The ``shared`` beginning of the instances is
    read once.
    """
    trie = join([instance.trie for instance in instances], shared)
    token_node, limit = trie.token_node.astype(np.int64), rotary_limit(model)
    if backend == "packed":
        hidden = packed_states(model, trie)
    elif limit is None or trie.depth.max() + 1 < limit:
        hidden = padded_states(model, trie, batch_tokens)
    else:
        hidden, token_node = separate_states(model, instances, batch_tokens), np.arange(len(token_node))
    parts = (token_node, trie.token_target, trie.token_counts)
    return AnswerStates(hidden, *(torch.from_numpy(part) for part in parts))


def packed_states(model: nn.Module, trie: TokenTrie) -> Float[Tensor, "nodes width"]:
    """The decoder's hidden state at each node of a trie: all distinct tokens as one row, in one forward."""
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device
    parts = (torch.from_numpy(part.astype(np.int64))[None] for part in (trie.ids, trie.depth))
    ids, positions = (to_device(part, device) for part in parts)
    with packed_attention(model):
        output = decoder(input_ids=ids, position_ids=positions, packed=Layout(trie), use_cache=False)
    return output.last_hidden_state[0]


def padded_states(model: nn.Module, trie: TokenTrie, batch_tokens: int) -> Float[Tensor, "nodes width"]:
    """The decoder's hidden state at each node of a trie, from one of the sequences that it is in, each computed alone.

    Right-padded sequences need no mask in a causal model: a real token never sees what stands behind it. Padding is
    token 0, whatever the tokenizer calls its pad token, as nothing reads it. It counts among the ``batch_tokens``.
    """
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device
    sequences, sequence_of = trie.sequences()
    line_of = np.empty(len(sequences), dtype=np.int64)
    pieces, order = [], []
    for numbers in pack([len(sequence) for sequence in sequences], batch_tokens, padded=True):
        ids = torch.zeros(len(numbers), len(sequences[numbers[0]]), dtype=torch.long)
        for line, number in enumerate(numbers):
            ids[line, : len(sequences[number])] = torch.tensor(sequences[number])
        line_of[numbers] = np.arange(len(numbers))
        states = decoder(input_ids=to_device(ids, device), use_cache=False).last_hidden_state
        nodes = np.flatnonzero(np.isin(sequence_of, numbers))
        parts = (line_of[sequence_of[nodes]], trie.depth[nodes].astype(np.int64))
        lines, positions = (to_device(torch.from_numpy(part), states.device) for part in parts)
        pieces.append(states[lines, positions])
        order.append(nodes)
    inverse = torch.from_numpy(np.argsort(np.concatenate(order)))
    return torch.cat(pieces)[to_device(inverse, pieces[0].device)]


def rotary_limit(model: nn.Module) -> int | None:
    """The number of tokens beyond which rotary positions change with the length of what is read; ``None``: never."""
    config = unwrap(model).config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    limits = [
        int(settings.get("original_max_position_embeddings") or config.max_position_embeddings)
        for settings in [rope, *(value for value in rope.values() if isinstance(value, dict))]
        if settings.get("rope_type") in ("dynamic", "longrope")
    ]
    return min(limits, default=None)


def separate_states(
    model: nn.Module, instances: Sequence[EncodedInstance], batch_tokens: int
) -> Float[Tensor, "tokens width"]:
    """The decoder's hidden state before each token of each answer, from that answer's own sequence.

    A forward holds sequences of one length, so that positions that change with it are those of each sequence alone;
    a token before it takes back what a longer one has changed.
    """
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device
    answers = [answer for instance in instances for template in instance.answers for answer in template]
    numbers_of: dict[int, list[int]] = {}
    for number, answer in enumerate(answers):
        numbers_of.setdefault(len(answer.inputs), []).append(number)
    states: dict[int, Tensor] = {}
    for length, numbers in numbers_of.items():
        for part in pack([length] * len(numbers), batch_tokens):
            batch = [numbers[index] for index in part]
            ids = torch.tensor([answers[number].inputs for number in batch], device=device)
            with torch.no_grad():
                decoder(input_ids=ids[:1, :1], use_cache=False)
            found = decoder(input_ids=ids, use_cache=False).last_hidden_state
            states |= {number: found[line, len(answers[number].context) - 1 :] for line, number in enumerate(batch)}
    return torch.cat([states[number] for number in range(len(answers))])


def pack(sizes: Sequence[int], max_tokens: int, *, padded: bool = False) -> Iterator[list[int]]:
    """Indices of the sizes, largest first, in groups of at most ``max_tokens``; a larger one goes alone.

    A group takes the sum of its sizes or, where it is padded, their number times the largest.
    """
    group: list[int] = []
    total = 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[group[0] if padded and group else index]
        if group and total + size > max_tokens:
            yield group
            group, total, size = [], 0, sizes[index]
        group.append(index)
        total += size
    if group:
        yield group


def training_row_tokens(model: nn.Module, max_tokens: int) -> int:
    """How many nodes a row of training should have: no more than it takes to be worth a forward.

    All of a row goes through the backward, also an instance without a consensus, which needs none. So rows are short
    where the model is large: one instance each.
    """
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device.type
    # Every token is multiplied with all of the decoder's weights but the embeddings.
    embeddings = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)}
    weights = sum(parameter.numel() for parameter in decoder.parameters() if id(parameter) not in embeddings)
    worthwhile = WORTHWHILE_FLOPS.get(device, WORTHWHILE_FLOPS["cuda"]) / (2 * max(weights, 1))
    return max(1, min(max_tokens, int(worthwhile)))
