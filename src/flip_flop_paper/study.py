"""A study as its file says it: tasks x methods x seeds x templates, and settings. Read strictly."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from flip_flop.errors import InputError, nearest
from flip_flop.method import BASE, METHODS, find_method
from flip_flop.method.settings import TrainingProtocol
from flip_flop.strict_yaml import mapping_of, read_yaml, text_of
from flip_flop_paper.variants import MethodVariant, read_variants

_mapping = functools.partial(mapping_of, code="E-STUDY-KEY")
_text = functools.partial(text_of, code="E-STUDY-KEY")

CATALOG = Path(__file__).parent / "catalog"
# The largest seed that NumPy takes.
MAX_SEED = 2**32 - 1
# Folders beside the studies' own.
RESERVED = ("trainings", "audits", "logs", "claims", "slurm")
# Settings of a training that the grid decides, and by what.
OWNED = {
    "method": "methods",
    "seed": "seeds",
    "output_dir": "--out",
    "resume_from_checkpoint": "the study",
    "use_cpu": "--device",
    "do_train": "the study",
    "protocol": "protocol: in the study's file, or --protocol",
}
PROTOCOLS: tuple[TrainingProtocol, ...] = get_args(TrainingProtocol)


@dataclass(frozen=True)
class Subsets:
    """Templates of a task: a training on each first K, None being all not held out; audits on the last N, or these."""

    train_first: tuple[int | None, ...]
    held_out: int | tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """Fields of ``F2CConfig``: of the protocol, for all trainings, per method, per task, for both, of the command line.

    The later wins. The protocol's are by method and task, as are those of a variant for a task (``pairs``).
    """

    common: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    override: Mapping[str, Any] = field(default_factory=dict)
    protocol: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    pairs: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)

    def of(self, method: str, task: str) -> dict[str, Any]:
        """The settings of one training; for the base, those that its scoring reads."""
        bundle, pair = (of.get(method, {}).get(task, {}) for of in (self.protocol, self.pairs))
        layers = (bundle, self.common, self.methods.get(method, {}), self.tasks.get(task, {}), pair, self.override)
        return {key.replace("-", "_"): value for layer in layers for key, value in layer.items()}


@dataclass(frozen=True)
class Study:
    """A grid of trainings and audits.

    Attributes:
        methods: ``base``, names of :data:`~flip_flop.method.METHODS` or of ``variants``, ``package.module:name``.
        variants: Methods with settings of their own, by name. Where there are any, tables have the order of methods.
        cross: Tasks to train on, each adapter being audited on every *other* task; None trains and audits on the same.
        template_subsets: By task; a task without an entry takes all templates that it does not hold out.
        audit_held_out: Each task without ``template_subsets`` is audited on its ``held_out_templates``, too.
        limit: A uniform sample of this many instances, in trainings and audits.
        eval_limit: So many validation instances, as ``train --eval-limit``.
        split: The split to audit.
        protocol: ``paper``, ``release`` or ``recommended``;
            :func:`~flip_flop_paper.release.with_protocol` makes settings of it.
    """

    name: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...] = (BASE.name, *METHODS)
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
        """The method that a name of ``methods`` stands for: a variant's, or itself."""
        return self.variants[method].method if method in self.variants else method

    def training_settings(self, method: str, task: str) -> dict[str, Any]:
        """The settings of one training, with the method that is trained; the seed is the grid's."""
        return self.settings.of(method, task) | {"method": self.trained(method)}


