"""``python -m benchmarks.results FILE...``: the page ``benchmarks/RESULTS.md`` from :mod:`benchmarks.run`'s files."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import MEMORY_MODEL
from benchmarks.workload import SHAPES
from flip_flop.files import write_text

PARTS = ("scoring", "training")
PAGE = Path(__file__).with_name("RESULTS.md")

# What is aimed at, as geometric means over the shapes: the share of a ratio's counted bound, the peers that it is
# against, and packed's share of the peak.
AIMS = {"scoring": 0.95, "training": 0.85}
AGAINST = {"scoring": ("lm-eval", "strong"), "training": ("T0", "T1")}
PEAK_AIMS = {"scoring": 0.88, "training": 0.75}
# How many times packed's peak memory is to fit into T0's, for the model that is meant.
MEMORY_AIMS = {"anli": 12, "hellaswag": 6}

INTRODUCTION = """# Results

Made by `python -m benchmarks.results`; the figures are those of the runs named below, and nothing here is typed.
[README.md](README.md) says what the variants and shapes are, and how it is measured. A ratio is the median over rounds,
with least and most, *of* its counted bound, and the share of it that is reached; *void* is a timing whose results were
not equal to the reference's. The bound is the peer's work over the least that the task needs, both in floating-point
operations and without padding: above 100 % is what the peer wastes on padding, or in kernels that fit it less.
"""


def geometric_mean(values: Sequence[float]) -> float:
    """The mean for ratios."""
    return math.exp(sum(map(math.log, values)) / len(values))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def page(records: Sequence[dict[str, Any]]) -> str:
    """The whole page."""
    sections = [INTRODUCTION]
    for record in records:
        sections.extend(_run(record))
    sections.append("## What went badly\n\n" + "\n".join(f"- {line}" for line in _bad(records)) + "\n")
    sections.append(
        "## What is not measured\n\n" + "\n".join(f"- {line}" for line in dict.fromkeys(_missing(records))) + "\n"
    )
    return "\n".join(sections)


def _run(record: dict[str, Any]) -> Iterator[str]:
    settings, machine = record["settings"], record["machine"]
    versions = ", ".join(f"{name} {record['versions'][name]}" for name in ("torch", "transformers", "peft", "lm_eval"))
    yield f"## {settings['model']}, {settings['dtype']}, {machine['gpu'] or machine['processor']}\n"
    yield (
        f"`{_command(record)}`, {record['started'][:10]}, {record['minutes']} minutes. {machine['threads']} threads; "
        f"{' '.join([f'{versions}.', *_amounts(record)])}\n"
    )
    if any(part in record for part in PARTS):
        yield table(["", "measured", "share of the bound", "aim"], _goal_rows(record))
    for part in PARTS:
        if part in record:
            yield f"### {part.capitalize()}\n"
            yield _part_table(part, record[part])
    if "memory" in record:
        yield f"### Peak memory above the loaded model ({record['memory']['model']}, one instance)\n"
        yield _memory_table(record["memory"])


def _command(record: dict[str, Any]) -> str:
    """As typed, but for where its file went."""
    return "python -m benchmarks." + record["command"].split(" --out")[0].replace("run.py", "run")


Median = tuple[float, bool]


def ratios(record: dict[str, Any], part: str, ours: str, peer: str) -> list[Median]:
    """A ratio's medians over the shapes that are not void, and whether each was undisturbed."""
    return _medians(record, part, lambda entry: entry["ratios"].get(ours, {}).get(peer))


def reached_shares(record: dict[str, Any], part: str, peer: str) -> list[Median]:
    """Likewise of the share of the counted bound that packed's ratio reaches."""

    def reached(entry: dict[str, Any]) -> dict[str, float] | None:
        ratio = entry["ratios"].get("packed", {}).get(peer)
        return ratio and {"median": ratio["median"] / entry["bounds"][peer]}

    return _medians(record, part, reached)


def shares(record: dict[str, Any], part: str, variant: str) -> list[Median]:
    """Likewise of a variant's share of the peak."""
    return _medians(record, part, lambda entry: entry["share_of_peak"].get(variant))


def _medians(record: dict[str, Any], part: str, figure: Callable[[dict[str, Any]], Any]) -> list[Median]:
    entries = [entry for entry in record.get(part, {}).values() if not entry["void"]]
    return [(found["median"], not entry["unpublishable"]) for entry in entries if (found := figure(entry))]


