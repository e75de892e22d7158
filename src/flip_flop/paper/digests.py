"""The digest of each cell, computed from exactly the inputs that decide its result."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip_flop.console import echo
from flip_flop.errors import InputError
from flip_flop.files import sha256_file, sha256_json
from flip_flop.hub import gguf_name, hub_answers, is_local_name
from flip_flop.method import BASE
from flip_flop.method.settings import TrainingProtocol, row_protocol_of
from flip_flop.paper.grid import GridCell, expand
from flip_flop.paper.release import with_protocol
from flip_flop.paper.study import Study
from flip_flop.paper.units import Cell, Plan, Setup
from flip_flop.scoring import LoadedModel, load_model
from flip_flop.scoring.loading import EMBEDDED_MODEL
from flip_flop.tasks import Task, load_task, require_templates_for_training
from flip_flop.training import F2CConfig, make_config
from flip_flop.training.checkpoints import EXECUTION_ONLY, recorded_settings, resume_settings

# The version of the digests. Another number changes all of them.
SCHEME = 2
# Parts of the provenance that do not decide a result: the digests of the rows and of the ids do. Another commit with
# the same rows must not train again, and a node without a network cannot look up the commit.
_LOCATIONS = ("source", "mirror", "revision", "branch", "splits")
# The settings that audits share with training runs.
SCORING = ("chat_template", "backend", "batch_tokens", "too_long", "prompt_date")


def open_task(name: str, setup: Setup, protocol: TrainingProtocol = "paper") -> Task:
    """Load a task with all its templates, and with the rows and prompts of the study's protocol."""
    mirror, stories = (None if path is None else Path(path) for path in (setup.hub_mirror, setup.story_cloze_dir))
    return load_task(
        name, templates="all", hub_mirror=mirror, story_cloze_dir=stories, protocol=row_protocol_of(protocol)
    )


def open_model(setup: Setup, adapter: Path | None) -> LoadedModel:
    """Load the model of a study, with an adapter or without."""
    return load_model(setup.model, adapter=adapter, revision=setup.revision, dtype=setup.dtype, device=setup.device)


def make_plan(study: Study, setup: Setup) -> Plan:
    """Load every task of a study once, and compute the digest of every cell. No model is loaded.

    Raises:
        InputError: ``E-STUDY-TASK``: two tasks have the same name. Or an error in a task, its rows or a setting.
    """
    study = with_protocol(study, setup.model)
    check_settings(study)
    model = identify_model(setup)
    setup = replace(setup, revision=model.get("revision"))  # the cells load the commit that the digests name
    tasks: dict[str, Task] = {}
    for reference in dict.fromkeys(cell.task for cell in expand(study)):
        tasks[reference] = _open(reference, study, setup)
        name = tasks[reference].name
        other = next(known for known, task in tasks.items() if task.name == name)
        if other != reference:
            message = f"{other} and {reference} are both named {name!r}."
            raise InputError("E-STUDY-TASK", message, "Give one of them another name.")
    plan = Plan(study, setup, model, ())
    cells: dict[tuple[str, str], Cell] = {}
    for cell in make_cells(study, tasks, lambda cell, task: cell_key(plan, cell, task)):
        cells.setdefault((cell.key, cell.method), cell)
    return replace(plan, cells=tuple(cells.values()))


def make_cells(study: Study, tasks: Mapping[str, Task], key: Callable[[Cell, Task], str]) -> Iterator[Cell]:
    """Make the cells of a study's grid. ``tasks`` has the study's names.

    ``key`` computes the digest of a cell from its task with the chosen templates. Methods with the same settings share
    the training run of the first one, and each has audits of its own.
    """
    made: dict[GridCell, Cell] = {}
    trainings: dict[str, Cell] = {}
    for place in expand(study):
        task = tasks[place.task]
        if not place.template_names(task):
            continue
        cell = _without_key(place, study, task, made[place.training] if place.training else None)
        cell = replace(cell, key=key(cell, choose(task, cell.templates)))
        made[place] = trainings.setdefault(cell.key, cell) if cell.kind == "train" else cell
        yield made[place]


def _open(reference: str, study: Study, setup: Setup) -> Task:
    """Load a task. If it is unavailable, the error names the option that leaves it out."""
    echo(f"reading {reference}", err=True)
    try:
        return open_task(reference, setup, study.protocol)
    except InputError as error:
        others = [task for task in study.tasks if task != reference]
        if not others or error.code == "E-TPL-FETCH":  # the templates of all
            raise
        hint = f"{error.hint} Or leave it out: --tasks {','.join(others)}."
        raise InputError(error.code, error.message, hint) from error


def _without_key(place: GridCell, study: Study, task: Task, training: Cell | None) -> Cell:
    names = place.template_names(task)
    suffix, name, is_training = _suffix(task, names), _plain(task.name), place.kind == "train"
    if is_training:
        require_templates_for_training(choose(task, names))
        settings = study.training_settings(place.method, place.task) | {"seed": place.seed}
        label = f"{_plain(place.method)}-{name}-seed{place.seed}{suffix}"
    else:
        settings = scoring_settings(study, place.task)
        label = f"{BASE.name}-{name}{suffix}"
    if training:
        other = f"-{name}" if training.task != place.task else ""
        label = f"{training.label}-on{other}{suffix}".removesuffix("-on")
    return Cell(
        key="",
        kind=place.kind,
        label=label,
        method=place.method,
        task=place.task,
        task_name=task.name,
        source=training.task_name if training else task.name if is_training else None,
        seed=training.seed if training else place.seed,
        held_out=not is_training
        and place.templates is not None
        and set(names).isdisjoint(training.templates if training else ()),
        templates=names,
        training=training.key if training else None,
        settings=settings,
    )


