"""The plan of a study: its cells, each with a digest of everything that decides its result, in units to run."""

import contextlib
import re
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flip_flop.console import echo
from flip_flop.errors import InputError, first_repeated, look_up
from flip_flop.files import Json, sha256_file, sha256_json
from flip_flop.hub import commit_on_hub, gguf_name, is_local_name
from flip_flop.method import BASE, find_method, row_protocol_of
from flip_flop.paper.study import SCORING, GridCell, Study, expand
from flip_flop.record import Facts
from flip_flop.tasks import Task, load_task, require_templates_for_training
from flip_flop.training.settings import EXECUTION_ONLY

if TYPE_CHECKING:
    from flip_flop.training.config import F2CConfig

KEY_DIGITS = 12
# Parts of the provenance that do not decide a result: the digests of the rows and of the ids do. Another commit with
# the same rows must not train again, and a node without a network cannot look up the commit.
LOCATIONS = ("source", "mirror", "revision", "branch", "splits")


@dataclass(frozen=True)
class Setup:
    """The model, hardware and data folders of a study, as the options of these names give them."""

    model: str
    revision: str | None = None
    dtype: str = "auto"
    device: str = "auto"
    hub_mirror: str | None = None
    story_cloze_dir: str | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether this machine runs the units on a GPU."""
        import torch

        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    def with_dtype(self, *, on_gpu: bool) -> "Setup":
        """Resolve ``auto`` by the hardware of the units, so that no table mixes data types."""
        if self.dtype != "auto":
            return self
        return replace(self, dtype="bfloat16" if on_gpu else "float32")


@dataclass(frozen=True)
class Cell:
    """One training or one audit.

    Attributes:
        key: The digest of everything that decides the result.
        kind: ``"train"`` or ``"audit"``.
        method: As the study names it. The ``settings`` of a training run name the method behind a variant.
        task: As the study names it. ``task_name`` is the name in the task file.
        source: The name of the task trained on. None for the base, like the seed.
        held_out: Whether the training run used none of the audited templates.
        training: The key of the audited training.
    """

    key: str
    kind: str
    label: str
    method: str
    task: str
    task_name: str
    source: str | None
    seed: int | None
    held_out: bool
    templates: tuple[str, ...]
    training: str | None
    settings: Facts = field(hash=False)

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"{self.label}-{self.key[:KEY_DIGITS]}"

    @property
    def folder(self) -> Path:
        """The run directory, relative to the root of all studies."""
        return Path("trainings" if self.kind == "train" else "audits") / self.name


@dataclass(frozen=True)
class Unit:
    """One training with its audits, or one audit of the base. It can be run again: completed cells are skipped."""

    cells: tuple[Cell, ...]

    @property
    def training(self) -> Cell | None:
        """The training run, or None for an audit of the base."""
        if self.cells[0].kind == "train":
            return self.cells[0]
        return None

    @property
    def name(self) -> str:
        """The name of its log: the same in every study that shares its training run."""
        return self.cells[0].name


@dataclass(frozen=True)
class Plan:
    """The cells of a study, with its setup."""

    study: Study
    setup: Setup
    model_identity: Facts
    cells: tuple[Cell, ...]

    @property
    def trainings(self) -> tuple[Cell, ...]:
        """The training runs, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "train")

    @property
    def audits(self) -> tuple[Cell, ...]:
        """The audits, in order."""
        return tuple(cell for cell in self.cells if cell.kind == "audit")

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """Each training run with its audits, and each audit of the base, in the order of the cells."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.training or cell.key, []).append(cell)
        return tuple(Unit(tuple(cells)) for cells in groups.values())

    def unit(self, name: str) -> Unit:
        """Return the unit of this name (``E-STUDY``)."""
        return look_up(name, {unit.name: unit for unit in self.units}, "E-STUDY", "the plan has no unit")


def make_plan(study: Study, setup: Setup) -> Plan:
    """Load every task of a study once, and compute the digest of every cell. No model is loaded.

    Methods with the same settings share the training run of the first one, and each has audits of its own.

    Raises:
        InputError: ``E-STUDY``: two tasks have the same name. Or an error in a task, its rows or a setting.
    """
    grid = expand(study)
    for method, reference in dict.fromkeys((place.method, place.task) for place in grid if place.kind == "train"):
        training_config(
            study.settings_of(method, reference, setup.model), f"study {study.name}"
        )  # before tasks are loaded
    identity = identify_model(setup)
    setup = replace(setup, revision=identity.get("revision"))  # the cells load the commit that the digests name
    plan = Plan(study, setup, identity, ())
    references = dict.fromkeys(place.task for place in grid)
    tasks = {reference: _open(reference, study, setup) for reference in references}
    if (twice := first_repeated(task.name for task in tasks.values())) is not None:
        both = " and ".join(reference for reference, task in tasks.items() if task.name == twice)
        raise InputError("E-STUDY", f"{both} are both named {twice!r}.", "Give one of them another name.")
    by_place: dict[GridCell, Cell] = {}
    trainings: dict[str, Cell] = {}
    cells: dict[tuple[str, str], Cell] = {}
    for place in grid:
        task = tasks[place.task]
        if not place.template_names(task):
            continue
        cell = _without_key(place, plan, task, by_place[place.training] if place.training else None)
        cell = replace(cell, key=cell_key(plan, cell, choose(task, cell.templates)))
        by_place[place] = trainings.setdefault(cell.key, cell) if cell.kind == "train" else cell
        cells.setdefault((cell.key, by_place[place].method), by_place[place])
    return replace(plan, cells=tuple(cells.values()))


def open_task(name: str, study: Study, setup: Setup) -> Task:
    """Load a task with all its templates, and with the rows and prompts of the study's protocol."""
    return load_task(
        study.task_reference(name),
        templates="all",
        hub_mirror=setup.hub_mirror,
        story_cloze_dir=setup.story_cloze_dir,
        protocol=row_protocol_of(study.protocol),
    )


