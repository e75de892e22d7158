"""A study's grid: which trainings and which audits it is made of. Nothing is loaded here."""

from collections.abc import Iterator
from dataclasses import dataclass

from flip_flop.errors import InputError
from flip_flop.method import BASE
from flip_flop.tasks import Task
from flip_flop_paper.study import Study

# The templates that the task's file holds out, and none where it holds out none.
HELD_OUT = "held_out"


@dataclass(frozen=True)
class GridCell:
    """One training, or one audit of the base or of what a training leaves.

    Attributes:
        kind: ``"train"`` or ``"audit"``.
        method: As the study names it.
        templates: To train on the first so many that the task does not hold out, or to audit the last so many of all,
            or these, or :data:`HELD_OUT`; None is all that the task does not hold out.
    """

    kind: str
    method: str
    task: str
    templates: int | str | tuple[str, ...] | None = None
    seed: int | None = None
    training: "GridCell | None" = None

    def template_names(self, task: Task) -> tuple[str, ...]:
        """The templates to train on or to audit; none, where a task holds out none, is no cell.

        Raises:
            InputError: ``E-STUDY-TEMPLATES``: the task has too few, or only a part of those to audit was trained on, so
                that they are neither unseen nor seen. ``E-TPL-UNKNOWN``.
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
    """Every training and every audit of a study, each once, a training before its audits.

    Example:
        >>> from collections import Counter
        >>> from flip_flop_paper.study_file import load_study
        >>> Counter(cell.kind for cell in expand(load_study("study1")))
        Counter({'audit': 44, 'train': 33})

    Raises:
        InputError: ``E-STUDY-VALUE``: a method is asked for and no task is left for it.
    """
    cells = [cell for audit in _audits(study) for cell in (audit.training, audit) if cell is not None]
    if all(cell.kind == "audit" for cell in cells) and any(method != BASE.name for method in study.methods):
        message = f"study {study.name}: of these tasks none is trained on while another one is audited."
        raise InputError("E-STUDY-VALUE", message, "Name a task of its cross and another one, or the base alone.")
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
