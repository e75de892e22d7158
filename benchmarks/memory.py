"""Peak memory of one variant, in a process of its own: what it needs beside the loaded model.

The model is small and has a real model's vocabulary, as full logits are what a naive implementation drowns in.
"""

import argparse
import contextlib
import json
import re
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import MODELS, make_model
from benchmarks.ours import make_trainer, our_scores, our_step
from benchmarks.peers import harness_scorer, naive_scores, strong_scores
from benchmarks.training_peers import naive_step, strong_step, with_forced_consensus
from benchmarks.workload import make_instances
from flip_flop.scoring import EncodedInstance

VARIANTS = {"scoring": ("lm-eval", "naive", "strong", "padded", "packed"), "training": ("T0", "T1", "padded", "packed")}
HARNESS_BATCH = 32


def memory_part(
    model: str,
    workloads: tuple[str, ...],
    variants: dict[str, tuple[str, ...]],
    device: str,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Peaks in bytes above the loaded model, ``[part][shape][variant]``; one instance each."""
    results: dict[str, Any] = {}
    for part, chosen in variants.items():
        for name in workloads:
            for variant in chosen:
                arguments = ["--model", model, "--part", part, "--workload", name, "--variant", variant]
                command = [sys.executable, "-m", "benchmarks.memory", *arguments, "--device", device]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
                found = json.loads(done.stdout.splitlines()[-1])
                say(f"{name}: {part}: {variant}: {found['above'] / 1e6:.0f} MB above {found['loaded'] / 1e6:.0f} MB")
                results.setdefault(part, {}).setdefault(name, {})[variant] = found
    return results


def work(part: str, variant: str, model: Any, instances: list[EncodedInstance]) -> Callable[[], Any]:
    """What is measured, with everything that it needs made ready."""
    if part == "scoring":
        if variant == "lm-eval":
            scorer = harness_scorer(model, HARNESS_BATCH)
            return lambda: scorer(instances)
        if variant in ("naive", "strong"):
            score = naive_scores if variant == "naive" else strong_scores
            return lambda: score(model, instances)
        return lambda: our_scores(model, instances, "packed" if variant == "packed" else "padded")
    trainer = make_trainer(model, "padded" if variant == "padded" else "packed", tempfile.mkdtemp())
    if variant in ("T0", "T1"):
        step = naive_step if variant == "T0" else strong_step
        return lambda: step(trainer.adapted, instances, trainer.args)
    return lambda: our_step(trainer, instances)


def measure(run: Callable[[], Any], device: str) -> dict[str, int]:
    """Bytes before the work, and what its peak has beside them."""
    if torch.device(device).type == "cuda":
        loaded = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        run()
        return {"loaded": loaded, "above": torch.cuda.max_memory_allocated() - loaded}
    loaded = _status("VmRSS")
    with contextlib.suppress(OSError):  # then the peak of loading counts, if it was higher
        Path("/proc/self/clear_refs").write_text("5")  # sets the peak back to the present
    run()
    return {"loaded": loaded, "above": _status("VmHWM") - loaded}


def _status(field: str) -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = re.search(rf"{field}:\s+(\d+) kB", status.read_text())
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    """One variant; a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--part", choices=VARIANTS, required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--variant", required=True)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    model = make_model(MODELS[arguments.model], device=arguments.device)
    instances = make_instances(arguments.workload, 1)
    run = work(arguments.part, arguments.variant, model, instances)
    with with_forced_consensus():
        print(json.dumps(measure(run, arguments.device)))


if __name__ == "__main__":
    main()