def _means(found: Sequence[Median], form: str) -> str:
    """The geometric mean over all shapes, and over those that nothing disturbed where these are fewer."""
    if not found:
        return "not measured"
    quiet = [value for value, undisturbed in found if undisturbed]
    unit = "" if form.endswith("%") else "x"
    words = f"**{geometric_mean([value for value, _ in found]):{form}}{unit}** of {_shapes(len(found))}"
    if 0 < len(quiet) < len(found):
        words += f"; {geometric_mean(quiet):{form}}{unit} of {len(quiet)} undisturbed"
    return words


def _shapes(count: int) -> str:
    return f"{count} shape{'' if count == 1 else 's'}"


def _goal_rows(record: dict[str, Any]) -> list[list[str]]:
    rows = []
    for part, peers in AGAINST.items():
        for peer in peers:
            if found := ratios(record, part, "packed", peer):
                reached = _means(reached_shares(record, part, peer), ".0%")
                rows.append([f"{part}: packed / {peer}", _means(found, ".2f"), reached, f"{AIMS[part]:.0%}"])
    for part, aim in PEAK_AIMS.items():
        if found := shares(record, part, "packed"):
            rows.append([f"{part}: share of the peak, packed", _means(found, ".0%"), "", f"{aim:.0%}"])
    return rows


def _part_table(part: str, entries: dict[str, Any]) -> str:
    pairs = list(
        dict.fromkeys((ours, peer) for e in entries.values() for ours, peers in e["ratios"].items() for peer in peers)
    )
    # Of the padded back end, only how it stands to the best-known peer.
    pairs = [(ours, peer) for ours, peer in pairs if ours != "padded" or peer in ("lm-eval", "T0")]
    kind = "scores" if part == "scoring" else "gradient"
    head = ["shape", "tokens: naive, unique, trie", *(f"{ours} / {peer}" for ours, peer in pairs)]
    head += ["useful GFLOP/s, share of peak", f"largest difference of {kind}"]
    rows = []
    for name in sorted(entries, key=list(SHAPES).index):  # a run that was broken off has them in another order
        entry = entries[name]
        counts = entry["counts"]
        row = [name, f"{counts['naive']:.0f}, {counts['unique']:.0f}, {counts['trie']:.0f}"]
        for ours, peer in pairs:
            ratio = entry["ratios"].get(ours, {}).get(peer)
            row.append("" if ratio is None else _cell(ratio, entry["bounds"][peer]))
        shares = [
            f"{variant}: {entry['useful_gflops'][variant]['median']:.0f}, {share['median']:.0%}"
            for variant, share in entry["share_of_peak"].items()
            if variant.startswith("packed")
        ]
        largest = max((kinds.get(kind, 0.0) for kinds in entry["differences"].values()), default=0.0)
        rows.append([*row, "; ".join(shares), "**void**" if entry["void"] else f"{largest:.0e}"])
    means = []
    for ours, peer in pairs:
        values = [value for value, _ in ratios({part: entries}, part, ours, peer)]
        means.append(f"**{geometric_mean(values):.2f}x** of {len(values)}" if values else "")
    return table(head, [*rows, ["geometric mean", "", *means, "", ""]])


def _cell(ratio: dict[str, float], bound: float) -> str:
    extent = f" ({ratio['min']:.2f}-{ratio['max']:.2f})" if ratio["rounds"] > 1 else ""
    return f"{ratio['median']:.2f}x{extent} of {bound:.2f}x, {ratio['median'] / bound:.0%}"


def _memory_table(memory: dict[str, Any]) -> str:
    rows = []
    for part, shapes in memory.items():
        if part == "model":
            continue
        for name, variants in shapes.items():
            cells = [f"{variant} {found['above'] / 1e6:.0f} MB" for variant, found in variants.items()]
            share = ""
            if "T0" in variants and variants["packed"]["above"] > 0:
                share = f"T0 / packed {variants['T0']['above'] / variants['packed']['above']:.1f}"
                if memory["model"] == MEMORY_MODEL:
                    share += f" (aim {MEMORY_AIMS[name]})"
            rows.append([part, name, ", ".join(cells), share])
    return table(["", "shape", "peaks", ""], rows)