def study_names() -> tuple[str, ...]:
    """The shipped studies.

    Example:
        >>> study_names()
        ('base_spread', 'smoke', 'study1', 'study2', 'study3')
    """
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def load_study(name: str) -> Study:
    """Read a shipped study, or a user's file, which names task files relative to itself.

    Raises:
        InputError: ``E-STUDY-UNKNOWN``, ``E-STUDY-FILE``, ``E-STUDY-YAML``, ``E-STUDY-KEY`` or ``E-STUDY-VALUE``.
    """
    if name in study_names():
        return _parse(read_yaml(CATALOG / f"{name}.yaml"), f"study {name}", CATALOG)
    path = Path(name)
    if not path.is_file():
        hint = f"{nearest(name, study_names())} Or give the path of a YAML file."
        raise InputError("E-STUDY-UNKNOWN", f"there is no study {name!r}, and no file of this name.", hint)
    content = read_yaml(path, code="E-STUDY-YAML", file_code="E-STUDY-FILE")
    return _parse(content, str(path), path.parent)


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
    """The study with what the command line says instead: of its tasks these only, and settings that win over all.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    for given, option in ((tasks, "--tasks"), (methods, "--methods"), (seeds, "--seeds")):
        if given is not None and not given:
            raise InputError("E-STUDY-VALUE", f"{option} is empty.", "Name at least one, or leave it out.")
    if tasks is not None:
        # A task file may be named without its folder.
        references = {Path(task).stem: task for task in study.tasks} | {task: task for task in study.tasks}
        _require_known(tasks, references, f"--tasks, study {study.name}")
        tasks = [references[task] for task in tasks]
        sources = None if study.cross is None else tuple(task for task in study.cross if task in tasks)
        subsets = {task: chosen for task, chosen in study.template_subsets.items() if task in tasks}
        study = replace(study, tasks=tuple(dict.fromkeys(tasks)), cross=sources, template_subsets=subsets)
    if methods is not None:
        study = replace(study, methods=_known_methods(methods, "--methods", study.variants))
    if seeds is not None:
        study = replace(study, seeds=tuple(dict.fromkeys(_whole_number(seed, "--seeds") for seed in seeds)))
    override = _settings_block(dict(settings or {}), "--set")
    if protocol is not None:
        _require_known([protocol], PROTOCOLS, "--protocol")
        study = replace(study, protocol=cast(TrainingProtocol, protocol))
    return replace(study, limit=limit or study.limit, settings=replace(study.settings, override=override))


def _parse(content: Any, where: str, folder: Path) -> Study:
    content = _mapping(content, where, [item.name for item in fields(Study)])
    tasks, cross = _names(content, "tasks", where), _names(content, "cross", where)
    subsets = _block(content, "template_subsets", where)
    if not tasks:
        raise InputError("E-STUDY-KEY", f"{where} has no tasks.", "List at least one.")
    _require_known(cross, tasks, f"{where}, cross")
    _require_known(subsets, tasks, f"{where}, template_subsets")
    audit_held_out = content.get("audit_held_out", False)
    if not isinstance(audit_held_out, bool):
        raise InputError("E-STUDY-KEY", f"{where}: audit_held_out is {audit_held_out!r}.", "Write true or false.")
    if cross and (subsets or audit_held_out):
        other = "template_subsets" if subsets else "audit_held_out"
        raise InputError("E-STUDY-KEY", f"{where} has cross and {other}.", "Make two studies of it.")
    variants, own = read_variants(_block(content, "variants", where), f"{where}, variants")
    methods = _known_methods(_names(content, "methods", where), f"{where}, methods", variants)
    methods = methods or (BASE.name, *METHODS, *variants)
    # A task file is named by its whole path; a name stays a name.
    files = {task for task in tasks if task.endswith((".yaml", ".yml")) or "/" in task}
    paths = {task: str((folder / task).resolve()) if task in files else task for task in tasks}
    limits = {key: content.get(key) for key in ("limit", "eval_limit")}
    protocol = _text(content, "protocol", where) or "paper"
    _require_known([protocol], PROTOCOLS, f"{where}, protocol")
    return Study(
        name=_name(content, where, is_shipped=folder == CATALOG),
        tasks=tuple(paths.values()),
        methods=methods,
        seeds=tuple(_whole_number(seed, f"{where}: a seed") for seed in _list(content, "seeds", where)) or (0,),
        model=_text(content, "model", where) or None,
        description=_text(content, "description", where) or "",
        cross=tuple(paths[task] for task in cross) or None,
        template_subsets={paths[task]: _subsets(subsets, task, f"{where}, template_subsets") for task in subsets},
        settings=_all_settings(content, where, methods, variants, own, paths),
        split=_text(content, "split", where) or "test",
        protocol=cast(TrainingProtocol, protocol),
        variants=variants,
        audit_held_out=audit_held_out,
        **{key: _whole_number(size, f"{where}: {key}", 1) for key, size in limits.items() if size is not None},
    )


def _name(content: dict[str, Any], where: str, *, is_shipped: bool) -> str:
    name = _text(content, "name", where) or ""  # which is that of its folder, too
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise InputError("E-STUDY-KEY", f"{where}: name is {name!r}.", "Use letters, digits, - and _.")
    if name.lower() in RESERVED or (not is_shipped and name.lower() in study_names()):
        owner = "all studies share" if name.lower() in RESERVED else "a shipped study has"
        hint = f"Give another name: this is a folder that {owner}."
        raise InputError("E-STUDY-VALUE", f"{where}: name is {name!r}.", hint)
    return name


def _subsets(subsets: dict[str, Any], task: str, where: str) -> Subsets:
    content, where = _block(subsets, task, where), f"{where}, {task}"
    if set(content) != {"train_first", "held_out"} or not (firsts := _list(content, "train_first", where)):
        raise InputError("E-STUDY-KEY", f"{where}: {content!r}.", "Write {train_first: [5, 10, all], held_out: 5}.")
    numbers = tuple(None if first == "all" else _whole_number(first, f"{where}: train_first", 2) for first in firsts)
    if isinstance(content["held_out"], list):
        return Subsets(numbers, _names(content, "held_out", where))
    return Subsets(numbers, _whole_number(content["held_out"], f"{where}: held_out", 1))


def _all_settings(
    content: dict[str, Any],
    where: str,
    methods: Sequence[str],
    variants: Mapping[str, MethodVariant],
    own: Mapping[str, dict[str, Any]],
    paths: Mapping[str, str],
) -> Settings:
    """The settings of a file: a variant's are its method's, then its own, then those of ``methods`` by its name."""
    trained = {name: name for name in (*METHODS, *methods, *variants) if name != BASE.name}
    block, inside = _block(content, "settings", where), f"{where}, settings"
    common, groups = _settings(block, inside, {"methods": trained, "tasks": paths})
    of, pairs = dict(groups["methods"]), {}
    for name, variant in variants.items():
        block, by_task = _settings(own[name], f"{where}, variants, {name}", {"tasks": paths})
        of[name] = {**groups["methods"].get(variant.method, {}), **block, **of.get(name, {})}
        pairs[name] = by_task["tasks"]
    return Settings(common, of, groups["tasks"], pairs=pairs)


def _settings(
    content: dict[str, Any], where: str, groups: Mapping[str, Mapping[str, str]]
) -> tuple[dict[str, Any], dict[str, dict[str, dict[str, Any]]]]:
    """The settings of a block, and of each of its groups those of each name, under what the name stands for."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for key, known in groups.items():
        group, inside = _block(content, key, where), f"{where}, {key}"
        _require_known(group, known, inside)
        found[key] = {known[each]: _settings_block(_block(group, each, inside), f"{inside}, {each}") for each in group}
    return _settings_block({key: value for key, value in content.items() if key not in groups}, where), found


