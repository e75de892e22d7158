"""One forward pass of the model over a batch of instances: the logits that predict the tokens of each answer.

A *packed* row holds every distinct token of the instances once. Its layout is a keyword argument that models pass to
their attention, where each node of the trie attends to itself and its ancestors. *Padded* sequences are computed
separately, for models whose attention does not take a layout.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils.rnn import pad_sequence
from transformers import AttentionInterface

from flip_flop.method.divergences import at_least_float32, to_device
from flip_flop.scoring import distributed
from flip_flop.scoring.causal_lm import as_input_error, unwrap
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.options import DEFAULT_SCORING, Backend
from flip_flop.scoring.trie import TokenTrie, add_sequences, as_bytes, build_trie, inputs_of, shared_length

T = TypeVar("T")
State = TypeVar("State")
# The number of sequences, their longest and shortest length, and the columns with logits.
Batch = tuple[int, int, int, frozenset[int]]
# The nodes of a trie, the most rows of logits, and the sequences of the trie, sorted.
Group = tuple[int, int, list[bytes]]
# The queries, keys and mask of an attention call.
Call = tuple[slice, Tensor, Tensor]
# The most logits of one forward pass: 256 MB in float32, or 441 rows of 151,936.
MAX_LOGITS = 1 << 26
# Floating-point operations above which the fixed cost of a forward pass is small: an order of magnitude by device.
WORTHWHILE_FLOPS = {"cpu": 2e9, "cuda": 2e13}
# Nodes of a row of a sharded model, whose weights each pass gathers.
SHARDED_ROW = 2000
NAME = "flip_flop_packed"
# A CPU computes the attention of so many nodes at a time, over their ancestors and themselves. One mask over all nodes
# has the fewest calls, but computes every pair of nodes, most of which are hidden.
CHUNK = 128
# Kernels require masks whose rows have a multiple of this number of elements in memory.
ALIGNED = 16
# Kernels for a backward pass. With a mask, cuDNN's has gradients of NaN for rows of 64, 192, 320... nodes on an H100 or
# H200 (pytorch#196678). Its forward pass is right, and the fastest.
WITH_GRADIENT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Arguments of attentions that are more than a scaled dot product.
REFUSED = ("softcap", "s_aux", "position_bias", "cache")


@dataclass(frozen=True)
class AnswerStates:
    """The logits of a batch in float32 that predict the tokens of its answers.

    Attributes:
        logits: One row per distinct context of an answer token, on the model's device.
        token_row: The row that predicts each answer token, in the order (instance, template, label). On the CPU, as
            are the following.
        token_target: The id of each answer token.
        token_counts: The number of tokens of each answer.
    """

    logits: Float[Tensor, "rows vocab"]
    token_row: Int[Tensor, " tokens"]
    token_target: Int[Tensor, " tokens"]
    token_counts: Int[Tensor, "instances templates labels"]

    @property
    def token_owner(self) -> Int[Tensor, " tokens"]:
        """The answer of each token, as an index into the flattened ``[instances, templates, labels]``."""
        counts = self.token_counts.flatten()
        return torch.repeat_interleave(torch.arange(counts.numel()), counts)

    def of(self, instance: int, label: int | None = None) -> "AnswerStates":
        """Return only the answers of one instance with tokens, or only its answers with one label."""
        labels = slice(None) if label is None else slice(label, label + 1)
        wanted = torch.zeros_like(self.token_counts, dtype=torch.bool)
        wanted[instance, :, labels] = True
        is_wanted = wanted.flatten()[self.token_owner]
        counts = self.token_counts[instance : instance + 1, :, labels]
        return replace(
            self,
            token_row=self.token_row[is_wanted],
            token_target=self.token_target[is_wanted],
            token_counts=counts[..., counts[0].any(dim=0)],
        )

    def scores(self) -> Float[Tensor, "instances templates labels"]:
        """Return the mean log-probability of each answer's tokens (Eq. 13), with gradient if enabled.

        It is ``-inf`` for an answer without tokens.
        """
        logits, row = self._used_logits()
        target, owner, counts = (
            to_device(part, logits.device) for part in (self.token_target, self.token_owner, self.token_counts)
        )
        log_probs = logits[row, target] - logits.logsumexp(dim=-1)[row]
        sums = torch.zeros(counts.numel(), dtype=log_probs.dtype, device=log_probs.device)
        means = sums.index_add(0, owner, log_probs).view(counts.shape) / counts.clamp(min=1)
        return means.masked_fill(counts == 0, -math.inf)

    def token_log_softmax(self) -> Float[Tensor, "tokens vocab"]:
        """Return the log-probabilities of the vocabulary at each answer token."""
        logits, row = self._used_logits()
        return logits.log_softmax(dim=-1)[row]

    def _used_logits(self) -> tuple[Float[Tensor, "used vocab"], Int[Tensor, " tokens"]]:
        """Return the rows that these answers use, and the index of each token's row among them."""
        rows, row = self.token_row.unique(return_inverse=True)
        rows, row = (to_device(part, self.logits.device) for part in (rows, row))
        return (self.logits if len(rows) == len(self.logits) else self.logits[rows]), row


