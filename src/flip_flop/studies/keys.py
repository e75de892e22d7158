"""From a grid to cells with keys: a key is the digest of all that decides a result."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import sha256_file, sha256_json
from flip_flop.method import BASE
from flip_flop.studies.grid import AuditCell, Grid, TrainCell, expand
from flip_flop.studies.opening import model_folder, open_task
from flip_flop.studies.plan import Cell, Plan, Setup
from flip_flop.studies.study import Study
from flip_flop.tasks import Task, require_templates_for_training
from flip_flop.training import F2CConfig, make_config
from flip_flop.training.plan import EXECUTION_ONLY, recorded_settings, resume_settings

# Of this module's keys: another number makes all of them others.
SCHEME = 1
# A setting that is no more, and that all keys of this scheme hold.
RETIRED = {"fast_linear": False}
# Where rows were found, and under which name of a version; what they are, the digest of their content says. A commit
# that leaves the rows alone is no reason to train again, and a node without a network does not learn the commit.
_LOCATIONS = ("source", "mirror", "revision", "branch")
# The settings that an audit shares with the trainings.
SCORING = ("chat_template", "backend", "batch_tokens")


def make_plan(study: Study, setup: Setup) -> Plan:
    """Load every task of a study once, and give every cell its key. No model is loaded.

    Raises:
        InputError: ``E-STUDY-TASK``: two tasks have one name. Errors of a task's, of its rows' or of a setting's.
    """
    grid = expand(study)
    check_settings(study, grid)
    model = identify_model(setup)
    setup = replace(setup, revision=model.get("revision"))  # what the key names is what the cells load
    tasks: dict[str, Task] = {}
    named: dict[str, str] = {}
    for reference in grid.tasks:
        tasks[reference] = _open(reference, study, setup)
        other = named.setdefault(tasks[reference].name, reference)
        if other != reference:
            message = f"{other} and {reference} are both named {tasks[reference].name!r}."
            raise InputError("E-STUDY-TASK", message, "Give one of them another name.")
    maker = _CellMaker(study, setup, model, tasks)
    cells: dict[str, Cell] = {}
    trained = {training: maker.training(training) for training in grid.trainings}
    for audit in grid.audits:
        training = None if audit.training is None else trained[audit.training]
        for cell in (training, maker.audit(audit, training)):
            if cell is not None:
                cells.setdefault(cell.key, cell)
    return Plan(study, setup, model, tuple(cells.values()))


def _open(reference: str, study: Study, setup: Setup) -> Task:
    """A task of a study. Where it cannot be had, the others can be run without it, and the error says how."""
    try:
        return open_task(reference, setup)
    except InputError as error:
        others = [task for task in study.tasks if task != reference]
        if not others or error.code == "E-TPL-FETCH":  # the templates of all
            raise
        hint = f"{error.hint} Or leave it out: --tasks {','.join(others)}."
        raise InputError(error.code, error.message, hint) from error


@dataclass(frozen=True)
class _CellMaker:
    study: Study
    setup: Setup
    model: Mapping[str, Any]
    tasks: Mapping[str, Task]

    def training(self, cell: TrainCell) -> Cell:
        task = self.tasks[cell.task]
        names = cell.templates(task)
        require_templates_for_training(choose(task, names))
        return self._cell(
            cell,
            kind="train",
            label=f"{_plain(cell.method)}-{_plain(task.name)}-seed{cell.seed}{_suffix(task, names)}",
            source=task.name,
            seed=cell.seed,
            num_templates=len(names) if cell.task in self.study.template_subsets else None,
            held_out=False,
            training=None,
            settings=self.study.settings.of(cell.method, cell.task) | {"method": cell.method, "seed": cell.seed},
            split="train",
        )

    def audit(self, cell: AuditCell, training: Cell | None) -> Cell:
        task = self.tasks[cell.task]
        names = cell.templates(task)
        config = training_config(self.study.settings.of(BASE.name, cell.task))
        suffix = _suffix(task, names)
        if training is None:
            label = f"{BASE.name}-{_plain(task.name)}{suffix}"
        elif training.task != cell.task:
            label = f"{training.label}-on-{_plain(task.name)}{suffix}"
        else:
            label = training.label + (f"-on{suffix}" if suffix else "")
        of_training = ("task_name", "seed", "num_templates", "key")
        source, seed, num_templates, key = (training and getattr(training, name) for name in of_training)
        return self._cell(
            cell,
            kind="audit",
            label=label,
            source=source,
            seed=seed,
            num_templates=num_templates,
            held_out=cell.held_out is not None and not set(names) & set(training.templates if training else ()),
            training=key,
            settings={name: getattr(config, name) for name in SCORING},
            split=self.study.split,
        )

    def _cell(self, cell: TrainCell | AuditCell, **others: Any) -> Cell:
        task = self.tasks[cell.task]
        names = cell.templates(task)
        own: dict[str, Any] = {"method": cell.method, "task": cell.task, "task_name": task.name, "templates": names}
        draft = Cell(key="", limit=self.study.limit, **own, **others)
        return replace(draft, key=cell_key(draft, choose(task, names), self.setup, self.model))


def check_settings(study: Study, grid: Grid) -> None:
    """Resolve the settings of every training: their mistakes come before the tasks' seconds.

    Raises:
        InputError: ``E-CONFIG-KEY`` or ``E-CONFIG-VALUE``.
    """
    for method, task in dict.fromkeys((cell.method, cell.task) for cell in grid.trainings):
        training_config(study.settings.of(method, task) | {"method": method}, f"study {study.name}")


def training_config(settings: Mapping[str, Any], source: str = "the study's settings") -> F2CConfig:
    """The settings as a machine without a GPU resolves them: a login node asks for bf16, too."""
    return make_config(dict(settings) | {"use_cpu": True}, source)


def choose(task: Task, names: tuple[str, ...]) -> Task:
    """The task with these templates, none of them held out: who names a template wants it."""
    return replace(task.with_templates(names), held_out_templates=())


def identify_model(setup: Setup) -> dict[str, Any]:
    """What the model is: a folder's files, or a name on the hub and a commit.

    For a branch or a tag, or where no revision is given, it is the commit that the hub's cache holds, or else the hub's
    own one: a model must not become another one between two runs of a study without a word.
    """
    folder = model_folder(setup.model)
    if folder is None:
        return {"name": setup.model, "revision": _commit(setup.model, setup.revision or "main") or setup.revision}
    kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
    files = sorted(path for kind in kinds for path in folder.glob(kind))
    if not files:
        raise InputError("E-MODEL-FILE", f"{folder} holds no model.", "Give a model's folder or its name on the hub.")
    return {"files": sha256_json({path.name: sha256_file(path) for path in files})}


def _commit(name: str, revision: str) -> str | None:
    """What a revision stands for: in the hub's cache, else on the hub; None where neither says."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import HfApi, constants, file_download  # not for a model that lies in a folder

    folder = file_download.repo_folder_name(repo_id=name, repo_type="model")
    try:
        return (Path(constants.HF_HUB_CACHE) / folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        pass
    try:
        return HfApi().model_info(name, revision=revision, timeout=20).sha
    except Exception:  # Loading says what is wrong with the name or the network.
        return None


def cell_key(cell: Cell, task: Task, setup: Setup, model: Mapping[str, Any]) -> str:
    """The digest of what decides a cell's result: never the study's name, nor where anything lies."""
    splits = ["train", *(["validation"] if "validation" in task.data else [])] if cell.kind == "train" else [cell.split]
    inputs = {
        "scheme": SCHEME,
        "kind": cell.kind,
        "model": dict(model),
        "dtype": setup.dtype,
        "task": task.digest(),
        "id_field": task.id_field,
        "data": {split: _content(task.rows(split).provenance) for split in splits},
        "limit": cell.limit,
        "training": cell.training,
        "settings": (_of_training if cell.kind == "train" else _of_scoring)(cell.settings) | RETIRED,
    }
    return sha256_json(inputs)


def _content(provenance: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in provenance.items() if name not in _LOCATIONS}


def _of_training(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The method's own settings, the main inherited ones, and those of the rest that are given and not the defaults.

    Not all of ``TrainingArguments``: a field that a new version of the library adds is no reason to train again.
    """
    config = training_config(settings)
    decisive, defaults = resume_settings(config), resume_settings(training_config({}))
    given = {name for name in decisive if name in settings and decisive[name] != defaults[name]}
    names = (given | set(recorded_settings(config))) & set(decisive)
    return {name: decisive[name] for name in sorted(names)}


def _of_scoring(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in EXECUTION_ONLY}


def _suffix(task: Task, names: tuple[str, ...]) -> str:
    """What tells a choice of templates from the task's own one, such as ``-first5``."""
    own, every = task.training_templates.names, task.templates.names
    if names == own:
        return ""
    if names == own[: len(names)]:
        return f"-first{len(names)}"
    if names == every[len(every) - len(names) :]:
        return f"-last{len(names)}"
    return f"-{len(names)}templates"


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)
