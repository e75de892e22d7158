"""``flip-flop demo``."""

import json
import textwrap
from pathlib import Path

import click


@click.command("demo")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="A folder for runs and report.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="The training's seed.")
@click.option("--overwrite", is_flag=True, help="Replace a demo that is there already.")
@click.option("--rebuild", is_flag=True, help="Pretrain the embedded model anew into --out and stop (minutes).")
@click.option("--quiet", "-q", is_flag=True, help="Print the tables only.")
def demo_command(out: Path, seed: int, overwrite: bool, rebuild: bool, quiet: bool) -> int:
    """Audit the embedded model, train it without labels by swarm, cce and f2c, audit again, and report."""
    if rebuild:
        return _rebuild(out)
    from flip_flop.cli.options import open_model
    from flip_flop.demo.run import run_demo
    from flip_flop.report import caveats, comparison_rows, group_runs, load_run, render_text, write_report
    from flip_flop.text import DEMO_NOTE

    _clear(out, overwrite)
    audits = run_demo(
        out,
        lambda adapter: open_model("demo", adapter, None, "float32", "cpu"),
        seed=seed,
        quiet=quiet,
    )
    runs = [*audits["train"], *audits["held_out"]]
    click.echo()
    loaded = [load_run(run) for run in runs]
    for group in group_runs(loaded):
        click.echo(render_text(comparison_rows(group.runs)))
        for note in caveats(group):
            click.echo("\n" + textwrap.fill(note, width=110))
        click.echo()
    click.echo(own_label_mass(out))
    click.echo("\n" + textwrap.fill(DEMO_NOTE, width=110))
    report = write_report(runs, out / "report.html")
    click.echo(f"\nReport: {report}")
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
    from flip_flop.errors import InputError

    if not out.is_dir():
        return
    own = {"base", "report.html", *METHODS}
    found = {item.name for item in out.iterdir()}
    if found and not overwrite:
        raise InputError("E-OUT-USED", f"{out} is not empty.", "Give another --out, or add --overwrite to a demo's.")
    if found - own:
        other = sorted(found - own)[0]
        raise InputError("E-OUT-USED", f"{out} holds {other}, which is no demo's.", "Give another --out.")
    shutil.rmtree(out)


def _rebuild(out: Path) -> int:
    from flip_flop.demo.pretrain import rebuild_model

    folder = out / "model"
    with click.progressbar(length=100, label="pretraining") as bar:
        rebuild_model(folder, progress=lambda done, total: bar.update(int(100 * done / total) - bar.pos))
    click.echo(f"{folder}: use it with --model {folder}")
    return 0
