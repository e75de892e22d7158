"""A study as a list of commands, for any engine that runs commands."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from flip_flop.files import write_text
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.launched import cell_command
from flip_flop.studies.plan import Plan, Untrained


def export_commands(
    plan: Plan,
    study: str,
    folder: StudyFolder,
    plan_path: Path,
    program: Sequence[str],
    out: Path,
    launcher: Sequence[str] = (),
) -> int:
    """Write a command per cell that is not done: trainings first, audits after.

    Their order is all that they need: a command whose cell another one is at work on waits for it, and an audit whose
    training nobody has begun begins with it, unless trainings have a launcher.

    Args:
        plan: The plan.
        study: What the program takes for its study wherever it is called: a shipped one's name, or a file's whole path.
        folder: The folder of all studies.
        plan_path: The plan's file.
        program: The words that ``flip-flop study`` stands for here.
        out: The file to write.
        launcher: The words that start several processes for a training.

    Returns:
        The number of commands.
    """
    left = [cell for cell in (*plan.trainings, *plan.audits) if not folder.is_done(cell)]
    lines = [
        f"# Study {plan.study.name}: {len(plan.trainings)} trainings and {len(plan.audits)} audits; "
        f"{len(left)} are not done.",
        f"# One after the other: sh {shlex.quote(out.name)}",
        f"# Four at a time: grep -v '^#' {shlex.quote(out.name)} | xargs -d '\\n' -P 4 -n 1 sh -c",
        "# Several at a time on a machine with GPUs: all take the first one, unless each line is given one of its own,",
        "# with CUDA_VISIBLE_DEVICES.",
        f"# The weights are loaded in {plan.setup.dtype}; --device cpu or cuda, or --dtype, decides that.",
        "# Keep the order: a line waits for what it needs where another line is at work on it.",
    ]
    kind, any_cell = "", [*program, "run-cell", str(plan_path)]
    untrained: Untrained = "wait" if launcher else "train"
    for cell in left:
        if cell.kind != kind:
            kind = cell.kind
            lines.append(f"# {'trainings' if kind == 'train' else 'audits'}")
        lines.append(shlex.join(cell_command(cell, any_cell, launcher, untrained)))
    lines.append("# At the end: tables and figures")
    lines.append("# " + shlex.join([*program, "tables", study, "--model", plan.setup.model, "--out", str(folder.root)]))
    write_text(out, "\n".join(lines) + "\n")
    return len(left)
