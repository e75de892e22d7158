"""The audits of a study: what each is, and where it stands on disk."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from flip_flop.method import BASE
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.plan import Plan


@dataclass(frozen=True)
class Result:
    """One audit of a study's grid.

    ``source`` is the task trained on, ``k`` the number of templates trained on, ``seed`` and ``training`` its seed and
    directory: empty, 0 and ``None`` for the base. ``template_names`` are those audited; ``held_out`` says that none of
    them was trained on. ``run`` is the audit's directory, ``None`` as long as it is not complete.
    """

    method: str
    task: str
    source: str
    seed: int | None
    k: int
    held_out: bool
    template_names: tuple[str, ...]
    run: Path | None
    training: Path | None

    @property
    def eval_set(self) -> Hashable:
        """What is audited: numbers are compared within the same task and templates, and never across."""
        return self.task, self.template_names


def read_results(folder: StudyFolder, plan: Plan) -> list[Result]:
    """All audits of a study, complete or not, in the order of its grid."""
    results = []
    for cell in plan.audits:
        training = plan.training_of(cell)
        results.append(
            Result(
                method=cell.method,
                task=cell.task_name,
                source=cell.source or "",
                seed=cell.seed,
                k=0 if training is None else len(training.templates),
                held_out=cell.held_out and cell.method != BASE.name,
                template_names=cell.templates,
                run=folder.run(cell) if folder.is_done(cell) else None,
                training=None if training is None else folder.run(training),
            )
        )
    return results
