"""Random Qwen2 models of several shapes, what a forward and a backward of them cost, and adapters on them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast, Qwen2Config

from benchmarks.workload import VOCAB, answer_prefixes, trie_depths
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance

LORA_R = 16


@dataclass(frozen=True)
class ModelShape:
    """A model's measures, the spread of its random weights, and its costs in floating-point operations."""

    hidden: int
    layers: int
    heads: int
    key_heads: int
    ff: int
    vocab: int
    spread: float = 0.02

    @property
    def head_width(self) -> int:
        """Of one attention head."""
        return self.hidden // self.heads

    @property
    def body(self) -> int:
        """Weights that every token is multiplied with: N, without embeddings and head."""
        kv = self.key_heads * self.head_width
        return self.layers * self.hidden * (2 * self.hidden + 2 * kv + 3 * self.ff)

    @property
    def lora(self) -> int:
        """Weights of LoRA on the seven projections."""
        kv = self.key_heads * self.head_width
        widths = 2 * 2 * self.hidden + 2 * (self.hidden + kv) + 3 * (self.hidden + self.ff)
        return self.layers * LORA_R * widths

    @property
    def head_share(self) -> float:
        """The head's part of a forward that computes logits at each token."""
        head = self.hidden * self.vocab
        return head / (self.body + head)

    def forward_flops(self, tokens: Sequence[int], rows: int, *, adapted: bool) -> float:
        """Forward of some tokens, each with so many visible keys, and the head at ``rows`` of them."""
        weights = self.body + (self.lora if adapted else 0)
        return 2 * weights * len(tokens) + self._attention(tokens) + 2 * self.hidden * self.vocab * rows

    def backward_flops(self, tokens: Sequence[int], rows: int) -> float:
        """Backward with frozen weights: gradients of inputs everywhere, of weights in the adapter only."""
        body = (2 * self.body + 4 * self.lora) * len(tokens)
        return body + 2 * self._attention(tokens) + 2 * self.hidden * self.vocab * rows

    def _attention(self, tokens: Sequence[int]) -> float:
        return 4 * self.layers * self.heads * self.head_width * sum(tokens)


MODELS = {
    "tiny": ModelShape(hidden=32, layers=2, heads=4, key_heads=2, ff=64, vocab=VOCAB, spread=0.15),
    "toy": ModelShape(hidden=512, layers=8, heads=8, key_heads=2, ff=2048, vocab=VOCAB),
    "0.5b": ModelShape(hidden=896, layers=24, heads=14, key_heads=2, ff=4864, vocab=151_936),
    "3b": ModelShape(hidden=2048, layers=36, heads=16, key_heads=2, ff=11_008, vocab=151_936),
    "7b": ModelShape(hidden=3584, layers=28, heads=28, key_heads=4, ff=18_944, vocab=152_064),
}


def make_model(
    shape: ModelShape, *, device: str = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A random model with transformers' SDPA, in evaluation mode."""
    config = Qwen2Config(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        intermediate_size=shape.ff,
        vocab_size=shape.vocab,
        tie_word_embeddings=True,
        initializer_range=shape.spread,
        max_position_embeddings=4096,
    )
    torch.manual_seed(seed)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
    return model.eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer to hand over where one is asked for: the instances are tokens already."""
    words = Tokenizer(models.WordLevel({"<end>": 0}, unk_token="<end>"))
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<end>", eos_token="<end>", pad_token="<end>")


def randomize_adapter(adapted: nn.Module, *, seed: int = 0) -> None:
    """Draw both of LoRA's matrices: with its B at 0, as training begins, A has no gradient to compare."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0.0, 0.02)


@dataclass(frozen=True)
class Sharing:
    """What of an instance is computed once: its ``tokens``, and the ``rows`` that go through the head.

    Attributes:
        tokens: ``beginnings``: whatever begins alike, with answers that begin alike sharing a row of the head;
            ``sequences``: only what is wholly equal; ``none``.
        answer_rows: Whether the head reads the rows that predict an answer's token only, or all.
    """

    tokens: Literal["beginnings", "sequences", "none"]
    answer_rows: bool

    def of(self, answers: Sequence[EncodedAnswer]) -> tuple[list[int], int]:
        """Of each token that is forwarded the number of keys that it sees, and the head's rows; without padding."""
        sequences: Sequence[tuple[int, ...]] = [answer.inputs for answer in answers]
        if self.tokens != "none":
            sequences = list(dict.fromkeys(sequences))
        depths = [at + 1 for each in sequences for at in range(len(each))]
        keys = trie_depths(sequences) if self.tokens == "beginnings" else depths
        if not self.answer_rows:
            return keys, len(keys)
        if self.tokens == "beginnings":
            return keys, len(answer_prefixes(answers))
        rows = {(each.inputs, at) for each in answers for at in range(len(each.context) - 1, len(each.inputs))}
        return keys, len(rows)


# What each peer computes at the least, were no token of its batches padding; `LEAST` is what the task needs.
LEAST = Sharing("beginnings", answer_rows=True)
PEERS = {
    "lm-eval": Sharing("sequences", answer_rows=False),
    "strong": Sharing("sequences", answer_rows=True),
    "naive": Sharing("none", answer_rows=False),
    "T0": Sharing("none", answer_rows=False),
    "T1": Sharing("sequences", answer_rows=True),
}


def scoring_flops(
    shape: ModelShape, instances: Sequence[EncodedInstance], sharing: Sharing = LEAST, *, adapted: bool = False
) -> float:
    """One forward of each instance; the least that scoring costs, as it is called."""
    return sum(
        shape.forward_flops(*sharing.of([answer for row in instance.answers for answer in row]), adapted=adapted)
        for instance in instances
    )


def training_flops(
    shape: ModelShape, instances: Sequence[EncodedInstance], label: int, sharing: Sharing = LEAST
) -> float:
    """Scoring with the adapter, and a backward over the consensus answers; the least that a step costs, as called.

    Who does not share beginnings forwards the consensus answers once more, as its votes have no gradient.
    """
    total = scoring_flops(shape, instances, sharing, adapted=True)
    for instance in instances:
        keys, rows = sharing.of([row[label] for row in instance.answers])
        total += shape.backward_flops(keys, rows)
        total += 0.0 if sharing == LEAST else shape.forward_flops(keys, rows, adapted=True)
    return total