def answer_states(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "packed",
    batch_tokens: int = DEFAULT_SCORING.batch_tokens,
) -> AnswerStates:
    """Run one forward pass over a batch of instances, with gradient if enabled.

    All instances have the same numbers of templates and labels. ``packed`` computes them as one row of any length,
    and tokens after the same beginning once. ``padded`` computes batches of sequences with at most ``batch_tokens``,
    padding included.

    Raises:
        InputError: ``E-MODEL-KIND`` if packing was forced on a model that does not take a packed row.
    """
    trie = merged_trie(instances)
    if backend == "packed":
        logits, token_row = _packed_logits(model, trie)
    else:
        limit = rotary_limit(model)
        depends_on_length = limit is not None and int(trie.depth.max()) + 1 >= limit
        logits, token_row = _padded_logits(model, trie, batch_tokens, same_length=depends_on_length)
    return AnswerStates(logits, token_row, *map(torch.from_numpy, (trie.token_target, trie.token_counts)))


def merged_trie(instances: Iterable[EncodedInstance]) -> TokenTrie:
    """Return the trie of a forward pass over these instances."""
    return build_trie([instance.answers for instance in instances])


def _packed_logits(model: nn.Module, trie: TokenTrie) -> tuple[Float[Tensor, "rows vocab"], Int[Tensor, " tokens"]]:
    """Return the logits at the nodes of a trie that predict an answer token, and the row of each answer token."""
    nodes, token_row = np.unique(trie.token_node, return_inverse=True)
    ids, positions, kept = map(torch.from_numpy, (trie.ids, trie.depth, nodes))
    positions = to_device(positions[None], unwrap(model).device)
    what = f"{type(unwrap(model)).__name__} does not take a packed row"
    unsupported = (NotImplementedError, TypeError)
    with packed_attention(model), as_input_error("E-MODEL-KIND", what, "Use --backend padded.", unsupported):
        logits = _forward(model, ids[None], kept, position_ids=positions, packed=Layout(trie))[0]
    return logits, torch.from_numpy(token_row)


def _padded_logits(
    model: nn.Module, trie: TokenTrie, batch_tokens: int, *, same_length: bool
) -> tuple[Float[Tensor, "rows vocab"], Int[Tensor, " tokens"]]:
    """Return the logits that predict the answer tokens of a trie, from separate sequences, and the row of each token.

    Sequences are padded on the right with token 0. A causal model needs no mask, because a token never attends to
    later tokens.

    Args:
        model: The model.
        trie: The instances. The last node of a sequence identifies it. An input shares the sequence of a longer input
            that begins with it.
        batch_tokens: The tokens of a forward pass, padding included.
        same_length: Compute only sequences of one length together, for positions that depend on the length. A pass
            over a single token resets positions that a longer sequence has changed.
    """
    counts = trie.token_counts.ravel()
    ends = np.repeat(trie.token_node[counts.cumsum() - 1], counts)
    if not same_length:
        ends = trie.leaves[np.searchsorted(trie.leaves, ends)]
    places = list(zip(ends.tolist(), trie.depth[trie.token_node].tolist(), strict=True))
    columns: dict[int, set[int]] = {}
    for end, column in places:
        columns.setdefault(end, set()).add(column)
    most_rows = max_rows(model)
    pieces = []
    row_of: dict[tuple[int, int], int] = {}

    def add(batch: Batch, end: int) -> Batch:
        size, width, _, used = batch
        length = int(trie.depth[end]) + 1
        return size + 1, width or length, length, used | columns[end]

    def fits(batch: Batch) -> bool:
        size, width, shortest, used = batch
        is_alike = not same_length or shortest == width
        return is_alike and size * width <= batch_tokens and size * len(used) <= most_rows

    empty: Batch = (0, 0, 0, frozenset())
    for batch in groups(sorted(columns, key=lambda end: -trie.depth[end]), empty, add, fits):
        sequences = [torch.from_numpy(trie.ids[[*trie.ancestors(end), end]]) for end in batch]
        ids = pad_sequence(sequences, batch_first=True)
        if same_length:
            with torch.no_grad():
                _forward(model, ids[:1, :1], torch.tensor([0]))
        used = sorted(set.union(*(columns[end] for end in batch)))
        logits = _forward(model, ids, torch.tensor(used))
        cells = [(line, column) for line, end in enumerate(batch) for column in sorted(columns[end])]
        for line, column in cells:
            row_of[batch[line], column] = len(row_of)
        lines, kept = torch.tensor([(line, used.index(column)) for line, column in cells]).T
        pieces.append(logits[to_device(lines, logits.device), to_device(kept, logits.device)])
    return torch.cat(pieces), torch.tensor([row_of[place] for place in places])


