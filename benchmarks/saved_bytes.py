"""docs/memory.md: which models train on which cards, from the bytes that a step keeps for its backward, counted.

Nothing is measured on a card. A layer of each model's real widths, with the adapter on it, reads a packed row on the
CPU; what autograd keeps is counted, and multiplied with the number of layers.
"""

import argparse
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.models import MODELS, ModelShape, make_model
from flip_flop.files import write_text
from flip_flop.scoring import EncodedAnswer, EncodedInstance
from flip_flop.scoring.answers import answer_states
from flip_flop.scoring.attention import KERNELS, packed_attention
from flip_flop.training import F2CConfig
from flip_flop.training.adapter import prepare_model

SHAPES = {
    "0.5B": MODELS["0.5b"],
    "1.5B": ModelShape(hidden=1536, layers=28, heads=12, key_heads=2, ff=8960, vocab=151_936),
    "3B": MODELS["3b"],
    "7B": ModelShape(hidden=3584, layers=28, heads=28, key_heads=4, ff=18_944, vocab=152_064),
    "14B": ModelShape(hidden=5120, layers=48, heads=40, key_heads=8, ff=13_824, vocab=152_064),
}
UNTIED = ("7B", "14B")  # their heads have weights of their own
CARDS = (12, 24, 48, 80)  # GB
TOKENS = 256
# Bytes of a weight: of NF4 with double quantization (QLoRA, section 3) half a byte and .127 bits.
BYTES = {"bfloat16": 2.0, "8bit": 1.0, "4bit": 0.5 + 0.127 / 8}
ADAPTER_BYTES = 16  # float32: the weight, its gradient, and two moments of Adam
MASK_BYTES = 5  # of a pair of tokens: the mask in bfloat16, and three of bools while it is made
ANSWER_ROWS = 60  # ten templates with three answers of two tokens
RESERVED = 1.5e9  # the context, kernels and what the allocator cannot use: an assumption
SETTINGS = (("bfloat16", False), ("bfloat16", True), ("4bit", True))

HEAD = """\
# Memory

Models, cards and settings. `make memory` writes this page from counted bytes; **no number was measured on a card**.
`python -m benchmarks.run --part memory` measures.

- **An audit** keeps the states of one layer, so the weights decide. `--load-in 4bit` or `8bit` reduces them, and
  `--device-map auto` spreads the layers over all GPUs and then the CPU, which is slow (not tried on several GPUs). A
  forward that does not fit is divided; it starts at `--batch-tokens`.
- **Training** keeps the tensors that the backward needs. A row of several instances that does not fit is divided
  (`W-MEMORY`). An instance with all its templates is not, so its distinct tokens count; `audit --dry-run` prints
  them. The model stays on one device. `--activation-checkpointing true` keeps only the input of each layer and computes
  the layer twice; a run can be resumed with it.
- `--load-in 4bit` is QLoRA (NF4, double quantization, the base computes in `--dtype`); the adapter stays in float32.
  Audit an adapter with the `--load-in` of its training. `8bit` (LLM.int8()) rounds activations too, so the padded pass
  is used.
- In a clone, `.venv/bin/pip install --editable '.[quantized]'` installs bitsandbytes. It also works on a CPU, slowly.

| Qwen2.5 | weights, bfloat16 | 4bit | adapter (rank 16), gradient, Adam | a token of training | with checkpointing |
|---|---|---|---|---|---|
"""
ROOM = """
Distinct tokens of the longest instance that fits. The head covers {rows} answer tokens, and the mask of all pairs takes
{mask} bytes a pair during its construction. {reserved:.1f} GB are reserved for other uses. A dash: the weights do not
fit.

| Qwen2.5 | {cards} |
|---|{lines}|
"""


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    KERNELS["cpu"] = KERNELS["cuda"]  # counted here, for a card
    write_text(parser.parse_args().out, page())


def page() -> str:
    """The page in Markdown."""
    sizes, room = [], []
    for name, shape in SHAPES.items():
        layer = saved_bytes(replace(shape, layers=2, vocab=64)) - saved_bytes(replace(shape, layers=1, vocab=64))
        tokens = {False: shape.layers * layer / TOKENS, True: shape.layers * 2 * shape.hidden}
        weights = {kind: weight_bytes(name, shape, size) for kind, size in BYTES.items()}
        adapter = ADAPTER_BYTES * shape.lora
        per_token = [f"{tokens[checkpointing] / 1e6:.2f} MB" for checkpointing in (False, True)]
        cells = [_gb(weights["bfloat16"]), _gb(weights["4bit"]), _gb(adapter), *per_token]
        sizes.append(f"| {name} | {' | '.join(cells)} |")
        head = ANSWER_ROWS * shape.vocab * 4 * 3  # logits, their logarithms, and a gradient
        for kind, checkpointing in SETTINGS:
            fixed = weights[kind] + adapter + head + RESERVED
            once = layer if checkpointing else 0  # the layer that is computed again
            token = tokens[checkpointing] + once / TOKENS
            fits = [_root(MASK_BYTES, token, card * 1e9 - fixed) for card in CARDS]
            words = f"{name}, {kind}{', checkpointing' if checkpointing else ''}"
            room.append(f"| {words} | {' | '.join(f'{max(0, count):,}' if count > 0 else '–' for count in fits)} |")
    cards = " | ".join(f"{card} GB" for card in CARDS)
    given = {"rows": ANSWER_ROWS, "mask": MASK_BYTES, "reserved": RESERVED / 1e9, "cards": cards}
    table = ROOM.format(**given, lines="|".join(["---:"] * len(CARDS)))
    return HEAD + "\n".join(sizes) + "\n" + table + "\n".join(room) + "\n"


def _root(square: float, linear: float, room: float) -> int:
    """The largest n with square n^2 + linear n within the room; 0 where there is none."""
    return int((math.sqrt(linear**2 + 4 * square * room) - linear) / (2 * square)) if room > 0 else 0


def weight_bytes(name: str, shape: ModelShape, size: float) -> float:
    """Of the base: embeddings, and a head of its own, stay in bfloat16."""
    embeddings = shape.hidden * shape.vocab * (2 if name in UNTIED else 1)
    return size * shape.body + 2 * embeddings


def saved_bytes(shape: ModelShape) -> int:
    """What autograd keeps of a packed row of :data:`TOKENS` tokens, but for weights: each tensor counts once."""
    model = make_model(shape, dtype=torch.bfloat16)
    adapted = prepare_model(model, F2CConfig(output_dir="unused", use_cpu=True)).train()
    own = {parameter.untyped_storage().data_ptr() for parameter in adapted.parameters()}
    prompt = tuple(number % (shape.vocab - 2) for number in range(TOKENS - 2))
    instance = EncodedInstance("counted", ((EncodedAnswer(prompt, (62,)), EncodedAnswer(prompt, (63, 62))),))
    kept: dict[int, tuple[int, Tensor]] = {}  # the tensors too: another one may not take a freed one's address

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    unchanged: Callable[[Tensor], Tensor] = lambda tensor: tensor  # noqa: E731
    with packed_attention(adapted), torch.autograd.graph.saved_tensors_hooks(keep, unchanged):
        answer_states(adapted, [instance])
    return sum(size for size, _ in kept.values())


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"


if __name__ == "__main__":
    main()
