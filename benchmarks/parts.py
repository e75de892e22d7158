"""The parts of a run: which variants stand against each other, and what has to be equal."""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil
import torch

from benchmarks.measure import Check, Surroundings, Timings, Variant, interleave, spread, watched
from benchmarks.models import LEAST, MODELS, PEERS, ModelShape, Sharing, make_model, scoring_flops, training_flops
from benchmarks.ours import gradient, make_trainer, our_scores, our_step
from benchmarks.peers import best_harness_batch, harness_scorer, naive_scores, strong_scores
from benchmarks.training_peers import FORCED_LABEL, naive_step, strong_step, with_forced_consensus
from benchmarks.workload import count_tokens, digest, make_instances
from flip_flop.scoring import EncodedInstance

# Scores per token, nats; gradients, relative L2; losses, relative.
TOLERANCES = {"scores": 1e-5, "gradient": 5e-5, "loss": 1e-5}
SAMPLE = 2


@dataclasses.dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        model: A name of :data:`~benchmarks.models.MODELS`.
        workloads: Names of shapes.
        instances: Per shape, for scoring.
        step_instances: Per shape, for a training step: one micro-batch.
        tokens: Take more instances for scoring, until a shape's distinct tokens are so many.
        padded: Run our padded back end too; it is the strong peer's equal.
        rounds: Counted rounds.
        slow_rounds: Rounds of the slowest peers (naive, T0); 0 leaves them out.
        device, dtype: Of the model.
    """

    model: str
    workloads: tuple[str, ...]
    instances: int
    step_instances: int
    rounds: int
    slow_rounds: int
    device: str = "cpu"
    dtype: str = "float32"
    tokens: int = 0
    padded: bool = True

    @property
    def shape(self) -> ModelShape:
        """The model's measures."""
        return MODELS[self.model]

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype itself."""
        return getattr(torch, self.dtype)


Say = Callable[[str], None]


def scoring_part(settings: Settings, say: Say) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results of scoring, one shape after the other."""
    model = make_model(settings.shape, device=settings.device, dtype=settings.torch_dtype)
    cut = _exact_cut(settings)
    for name in settings.workloads:
        instances = make_instances(name, settings.instances)
        while sum(len(instance.trie) for instance in instances) < settings.tokens:
            instances = make_instances(name, len(instances) + 1)
        batch = best_harness_batch(model, instances[:SAMPLE])
        say(f"{name}: lm-eval is fastest with batches of {batch}")
        timings, around = _measure(
            settings,
            scoring_variants(model, instances, batch, settings),
            _scores_check if cut is None else _argmax_check,
            lambda line, name=name: say(f"{name}: {line}"),
        )
        if cut is not None:
            _compare(timings, scoring_variants(cut, instances[:SAMPLE], batch, settings), _scores_check)
        flops = functools.partial(scoring_flops, settings.shape, instances)
        entry = _entry(instances, timings, around, flops, against=("lm-eval", "strong", "naive"))
        yield name, entry | {"harness_batch": batch}


def scoring_variants(model: Any, instances: Sequence[EncodedInstance], batch: int, settings: Settings) -> list[Variant]:
    """lm-eval first: the others are compared with it."""
    harness = harness_scorer(model, batch)
    variants = [
        Variant("lm-eval", lambda: harness(instances)),
        Variant("strong", lambda: strong_scores(model, instances)),
        Variant("packed", lambda: our_scores(model, instances, "packed")),
    ]
    if settings.padded:
        variants.append(Variant("padded", lambda: our_scores(model, instances, "padded")))
    if settings.slow_rounds:
        variants.append(Variant("naive", lambda: naive_scores(model, instances), rounds=settings.slow_rounds))
    return variants


def training_part(settings: Settings, say: Say) -> Iterator[tuple[str, dict[str, Any]]]:
    """Results of the training step, one shape after the other."""
    with tempfile.TemporaryDirectory() as folder, with_forced_consensus():
        steps = _Steps(make_model(settings.shape, device=settings.device, dtype=settings.torch_dtype), folder)
        cut = _exact_cut(settings)
        cut_steps = None if cut is None else _Steps(cut, folder)
        # Once, at the beginning: what this process has freed since and keeps does not count as free, and can be used.
        has = free_bytes(settings.device)
        for name in settings.workloads:
            instances = make_instances(name, settings.step_instances)
            needs = naive_step_bytes(settings.shape, instances)
            left_out = []
            if settings.slow_rounds and needs > has:
                left_out = [f"T0 left out: it may take {needs / 1e9:.0f} GB, and {has / 1e9:.0f} GB are free"]
                say(f"{name}: step: {left_out[0]}")
            asked = dataclasses.replace(settings, slow_rounds=0) if left_out else settings
            timings, around = _measure(
                settings,
                steps.variants(instances, asked),
                _gradients_check if cut_steps is None else _no_check,
                lambda line, name=name: say(f"{name}: step: {line}"),
            )
            if cut_steps is not None:
                _compare(timings, cut_steps.variants(instances[:SAMPLE], asked), _gradients_check)
            flops = functools.partial(training_flops, settings.shape, instances, FORCED_LABEL)
            yield name, _entry(instances, timings, around, flops, against=("T0", "T1")) | {"left_out": left_out}


