"""``python -m benchmarks.gpu``: time, memory, kernel launches and waits of scoring and of one optimizer step on a GPU.

The model is random, in bfloat16. It prints a line of JSON per measurement and writes them to a file. `benchmarks.run`
with `--device cuda` compares float32 scores and gradients of this package and its peers.
"""

import argparse
import collections
import dataclasses
import json
import statistics
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers.utils import logging as transformers_logging

from benchmarks.models import MODELS, make_model, scoring_flops, training_flops
from benchmarks.ours import gradient, make_trainer, our_step
from benchmarks.peers import strong_scores
from benchmarks.run import interleave, timed
from benchmarks.training_peers import FORCED_LABEL, with_forced_consensus
from benchmarks.workload import make_instances
from flip_flop.console import hardware, versions
from flip_flop.files import write_json
from flip_flop.scoring.scores import score_instances

SHAPES = ("rte", "winogrande", "hellaswag", "anli")
# Distinct tokens of the instances that are scored.
TOKENS = 16384
STEPS = {"rte": 16, "winogrande": 8, "hellaswag": 6}
ROUNDS = 3

Entries = Iterator[dict[str, Any]]


def compare(variants: Mapping[str, Callable[[], Any]], flops: float, device: str) -> Entries:
    """Yield the seconds, the rate of the least necessary work and the peak of the memory of each variant."""
    peaks: dict[str, float] = {}

    def with_peak(name: str) -> None:
        if device == "cpu":
            variants[name]()
            return
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        variants[name]()
        peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e9

    measured = {name: partial(with_peak, name) for name in variants}
    for name, values in interleave(measured, ROUNDS, lambda results: {}, device).seconds.items():
        median = statistics.median(values)
        rate = flops / median / 1e12
        extent = [min(values), max(values)]
        yield {"variant": name, "seconds": median, "range": extent, "tflops": rate, "peak_gb": peaks.get(name)}


def launches(run: Callable[[], Any], device: str) -> Entries:
    """Yield the seconds of a call, those in which the device computes, its launches, and its waits by line."""
    run()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        run()
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchroniz" in str(warning.message)]
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        seconds, _ = timed(run, device)
    events = profiler.key_averages()
    kernels = [event for event in events if str(event.device_type).endswith("CUDA")]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    yield {
        "seconds": seconds,
        "busy": sum(event.self_device_time_total for event in kernels) / 1e6,
        "launches": sum(event.count for event in events if "LaunchKernel" in event.key),
        "waits": collections.Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits),
        "kernels": [[event.key[:90], event.count, event.self_device_time_total / 1e6] for event in kernels[:10]],
    }


def measure(options: argparse.Namespace, folder: str) -> Iterator[tuple[str, str, Entries]]:
    """Yield each part and shape with its measurements."""
    shape, device = MODELS[options.model], options.device
    model = make_model(shape, device=device, dtype=torch.bfloat16)

    def score(instances: Any, backend: Any, batch_tokens: int) -> Any:
        fresh = [dataclasses.replace(instance) for instance in instances]
        return score_instances(model, fresh, backend=backend, batch_tokens=batch_tokens, quiet=True)

    for name in options.workloads.split(","):
        instances = make_instances(name, max(2, round(options.tokens / len(make_instances(name, 1)[0].trie))))
        variants: dict[str, Callable[[], Any]] = {
            f"{backend}, {tokens} tokens": lambda b=backend, t=tokens, i=instances: score(i, b, t)
            for backend in ("packed", "padded")
            for tokens in (4096, 16384)
        }
        variants["strong"] = lambda i=instances: strong_scores(model, i)
        yield "scoring", name, compare(variants, scoring_flops(shape, instances), device)
        if device != "cpu":
            yield "launches of scoring", name, launches(variants["packed, 4096 tokens"], device)
    trainer = make_trainer(model, "packed", folder)
    for name in options.workloads.split(","):
        instances = make_instances(name, STEPS.get(name, 4))
        step = {"packed": lambda i=instances: (our_step(trainer, i), gradient(trainer.adapted))}
        yield "step", name, compare(step, training_flops(shape, instances, FORCED_LABEL), device)
        if device != "cpu":
            yield "launches of a step", name, launches(step["packed"], device)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="3b", help="the shape of a random model")
    parser.add_argument("--workloads", default=",".join(SHAPES), help="shapes, with commas")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="distinct tokens of the instances that are scored")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    options = parser.parse_args()
    transformers_logging.set_verbosity_error()
    record: dict[str, Any] = {"model": options.model, "machine": hardware(), "versions": versions(), "entries": []}
    with tempfile.TemporaryDirectory() as folder, with_forced_consensus():
        for part, name, entries in measure(options, folder):
            for entry in entries:
                record["entries"].append({"part": part, "shape": name, **entry})
                print(json.dumps(record["entries"][-1]), flush=True)
                write_json(options.out, record)


if __name__ == "__main__":
    main()
