"""``python -m benchmarks.run``: time scoring and the training step against their peers, and write one JSON file.

Absolute times of a shared machine say little, ratios of runs side by side say something. In each round every variant
runs once, in an order that rotates. The first round is dropped. Results are compared in every round.
"""

import argparse
import dataclasses
import gc
import importlib.metadata
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

from benchmarks.models import LEAST, MODELS, PEERS, ModelShape, Sharing, make_model, scoring_flops, training_flops
from benchmarks.ours import gradient, make_trainer, our_scores, our_step
from benchmarks.peers import best_harness_batch, harness_scorer, strong_scores
from benchmarks.training_peers import FORCED_LABEL, naive_step, strong_step, with_forced_consensus
from benchmarks.workload import SHAPES, count_tokens, digest, make_instances
from flip_flop.console import command, echo, hardware, now, versions
from flip_flop.files import write_json
from flip_flop.scoring.encode import EncodedInstance

PARTS = ("scoring", "training")
# Scores per token, nats; gradients, relative L2; losses, relative.
TOLERANCES = {"scores": 1e-5, "gradient": 5e-5, "loss": 1e-5}
# Instances for scoring, instances of a training step, rounds.
DEFAULTS = {"tiny": (2, 1, 1), "toy": (8, 2, 3), "0.5b": (1, 1, 3), "3b": (8, 4, 5)}

Variants = Mapping[str, Callable[[], Any]]
# The largest differences of a round's results from the reference, by variant and kind.
Compare = Callable[[Mapping[str, Any]], dict[str, dict[str, float]]]


@dataclasses.dataclass
class Timings:
    """Seconds of each variant by round, the largest difference by variant and kind, and faults that void the timing."""

    seconds: dict[str, list[float]]
    differences: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    faults: list[str] = dataclasses.field(default_factory=list)

    def ratio(self, slow: str, fast: str) -> dict[str, float]:
        """How many times as long ``slow`` takes: median, least and most over the rounds."""
        pairs = zip(self.seconds[slow], self.seconds[fast], strict=True)
        ratios = [slow_seconds / fast_seconds for slow_seconds, fast_seconds in pairs]
        return {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios), "rounds": len(ratios)}


def interleave(variants: Variants, rounds: int, compare: Compare, device: str) -> Timings:
    """Run all variants in ``rounds`` rounds after one that is dropped, and compare the results of every round."""
    names = list(variants)
    timings = Timings({name: [] for name in names})
    for number in range(rounds + 1):
        turn = number % len(names)
        results = {}
        for name in [*names[turn:], *names[:turn]]:
            gc.collect()
            seconds, results[name] = timed(variants[name], device)
            if number:
                timings.seconds[name].append(seconds)
        for name, kinds in compare(results).items():
            known = timings.differences.setdefault(name, {})
            for kind, value in kinds.items():
                known[kind] = max(value, known.get(kind, 0.0))
                if not value <= TOLERANCES[kind]:  # a NaN is a fault, too
                    timings.faults.append(f"round {number}: {name}: {kind} differ by {value:.1e}")
    return timings


