"""A study's grid: which trainings and which audits it is made of. Nothing is loaded here."""

from collections.abc import Iterator
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.method import BASE
from flip_flop.studies.study import Study
from flip_flop.tasks import Task


@dataclass(frozen=True)
class TrainCell:
    """One training, on the first so many templates that the task does not hold out; None is all of them."""

    method: str
    task: str
    seed: int
    first: int | None = None

    def templates(self, task: Task) -> tuple[str, ...]:
        """The names of the templates to train on.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``: the task has too few.
        """
        names = task.training_templates.names
        require_templates(self.first, len(names), task.name)
        return names[: self.first]


@dataclass(frozen=True)
class AuditCell:
    """One audit: of the base, or of what a training leaves; on the last so many templates of all, or on these."""

    method: str
    task: str
    held_out: int | tuple[str, ...] | None = None
    training: TrainCell | None = None

    def templates(self, task: Task) -> tuple[str, ...]:
        """The names of the templates to audit.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``: the task has too few, or only a part of them was trained on, so that
                they are neither unseen nor seen. ``E-TPL-UNKNOWN``.
        """
        if self.held_out is None:
            return task.training_templates.names
        if isinstance(self.held_out, tuple):
            names = task.templates.select(self.held_out).names
        else:
            require_templates(self.held_out, len(task.templates), task.name)
            names = task.templates.names[-self.held_out :]
        trained = self.training.templates(task) if self.training and self.training.task == self.task else ()
        shared = [name for name in names if name in trained]
        if shared and len(shared) < len(names):
            message = (
                f"task {task.name!r}: {len(shared)} of the {len(names)} templates of held_out are among the "
                f"{len(trained)} trained on: {', '.join(shared[:3])}."
            )
            raise InputError("E-STUDY-TEMPLATES", message, "Train on fewer, or hold out fewer or others.")
        return names


def require_templates(wanted: int | tuple[str, ...] | None, available: int, task: str) -> None:
    """Refuse to choose more templates than a task has.

    Raises:
        InputError: ``E-STUDY-TEMPLATES``.
    """
    if isinstance(wanted, int) and wanted > available:
        message = f"task {task!r} has {available} templates, fewer than the {wanted} of template_subsets."
        raise InputError("E-STUDY-TEMPLATES", message, "Ask for fewer.")


@dataclass(frozen=True)
class Grid:
    """A study's cells, each once."""

    trainings: tuple[TrainCell, ...]
    audits: tuple[AuditCell, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """All tasks that are trained on or audited, each once."""
        audited, trained = (cell.task for cell in self.audits), (cell.task for cell in self.trainings)
        return tuple(dict.fromkeys([*audited, *trained]))


def expand(study: Study) -> Grid:
    """Every training and every audit of a study.

    Example:
        >>> from flip_flop.studies.study import load_study
        >>> grid = expand(load_study("study1"))
        >>> len(grid.trainings), len(grid.audits)
        (33, 44)

    Raises:
        InputError: ``E-STUDY-VALUE``: a method is asked for and no task is left for it.
    """
    audits = tuple(dict.fromkeys(_audits(study)))
    trainings = tuple(dict.fromkeys(cell.training for cell in audits if cell.training is not None))
    if not trainings and any(method != BASE.name for method in study.methods):
        message = f"study {study.name}: of these tasks none is trained on while another one is audited."
        raise InputError("E-STUDY-VALUE", message, "Name a task of its cross and another one, or the base alone.")
    return Grid(trainings, audits)


def _audits(study: Study) -> Iterator[AuditCell]:
    for task in study.tasks:
        subsets = study.template_subsets.get(task)
        held_out = subsets.held_out if subsets else None
        if BASE.name in study.methods:
            yield AuditCell(BASE.name, task, held_out)
        if study.cross is None:
            for training in _trainings(study, task, subsets.train_first if subsets else (None,)):
                yield AuditCell(training.method, task, held_out, training)
    for source in study.cross or ():
        for training in _trainings(study, source, (None,)):
            for target in study.tasks:
                if target != source:
                    yield AuditCell(training.method, target, None, training)


def _trainings(study: Study, task: str, firsts: tuple[int | None, ...]) -> Iterator[TrainCell]:
    trained = [method for method in study.methods if method != BASE.name]
    return (TrainCell(method, task, seed, first) for method in trained for seed in study.seeds for first in firsts)
