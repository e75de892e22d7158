"""The grid of a study: its training runs and audits. This module loads no data."""

from collections.abc import Iterator
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.method import BASE
from flip_flop.paper.study import Study
from flip_flop.tasks import Task

# Audit the templates that the task file holds out, if any.
HELD_OUT = "held_out"


@dataclass(frozen=True)
class GridCell:
    """One training run, or one audit of the base or of an adapter.

    Attributes:
        kind: ``"train"`` or ``"audit"``.
        method: As the study names it.
        templates: A training run uses the first N templates that are not held out. An audit uses the last N of all,
            these names, or :data:`HELD_OUT`. None: all that the task does not hold out.
    """

    kind: str
    method: str
    task: str
    templates: int | str | tuple[str, ...] | None = None
    seed: int | None = None
    training: "GridCell | None" = None

    def template_names(self, task: Task) -> tuple[str, ...]:
        """Return the templates to train on or to audit. An empty result means that the task holds out no template.

        Raises:
            InputError: ``E-STUDY-TEMPLATES`` if the task has too few templates, or if only some of the audited ones
                were trained on. ``E-TPL-UNKNOWN``.
        """
        own, every, wanted = task.training_templates.names, task.templates.names, self.templates
        if wanted is None:
            return own
        if isinstance(wanted, str):
            return tuple(name for name in every if name in task.held_out_templates)
        if isinstance(wanted, tuple):
            names = task.templates.select(wanted).names
        elif wanted > (available := len(own if self.kind == "train" else every)):
            message = f"task {task.name!r} has {available} templates, fewer than the {wanted} of template_subsets."
            raise InputError("E-STUDY-TEMPLATES", message, "Ask for fewer.")
        else:
            names = own[:wanted] if self.kind == "train" else every[-wanted:]
        trained = self.training.template_names(task) if self.training and self.training.task == self.task else ()
        shared = [name for name in names if name in trained]
        if shared and len(shared) < len(names):
            message = (
                f"task {task.name!r}: {len(shared)} of the {len(names)} templates of held_out are among the "
                f"{len(trained)} trained on: {', '.join(shared[:3])}."
            )
            raise InputError("E-STUDY-TEMPLATES", message, "Train on fewer, or hold out fewer or others.")
        return names


def expand(study: Study) -> tuple[GridCell, ...]:
    """Return every training run and audit of a study once, each training run before its audits.

    Example:
        >>> from collections import Counter
        >>> from flip_flop.paper.study_file import load_study
        >>> Counter(cell.kind for cell in expand(load_study("study1")))
        Counter({'audit': 44, 'train': 33})

    Raises:
        InputError: ``E-STUDY-VALUE`` if the methods have no task to train on.
    """
    cells = [cell for audit in _audits(study) for cell in (audit.training, audit) if cell is not None]
    if all(cell.kind == "audit" for cell in cells) and any(method != BASE.name for method in study.methods):
        message = f"study {study.name}: none of these tasks is trained on and audited on a different task."
        raise InputError("E-STUDY-VALUE", message, "Name a task of its cross and a different task, or only the base.")
    return tuple(dict.fromkeys(cells))


def _audits(study: Study) -> Iterator[GridCell]:
    for task in study.tasks:
        subsets = study.template_subsets.get(task)
        audited = [subsets.held_out] if subsets else [None, HELD_OUT] if study.audit_held_out else [None]
        if BASE.name in study.methods:
            yield from (GridCell("audit", BASE.name, task, templates) for templates in audited)
        if study.cross is None:
            for training in _trainings(study, task, subsets.train_first if subsets else (None,)):
                for templates in audited:
                    yield GridCell("audit", training.method, task, templates, training=training)
    for source in study.cross or ():
        for training in _trainings(study, source, (None,)):
            for target in study.tasks:
                if target != source:
                    yield GridCell("audit", training.method, target, training=training)


def _trainings(study: Study, task: str, firsts: tuple[int | None, ...]) -> Iterator[GridCell]:
    trained = [method for method in study.methods if method != BASE.name]
    return (
        GridCell("train", method, task, first, seed) for method in trained for seed in study.seeds for first in firsts
    )