def timed(run: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Return seconds and result."""
    is_gpu = torch.device(device).type == "cuda"
    if is_gpu:
        torch.cuda.synchronize()
    start = time.perf_counter()
    result = run()
    if is_gpu:
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def measure_scoring(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of scoring by shape. lm-eval is the reference."""
    model = make_model(MODELS[options.model], device=options.device)
    for name in options.workloads:
        instances = make_instances(name, options.instances)
        batch = best_harness_batch(model, instances[:2])
        harness = harness_scorer(model, batch)
        variants = {
            "lm-eval": lambda instances=instances, harness=harness: harness(instances),
            "strong": lambda instances=instances: strong_scores(model, instances),
            "packed": lambda instances=instances: our_scores(model, instances, "packed"),
        }
        timings = interleave(variants, options.rounds, _compare_scores, options.device)
        flops = {peer: scoring_flops(MODELS[options.model], instances, PEERS[peer]) for peer in ("lm-eval", "strong")}
        least = scoring_flops(MODELS[options.model], instances, LEAST)
        yield name, _entry(instances, timings, flops, least) | {"harness_batch": batch}


def measure_training(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the results of the training step by shape. T0, two naive passes, is the reference."""
    shape = MODELS[options.model]
    with tempfile.TemporaryDirectory() as folder, with_forced_consensus():
        trainer = make_trainer(make_model(shape, device=options.device), "packed", folder)
        adapted, config = trainer.adapted, trainer.args
        for name in options.workloads:
            instances = make_instances(name, options.step_instances)
            losses = {
                "T0": lambda instances=instances: naive_step(adapted, instances, config),
                "T1": lambda instances=instances: strong_step(adapted, instances, config),
                "packed": lambda instances=instances: our_step(trainer, instances),
            }
            variants = {variant: lambda run=run: (run(), gradient(adapted)) for variant, run in losses.items()}
            timings = interleave(variants, options.rounds, _compare_gradients, options.device)
            flops = {peer: _step_flops(shape, instances, PEERS[peer]) for peer in ("T0", "T1")}
            yield name, _entry(instances, timings, flops, _step_flops(shape, instances, LEAST))


def _step_flops(shape: ModelShape, instances: Sequence[EncodedInstance], sharing: Sharing) -> float:
    return training_flops(shape, instances, FORCED_LABEL, sharing)


def _compare_scores(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    reference = results["lm-eval"]
    return {name: {"scores": float(np.abs(scores - reference).max())} for name, scores in results.items()}


def _compare_gradients(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    loss, whole = results["T0"]
    return {
        name: {"gradient": float((vector - whole).norm() / whole.norm()), "loss": abs(value - loss) / abs(loss)}
        for name, (value, vector) in results.items()
    }


def _entry(
    instances: Sequence[EncodedInstance], timings: Timings, flops: Mapping[str, float], least: float
) -> dict[str, Any]:
    return {
        "instances": len(instances),
        "sha256": digest(instances),
        "counts": dataclasses.asdict(count_tokens(instances)),
        "seconds": timings.seconds,
        "ratios": {peer: timings.ratio(peer, "packed") for peer in flops},
        "bounds": {peer: value / least for peer, value in flops.items()},
        "differences": timings.differences,
        "void": timings.faults,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--model", choices=DEFAULTS, default="toy", help="the shape of a random model")
    parser.add_argument("--workloads", default=",".join(SHAPES), help="shapes, with commas")
    parser.add_argument("--part", choices=PARTS, help="by default both")
    parser.add_argument("--instances", type=int, help="per shape, for scoring")
    parser.add_argument("--step-instances", type=int, help="per shape, for a training step")
    parser.add_argument("--rounds", type=int, help="counted rounds; one more is dropped")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    options = parser.parse_args(arguments)
    for name, value in zip(("instances", "step_instances", "rounds"), DEFAULTS[options.model], strict=True):
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.workloads = options.workloads.split(",")
    if unknown := set(options.workloads) - set(SHAPES):
        parser.error(f"unknown workloads {sorted(unknown)}: use {', '.join(SHAPES)}")
    return options


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure. The file has every shape that is done."""
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    record: dict[str, Any] = {
        "settings": {name: value for name, value in vars(options).items() if name != "out"},
        "head_share": MODELS[options.model].head_share,
        "machine": hardware(),
        "versions": versions() | {"lm_eval": importlib.metadata.version("lm_eval")},
        "command": command(),
        "started": now(),
    }
    for part, measure in (("scoring", measure_scoring), ("training", measure_training)):
        if options.part in (None, part):
            for name, entry in measure(options):
                record.setdefault(part, {})[name] = entry
                write_json(options.out, record)
                ratios = ", ".join(f"{ratio['median']:.2f}x {peer}" for peer, ratio in entry["ratios"].items())
                echo("\n".join([f"{part} {name}: packed {ratios}", *entry["void"]]), err=True)
    return record


def main() -> int:
    """The command."""
    record = run(parse())
    entries = [entry for part in PARTS for entry in record.get(part, {}).values()]
    return 1 if any(entry["void"] for entry in entries) else 0


if __name__ == "__main__":
    sys.exit(main())