def _open(name: str, study: Study, setup: Setup) -> Task:
    """Load a task. If it is unavailable, the error names the option that leaves it out."""
    echo(f"reading {name}", err=True)
    try:
        return open_task(name, study, setup)
    except InputError as error:
        others = [task for task in study.tasks if task != name]
        if not others or error.code == "E-TPL-FETCH":  # the templates of all
            raise
        raise InputError(
            error.code, error.message, f"{error.hint} Or leave it out: --tasks {','.join(others)}."
        ) from error


def choose(task: Task, names: tuple[str, ...]) -> Task:
    """Return the task with these templates, none of them held out."""
    return replace(task.with_templates(names), held_out_templates=())


def _without_key(place: GridCell, plan: Plan, task: Task, training: Cell | None) -> Cell:
    names = place.template_names(task)
    task_label = _plain(task.name)
    suffix = _suffix(task, names)
    source: str | None = None
    seed = place.seed
    trained_templates: tuple[str, ...] = ()
    if place.kind == "train":
        require_templates_for_training(choose(task, names))
        settings = plan.study.settings_of(place.method, place.task, plan.setup.model) | {"seed": seed}
        label = f"{_plain(place.method)}-{task_label}-seed{seed}{suffix}"
        source = task.name
    else:
        settings = scoring_settings(plan.study, place.task, plan.setup.model)
        label = f"{BASE.name}-{task_label}{suffix}"
    if training:
        other = f"-{task_label}" if training.task != place.task else ""
        label = f"{training.label}-on{other}{suffix}".removesuffix("-on")
        source = training.task_name
        seed = training.seed
        trained_templates = training.templates
    has_choice = place.kind == "audit" and place.templates is not None
    return Cell(
        key="",
        kind=place.kind,
        label=label,
        method=place.method,
        task=place.task,
        task_name=task.name,
        source=source,
        seed=seed,
        held_out=has_choice and set(names).isdisjoint(trained_templates),
        templates=names,
        training=training.key if training else None,
        settings=settings,
    )


def _suffix(task: Task, names: tuple[str, ...]) -> str:
    """Describe a choice of templates that differs from the task's default, such as ``-first5``."""
    trainable = task.training_templates.names
    every = task.templates.names
    if names == trainable:
        return ""
    if names == trainable[: len(names)]:
        return f"-first{len(names)}"
    if names == every[len(every) - len(names) :]:
        return f"-last{len(names)}"
    return f"-{len(names)}templates"


