"""``python -m benchmarks.run``: measure, and write one JSON file that :mod:`benchmarks.results` makes a page of."""

import argparse
import dataclasses
import functools
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

import flip_flop
from benchmarks import MEMORY_MODEL
from benchmarks.memory import VARIANTS, memory_part
from benchmarks.parts import Settings, scoring_part, training_part
from benchmarks.workload import SHAPES
from flip_flop.console import command, hardware, now, versions
from flip_flop.files import sha256_file, sha256_json, write_json
from flip_flop.scoring.attention import KERNELS

ALL = tuple(SHAPES)
PARTS = ("scoring", "training", "memory")

# Per model: instances, instances of a step, rounds, rounds of the slowest peers.
DEFAULTS = {"tiny": (2, 1, 1, 1), "toy": (8, 2, 5, 1), "0.5b": (1, 1, 3, 1), "3b": (8, 4, 5, 1)}


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("--model", choices=DEFAULTS, default="toy", help="a random model's shape")
    parser.add_argument("--workloads", default=",".join(ALL), help="shapes, with commas")
    parser.add_argument("--part", choices=[*PARTS, "all"], default="all")
    parser.add_argument("--instances", type=int, help="per shape, for scoring")
    parser.add_argument("--tokens", type=int, default=0, help="more of them, until so many distinct tokens are scored")
    parser.add_argument("--no-padded", action="store_true", help="without our padded back end, the strong peer's equal")
    parser.add_argument("--step-instances", type=int, help="per shape, for a training step")
    parser.add_argument("--rounds", type=int, help="counted rounds; one more is dropped")
    parser.add_argument("--slow-rounds", type=int, help="rounds of naive and T0; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--kernel", choices=["sdpa", "mask"], help="of packed attention; by default the device's")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--smoke", action="store_true", help="two shapes, one instance, one round: a minute")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    return parser.parse_args(arguments)


def settings_of(options: argparse.Namespace) -> Settings:
    """What to measure."""
    defaults = dict(zip(("instances", "step_instances", "rounds", "slow_rounds"), DEFAULTS[options.model], strict=True))
    workloads = tuple(options.workloads.split(","))
    if options.smoke:
        defaults = dict.fromkeys(defaults, 1)
        workloads = ("rte", "copa")
    chosen = {name: value for name in defaults if (value := getattr(options, name)) is not None}
    unknown = set(workloads) - set(ALL)
    if unknown:
        sys.exit(f"Unknown workloads {sorted(unknown)}: use {', '.join(ALL)}.")
    return Settings(
        model=options.model,
        workloads=workloads,
        device=options.device,
        dtype=options.dtype,
        tokens=options.tokens,
        padded=not options.no_padded,
        **(defaults | chosen),
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure; what is done so far is in the file after each shape."""
    torch.set_num_threads(options.threads)
    transformers_logging.set_verbosity_error()
    device = options.device.partition(":")[0]
    KERNELS[device] = options.kernel or KERNELS[device]
    settings = settings_of(options)
    start = time.monotonic()
    say = functools.partial(print, file=sys.stderr, flush=True)
    record: dict[str, Any] = {
        "settings": dataclasses.asdict(settings),
        "kernel": KERNELS[device],
        "head_share": settings.shape.head_share,
        "machine": hardware(),
        "versions": versions() | {"lm_eval": _harness_version()},
        "code": _code(),
        "command": command(),
        "started": now(),
    }

    before = _begun(options.out, record)

    def keep() -> None:
        record["minutes"] = round(before.get("minutes", 0) + (time.monotonic() - start) / 60, 1)
        write_json(options.out, record)

    parts = PARTS if options.part == "all" else (options.part,)
    for part, measure in (("scoring", scoring_part), ("training", training_part)):
        if part in parts:
            record[part] = {name: entry for name, entry in before.get(part, {}).items() if name in settings.workloads}
            left = tuple(name for name in settings.workloads if name not in record[part])
            for name, entry in measure(dataclasses.replace(settings, workloads=left), say):
                record[part][name] = entry
                say(summary(part, name, entry))
                keep()
    if "memory" in parts:
        shapes = ("anli",) if options.smoke else ("anli", "hellaswag")
        variants = {"training": ("T0", "packed")} if options.smoke else VARIANTS
        model = "tiny" if options.smoke else MEMORY_MODEL
        record["memory"] = {"model": model} | memory_part(model, shapes, variants, settings.device, say)
    record["finished"] = True
    keep()
    return record


def _begun(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """What a run that was broken off has measured: with these settings and this code, on this machine."""
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    same = ("kernel", "machine", "versions", "code")
    if before.get("finished") or any(before.get(name) != record[name] for name in same):
        return {}
    others = [
        {name: value for name, value in each["settings"].items() if name != "workloads"} for each in (before, record)
    ]
    return before if others[0] == others[1] else {}


def summary(part: str, name: str, entry: dict[str, Any]) -> str:
    """A line for the terminal."""
    ratios = "; ".join(
        f"{ours} {ratio['median']:.2f}x {peer} ({ratio['min']:.2f} to {ratio['max']:.2f})"
        for ours, peers in entry["ratios"].items()
        for peer, ratio in peers.items()
    )
    return f"== {part} {name}: {ratios}" + "".join(f"\n   VOID {fault}" for fault in entry["void"])


def _code() -> str:
    """The digest of all that is measured and measures."""
    roots = (Path(__file__).parent, Path(flip_flop.__file__).parent)
    files = {str(file.relative_to(root.parent)): file for root in roots for file in root.rglob("*.py")}
    return sha256_json({name: sha256_file(file) for name, file in files.items()})


def _harness_version() -> str:
    import importlib.metadata

    try:
        return importlib.metadata.version("lm_eval")
    except importlib.metadata.PackageNotFoundError:
        sys.exit("The benchmarks need lm-eval: pip install --constraint constraints.txt --group dev")


if __name__ == "__main__":
    record = run(parse())
    if any(entry["void"] for part in ("scoring", "training") for entry in record.get(part, {}).values()):
        sys.exit("Something was not equal: see VOID above.")
