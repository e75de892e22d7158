"""One pass of the decoder over a batch of instances, and the states that predict the tokens of each answer."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from flip_flop.method.divergences import to_device
from flip_flop.scoring.attention import Layout, packed_attention
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.causal_lm import decoder_of, head_logits, token_log_probs, unwrap
from flip_flop.scoring.options import DEFAULT_SCORING, Backend
from flip_flop.scoring.trie import TokenTrie, join

# Floating-point operations above which the fixed cost of a forward pass is small: an order of magnitude by device.
WORTHWHILE_FLOPS = {"cpu": 2e9, "cuda": 2e13}


@dataclass(frozen=True)
class AnswerStates:
    """The decoder's hidden states of a batch, one per node of its trie, and the tokens that they predict.

    ``token_node``, ``token_target`` and ``token_counts`` are explained in :class:`~flip_flop.scoring.trie.TokenTrie`.
    They are on the CPU, and the states on the model's device.
    """

    hidden: Float[Tensor, "nodes width"]
    token_node: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, as an index into the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel()), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerStates":
        """Return only the answers of one instance, or only its answers with one label."""
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
        """Return the mean log-probability of each answer's tokens (Eq. 13) in float32, with gradient if enabled."""
        picked = token_log_probs(model, self.hidden, self.token_node, self.token_target)
        sums = torch.zeros(self.token_counts.numel(), dtype=picked.dtype, device=picked.device)
        owner, counts = (to_device(part, picked.device) for part in (self.token_owner, self.token_counts))
        return sums.index_add(0, owner, picked).view(counts.shape) / counts

    def token_log_softmax(self, model: nn.Module) -> Float[Tensor, "tokens vocab"]:
        """Return the log-probabilities of the vocabulary at each answer token."""
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
    """Run one pass of the decoder over a batch of instances, with gradient if enabled.

    All instances have the same numbers of templates and labels. ``packed`` computes them as one row of any length.
    ``padded`` computes batches of sequences with at most ``batch_tokens``, padding included. If a sequence reaches
    :func:`rotary_limit`, each answer has its own sequence. The ``shared`` beginning of the instances is computed once.
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
    """Return the decoder's hidden state at each node of a trie, from one forward pass of all distinct tokens."""
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device
    parts = (torch.from_numpy(part.astype(np.int64))[None] for part in (trie.ids, trie.depth))
    ids, positions = (to_device(part, device) for part in parts)
    with packed_attention(model):
        output = decoder(input_ids=ids, position_ids=positions, packed=Layout(trie), use_cache=False)
    return output.last_hidden_state[0]


def padded_states(model: nn.Module, trie: TokenTrie, batch_tokens: int) -> Float[Tensor, "nodes width"]:
    """Return the decoder's hidden state at each node of a trie, from separate sequences.

    Sequences are padded on the right with token 0. A causal model needs no mask, because a token never attends to
    later tokens. Padding counts towards ``batch_tokens``.
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
    """Return the number of tokens above which rotary positions depend on the input's length, or ``None``."""
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
    """Return the decoder's hidden state before each token of each answer, from the answer's sequence.

    Each batch has sequences of one length, so that positions that depend on the length are exact. A pass over a single
    token resets positions that a longer sequence has changed.
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
    """Yield the indices of the sizes, largest first, in groups of at most ``max_tokens``. A larger size has its group.

    The size of a group is the sum of its sizes, or with padding their number times the largest.
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
    """Return the number of nodes for a row of training: the fewest that make a forward pass efficient.

    The backward pass computes the whole row, including instances without a consensus. Rows of large models are
    therefore short: one instance each.
    """
    decoder = decoder_of(model)
    device = next(decoder.parameters()).device.type
    # Every token is multiplied with all weights of the decoder except the embeddings.
    embeddings = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)}
    weights = sum(parameter.numel() for parameter in decoder.parameters() if id(parameter) not in embeddings)
    worthwhile = WORTHWHILE_FLOPS.get(device, WORTHWHILE_FLOPS["cuda"]) / (2 * max(weights, 1))
    return max(1, min(max_tokens, int(worthwhile)))
