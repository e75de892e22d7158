"""A study as a list of commands, one for each unit, for any engine that runs commands."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from flip_flop.files import write_text
from flip_flop.studies.tracker import Tracker


def export_commands(
    tracker: Tracker, command: Sequence[str], tables: Sequence[str], out: Path, launcher: Sequence[str] = ()
) -> int:
    """Write a command for each unit that is not done, to be run in any order, and return their number.

    ``command`` runs a unit, whose name follows; a training's ``launcher`` stands in its first word's place, which is
    the interpreter. ``tables`` is the command that writes the tables.
    """
    plan, folder = tracker.plan, tracker.folder
    lines = [
        f"# Study {plan.study.name}: {len(plan.units)} units, each a training with its audits or an audit of the base; "
        f"{len(tracker.open)} are not done.",
        f"# One after the other: sh {shlex.quote(out.name)}",
        f"# Four at a time: grep -v '^#' {shlex.quote(out.name)} | xargs -d '\\n' -P 4 -n 1 sh -c",
        "# Several at a time on a machine with GPUs: all take the first one, unless each line is given one of its own,",
        "# with CUDA_VISIBLE_DEVICES.",
        f"# The weights are loaded in {plan.setup.dtype}; --device cpu or cuda, or --dtype, decides that.",
    ]
    (folder.root / "logs").mkdir(parents=True, exist_ok=True)
    for unit in tracker.open:
        start = launcher if unit.training else ()
        words = [*start, *command[1 if start else 0 :], unit.name]
        lines.append(f"{shlex.join(words)} >> {shlex.quote(str(folder.log(unit)))} 2>&1")
    lines += ["# At the end, tables and figures:", f"# {shlex.join(tables)}"]
    write_text(out, "\n".join(lines) + "\n")
    return len(tracker.open)