def _forward(
    model: nn.Module, ids: Int[Tensor, "lines tokens"], columns: Int[Tensor, " columns"], **more: Any
) -> Float[Tensor, "lines columns vocab"]:
    """Return the model's logits of some columns in float32: with its caps and scales, and through its hooks."""
    causal_lm = unwrap(model)
    on_one_device = len(set(getattr(causal_lm, "hf_device_map", {}).values())) <= 1
    if on_one_device and "logits_to_keep" in inspect.signature(causal_lm.forward).parameters:
        more["logits_to_keep"] = to_device(columns, causal_lm.device)
    if not torch.is_grad_enabled():  # with a gradient, the trainer announces forward and backward together
        distributed.announce_pass(model)
    with distributed.shared_pass(model):
        logits = model(input_ids=to_device(ids, causal_lm.device), use_cache=False, **more).logits
    if "logits_to_keep" not in more:
        logits = logits[:, to_device(columns, logits.device)]
    return at_least_float32(logits)


@torch.no_grad()
def spare_pass(model: nn.Module) -> None:
    """Compute a pass over one token, for the other processes of a sharded model."""
    with distributed.shared_pass(model):
        model(input_ids=torch.zeros(1, 1, dtype=torch.long, device=unwrap(model).device), use_cache=False)


@dataclass(frozen=True, eq=False)
class Layout:
    """The masks of a packed row, which the first layer on each device computes for all layers."""

    trie: TokenTrie
    _calls: dict[tuple[torch.device, torch.dtype], list[Call]] = field(default_factory=dict)

    def calls(self, query: Float[Tensor, "1 heads nodes width"]) -> list[Call]:
        """Return the queries, keys and mask of each attention call: one for all nodes, or one per chunk."""
        kind = (query.device, query.dtype)
        if kind not in self._calls:
            chunk = CHUNK if query.device.type == "cpu" else len(self.trie)
            starts = range(0, len(self.trie), chunk)
            self._calls[kind] = [self._call(start, min(start + chunk, len(self.trie)), query) for start in starts]
        return self._calls[kind]

    def _call(self, start: int, stop: int, query: Tensor) -> Call:
        # An ancestor of a later node of the chunk is in the chunk, or an ancestor of its first node.
        keys = np.concatenate([self.trie.ancestors(start), np.arange(start, stop)])
        places, leave = (to_device(torch.from_numpy(part), query.device) for part in (keys, self.trie.leave[keys]))
        nodes = torch.arange(start, stop, device=query.device)[:, None]
        # Without the alignment in memory, each layer would copy the mask.
        mask = query.new_full((stop - start, math.ceil(len(keys) / ALIGNED) * ALIGNED), float("-inf"))[:, : len(keys)]
        return slice(start, stop), places, mask.masked_fill_((places <= nodes) & (nodes < leave), 0.0)


def attend(
    module: nn.Module,
    query: Float[Tensor, "batch heads nodes width"],
    key: Float[Tensor, "batch key_heads keys width"],
    value: Float[Tensor, "batch key_heads keys value_width"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed: Layout | None = None,
    **arguments: Any,
) -> tuple[Float[Tensor, "batch nodes heads value_width"], None]:
    """Compute the attention of a layer. transformers calls this function.

    No mask function is registered. Transformers then creates no mask and does not synchronize with the device.

    Raises:
        NotImplementedError: The layout is missing, or the attention is not a scaled dot product.
    """
    if packed is None:
        raise NotImplementedError("its attention was not given the layout of a packed row")
    if attention_mask is not None:
        raise NotImplementedError("attention with an additional mask")
    for name in REFUSED:
        if arguments.get(name) is not None:
            raise NotImplementedError(f"attention with {name}")
    _, heads, nodes, width = query.shape
    outputs = []
    for rows, places, mask in packed.calls(query):
        # The query heads of each key head are one batch with the same keys, so that keys are not copied.
        q = query[0, :, rows].reshape(key.shape[1], heads // key.shape[1], -1, width)
        k, v = (part if len(places) == nodes else part[:, :, places] for part in (key, value))
        k, v = (part[0, :, None].expand(-1, q.shape[1], -1, -1) for part in (k, v))
        states = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling)
        # Some kernels return a transposed tensor, for which view() fails.
        outputs.append(states.reshape(1, heads, -1, value.shape[3]).transpose(1, 2))
    return (outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)), None


AttentionInterface.register(NAME, attend)


