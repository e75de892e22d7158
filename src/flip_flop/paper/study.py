"""A study: a grid of tasks, methods, seeds and templates with settings, read from a YAML file."""

import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictBool, StrictInt, model_validator

from flip_flop.errors import InputError, nearest, require_known
from flip_flop.files import Json
from flip_flop.method import BASE, METHODS, PAPER_METHODS, TrainingProtocol, find_method
from flip_flop.scoring.options import Shard
from flip_flop.strict_yaml import StrictModel, read_yaml, validate
from flip_flop.tasks import Task
from flip_flop.tasks.task import task_loaders

CATALOG = Path(__file__).parent / "catalog"
RELEASE_SETTINGS = Path(__file__).parent / "published" / "release_settings.yaml"
# Folders that all studies share.
SHARED_FOLDERS = ("trainings", "audits", "logs", "slurm")
MAX_SEED = 2**32 - 1  # of NumPy
# The source of each training setting that the grid decides.
SET_BY_GRID = {
    "method": "methods",
    "seed": "seeds",
    "output_dir": "--out",
    "resume_from_checkpoint": "the study",
    "use_cpu": "--device",
    "do_train": "the study",
    "protocol": "protocol: in the study file, or --protocol",
}
# The settings that audits share with training runs. Tables compare every method with the base, so all have the same.
SCORING = ("chat_template", "backend", "batch_tokens", "too_long", "prompt_date")
# A cell with these templates audits those that the task file holds out, if any.
HELD_OUT = "held_out"


def known_methods(names: Sequence[str], variants: Iterable[str], where: str) -> None:
    """Refuse other names than those of the method table, the base, variants, and ``package.module:name``."""
    named = [name for name in names if ":" not in name]
    require_known(named, (BASE.name, *METHODS, *variants), "E-STUDY", f"{where}: there is no")
    for name in names:
        if ":" in name:
            find_method(name)


