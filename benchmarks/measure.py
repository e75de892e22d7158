"""How things are timed: all variants in one process, in turn, with equality checked in every round.

Absolute times of a shared machine say little, and drift by a quarter within minutes. Ratios of what ran side by side
say something: in each round every variant runs once, in an order that rotates; the first round is dropped.
"""

import contextlib
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# The product that the peak is taken of: 1,024 tokens through an MLP's first projection of the 0.5B shape.
PEAK_SHAPE = (1024, 896, 4864)
# On a GPU so small a product would time its launch.
GPU_PEAK_SHAPE = (8192, 8192, 8192)
MAX_FOREIGN_LOAD = 0.3
MAX_PEAK_DRIFT = 0.15


@dataclass(frozen=True)
class Variant:
    """One way to do the same thing.

    Attributes:
        name: As in the results.
        run: The work; what it returns is compared.
        rounds: In how many rounds it runs, the dropped one not among them; ``None``: in all.
    """

    name: str
    run: Callable[[], Any]
    rounds: int | None = None


@dataclass
class Timings:
    """What the rounds gave.

    Attributes:
        seconds: For each variant, by number of the round.
        differences: For each variant the largest difference from the reference, by kind.
        faults: What was unequal: such a timing is void.
    """

    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    differences: dict[str, dict[str, float]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def ratio(self, slow: str, fast: str) -> dict[str, float] | None:
        """How many times as long ``slow`` takes: median, least and most over the rounds that have both."""
        numbers = self.seconds.get(slow, {}).keys() & self.seconds.get(fast, {}).keys()
        if not numbers:
            return None
        return spread([self.seconds[slow][number] / self.seconds[fast][number] for number in sorted(numbers)])


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least and most."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "rounds": len(values)}


# Differences of a round's results, by variant and kind, and what is wrong with them.
Check = Callable[[dict[str, Any]], tuple[dict[str, dict[str, float]], list[str]]]


def interleave(
    variants: Sequence[Variant], rounds: int, check: Check, device: str, say: Callable[[str], None] = lambda line: None
) -> Timings:
    """Run all variants in ``rounds`` rounds and one before them, which is dropped.

    Args:
        variants: What to run.
        rounds: How many are counted.
        check: Compares the results of a round.
        device: Where the work is done; on a GPU its own clock is read.
        say: Gets a line for each run.
    """
    timings = Timings()
    for number in range(rounds + 1):
        turn = number % len(variants)
        results = {}
        for variant in [*variants[turn:], *variants[:turn]]:
            if variant.rounds is not None and not 1 <= number <= variant.rounds:
                continue
            gc.collect()
            seconds, results[variant.name] = timed(variant.run, device)
            say(f"round {number}: {variant.name} {seconds:.2f} s")
            if number:
                timings.seconds.setdefault(variant.name, {})[number] = seconds
        differences, faults = check(results)
        timings.faults += [f"round {number}: {fault}" for fault in faults]
        for name, kinds in differences.items():
            known = timings.differences.setdefault(name, {})
            known |= {kind: max(value, known.get(kind, 0.0)) for kind, value in kinds.items()}
    return timings


def timed(run: Callable[[], Any], device: str) -> tuple[float, Any]:
    """Seconds and result."""
    if torch.device(device).type == "cuda":
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        start.record()
        result = run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000, result
    before = time.perf_counter()
    result = run()
    return time.perf_counter() - before, result


def peak_gflops(device: str, dtype: torch.dtype, *, repeats: int = 15) -> float:
    """The best rate that one large matrix product reaches now, in this process."""
    rows, inner, columns = GPU_PEAK_SHAPE if device.startswith("cuda") else PEAK_SHAPE
    left = torch.randn(rows, inner, device=device, dtype=dtype)
    weight = torch.randn(columns, inner, device=device, dtype=dtype)
    with torch.no_grad():
        best = min(timed(lambda: torch.nn.functional.linear(left, weight), device)[0] for _ in range(repeats))
    return 2 * rows * inner * columns / best / 1e9


@dataclass(frozen=True)
class Surroundings:
    """What else the machine did while something was timed: peaks before and after, and foreign load.

    Attributes:
        peaks: GFLOP/s, ``[before, after]``.
        foreign_load: The load average less the threads of this process, before and after; not below 0.
    """

    peaks: list[float]
    foreign_load: list[float]

    @property
    def faults(self) -> list[str]:
        """Why the timings should not be published; nothing where they may."""
        (before, after), load, found = self.peaks, max(self.foreign_load), []
        if abs(after - before) > MAX_PEAK_DRIFT * max(before, after):
            found.append(f"the peak moved from {before:.0f} to {after:.0f} GFLOP/s")
        if load > MAX_FOREIGN_LOAD:
            found.append(f"a foreign load of {load:.1f}")
        return found


@contextlib.contextmanager
def watched(device: str, dtype: torch.dtype) -> Iterator[Surroundings]:
    """Take the peak right before and right after what is timed, and look at the load."""
    surroundings = Surroundings([], [])

    def look() -> None:
        surroundings.peaks.append(peak_gflops(device, dtype))
        surroundings.foreign_load.append(max(0.0, os.getloadavg()[0] - torch.get_num_threads()))

    look()
    yield surroundings
    look()