def naive_step_bytes(shape: ModelShape, instances: Sequence[EncodedInstance]) -> float:
    """What T0 may take: an instance's float32 logits and log-softmax at all positions, and as much kept of others."""
    return 4 * 4.0 * shape.vocab * max(count_tokens([instance]).naive for instance in instances)


def free_bytes(device: str) -> float:
    """Memory to be had now."""
    if torch.device(device).type == "cuda":
        return float(torch.cuda.mem_get_info()[0])
    return float(psutil.virtual_memory().available)


class _Steps:
    """The trainers over one adapted model, and their peers on the same."""

    def __init__(self, model: Any, folder: str):
        self.packed = make_trainer(model, "packed", folder)
        self.adapted = self.packed.adapted
        self.padded = make_trainer(self.adapted, "padded", folder)

    def variants(self, instances: Sequence[EncodedInstance], settings: Settings) -> list[Variant]:
        """T0 first, where it runs: the others are compared with it, else with T1."""
        adapted, config = self.adapted, self.packed.args

        def step(run: Callable[[], float]) -> Callable[[], tuple[float, torch.Tensor]]:
            return lambda: (run(), gradient(adapted))

        variants = [
            Variant("T1", step(lambda: strong_step(adapted, instances, config))),
            Variant("packed", step(lambda: our_step(self.packed, instances))),
        ]
        if settings.padded:
            variants.append(Variant("padded", step(lambda: our_step(self.padded, instances))))
        if settings.slow_rounds:
            naive = step(lambda: naive_step(adapted, instances, config))
            variants.insert(0, Variant("T0", naive, rounds=settings.slow_rounds))
        return variants


def _entry(
    instances: Sequence[EncodedInstance],
    timings: Timings,
    around: Surroundings,
    flops: Callable[[Sharing], float],
    against: Sequence[str],
) -> dict[str, Any]:
    least = flops(LEAST)
    ours = [name for name in timings.seconds if name.startswith(("packed", "padded"))]
    ratios = {
        name: {peer: ratio for peer in against if (ratio := timings.ratio(peer, name)) is not None} for name in ours
    }
    rates = {
        name: spread([least / seconds / 1e9 for seconds in by_round.values()])
        for name, by_round in timings.seconds.items()
    }
    peak = sum(around.peaks) / len(around.peaks)
    shares = {
        name: {part: rate / peak for part, rate in spread_.items() if part != "rounds"}
        for name, spread_ in rates.items()
    }
    return {
        "instances": len(instances),
        "sequences": sum(len(row) for row in instances[0].answers),
        "sha256": digest(instances),
        "counts": dataclasses.asdict(count_tokens(instances)),
        "seconds": {name: list(by_round.values()) for name, by_round in timings.seconds.items()},
        "ratios": ratios,
        "bounds": {peer: flops(PEERS[peer]) / least for peer in against},
        "useful_gflops": rates,
        "share_of_peak": shares,
        "differences": timings.differences,
        "void": timings.faults,
        "peaks": around.peaks,
        "foreign_load": around.foreign_load,
        "unpublishable": around.faults,
    }


def _scores_check(results: dict[str, Any]) -> tuple[dict[str, dict[str, float]], list[str]]:
    differences = {
        name: {"scores": float(np.abs(scores - results["lm-eval"]).max())}
        for name, scores in results.items()
        if name != "lm-eval"
    }
    return differences, _over(differences)


def _argmax_check(results: dict[str, Any]) -> tuple[dict[str, dict[str, float]], list[str]]:
    """In bfloat16 two batchings differ by more than any tolerance: how often they choose alike is noted only."""
    chosen = results["lm-eval"].argmax(-1)
    return {name: {"other argmax": float((s.argmax(-1) != chosen).mean())} for name, s in results.items()}, []


def _gradients_check(results: dict[str, Any]) -> tuple[dict[str, dict[str, float]], list[str]]:
    reference = "T0" if "T0" in results else "T1"
    loss, whole = results[reference]
    differences = {
        name: {"gradient": float((mine - whole).norm() / whole.norm()), "loss": abs(value - loss) / abs(loss)}
        for name, (value, mine) in results.items()
        if name != reference
    }
    return differences, _over(differences)


def _no_check(results: dict[str, Any]) -> tuple[dict[str, dict[str, float]], list[str]]:
    return {}, []


def _over(differences: dict[str, dict[str, float]]) -> list[str]:
    # Written as `not ... <=`, so that a NaN is a fault too.
    return [
        f"{name}: {kind} differ by {value:.1e}"
        for name, kinds in differences.items()
        for kind, value in kinds.items()
        if not value <= TOLERANCES[kind]
    ]


def _exact_cut(settings: Settings) -> Any:
    """Two layers of the model in float32, where the model itself is in less: what results are compared on."""
    if settings.dtype == "float32":
        return None
    return make_model(dataclasses.replace(settings.shape, layers=2), device=settings.device)


def _measure(settings: Settings, variants: list[Variant], check: Check, say: Say) -> tuple[Timings, Surroundings]:
    with watched(settings.device, settings.torch_dtype) as around:
        timings = interleave(variants, settings.rounds, check, settings.device, say)
    return timings, around


def _compare(timings: Timings, variants: list[Variant], check: Check) -> None:
    """Run all variants of the cut once, and add what differs."""
    differences, faults = check({variant.name: variant.run() for variant in variants})
    timings.faults += [f"two layers in float32: {fault}" for fault in faults]
    for name, kinds in differences.items():
        timings.differences.setdefault(name, {}).update(kinds)