def _once_each(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


def _setting_names(settings: Json) -> Json:
    """Write the names with underscores, and refuse settings that the grid decides."""
    settings = {name.replace("-", "_"): value for name, value in settings.items()}
    for name in settings:
        if source := SET_BY_GRID.get(name):
            raise InputError("E-STUDY", f"{name} cannot be set here.", f"It is set by {source}.")
    return settings


Names = Annotated[tuple[Annotated[str, Field(pattern=r"\S")], ...], Field(min_length=1), AfterValidator(_once_each)]
Size = Annotated[StrictInt, Field(ge=1, le=MAX_SEED)]
Seed = Annotated[StrictInt, Field(ge=0, le=MAX_SEED)]
Seeds = Annotated[tuple[Seed, ...], Field(min_length=1), AfterValidator(_once_each)]
_First = Annotated[StrictInt, Field(ge=2, le=MAX_SEED)]
_FirstOrAll = Annotated[_First | None, BeforeValidator(lambda first: None if first == "all" else first)]
SettingFields = Annotated[Json, AfterValidator(_setting_names)]


class _Block(StrictModel, strict=False):
    """A part of a study's file. A key without a value has its default."""

    @model_validator(mode="before")
    @classmethod
    def _without_empty_keys(cls, content: Any) -> Any:
        if type(content) is dict:
            return {key: value for key, value in content.items() if value is not None}
        return content


class Subsets(_Block):
    """Template subsets of a task.

    Attributes:
        train_first: One training run on the first K templates for each K. None: all that are not held out.
        held_out: The templates to audit: the last N, or these names.
    """

    train_first: Annotated[tuple[_FirstOrAll, ...], Field(min_length=1), AfterValidator(_once_each)]
    held_out: Size | Names


class Settings(_Block):
    """Fields of ``F2CConfig``: any key that is not declared. ``tasks`` and ``methods`` have those for one of them."""

    common: SettingFields = Field(default={})
    tasks: dict[str, SettingFields] = Field(default={})
    methods: dict[str, SettingFields] = Field(default={})

    @model_validator(mode="before")
    @classmethod
    def _gather_fields(cls, content: Any) -> Any:
        if not isinstance(content, dict) or "common" in content:
            return content
        declared = {key: value for key, value in content.items() if key in cls.model_fields}
        return declared | {"common": {key: value for key, value in content.items() if key not in declared}}


class MethodVariant(Settings):
    """A method under another name, with its settings.

    Attributes:
        method: A name of :data:`~flip_flop.method.METHODS`, or ``package.module:name``.
        title: Its name in tables and figures; by default its key.
        colour: In figures; by default one that the paper's methods do not have.
    """

    method: str
    title: str = ""
    colour: Annotated[str, Field(pattern="^(#[0-9A-Fa-f]{6})?$")] = ""


class Study(_Block):
    """A grid of training runs and audits, as its file has it.

    Attributes:
        tasks: Names, or task files relative to ``folder``.
        methods: ``base``, names of :data:`~flip_flop.method.METHODS` or of ``variants``, ``package.module:name``.
        variants: Methods with their settings, by name. With variants, tables keep the order of ``methods``.
        cross: Tasks to train on. Each adapter is audited on every *other* task. None: train and audit on the same task.
        template_subsets: By task. A task without an entry uses all templates that it does not hold out.
        audit_held_out: Also audit each task without ``template_subsets`` on its ``held_out_templates``.
        limit: Size of a uniform sample of instances, in training runs and audits.
        eval_limit: Number of validation instances, as ``train --eval-limit``.
        split: The split to audit.
        protocol: ``paper``, ``release`` or ``recommended``.
        shard: How the processes of each unit divide the weights. Results are those of one process.
        override: Settings of the command line. They win over all others.
        folder: The folder of the study's file.
    """

    name: Annotated[str, Field(pattern=r"^[\w-]+$")]
    tasks: Names
    methods: Names = ()
    seeds: Seeds = (0,)
    model: str | None = None
    description: str = ""
    cross: Annotated[tuple[str, ...], AfterValidator(_once_each)] | None = None
    template_subsets: dict[str, Subsets] = Field(default={})
    settings: Settings = Settings()
    limit: Size | None = None
    split: str = "test"
    protocol: TrainingProtocol = "paper"
    variants: dict[Annotated[str, Field(pattern="^[A-Za-z0-9_-]+$")], MethodVariant] = Field(default={})
    audit_held_out: StrictBool = False
    eval_limit: Size | None = None
    shard: Shard | None = None
    override: SettingFields = Field(default={})
    folder: str = ""

    @model_validator(mode="after")
    def _check_names(self) -> "Study":
        if self.cross and (self.template_subsets or self.audit_held_out):
            raise InputError(
                "E-STUDY",
                f"it has cross and {'template_subsets' if self.template_subsets else 'audit_held_out'}.",
                "Make two studies of it.",
            )
        for name, variant in self.variants.items():
            if name in (BASE.name, *METHODS):
                raise InputError("E-STUDY", f"variants: {name!r} is a method.", "Give another name.")
            known_methods([variant.method], (), f"variants, {name}, method")
        variants = self.variants.values()
        of_variants = itertools.chain.from_iterable((variant.common, *variant.tasks.values()) for variant in variants)
        for name in itertools.chain(*self.settings.methods.values(), *of_variants):
            if name in SCORING:
                raise InputError(
                    "E-STUDY",
                    f"{name} is set for one method, but the base would be scored without it.",
                    "Set it for all methods, under settings or settings, tasks.",
                )
        known_methods(self.methods, self.variants, "methods")
        methods = self.methods or (BASE.name, *PAPER_METHODS, *self.variants)
        object.__setattr__(self, "methods", methods)
        trained = [name for name in (*METHODS, *self.variants, *methods) if name != BASE.name]
        # A module:name may be the method of a variant, or one that `narrow` left out.
        named = [name for name in self.settings.methods if ":" not in name]
        require_known(named, trained, "E-STUDY", "settings, methods: there is no")
        return self

    def task_reference(self, task: str) -> str:
        """Return the name of a task, or the path of its file."""
        is_set = task.partition(":")[0] in task_loaders()  # promptsource:super_glue/rte
        is_file = task.endswith((".yaml", ".yml")) or ("/" in task and not is_set)
        if is_file:
            return str((Path(self.folder) / task).resolve())
        return task

    def settings_of(self, method: str, task: str, model: str) -> Json:
        """Return the settings of one training run without its seed; for the base, those that its scoring reads.

        Later layers win: the protocol's, those of all runs, of the method, of its variant, of the task, of both, and of
        the command line.
        """
        variant = self.variants.get(method, MethodVariant(method=method))
        by_method = self.settings.methods
        bundle = {}
        if method != BASE.name:
            bundle = {"protocol": self.protocol}
        if self.protocol == "release":
            bundle |= release_settings(model).get(task, {}).get(variant.method.removesuffix("_release"), {})
        layers = (
            bundle,
            self.settings.common,
            by_method.get(variant.method, {}),
            variant.common,
            by_method.get(method, {}),
            self.settings.tasks.get(task, {}),
            variant.tasks.get(task, {}),
            self.override,
        )
        settings = {name: value for layer in layers for name, value in layer.items()}
        if method == BASE.name:
            return settings
        return settings | {"method": variant.method}


def study_names() -> tuple[str, ...]:
    """Return the names of the shipped studies.

    Example:
        >>> study_names()
        ('base_spread', 'smoke', 'study1', 'study2', 'study3')
    """
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def load_study(name: str) -> Study:
    """Read a shipped study by name, or a file.

    Raises:
        InputError: ``E-STUDY``.
    """
    is_shipped = name in study_names()
    path = CATALOG / f"{name}.yaml" if is_shipped else Path(name)
    if not path.is_file():
        raise InputError(
            "E-STUDY",
            f"there is no study {name!r}, and no file of this name.",
            f"{nearest(name, study_names())} Or give the path of a YAML file.",
        )
    content = read_yaml(path, code="E-STUDY")
    study = validate(Study, content, f"study {name}" if is_shipped else name, code="E-STUDY")
    taken = SHARED_FOLDERS if is_shipped else (*SHARED_FOLDERS, *study_names())
    if study.name.lower() in taken:
        raise InputError("E-STUDY", f"{name}: name is {study.name!r}, which is taken.", "Give another name.")
    for names, key in (
        (study.cross or (), "cross"),
        (study.template_subsets, "template_subsets"),
        (study.settings.tasks, "settings, tasks"),
        *((variant.tasks, f"variants, {variant_name}, tasks") for variant_name, variant in study.variants.items()),
    ):
        require_known(names, study.tasks, "E-STUDY", f"{name}: {key}: there is no")
    used = {*study.methods, *(study.variants[method].method for method in study.methods if method in study.variants)}
    methods = study.settings.methods
    require_known(methods, used - {BASE.name}, "E-STUDY", f"{name}: settings, methods: there is no")
    return study.model_copy(update={"folder": str(path.parent.resolve())})


def narrow(
    study: Study,
    *,
    tasks: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
    protocol: str | None = None,
) -> Study:
    """Apply the options of the command line: a selection of tasks, methods and seeds, and settings.

    Raises:
        InputError: ``E-STUDY``.
    """
    given = {
        "tasks": tasks,
        "methods": methods,
        "seeds": seeds,
        "limit": limit,
        "protocol": protocol,
        "override": settings,
    }
    content = study.model_dump() | {name: value for name, value in given.items() if value is not None}
    if tasks is not None:
        # A task file may be named without its folder, if no other has this name.
        stems = [Path(task).stem for task in study.tasks]
        references = {stem: task for stem, task in zip(stems, study.tasks, strict=True) if stems.count(stem) == 1}
        references |= {task: task for task in study.tasks}
        require_known(tasks, references, "E-STUDY", f"--tasks, study {study.name}: there is no")
        content["tasks"] = [references[task] for task in tasks]
        if study.cross is not None:
            content["cross"] = [task for task in study.cross if task in content["tasks"]]
    return validate(Study, content, f"study {study.name}", code="E-STUDY")


@functools.cache
def release_settings(model: str) -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Return the settings of the authors' release by task and method, as fields of ``F2CConfig``.

    The release ran Qwen2.5-3B-Instruct and Llama-3.2-3B-Instruct. Only WiC's settings differ. The last part of the
    model's path that contains "llama" or "qwen" decides; without one, the settings are those of Qwen.

    Example:
        >>> release_settings("meta-llama/Llama-3.2-3B-Instruct")["wic"]["f2c"]["unanimous_margin"]
        0.65
        >>> release_settings("Qwen/Qwen2.5-3B-Instruct")["rte"]["cce"]
        {'cce_weight': 0.1}
    """
    # A snapshot in the hub's cache ends with a commit.
    parts = Path(model.lower()).parts
    named = next((part for part in parts if part.startswith("models--")), parts[-1])
    family = "llama" if "llama" in named else "qwen"
    by_family = read_yaml(RELEASE_SETTINGS)
    return {**by_family["both"], **by_family[family]}


# ---- the grid ----


@dataclass(frozen=True)
class GridCell:
    """One training run, or one audit of the base or of an adapter. No data is loaded.

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
            InputError: ``E-STUDY`` if the task has too few templates, or if only some of the audited ones were
                trained on. ``E-TASK-UNKNOWN``.
        """
        trainable = task.training_templates.names
        every = task.templates.names
        wanted = self.templates
        if wanted is None:
            return trainable
        if isinstance(wanted, str):
            return tuple(name for name in every if name in task.held_out_templates)
        if isinstance(wanted, tuple):
            names = task.templates.select(wanted).names
        else:
            names = trainable[:wanted] if self.kind == "train" else every[-wanted:]
            if len(names) < wanted:
                raise InputError(
                    "E-STUDY",
                    f"task {task.name!r} has {len(names)} templates, fewer than the {wanted} of template_subsets.",
                    "Ask for fewer.",
                )
        if self.training and self.training.task == self.task:
            trained = self.training.template_names(task)
        else:
            trained = ()
        shared = [name for name in names if name in trained]
        if shared and len(shared) < len(names):
            raise InputError(
                "E-STUDY",
                f"task {task.name!r}: {len(shared)} of the {len(names)} templates of held_out are among the "
                f"{len(trained)} trained on: {', '.join(shared[:3])}.",
                "Train on fewer, or hold out fewer or others.",
            )
        return names


def expand(study: Study) -> tuple[GridCell, ...]:
    """Return every training run and audit of a study once, each training run before its audits.

    Example:
        >>> from collections import Counter
        >>> Counter(cell.kind for cell in expand(load_study("study1")))
        Counter({'audit': 44, 'train': 33})

    Raises:
        InputError: ``E-STUDY`` if the methods have no task to train on.
    """
    cells = [cell for audit in _audits(study) for cell in (audit.training, audit) if cell is not None]
    if all(cell.kind == "audit" for cell in cells) and any(method != BASE.name for method in study.methods):
        raise InputError(
            "E-STUDY",
            f"study {study.name}: none of these tasks is trained on and audited on a different task.",
            "Name a task of its cross and a different task, or only the base.",
        )
    return tuple(dict.fromkeys(cells))


def _audits(study: Study) -> Iterator[GridCell]:
    for task in study.tasks:
        subsets = study.template_subsets.get(task)
        firsts: tuple[int | None, ...] = (None,)
        audited: list[Any] = [None]
        if subsets:
            firsts = subsets.train_first
            audited = [subsets.held_out]
        elif study.audit_held_out:
            audited = [None, HELD_OUT]
        if BASE.name in study.methods:
            yield from (GridCell("audit", BASE.name, task, templates) for templates in audited)
        if study.cross is None:
            for training in _trainings(study, task, firsts):
                for templates in audited:
                    yield GridCell("audit", training.method, task, templates, training=training)
    for source in study.cross or ():
        for training in _trainings(study, source, (None,)):
            for target in study.tasks:
                if target != source:
                    yield GridCell("audit", training.method, target, training=training)


def _trainings(study: Study, task: str, firsts: tuple[int | None, ...]) -> Iterator[GridCell]:
    methods = [method for method in study.methods if method != BASE.name]
    for method, seed, first in itertools.product(methods, study.seeds, firsts):
        yield GridCell("train", method, task, first, seed)
