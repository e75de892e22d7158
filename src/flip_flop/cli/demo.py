"""``flip-flop demo``."""

import json
import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

import click

from flip_flop.cli.options import option, options
from flip_flop.console import echo
from flip_flop.errors import InputError

MISFIT_NOTE = (
    "f2c_vocab is a deliberate misfit, not F2C's result: divergences over the vocabulary, at weight 1, pull together "
    "templates that answer in different words, which costs F1. f2c has the recommended settings, which do not."
)


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The demo's options."""

    out: Path = option(Path("out/demo"), short="-o", help="A folder for runs and report.")
    seed: int = option(0, help="The training's seed.")
    overwrite: bool = option(False, help="Replace a demo that is there already.")
    rebuild: bool = option(False, help="Pretrain the embedded model again into --out and stop (minutes).")
    quiet: bool = option(False, short="-q", help="Print the tables only.")


@click.command("demo")
@options(DemoOptions)
def demo_command(demo: DemoOptions) -> int:
    """Audit the embedded model, train it without labels by swarm, cce and f2c, audit again, and report."""
    out = demo.out
    if demo.rebuild:
        return _rebuild(out)
    from flip_flop.console import DEMO_NOTE
    from flip_flop.demo.run import run_demo
    from flip_flop.report import caveats, comparison_rows, group_runs, legend, load_run, render_text, write_report

    _clear(out, demo.overwrite)
    audits = run_demo(out, seed=demo.seed, quiet=demo.quiet)
    runs = [*audits["train"], *audits["held_out"]]
    echo(f"\n{textwrap.fill(MISFIT_NOTE, width=110)}\n")
    for group in group_runs([load_run(run) for run in runs]):
        echo(render_text(comparison_rows(group.runs)))
        for note in caveats(group):
            echo("\n" + textwrap.fill(note, width=110))
        echo()
    echo(legend(comparison_rows(group.runs)) + "\n")
    echo(own_label_mass(out))
    echo("\n" + textwrap.fill(DEMO_NOTE, width=110))
    echo(f"\nReport: {write_report(runs, out / 'report.html')}")
    return 0


def own_label_mass(out: Path) -> str:
    """One line per run of f2c: how much probability stays on a template's own labels."""
    lines = ["own-label mass on the validation split (mean over templates, and the template with the least)"]
    for log in sorted(out.glob("f2c*/log.jsonl")):
        entries = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
        masses = [entry for entry in entries if "eval_own_label_mass" in entry]
        first, chosen = masses[0], max(masses[1:], key=lambda entry: entry["eval_selection"])
        lines.append(
            f"{log.parent.name:10} before {first['eval_own_label_mass']:.3f} ({first['eval_own_label_mass_min']:.3f})"
            f"  after {chosen['eval_own_label_mass']:.3f} ({chosen['eval_own_label_mass_min']:.3f})"
        )
    return "\n".join(lines)


def _clear(out: Path, overwrite: bool) -> None:
    """Remove an earlier demo, and nothing else."""
    import shutil

    from flip_flop.demo.run import METHODS

    found = {item.name for item in out.iterdir()} if out.is_dir() else set()
    # What a killed demo left of its report.
    found -= {name for name in found if re.fullmatch(r"\.report\.html\.([0-9a-f]{8}\.tmp|lock)", name)}
    if found and not overwrite:
        raise InputError("E-OUT-USED", f"{out} is not empty.", "Give another --out, or add --overwrite to a demo's.")
    if foreign := sorted(found - {"base", "report.html", *METHODS}):
        message = f"{out} holds {foreign[0]}, which is not from a demo."
        raise InputError("E-OUT-USED", message, "Give another --out.")
    if found:
        shutil.rmtree(out)


def _rebuild(out: Path) -> int:
    from flip_flop.demo.pretrain import rebuild_model

    folder = out / "model"
    with click.progressbar(length=100, label="pretraining") as bar:
        rebuild_model(folder, progress=lambda done, total: bar.update(int(100 * done / total) - bar.pos))
    echo(f"{folder}: use it with --model {folder}")
    return 0
