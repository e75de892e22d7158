"""A study's grid: which trainings and which audits it is made of. Nothing is loaded here."""

from collections.abc import Iterator
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.studies.study import Study
from flip_flop.tasks import Task


@dataclass(frozen=True)
class Templates:
    """A choice of a task's templates, made before the task is loaded.

    Attributes:
        first: The first so many of those that the task does not hold out; None is all of them.
        held_out: Instead: the last so many of all, or these.
    """

    first: int | None = None
    held_out: int | tuple[str, ...] | None = None

    def names(self, task: Task) -> tuple[str, ...]:
        """The templates' names.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``: the task has too few. ``E-TPL-UNKNOWN``.
        """
        if isinstance(self.held_out, tuple):
            return task.templates.select(self.held_out).names
        names = task.training_templates.names if self.held_out is None else task.templates.names
        self.require(len(names), task.name)
        return names[: self.first] if self.held_out is None else names[len(names) - self.held_out :]

    def require(self, has: int, task: str) -> None:
        """Refuse to choose more templates than a task has.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``.
        """
        wanted = self.first if self.held_out is None else self.held_out
        if isinstance(wanted, int) and wanted > has:
            message = f"task {task!r} has {has} templates, fewer than the {wanted} of template_subsets."
            raise InputError("E-STUDY-TEMPLATES", message, "Ask for fewer.")


@dataclass(frozen=True)
class TrainCell:
    """One training."""

    method: str
    task: str
    seed: int
    templates: Templates = Templates()


@dataclass(frozen=True)
class AuditCell:
    """One audit: of the base, or of what a training leaves."""

    method: str
    task: str
    templates: Templates
    training: TrainCell | None = None

    def names(self, task: Task) -> tuple[str, ...]:
        """The audited templates' names.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``: the task has too few, or only a part of them was trained on, so that
                they are neither unseen nor seen. ``E-TPL-UNKNOWN``.
        """
        names = self.templates.names(task)
        if self.training is None or self.training.task != self.task:
            return names
        trained = self.training.templates.names(task)
        shared = [name for name in names if name in trained]
        if shared and len(shared) < len(names) and self.templates.held_out is not None:
            message = (
                f"task {task.name!r}: {len(shared)} of the {len(names)} templates of held_out are among the "
                f"{len(trained)} trained on: {', '.join(shared[:3])}."
            )
            raise InputError("E-STUDY-TEMPLATES", message, "Train on fewer, or hold out fewer or others.")
        return names


@dataclass(frozen=True)
class Grid:
    """A study's cells, each once.

    Attributes:
        trainings: In the order in which the audits ask for them.
        audits: Task by task.
    """

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
    if not trainings and any(method != "base" for method in study.methods):
        message = f"study {study.name}: of these tasks none is trained on while another one is audited."
        raise InputError("E-STUDY-VALUE", message, "Name a task of its cross and another one, or the base alone.")
    return Grid(trainings, audits)


def _audits(study: Study) -> Iterator[AuditCell]:
    for task in study.tasks:
        subsets = study.template_subsets.get(task)
        audited = Templates(held_out=subsets.held_out) if subsets else Templates()
        if "base" in study.methods:
            yield AuditCell("base", task, audited)
        if study.cross is None:
            firsts = subsets.train_first if subsets else (None,)
            for training in _trainings(study, task, firsts):
                yield AuditCell(training.method, task, audited, training)
    for source in study.cross or ():
        for training in _trainings(study, source, (None,)):
            for target in study.tasks:
                if target != source:
                    yield AuditCell(training.method, target, Templates(), training)


def _trainings(study: Study, task: str, firsts: tuple[int | None, ...]) -> Iterator[TrainCell]:
    for method in study.methods:
        for seed in study.seeds:
            for first in firsts:
                if method != "base":
                    yield TrainCell(method, task, seed, Templates(first))