def check_settings(study: Study) -> None:
    """Resolve the settings of every training run, before tasks are loaded.

    Raises:
        InputError: ``E-CONFIG-KEY`` or ``E-CONFIG-VALUE``.
    """
    for method, task in dict.fromkeys((cell.method, cell.task) for cell in expand(study) if cell.kind == "train"):
        training_config(study.training_settings(method, task), f"study {study.name}")


def training_config(settings: Mapping[str, Any], source: str = "the study's settings") -> F2CConfig:
    """Resolve settings as on a CPU, so that a login node without a GPU accepts bf16."""
    return make_config(dict(settings) | {"use_cpu": True}, source)


def scoring_settings(study: Study, task: str = "") -> dict[str, Any]:
    """Resolve the settings of an audit. Those of training runs may be incomplete without those of a method.

    Raises:
        InputError: ``E-CONFIG-KEY`` or ``E-CONFIG-VALUE``.
    """
    given = {name.replace("-", "_"): value for name, value in study.settings.of(BASE.name, task).items()}
    names = [name for name in given if name in SCORING or name not in F2CConfig.__dataclass_fields__]
    config = training_config({name: given[name] for name in names})
    return {name: getattr(config, name) for name in SCORING}


def choose(task: Task, names: tuple[str, ...]) -> Task:
    """Return the task with these templates, none of them held out."""
    return replace(task.with_templates(names), held_out_templates=())


def model_folder(name: str) -> Path | None:
    """Return the folder of a local model, or None for one on the hub."""
    folder = EMBEDDED_MODEL if name == "demo" else Path(name)
    return folder if folder.is_dir() else None


def identify_model(setup: Setup) -> dict[str, Any]:
    """Identify the model: by the digests of its files, or by its name on the hub and a commit.

    A branch, a tag or a missing revision is resolved to the commit in the hub's cache, or else on the hub. The model
    cannot change between two runs of a study.
    """
    folder, gguf = model_folder(setup.model), gguf_name(setup.model)
    if gguf and is_local_name(setup.model):
        return {"gguf": sha256_file(Path(*gguf))}
    if folder is None:
        repository = gguf.place if gguf else setup.model
        return {"name": setup.model, "revision": _commit(repository, setup.revision or "main") or setup.revision}
    kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
    files = sorted(path for kind in kinds for path in folder.glob(kind))
    if not files:
        raise InputError("E-MODEL-FILE", f"{folder} holds no model.", "Give a model's folder or its name on the hub.")
    return {"files": sha256_json({path.name: sha256_file(path) for path in files})}


def _commit(name: str, revision: str) -> str | None:
    """Resolve a revision in the hub's cache, else on the hub; None if both fail."""
    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    from huggingface_hub import HfApi, constants, file_download  # a local model needs no hub

    folder = file_download.repo_folder_name(repo_id=name, repo_type="model")
    try:
        return (Path(constants.HF_HUB_CACHE) / folder / "refs" / revision).read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        pass
    if not hub_answers():
        return None
    try:
        return HfApi().model_info(name, revision=revision, timeout=20).sha
    except Exception:  # loading the model reports the error
        return None


def cell_key(plan: Plan, cell: Cell, task: Task) -> str:
    """Compute the digest of everything that decides a cell's result. Names of studies and paths do not."""
    is_training = cell.kind == "train"
    splits = ["train", *({"validation"} & set(task.data))] if is_training else [plan.study.split]
    data = {split: dict(task.rows(split).provenance) for split in splits}
    settings = cell.settings
    scoring = {name: value for name, value in settings.items() if name not in EXECUTION_ONLY and _decides(name, value)}
    inputs = {
        "scheme": SCHEME,
        "kind": cell.kind,
        "model": dict(plan.model_identity),
        "dtype": plan.setup.dtype,
        "task": task.digest(),
        "id_field": task.id_field,
        "data": {
            split: {name: value for name, value in found.items() if name not in _LOCATIONS}
            for split, found in data.items()
        },
        "limit": plan.study.limit,
        "training": cell.training,
        "settings": _deciding(settings) if is_training else scoring,
    }
    if is_training and plan.study.eval_limit is not None:
        inputs["eval_limit"] = plan.study.eval_limit
    return sha256_json(inputs)


def _deciding(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Select the method's own settings, the main inherited ones, and given ones that differ from their defaults.

    A new field of the library does not change digests.
    """
    config = training_config(settings)
    decisive, defaults = resume_settings(config), resume_settings(training_config({}))
    given = {name for name in decisive if name in settings and decisive[name] != defaults[name]}
    names = (given | set(recorded_settings(config))) & set(decisive)
    return {name: decisive[name] for name in sorted(names) if _decides(name, decisive[name])}


def _decides(name: str, value: Any) -> bool:
    """Whether a setting is part of the digest: without a date, an audit of tomorrow is the same cell."""
    return name != "prompt_date" or value is not None


def _suffix(task: Task, names: tuple[str, ...]) -> str:
    """Describe a choice of templates that differs from the task's default, such as ``-first5``."""
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
