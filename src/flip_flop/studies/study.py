"""A study as its file says it: tasks x methods x seeds x templates, and settings. Read strictly."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.strict_yaml import read_yaml
from flip_flop.studies.values import list_of, seed_of, text_of, texts_of, whole_of

CATALOG = Path(__file__).parent / "catalog"
METHODS = ("base", "swarm", "cce", "f2c")
# Folders beside the studies' own.
RESERVED = ("trainings", "audits", "logs", "claims", "slurm")
# Settings of a training that the grid decides.
OWNED = {
    "method": "methods",
    "seed": "seeds",
    "output_dir": "--out",
    "resume_from_checkpoint": "the study",
    "use_cpu": "--device",
    "do_train": "the study",
}
_KEYS = (
    "name",
    "description",
    "model",
    "tasks",
    "methods",
    "seeds",
    "cross",
    "template_subsets",
    "settings",
    "limit",
    "split",
)


@dataclass(frozen=True)
class Subsets:
    """Which templates of a task are trained on, and which are evaluated on.

    Attributes:
        train_first: One training each on the first K templates that are not held out by the task; None is all of them.
        held_out: The templates to evaluate on: the last N, or these.
    """

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
        name: Its name: its folder's, and its tables'.
        tasks: What is audited: names of the catalog, of the demo's tasks, or task files.
        methods: ``base`` and the trained ones.
        seeds: Of the trainings.
        model: The model, unless the command line names another.
        description: One sentence.
        cross: Tasks to train on, each adapter being audited on every *other* task; None trains and audits on the same.
        template_subsets: By task; a task without an entry takes all templates that it does not hold out.
        settings: Of the trainings.
        limit: A uniform sample of this many instances, in trainings and audits.
        split: The split to audit.
    """

    name: str
    tasks: tuple[str, ...]
    methods: tuple[str, ...] = METHODS
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

    Args:
        name: One of :func:`study_names`, or the path of a YAML file; task files in it stand beside it.

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
    """The study with what the command line says instead.

    Args:
        study: The study as it was read.
        tasks: Of the study's tasks these only, as sources too.
        methods: These only.
        seeds: These seeds.
        limit: Another sample size.
        settings: They win over all others.

    Raises:
        InputError: ``E-STUDY-VALUE``.
    """
    for given, option in ((tasks, "--tasks"), (methods, "--methods"), (seeds, "--seeds")):
        if given is not None and not given:
            raise InputError("E-STUDY-VALUE", f"{option} is empty.", "Name at least one, or leave it out.")
    if tasks is not None:
        # A task file goes by its own name, too.
        references = {Path(task).stem: task for task in study.tasks} | {task: task for task in study.tasks}
        _require_known(tasks, list(references), "--tasks", study.name)
        tasks = [references[task] for task in tasks]
        sources = None if study.cross is None else tuple(task for task in study.cross if task in tasks)
        subsets = {task: chosen for task, chosen in study.template_subsets.items() if task in tasks}
        study = replace(study, tasks=tuple(dict.fromkeys(tasks)), cross=sources, template_subsets=subsets)
    if methods is not None:
        _require_known(methods, METHODS, "--methods", "a study")
        study = replace(study, methods=tuple(dict.fromkeys(methods)))
    if seeds is not None:
        study = replace(study, seeds=tuple(dict.fromkeys(seed_of(seed, "--seeds") for seed in seeds)))
    override = _settings_block(dict(settings or {}), "--set")
    return replace(
        study,
        limit=limit if limit is not None else study.limit,
        settings=replace(study.settings, override=override),
    )


def _require_known(names: Iterable[str], known: Sequence[str], what: str, where: str) -> None:
    for name in names:
        if name not in known:
            raise InputError("E-STUDY-VALUE", f"{what}: {where} has no {name!r}.", nearest(name, known))


