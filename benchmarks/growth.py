"""``python -m benchmarks.growth``: what rendering, encoding, scoring's first batch, metrics and masks cost at size.

Times are the process's processor time, all threads together, in milliseconds, but for what is waited for: that is the
clock's. Memory is what Python and numpy ask for (``tracemalloc``), and for the stream the process's peak.
"""

import argparse
import gc
import itertools
import resource
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flip_flop.files import generator
from flip_flop.metrics import summarise
from flip_flop.prompts import RenderedInstance
from flip_flop.prompts.template import Template, TemplateSet, render_instance
from flip_flop.scoring import PromptEncoder, load_tokenizer
from flip_flop.scoring.attention import COSTS, plan_blocks
from flip_flop.scoring.loading import EMBEDDED_MODEL
from flip_flop.scoring.trie import build_trie

WORDS = [
    "the",
    "room",
    "was",
    "small",
    "clean",
    "and",
    "breakfast",
    "came",
    "late",
    "people",
    "at",
    "desk",
    "were",
    "kind",
    "to",
    "us",
    "all",
    "time",
    "we",
    "would",
    "stay",
]
TEMPLATES = [
    *("Review: {{ text }}\nWas the guest content? Answer:", "{{ text }}\nIs this one good, bad or neither?"),
    *("Read this. {{ text }} The guest's verdict is", "Which of these fits? {{ text }}"),
    *("{{ text }}\n\nOne word for it:", "Somebody wrote: {{ text }}\nThey meant that it was"),
    *("Question: what does '{{ text }}' say? Answer:", "{{ text }} All in all,", "Text: {{ text }}\nLabel:"),
    "A guest said: {{ text }}\nSay in one word what the guest thought of the stay:",
]


def rows(count: int, num_labels: int) -> Iterator[RenderedInstance]:
    """Instances of ten templates; texts of 20 to 40 words."""
    kinds = [" ".join(pair) for pair in itertools.product(WORDS, WORDS)][:num_labels]
    templates = TemplateSet(
        tuple(Template(f"t{number}", text, " ||| ".join(kinds)) for number, text in enumerate(TEMPLATES))
    )
    draw = generator(0, "growth")
    for number in range(count):
        text = " ".join(draw.choice(WORDS, size=int(draw.integers(20, 40))))
        known: dict[str, Any] = {"label": None, "num_labels": num_labels, "label_field": None}
        yield render_instance({"text": text}, templates, id=str(number), **known)


def spent(work: Callable[[], Any]) -> tuple[Any, float]:
    """What it gives, and the milliseconds of processor time."""
    gc.collect()
    started = time.process_time()
    return work(), 1e3 * (time.process_time() - started)


def encoding(count: int, num_labels: int) -> None:
    """Rendering and encoding, an instance of ten templates."""
    encoder = PromptEncoder(load_tokenizer(str(EMBEDDED_MODEL)))
    rendered, made = spent(lambda: list(rows(count, num_labels)))
    encoder.encode_all(rendered[:2])
    _, encoded = spent(lambda: list(encoder.encode_all(rendered)[0]))
    tracemalloc.start()
    kept = list(encoder.encode_all(rendered)[0])
    kilobytes = tracemalloc.get_traced_memory()[0] / 1e3 / len(kept)
    tracemalloc.stop()
    print(f"render, 10 x {num_labels}: {made / count:.3f} ms an instance")
    print(f"encode, 10 x {num_labels}: {encoded / count:.2f} ms and {kilobytes:.1f} KB an instance")


def stream(count: int) -> None:
    """Encoding as scoring reads it: when the first instance is there, and when all are."""
    encoder, rendered = PromptEncoder(load_tokenizer(str(EMBEDDED_MODEL))), list(rows(count, 3))
    started, used = time.monotonic(), time.process_time()
    encoded = iter(encoder.encode_all(rendered)[0])
    next(encoded)
    first = time.monotonic() - started
    number = 1 + sum(1 for _ in encoded)
    whole, used = time.monotonic() - started, time.process_time() - used
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(
        f"stream, {number:,} of 10 x 3: first after {first:.2f} s, all after {whole:.1f} s ({used:.0f} s of processor"
    )
    print(f"  time); peak of the process, rendered rows included, {peak:.2f} GB")


def metrics(count: int) -> None:
    """Every metric with its interval, as an audit computes them."""
    draw = generator(0, "growth metrics")
    scores = draw.normal(size=(count, 10, 3)).astype(np.float32)
    names = [f"t{number}" for number in range(10)]
    gold = draw.integers(0, 3, size=count)
    _, alone = spent(lambda: summarise(scores, gold, names))
    print(f"metrics, {count:,} x 10 x 3: {alone / 1e3:.2f} s")


def masks(length: int) -> None:
    """The masks of ten prompts that differ from their first token on."""
    prompts = [[((number, *range(length)), (1,)), ((number, *range(length)), (2,))] for number in range(10)]
    trie = build_trie(prompts)
    call, per_head, per_element = COSTS["cpu"]
    blocks, planned = spent(lambda: plan_blocks(trie, call / (14 * (per_head + per_element * 64))))
    cells = sum((block.stop - block.start) * len(block.key_nodes()) for block in blocks if not block.mask(trie).all())
    print(f"masks, 10 prompts of {length:,} tokens: {4 * cells / 1e6:.0f} MB in float32, {planned:.0f} ms of planning")


def main() -> None:
    """Print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=100_000, help="instances of the stream and of the metrics")
    parser.add_argument("--only", choices=["encoding", "stream", "metrics", "masks"])
    options = parser.parse_args()
    parts = {
        "stream": lambda: stream(options.size),  # first: its peak is the process's
        "encoding": lambda: (encoding(1000, 3), encoding(50, 150)),
        "metrics": lambda: (metrics(options.size // 10), metrics(options.size)),
        "masks": lambda: (masks(1000), masks(4000)),
    }
    for name, part in parts.items():
        if options.only in (None, name):
            part()


if __name__ == "__main__":
    main()