def _bad(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    count = 0
    for record in records:
        model = record["settings"]["model"]
        for part in PARTS:
            for name, entry in record.get(part, {}).items():
                faults = entry["void"] + [f"not for publication: {fault}" for fault in entry["unpublishable"]]
                for fault in faults + entry.get("left_out", []):
                    count += 1
                    yield f"{model}, {part}, {name}: {fault}."
                for ours in (n for n in entry["ratios"] if n.startswith("packed")):
                    for peer, ratio in entry["ratios"][ours].items():
                        if ratio["median"] < 1:
                            count += 1
                            yield f"{model}, {part}, {name}: {ours} is slower than {peer} ({ratio['median']:.2f}x)."
        for part, peers in AGAINST.items():
            for peer in peers:
                found = [value for value, _ in reached_shares(record, part, peer)]
                if found and geometric_mean(found) < AIMS[part]:
                    count += 1
                    reached = f"{geometric_mean(found):.0%} of its bound, {AIMS[part]:.0%} is aimed at"
                    yield f"{model}, {part}: packed / {peer} is {reached}."
        for line in _low_shares(record):
            count += 1
            yield f"{model}: {line}"
    if not count:
        yield "Nothing that is looked for: unequal results, foreign load, a drifting peak, ratios below 1 or an aim."


def _low_shares(record: dict[str, Any]) -> Iterator[str]:
    """Shares of the peak and savings of memory that are below what is aimed at."""
    for part, aim in PEAK_AIMS.items():
        found = [value for value, _ in shares(record, part, "packed")]
        if found and geometric_mean(found) < aim:
            yield f"the share of the peak, {part}, packed, is {geometric_mean(found):.0%}, {aim:.0%} is aimed at."
    memory = record.get("memory", {})
    if memory.get("model") != MEMORY_MODEL:
        return
    for part, shapes in memory.items():
        for name, variants in shapes.items() if isinstance(shapes, dict) else ():
            if "T0" in variants and variants["T0"]["above"] < MEMORY_AIMS[name] * variants["packed"]["above"]:
                saved = variants["T0"]["above"] / max(variants["packed"]["above"], 1)
                yield f"peak memory, {part}, {name}: T0 / packed is {saved:.1f}, {MEMORY_AIMS[name]} is aimed at."


def _missing(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    for model, part in dict.fromkeys((each["settings"]["model"], part) for each in records for part in PARTS):
        runs = [each[part] for each in records if each["settings"]["model"] == model and part in each]
        if runs and (left := [name for name in SHAPES if not any(name in run for run in runs)]):
            yield f"{model}, {part}: {', '.join(left)}."
    if not any("memory" in record for record in records):
        yield "Peak memory."
    if not any(record["machine"]["gpu"] for record in records):
        yield "A GPU: all of this is from a CPU. For one there is `--model 3b --device cuda --dtype bfloat16`."
    yield "Real weights and real prompts: models are random, and prompts are token ids of real templates' lengths."
    yield "Tokenizing, rendering and reading data; the optimizer's step; dropout."
    for record in records:
        settings = record["settings"]
        few = max(settings["instances"], settings["step_instances"])
        if few < 8:
            yield (
                f"{settings['model']}: eight instances a shape and more. With many of one length in a batch, a scorer "
                "that sorts and pads wastes less than here."
            )


def _amounts(record: dict[str, Any]) -> Iterator[str]:
    """How many instances a shape, and how many rounds; memory is measured by itself."""
    settings = record["settings"]
    if "scoring" in record:
        until = f", or more until they make {settings['tokens']} distinct tokens" if settings.get("tokens") else ""
        yield f"Instances a shape, scoring: {settings['instances']}{until}."
    if "training" in record:
        yield f"Instances a shape, training step: {settings['step_instances']}."
    if any(part in record for part in PARTS):
        slow = settings["slow_rounds"]
        yield f"The head is {record['head_share']:.0%} of a naive token's work."
        yield f"{settings['rounds']} rounds" + (f", of naive and T0 {slow}." if slow else ".")


def main() -> None:
    """Read the files named, write the page."""
    if len(sys.argv) < 2:
        sys.exit("usage: python -m benchmarks.results FILE.json...")
    write_text(PAGE, page([json.loads(Path(name).read_text(encoding="utf-8")) for name in sys.argv[1:]]))
    print(PAGE)


if __name__ == "__main__":
    main()
