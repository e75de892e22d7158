"""``flip-flop demo``: audit the embedded model, train it without labels, audit it again, report."""

from pathlib import Path
from typing import Any

import click

from flip_flop.cli.options import out_folder
from flip_flop.console import DEMO_NOTE, echo, echo_prose, terminal_width
from flip_flop.errors import InputError, log
from flip_flop.files import remove

# The learning rates and weights were chosen on the validation split with seed 0 (docs/decisions.md).
COMMON = {
    "protocol": "paper",
    "use_cpu": True,
    "per_device_train_batch_size": 8,
    "learning_rate": 3e-4,
    "lr_scheduler_type": "linear",
    "weight_decay": 0.0,
    "num_train_epochs": 3,
    "eval_strategy": "epoch",
    "logging_steps": 21,
    "unanimous_margin": 1.0,
    "max_cc_size": 4,
    "flip_temperature": 1.0,
}
LOADED: dict[str, Any] = {"dtype": "float32", "device": "cpu"}
METHODS: dict[str, dict[str, Any]] = {
    "swarm": {"method": "swarm", "learning_rate": 1e-4},
    "cce": {"method": "cce"},
    "f2c": {"method": "f2c", "protocol": "recommended"},
}


@click.command("demo")
@click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    callback=out_folder,
    help="A folder for runs and report.",
)
@click.option("--seed", default=0, show_default=True, help="The training's seed.")
@click.option("--overwrite", is_flag=True, help="Replace an existing demo.")
@click.option("--quiet", "-q", is_flag=True, help="Print the tables only.")
def demo_command(out: Path, seed: int, overwrite: bool, quiet: bool) -> None:
    """Audit the embedded model, train it without labels by swarm, cce and f2c, audit again, and report."""
    _clear(out, overwrite)
    audits = run_demo(out, seed=seed, quiet=quiet)
    from flip_flop.evaluation.run_directory import load_run
    from flip_flop.report.audit_tables import legend, render_text
    from flip_flop.report.compare import comparison_blocks, group_runs
    from flip_flop.report.page import write_report
    from flip_flop.report.sections import caveats

    runs = [*audits["train"], *audits["held_out"]]
    echo()
    for group in group_runs([load_run(run) for run in runs]):
        echo(render_text(comparison_blocks(group.runs), terminal_width()))
        for note in (*group.decision, *caveats(group)):
            echo()
            echo_prose(note)
        echo()
    for line in legend(group.runs):
        echo_prose(line)
    echo()
    echo_prose(DEMO_NOTE)
    echo(f"\nReport: {write_report(runs, out / 'report.html')}")


def run_demo(out: Path, *, seed: int = 0, quiet: bool = False) -> dict[str, list[Path]]:
    """Train with each method, and audit the base and the trained models, into an empty or new folder.

    Returns:
        The run directories of the audits, base first: ``train`` on the training templates, ``held_out`` on the others.
    """
    import torch

    from flip_flop.evaluation.audit import audit
    from flip_flop.scoring.models import load_model
    from flip_flop.tasks import load_task
    from flip_flop.training.config import make_config
    from flip_flop.training.run import train

    torch.set_num_threads(1)  # a second thread does not speed up this small model
    task = load_task("demo", templates="all")
    adapters: dict[str, Path | None] = {"base": None}
    for number, (name, settings) in enumerate(METHODS.items(), start=1):
        log.info("%d of %d: training %s", number, len(METHODS), name)
        config = make_config(COMMON | settings | {"seed": seed}, "the demo's settings")
        run = train(load_model("demo", **LOADED), task, config, out / name, quiet=quiet, keep_worse=True)
        if run.stopped_by is not None:
            raise KeyboardInterrupt
        adapters[name] = run.adapter
    audits: dict[str, list[Path]] = {"train": [], "held_out": []}
    for name, adapter in adapters.items():
        model = load_model("demo", adapter=adapter, **LOADED)
        for kind, folder, templates in (
            ("train", "audit", task.training_templates.names),
            ("held_out", "audit_held_out", task.held_out_templates),
        ):
            result = audit(model, task.with_templates(templates), name=name, quiet=True, calibrate="none")
            audits[kind].append(result.write(out / name / folder))
    return audits


def _clear(out: Path, overwrite: bool) -> None:
    """Remove an earlier demo. Refuse a folder with any other folder or file, except hidden ones."""
    if out.is_dir():
        names = {item.name for item in out.iterdir() if not item.name.startswith(".")}
    else:
        names = set()
    if names and not overwrite:
        raise InputError("E-OUT-USED", f"{out} is not empty.", "Give another --out, or add --overwrite to a demo's.")
    if foreign := sorted(names - {"base", "report.html", *METHODS}):
        raise InputError("E-OUT-USED", f"{out} holds {foreign[0]}, which is not from a demo.", "Give another --out.")
    for name in names:
        remove(out / name)
