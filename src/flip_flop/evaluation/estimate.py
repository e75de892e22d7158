"""The cost of an audit before it runs: requests, tokens, price and time, from a few instances."""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from flip_flop.console import count, duration
from flip_flop.metrics import ScoredRows
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import CausalLMScorer, EndpointScorer, Scorer
from flip_flop.scoring.options import ScoringOptions
from flip_flop.tasks import RenderedSplit

NUM_TIMED = {True: 16, False: 4}  # instances of a local or served model


def estimate(
    scorer: Scorer,
    split: RenderedSplit,
    options: ScoringOptions,
    *,
    price_in: float | None = None,
    price_out: float | None = None,
) -> str:
    """Score a few instances and return lines about the cost of all. The run directory and the store stay unchanged.

    Prices are per million tokens. A served model answers the requests of the sample. Answers that are stored
    already are counted too.

    Raises:
        InputError: As :meth:`~flip_flop.scoring.Scorer.scores`.
    """
    instances, is_local = split.instances, isinstance(scorer, CausalLMScorer)
    sample = instances[:: max(1, len(instances) // NUM_TIMED[is_local])][: NUM_TIMED[is_local]]
    names = split.task.templates.names
    with tempfile.TemporaryDirectory() as folder:
        # The first instance finds the API of a server or warms up a local model.
        for name, timed in (("first", sample[:1]), ("timed", sample)):
            if isinstance(scorer, EndpointScorer):
                scorer.store = Path(folder) / name
            started = time.perf_counter()
            scores = ScoredRows.of_scorer(scorer.scores(timed, options, names=names))
            seconds = time.perf_counter() - started
    lines = [f"dry run: {count(len(instances), 'instance')}, {count(len(names), 'template')}; nothing is written"]
    if isinstance(scorer, CausalLMScorer):
        encoded, too_long, _ = scorer.loaded.encoder(options.chat_template).encode_all(instances)
        sizes = {instance.id: len(instance.trie) for instance in encoded}
        naive = sum(
            len(one.context) + len(one.tokens)
            for instance in encoded
            for answers in instance.answers
            for one in answers
        )
        factor = sum(sizes.values()) / sum(sizes[instance] for instance in scores.ids)
        lines.append(f"tokens: {naive:,} naive, {sum(sizes.values()):,} packed; {len(too_long):,} prompts too long")
    else:
        settings, factor = scores.settings, _length(instances) / _length(sample)
        asked = settings["num_asked"] * len(instances) // len(sample)
        read, written = (round(settings[f"tokens_{kind}"] * factor) for kind in ("read", "written"))
        lines.append(f"requests: {asked:,} by {settings['api']}; tokens: {read:,} in, {written:,} out")
        if price_in is not None or price_out is not None:
            lines.append(f"price: {(read * (price_in or 0) + written * (price_out or 0)) / 1e6:.2f}")
    lines.append(f"time: {duration(seconds * factor)}, estimated from {count(len(sample), 'instance')}")
    return "\n".join(lines)


def _length(instances: Sequence[RenderedInstance]) -> int:
    return sum(len(prompt) for instance in instances for prompt in instance.prompts)
