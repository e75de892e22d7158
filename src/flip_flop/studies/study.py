"""A study as its file says it: tasks x methods x seeds x templates, and settings. Read strictly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.method import BASE, METHODS, find_method
from flip_flop.strict_yaml import read_yaml
from flip_flop.studies.fields import Fields, require_known, whole_number

CATALOG = Path(__file__).parent / "catalog"
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
}


@dataclass(frozen=True)
class Subsets:
    """Templates of a task: a training on each first K, None being all not held out; audits on the last N, or these."""

    train_first: tuple[int | None, ...]
    held_out: int | tuple[str, ...]


@dataclass(frozen=True)
class Settings:
    """Fields of ``F2CConfig``: for all trainings, per method, per task, and those of the command line.

    The later wins: ``common``, then ``methods``, ``tasks``, ``override``.
    """

    common: Mapping[str, Any] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tasks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    override: Mapping[str, Any] = field(default_factory=dict)

    def of(self, method: str, task: str) -> dict[str, Any]:
        """The settings of one training; for the base, those that its scoring reads.

        Example:
            >>> settings = Settings({"learning_rate": 1e-4, "seed": 1}, tasks={"rte": {"learning_rate": 3e-4}})
            >>> settings.of("f2c", "rte"), settings.of("f2c", "cb")
            ({'learning_rate': 0.0003, 'seed': 1}, {'learning_rate': 0.0001, 'seed': 1})
        """
        layers = (self.common, self.methods.get(method, {}), self.tasks.get(task, {}), self.override)
        return {key.replace("-", "_"): value for layer in layers for key, value in layer.items()}


@dataclass(frozen=True)
class Study:
    """A grid of trainings and audits.

    Attributes:
        name: Its folder's name, and its tables'.
        tasks: Names that :func:`~flip_flop.tasks.load_task` takes.
        methods: ``base``, names of :data:`~flip_flop.method.METHODS`, ``package.module:name``.
        model: Unless the command line names another.
        cross: Tasks to train on, each adapter being audited on every *other* task; None trains and audits on the same.
        template_subsets: By task; a task without an entry takes all templates that it does not hold out.
        limit: A uniform sample of this many instances, in trainings and audits.
        split: The split to audit.
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


def study_names() -> tuple[str, ...]:
    """The shipped studies.

    Example:
        >>> study_names()
        ('base_spread', 'smoke', 'study1', 'study2', 'study3')
    """
    return tuple(sorted(path.stem for path in CATALOG.glob("*.yaml")))


def load_study(name: str) -> Study:
    """Read a shipped study, or a user's file.

    Task files are named relative to the study's file.

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
        require_known(tasks, list(references), f"--tasks, study {study.name}")
        tasks = [references[task] for task in tasks]
        sources = None if study.cross is None else tuple(task for task in study.cross if task in tasks)
        subsets = {task: chosen for task, chosen in study.template_subsets.items() if task in tasks}
        study = replace(study, tasks=tuple(dict.fromkeys(tasks)), cross=sources, template_subsets=subsets)
    if methods is not None:
        study = replace(study, methods=_known_methods(methods, "--methods"))
    if seeds is not None:
        study = replace(study, seeds=tuple(dict.fromkeys(whole_number(seed, "--seeds") for seed in seeds)))
    override = _settings_block(Fields(dict(settings or {}), "--set"))
    limit = study.limit if limit is None else limit
    return replace(study, limit=limit, settings=replace(study.settings, override=override))


def _known_methods(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Methods of the table, the base, and a user's own as ``package.module:name``."""
    require_known([name for name in names if ":" not in name], (BASE.name, *METHODS), where)
    for name in names:
        if ":" in name:
            find_method(name)
    return tuple(dict.fromkeys(names))


