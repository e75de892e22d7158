"""What a study has computed so far: its complete audits, as they stand on disk."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.plan import Plan


@dataclass(frozen=True)
class Result:
    """One audit of a study's grid, as it stands on disk.

    Attributes:
        study: The study's name.
        method: ``base``, ``swarm``, ``cce`` or ``f2c``.
        task: The task audited.
        source: The task trained on (study 2: another one); ``None`` for the base.
        seed: The training's; ``None`` for the base.
        num_templates: Study 3: K, how many templates were trained on; ``None`` elsewhere.
        held_out: The audited templates were not trained on.
        run: Run directory of the audit.
        training: Run directory of the training; ``None`` for the base.
        metrics: ``metrics.json``: fractions from 0 to 1.
    """

    study: str
    method: str
    task: str
    source: str | None
    seed: int | None
    num_templates: int | None
    held_out: bool
    run: Path
    training: Path | None
    metrics: dict[str, Any]


def read_results(root: Path, plan: Plan) -> list[Result]:
    """The complete audits of a study, in the order of its grid.

    Args:
        root: The folder of all studies.
        plan: The study's plan, from :meth:`StudyFolder.read_study`.
    """
    folder = StudyFolder(root)
    results = []
    for cell in plan.audits:
        if not folder.is_done(cell):
            continue
        run, training = folder.run(cell), plan.training_of(cell)
        results.append(
            Result(
                study=plan.study.name,
                method=cell.method,
                task=cell.task_name,
                source=cell.source,
                seed=cell.seed,
                num_templates=cell.num_templates,
                held_out=cell.held_out,
                run=run,
                training=None if training is None else folder.run(training),
                metrics=json.loads((run / "metrics.json").read_text(encoding="utf-8")),
            )
        )
    return results


def missing(root: Path, plan: Plan) -> list[str]:
    """The names of the audits that are not complete."""
    folder = StudyFolder(root)
    return [cell.name for cell in plan.audits if not folder.is_done(cell)]