def _settings_block(content: dict[str, Any], where: str) -> dict[str, Any]:
    for key in content:
        if owner := OWNED.get(key.replace("-", "_")):
            raise InputError("E-STUDY-VALUE", f"{where}: {key} cannot be set here.", f"It is set by {owner}.")
    return {key.replace("-", "_"): value for key, value in content.items()}


def _known_methods(names: Sequence[str], where: str, variants: Iterable[str] = ()) -> tuple[str, ...]:
    """Methods of the table, the base, the study's variants, and a user's own as ``package.module:name``."""
    _require_known([name for name in names if ":" not in name], (BASE.name, *METHODS, *variants), where)
    for name in names:
        if ":" in name:
            find_method(name)
    return tuple(dict.fromkeys(names))


def _block(content: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    """The mapping under a key; empty where the key is missing."""
    value = content.get(key)
    return _mapping({} if value is None else value, f"{where}, {key}")


def _list(content: dict[str, Any], key: str, where: str) -> list[Any]:
    """The list under a key, without repetitions; empty where the key is missing."""
    value = content.get(key)
    if value is None:
        return []
    if not isinstance(value, list) or not value:
        hint = f"Write {key}: [..., ...] with at least one, or leave it out."
        raise InputError("E-STUDY-KEY", f"{where}: {key} is {value!r}.", hint)
    for index, item in enumerate(value):
        if item in value[:index]:
            raise InputError("E-STUDY-VALUE", f"{where}: {key} holds {item!r} twice.", "Remove one.")
    return value


def _names(content: dict[str, Any], key: str, where: str) -> tuple[str, ...]:
    for item in _list(content, key, where):
        if not isinstance(item, str) or not item.strip():
            raise InputError("E-STUDY-KEY", f"{where}: {key} holds {item!r}, which is no name.", "Quote it.")
    return tuple(_list(content, key, where))


def _whole_number(value: Any, where: str, minimum: int = 0) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and minimum <= value <= MAX_SEED:
        return value
    hint = f"Give a whole number of at least {minimum} and at most {MAX_SEED}."
    raise InputError("E-STUDY-VALUE", f"{where} is {value!r}.", hint)


def _require_known(names: Iterable[str], known: Iterable[str], where: str) -> None:
    for name in names:
        if name not in known:
            raise InputError("E-STUDY-VALUE", f"{where}: there is no {name!r}.", nearest(name, known))
