"""A study: a grid of tasks, methods, seeds and templates, with settings."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StrictInt
from pydantic.dataclasses import dataclass as pydantic_dataclass

from flip_flop.errors import InputError, nearest
from flip_flop.method import BASE, METHODS, find_method
from flip_flop.method.settings import PAPER_METHODS, TrainingProtocol

MAX_SEED = 2**32 - 1  # of NumPy
# The source of each training setting that the grid decides.
OWNED = {
    "method": "methods",
    "seed": "seeds",
    "output_dir": "--out",
    "resume_from_checkpoint": "the study",
    "use_cpu": "--device",
    "do_train": "the study",
    "protocol": "protocol: in the study file, or --protocol",
}
PROTOCOLS: tuple[TrainingProtocol, ...] = get_args(TrainingProtocol)


def _unique(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} occurs twice. Remove one")
    return values


Names = Annotated[tuple[Annotated[str, Field(pattern=r"\S")], ...], Field(min_length=1), AfterValidator(_unique)]
Size = Annotated[StrictInt, Field(ge=1, le=MAX_SEED)]
Seeds = Annotated[
    tuple[Annotated[StrictInt, Field(ge=0, le=MAX_SEED)], ...], Field(min_length=1), AfterValidator(_unique)
]
_First = Annotated[
    Annotated[StrictInt, Field(ge=2, le=MAX_SEED)] | None, BeforeValidator(lambda k: None if k == "all" else k)
]


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Subsets:
    """Template subsets of a task.

    Attributes:
        train_first: One training run on the first K templates for each K. None: all that are not held out.
        held_out: The templates to audit: the last N, or these names.
    """

    train_first: Annotated[tuple[_First, ...], Field(min_length=1), AfterValidator(_unique)]
    held_out: Size | Names


@dataclass(frozen=True)
class MethodVariant:
    """A method under another name, with its settings.

    Attributes:
        method: A name of :data:`~flip_flop.method.METHODS`, or ``package.module:name``.
        title: Its name in tables and figures.
        colour: In figures, as ``#rrggbb``.
    """

    method: str
    title: str
    colour: str


@dataclass(frozen=True)
class Settings:
    """Fields of ``F2CConfig`` in layers. Later layers win: see :meth:`of`.

    ``protocol`` and ``pairs`` are by method and task, ``methods`` and ``tasks`` by one of them.
    """

    common: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    override: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    pairs: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, method: str, task: str) -> dict[str, Any]:
        """Return the settings of one training run; for the base, those that its scoring reads."""
        bundle, pair = (of.get(method, {}).get(task, {}) for of in (self.protocol, self.pairs))
        layers = (bundle, self.common, self.methods.get(method, {}), self.tasks.get(task, {}), pair, self.override)
        return {key.replace("-", "_"): value for layer in layers for key, value in layer.items()}


@dataclass(frozen=True)
class Study:
    """A grid of training runs and audits.

    Attributes:
        methods: ``base``, names of :data:`~flip_flop.method.METHODS` or of ``variants``, ``package.module:name``.
        variants: Methods with their settings, by name. With variants, tables keep the order of ``methods``.
        cross: Tasks to train on. Each adapter is audited on every *other* task. None: train and audit on the same task.
        template_subsets: By task. A task without an entry uses all templates that it does not hold out.
        audit_held_out: Also audit each task without ``template_subsets`` on its ``held_out_templates``.
        limit: Size of a uniform sample of instances, in training runs and audits.
        eval_limit: Number of validation instances, as ``train --eval-limit``.
        split: The split to audit.
        protocol: ``paper``, ``release`` or ``recommended``.
    """

    name: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...] = (BASE.name, *PAPER_METHODS)
    seeds: tuple[int, ...] = (0,)
    model: str | None = None
    description: str = ""
    cross: tuple[str, ...] | None = None
    template_subsets: Mapping[str, Subsets] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    limit: int | None = None
    split: str = "test"
    protocol: TrainingProtocol = "paper"
    variants: Mapping[str, MethodVariant] = field(default_factory=dict)
    audit_held_out: bool = False
    eval_limit: int | None = None

    def trained(self, method: str) -> str:
        """Return the method of a variant, or the name itself."""
        return self.variants[method].method if method in self.variants else method

    def training_settings(self, method: str, task: str) -> dict[str, Any]:
        """Return the settings of one training run without its seed."""
        return self.settings.of(method, task) | {"method": self.trained(method)}


def plain_fields(content: dict[str, Any]) -> dict[str, Any]:
    """Write setting names with underscores, and refuse those that the grid decides."""
    for key in content:
        if owner := OWNED.get(key.replace("-", "_")):
            raise ValueError(f"{key} cannot be set here. It is set by {owner}")
    return {key.replace("-", "_"): value for key, value in content.items()}


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
        InputError: ``E-STUDY-VALUE``.
    """
    for given, option in ((tasks, "--tasks"), (methods, "--methods"), (seeds, "--seeds")):
        if given is not None and not given:
            raise InputError("E-STUDY-VALUE", f"{option} is empty.", "Name at least one, or leave it out.")
    if tasks is not None:
        # A task file may be named without its folder.
        references = {Path(task).stem: task for task in study.tasks} | {task: task for task in study.tasks}
        require_known(tasks, references, f"--tasks, study {study.name}")
        tasks = [references[task] for task in tasks]
        sources = None if study.cross is None else tuple(task for task in study.cross if task in tasks)
        subsets = {task: chosen for task, chosen in study.template_subsets.items() if task in tasks}
        study = replace(study, tasks=tuple(dict.fromkeys(tasks)), cross=sources, template_subsets=subsets)
    if methods is not None:
        study = replace(study, methods=known_methods(methods, "--methods", study.variants))
    if seeds is not None:
        if not all(0 <= seed <= MAX_SEED for seed in seeds):
            message = f"--seeds {','.join(map(str, seeds))}: a seed is out of range."
            raise InputError("E-STUDY-VALUE", message, f"Use whole numbers from 0 to {MAX_SEED}.")
        study = replace(study, seeds=tuple(dict.fromkeys(seeds)))
    if protocol is not None:
        require_known([protocol], PROTOCOLS, "--protocol")
        study = replace(study, protocol=cast(TrainingProtocol, protocol))
    try:
        override = plain_fields(dict(settings or {}))
    except ValueError as error:
        raise InputError("E-STUDY-VALUE", f"--set: {error}.") from None
    return replace(study, limit=limit or study.limit, settings=replace(study.settings, override=override))


def known_methods(names: Sequence[str], where: str, variants: Iterable[str] = ()) -> tuple[str, ...]:
    """Check methods: names of the table, the base, variants, and ``package.module:name``."""
    require_known([name for name in names if ":" not in name], (BASE.name, *METHODS, *variants), where)
    for name in names:
        if ":" in name:
            find_method(name)
    return tuple(dict.fromkeys(names))


def require_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    """Refuse unknown names (``E-STUDY-VALUE``)."""
    for name in names:
        if name not in known:
            raise InputError("E-STUDY-VALUE", f"{where}: there is no {name!r}.", nearest(name, known))