def _parse(content: Any, where: str, folder: Path) -> Study:
    if not isinstance(content, dict):
        raise InputError("E-STUDY-KEY", f"{where} does not hold a study.", "Write name:, tasks: and more.")
    for key in content:
        if key not in _KEYS:
            raise InputError("E-STUDY-KEY", f"{where} has an unknown key {key!r}.", nearest(key, _KEYS))
    given_tasks = texts_of(content, "tasks", where)
    if not given_tasks:
        raise InputError("E-STUDY-KEY", f"{where} has no tasks.", "List at least one.")
    methods = texts_of(content, "methods", where) or METHODS
    _require_known(methods, METHODS, f"{where}, methods", "a study")
    cross, subsets = texts_of(content, "cross", where), content.get("template_subsets") or {}
    if not isinstance(subsets, dict):
        raise InputError("E-STUDY-KEY", f"{where}: template_subsets is {subsets!r}.", "See the shipped study3.")
    _require_known(cross, given_tasks, f"{where}, cross", "tasks")
    _require_known(subsets, given_tasks, f"{where}, template_subsets", "tasks")
    if cross and subsets:
        raise InputError("E-STUDY-KEY", f"{where} has cross and template_subsets.", "Make two studies of it.")
    place = {task: _place(task, folder) for task in given_tasks}
    model = content.get("model")
    return Study(
        name=_name(content.get("name"), where, is_shipped=folder == CATALOG),
        tasks=tuple(place.values()),
        methods=tuple(methods),
        seeds=tuple(seed_of(seed, f"{where}, seeds") for seed in list_of(content, "seeds", where)) or (0,),
        model=None if model is None else str(text_of(model, f"{where}, model")),
        description=_description(content.get("description"), where),
        cross=tuple(place[task] for task in cross) or None,
        template_subsets={
            place[task]: _subsets(entry, f"{where}, template_subsets, {task}") for task, entry in subsets.items()
        },
        settings=_settings(content.get("settings") or {}, where, place),
        limit=None if content.get("limit") is None else whole_of(content["limit"], f"{where}, limit", 1),
        split=str(text_of(content.get("split", "test"), f"{where}, split")),
    )


def _place(task: str, folder: Path) -> str:
    """A task file's whole path; a name stays a name."""
    is_file = task.endswith((".yaml", ".yml")) or "/" in task
    return str((folder / task).resolve()) if is_file else task


def _name(name: Any, where: str, *, is_shipped: bool) -> str:
    """A study's name, which is that of its folder, too."""
    if not isinstance(name, str) or not name or not all(letter.isalnum() or letter in "-_" for letter in name):
        raise InputError("E-STUDY-KEY", f"{where}: name is {name!r}.", "Use letters, digits, - and _.")
    if name.lower() in RESERVED or (not is_shipped and name.lower() in study_names()):
        owner = "all studies share" if name.lower() in RESERVED else "a shipped study has"
        raise InputError("E-STUDY-VALUE", f"{where}: name is {name!r}, a folder that {owner}.", "Give another name.")
    return name


def _description(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise InputError("E-STUDY-KEY", f"{where}: description is {value!r}.", "Write one sentence, quoted.")
    return value or ""


def _subsets(entry: Any, where: str) -> Subsets:
    keys = ("train_first", "held_out")
    if not isinstance(entry, dict) or set(entry) != set(keys):
        raise InputError("E-STUDY-KEY", f"{where}: {entry!r}.", "Write {train_first: [5, 10, all], held_out: 5}.")
    firsts = tuple(
        None if k == "all" else whole_of(k, f"{where}, train_first", 2) for k in list_of(entry, keys[0], where)
    )
    if not firsts:
        raise InputError("E-STUDY-VALUE", f"{where}: train_first has no value.", "Give at least one number, or all.")
    if isinstance(entry["held_out"], list):
        return Subsets(firsts, texts_of(entry, "held_out", where))
    return Subsets(firsts, whole_of(entry["held_out"], f"{where}, held_out", 1))


def _settings(block: Any, where: str, place: Mapping[str, str]) -> Settings:
    where = f"{where}, settings"
    if not isinstance(block, dict):
        raise InputError("E-STUDY-KEY", f"{where}: {block!r}.", "Write `field: value` lines.")
    groups: dict[str, dict[str, Any]] = {}
    for key, known in (("methods", METHODS[1:]), ("tasks", tuple(place))):
        group = block.get(key) or {}
        if not isinstance(group, dict):
            raise InputError("E-STUDY-KEY", f"{where}, {key}: {group!r}.", "Write NAME: {field: value}.")
        _require_known(group, known, f"{where}, {key}", "it")
        groups[key] = {name: _settings_block(entry, f"{where}, {key}, {name}") for name, entry in group.items()}
    common = _settings_block({key: value for key, value in block.items() if key not in groups}, where)
    return Settings(common, groups["methods"], {place[task]: entry for task, entry in groups["tasks"].items()})


def _settings_block(block: Any, where: str) -> dict[str, Any]:
    if not isinstance(block, dict):
        raise InputError("E-STUDY-KEY", f"{where}: {block!r}.", "Write {field: value}.")
    for key in block:
        owner = OWNED.get(str(key).replace("-", "_"))
        if owner is not None:
            raise InputError("E-STUDY-VALUE", f"{where}: {key} is not a setting of its own.", f"It is set by {owner}.")
    return dict(block)