def _plain(name: str) -> str:
    return re.sub(r"[^\w-]", "_", name)[:48]  # the name of a folder has at most 255 bytes


def training_config(settings: Facts, source: str = "the study's settings") -> "F2CConfig":
    """Resolve settings as on a CPU, so that a login node without a GPU accepts bf16."""
    from flip_flop.training.config import make_config

    return make_config(dict(settings) | {"use_cpu": True}, source)


def scoring_settings(study: Study, task: str, model: str) -> Json:
    """Resolve the settings of an audit. Those of training runs may be incomplete without those of a method.

    Raises:
        InputError: ``E-CONFIG``.
    """
    from flip_flop.training.config import F2CConfig

    settings = study.settings_of(BASE.name, task, model)
    others = F2CConfig.__dataclass_fields__.keys() - SCORING
    config = training_config({name: value for name, value in settings.items() if name not in others})
    return {name: getattr(config, name) for name in SCORING}


def cell_key(plan: Plan, cell: Cell, task: Task) -> str:
    """Compute the digest of everything that decides a cell's result. Names of studies and paths do not."""
    is_training = cell.kind == "train"
    data = {}
    for split in ["train", *({"validation"} & set(task.data))] if is_training else [plan.study.split]:
        provenance = task.rows(split).provenance
        data[split] = {name: value for name, value in provenance.items() if name not in LOCATIONS}
    settings = _deciding(cell.settings) if is_training else dict(cell.settings)
    inputs = {
        "kind": cell.kind,
        "model": dict(plan.model_identity),
        "dtype": plan.setup.dtype,
        "task": task.digest(),
        "id_field": task.id_field,
        "data": data,
        "limit": plan.study.limit,
        "training": cell.training,
        "settings": {name: value for name, value in settings.items() if name not in EXECUTION_ONLY},
    }
    if is_training and plan.study.eval_limit is not None:
        inputs["eval_limit"] = plan.study.eval_limit
    if is_training and (code := find_method(settings["method"]).code) is not None:
        inputs["code"] = code
    return sha256_json(inputs)


def _deciding(settings: Facts) -> Json:
    """Select the method's own settings, the main inherited ones, and given ones that differ from their defaults.

    A new field of the library does not change digests.
    """
    from flip_flop.training.checkpoints import recorded_settings, resume_settings

    config = training_config(settings)
    values = resume_settings(config)
    defaults = resume_settings(training_config({}))
    changed = {name for name in values if name in settings and values[name] != defaults[name]}
    names = (changed | set(recorded_settings(config))) & set(values)
    return {name: values[name] for name in sorted(names)}


def identify_model(setup: Setup) -> Json:
    """Identify the model: by the digests of its files, or by its name on the hub and a commit.

    A branch, a tag or a missing revision is resolved to the commit in the hub's cache, or else on the hub. The model
    cannot change between two runs of a study.
    """
    from flip_flop.scoring.models import EMBEDDED_MODEL

    gguf = gguf_name(setup.model)
    if gguf and is_local_name(setup.model):
        return {"gguf": sha256_file(Path(*gguf))}
    folder = EMBEDDED_MODEL if setup.model == "demo" else Path(setup.model)
    if not folder.is_dir() and not is_local_name(setup.model):
        repository = gguf.place if gguf else setup.model
        return {"name": setup.model, "revision": _commit(repository, setup.revision or "main") or setup.revision}
    kinds = ("*.safetensors", "*.json", "*.model", "*.txt", "*.jinja")
    files = sorted(path for kind in kinds for path in folder.glob(kind))
    if not files:
        raise InputError("E-MODEL-FILE", f"{folder} holds no model.", "Give a model's folder or its name on the hub.")
    return {"files": sha256_json({path.name: sha256_file(path) for path in files})}


def _commit(name: str, revision: str) -> str | None:
    """Resolve a revision in the hub's cache, else on the hub; None if both fail."""
    from huggingface_hub import constants, file_download  # a local model needs no hub

    if re.fullmatch("[0-9a-f]{40}", revision):
        return revision
    repository = Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=name, repo_type="model")
    with contextlib.suppress(OSError, ValueError):
        return (repository / "refs" / revision).read_text(encoding="ascii").strip()
    return commit_on_hub(name, revision, "model")
