"""``python -m benchmarks.results FILE...`` writes ``benchmarks/RESULTS.md`` from files of :mod:`benchmarks.run`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from flip_flop.files import write_text

PAGE = Path(__file__).with_name("RESULTS.md")
INTRODUCTION = """# Results

`python -m benchmarks.results` writes this page from the files of the runs. [README.md](README.md) explains variants
and shapes. A ratio is the median over rounds, with least and most, *of* its counted bound, and the share of the bound
that is reached. *void*: results differed from the reference. The bound is the work of the peer over the least work of
the task, in floating-point operations without padding. More than 100 % means padding or slower kernels of the
peer.

Models are random, and prompts are token ids of the lengths of real templates. Tokenizing, rendering, dropout and the
step of the optimizer are not timed. No run is from a GPU unless its heading names one.
"""


def page(records: Sequence[Mapping[str, Any]]) -> str:
    """Return the page of these runs."""
    return "\n".join([INTRODUCTION, *(section(record) for record in records)])


def section(record: Mapping[str, Any]) -> str:
    """Return the heading, the command and a table for each part of a run."""
    settings, machine = record["settings"], record["machine"]
    names = ("torch", "transformers", "peft", "lm_eval")
    libraries = ", ".join(f"{name} {record['versions'][name]}" for name in names)
    lines = [
        f"## {settings['model']}, {machine['gpu'] or machine['processor']}, {record['started'][:10]}",
        "",
        f"`{record['command'].split(' --out')[0]}`. {settings['threads']} threads; {libraries}. "
        f"The head is {record['head_share']:.0%} of the work of a naive token.",
        "",
    ]
    for part in ("scoring", "training"):
        if part in record:
            lines += table(part, record[part])
    return "\n".join(lines)


def table(part: str, entries: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table: one shape a line, then the geometric means of the shapes that are not void."""
    peers = list(next(iter(entries.values()))["ratios"])
    head = [part, "instances", "tokens: naive, unique, trie", *(f"packed / {peer}" for peer in peers), "difference"]
    rows = [head, ["---"] * len(head)]
    for name, entry in entries.items():
        counts = [f"{entry['counts'][kind]:.0f}" for kind in ("naive", "unique", "trie")]
        cells = [ratio_cell(entry["ratios"][peer], entry["bounds"][peer]) for peer in peers]
        largest = max(entry["differences"]["packed"].values())
        rows.append(
            [
                name,
                str(entry["instances"]),
                ", ".join(counts),
                *cells,
                "**void**" if entry["void"] else f"{largest:.0e}",
            ]
        )
    right = [entry for entry in entries.values() if not entry["void"]]
    means = ["geometric mean", "", ""]
    for peer in peers:
        ratios = [entry["ratios"][peer]["median"] for entry in right]
        shares = [entry["ratios"][peer]["median"] / entry["bounds"][peer] for entry in right]
        means.append(f"**{geometric_mean(ratios):.2f}x**, {geometric_mean(shares):.0%}" if right else "")
    return [*(f"| {' | '.join(row)} |" for row in [*rows, [*means, ""]]), ""]


def ratio_cell(ratio: Mapping[str, float], bound: float) -> str:
    """Return a ratio with its range, its bound, and the share of the bound."""
    extent = f" ({ratio['min']:.2f}-{ratio['max']:.2f})" if ratio["rounds"] > 1 else ""
    return f"{ratio['median']:.2f}x{extent} of {bound:.2f}x, {ratio['median'] / bound:.0%}"


def main() -> None:
    """The command."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.results FILE.json...")
    write_text(PAGE, page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))
    print(PAGE)


if __name__ == "__main__":
    main()