def _parse(content: Any, where: str, folder: Path) -> Study:
    if not isinstance(content, dict):
        raise InputError("E-STUDY-KEY", f"{where} does not hold a study.", "Write name:, tasks: and more.")
    known = [item.name for item in fields(Study)]
    for key in content:
        if key not in known:
            raise InputError("E-STUDY-KEY", f"{where} has an unknown key {key!r}.", nearest(key, known))
    read = Fields(content, where)
    tasks, cross, subsets = read.names("tasks"), read.names("cross"), read.mapping("template_subsets")
    if not tasks:
        raise InputError("E-STUDY-KEY", f"{where} has no tasks.", "List at least one.")
    require_known(cross, tasks, f"{where}, cross")
    require_known(subsets.content, tasks, subsets.where)
    if cross and subsets.content:
        raise InputError("E-STUDY-KEY", f"{where} has cross and template_subsets.", "Make two studies of it.")
    methods = _known_methods(read.names("methods"), f"{where}, methods") or (BASE.name, *METHODS)
    paths = {task: _task_path(task, folder) for task in tasks}
    return Study(
        name=_name(read, is_shipped=folder == CATALOG),
        tasks=tuple(paths.values()),
        methods=methods,
        seeds=tuple(whole_number(seed, f"{where}: a seed") for seed in read.items("seeds")) or (0,),
        model=read.text("model"),
        description=read.text("description") or "",
        cross=tuple(paths[task] for task in cross) or None,
        template_subsets={paths[task]: _subsets(subsets.mapping(task)) for task in subsets.content},
        settings=_settings(read.mapping("settings"), methods, paths),
        limit=read.number("limit", 1),
        split=str(read.text("split", "test")),
    )


def _task_path(task: str, folder: Path) -> str:
    """A task file's whole path; a name stays a name."""
    is_file = task.endswith((".yaml", ".yml")) or "/" in task
    return str((folder / task).resolve()) if is_file else task


def _name(read: Fields, *, is_shipped: bool) -> str:
    """A study's name, which is that of its folder, too."""
    name = read.text("name") or ""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise read.refuse("name", "Use letters, digits, - and _.")
    if name.lower() in RESERVED or (not is_shipped and name.lower() in study_names()):
        owner = "all studies share" if name.lower() in RESERVED else "a shipped study has"
        raise read.refuse("name", f"Give another name: this is a folder that {owner}.", "E-STUDY-VALUE")
    return name


def _subsets(read: Fields) -> Subsets:
    if set(read.content) != {"train_first", "held_out"}:
        hint = "Write {train_first: [5, 10, all], held_out: 5}."
        raise InputError("E-STUDY-KEY", f"{read.where}: {read.content!r}.", hint)
    firsts = tuple(
        None if first == "all" else whole_number(first, f"{read.where}: train_first", 2)
        for first in read.items("train_first")
    )
    if not firsts:
        raise read.refuse("train_first", "Give at least one number, or all.", "E-STUDY-VALUE")
    if isinstance(read.content["held_out"], list):
        return Subsets(firsts, read.names("held_out"))
    return Subsets(firsts, whole_number(read.content["held_out"], f"{read.where}: held_out", 1))


def _settings(read: Fields, methods: Sequence[str], paths: Mapping[str, str]) -> Settings:
    trained = [name for name in dict.fromkeys([*METHODS, *methods]) if name != BASE.name]
    groups: dict[str, dict[str, Any]] = {}
    for key, known in (("methods", trained), ("tasks", list(paths))):
        group = read.mapping(key)
        require_known(group.content, known, group.where)
        groups[key] = {name: _settings_block(group.mapping(name)) for name in group.content}
    common = Fields({key: value for key, value in read.content.items() if key not in groups}, read.where)
    return Settings(
        _settings_block(common), groups["methods"], {paths[task]: block for task, block in groups["tasks"].items()}
    )


def _settings_block(read: Fields) -> dict[str, Any]:
    for key in read.content:
        owner = OWNED.get(str(key).replace("-", "_"))
        if owner is not None:
            message = f"{read.where}: {key} cannot be set here."
            raise InputError("E-STUDY-VALUE", message, f"It is set by {owner}.")
    return dict(read.content)