@contextmanager
def packed_attention(model: nn.Module) -> Iterator[None]:
    """Replace the attention of a model by attention over packed rows, and restore it afterwards.

    With gradient checkpointing, the context must include the backward pass.
    """
    causal_lm = unwrap(model)
    before = causal_lm.config._attn_implementation
    if before == NAME:
        yield
        return
    causal_lm.set_attn_implementation(NAME)
    try:
        with sdpa_kernel(WITH_GRADIENT) if torch.is_grad_enabled() else nullcontext():
            yield
    finally:
        causal_lm.set_attn_implementation(before)


def rotary_limit(model: nn.Module) -> int | None:
    """Return the number of tokens above which rotary positions depend on the input's length, or ``None``."""
    config = unwrap(model).config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    parts = [rope, *(value for value in rope.values() if isinstance(value, dict))]
    limits = [
        int(part.get("original_max_position_embeddings") or config.max_position_embeddings)
        for part in parts
        if part.get("rope_type") in ("dynamic", "longrope")
    ]
    return min(limits, default=None)


def groups(
    items: Iterable[T], start: State, add: Callable[[State, T], State], fits: Callable[[State], bool]
) -> Iterator[list[T]]:
    """Yield the items in order, in groups whose state fits. An item that does not fit has its own group.

    ``add`` returns the state of a group, such as its size, with another item. An empty group has the state ``start``.
    """
    group = list[T]()
    state = start
    for item in items:
        grown = add(state, item)
        if group and not fits(grown):
            yield group
            group = []
            grown = add(start, item)
        group.append(item)
        state = grown
    if group:
        yield group


def max_rows(model: nn.Module) -> int:
    """Return the number of positions whose logits fit in a forward pass."""
    return MAX_LOGITS // unwrap(model).config.get_text_config().vocab_size


def pack(model: nn.Module, instances: Iterable[EncodedInstance], max_tokens: int) -> Iterator[list[EncodedInstance]]:
    """Yield the instances in order, in groups whose trie has at most ``max_tokens``, or of one larger instance.

    The logits of a group are at most :data:`MAX_LOGITS`.
    """
    most_rows = max_rows(model)

    def add(group: Group, instance: EncodedInstance) -> Group:
        num_tokens, num_rows, sequences = group
        sequences = [*sequences]
        inputs = inputs_of(list(chain.from_iterable(instance.answers)))
        num_tokens += add_sequences(sequences, set(inputs))
        return num_tokens, num_rows + len(np.unique(instance.trie.token_node)), sequences

    def fits(group: Group) -> bool:
        num_tokens, num_rows, _ = group
        return num_tokens <= max_tokens and num_rows <= most_rows

    return groups(instances, (0, 0, list[bytes]()), add, fits)


def packing_order(instances: Sequence[EncodedInstance], backend: Backend) -> list[int]:
    """Return the order of instances in which neighbours share the most tokens, or need the least padding.

    ``packed`` sorts them by their prompts under one template, for example under one that begins with a passage.
    """
    numbers = range(len(instances))
    if backend == "padded":
        return sorted(numbers, key=lambda number: -instances[number].longest)
    orders = []
    for template in zip(*(instance.answers for instance in instances), strict=True):
        prompts = [as_bytes(answers[0].context) for answers in template]
        order = sorted(numbers, key=prompts.__getitem__)
        num_shared = sum(shared_length(prompts[one], prompts[other]) for one, other in pairwise(order))
        orders.append((num_shared, order))
    return max(orders, default=(0, []))[1]


def packed_tokens(model: nn.Module, instances: Sequence[EncodedInstance], batch_tokens: int) -> int:
    """Return the number of tokens in the packed passes over these instances."""
    ordered = (instances[number] for number in packing_order(instances, "packed"))
    return sum(len(merged_trie(members)) for members in pack(model, ordered, batch_tokens))


def training_row_tokens(model: nn.Module, max_tokens: int) -> int:
    """Return the number of nodes for a row of training: the fewest that make a forward pass efficient.

    The backward pass computes the whole row, including instances without a consensus. Rows of large models are
    therefore short: one instance each.
    """
    causal_lm = unwrap(model)
    # Every token is multiplied with all weights except the embeddings; the head computes few of them.
    embeddings = [module for module in causal_lm.modules() if isinstance(module, nn.Embedding)]
    left_out = {id(module.weight) for module in [*embeddings, causal_lm.get_output_embeddings()]}
    weights = sum(parameter.numel() for parameter in causal_lm.parameters() if id(parameter) not in left_out)
    worthwhile = WORTHWHILE_FLOPS.get(causal_lm.device.type, WORTHWHILE_FLOPS["cuda"]) / (2 * max(weights, 1))
    if distributed.sharding_of(model) is None:
        fewest = int(worthwhile)
    else:
        fewest = max(SHARDED_ROW, int(worthwhile))
    return max(1, min(max_tokens, fewest))
