"""The record of a run (``run.json``), typed and checked, and the manifest with the digests of its files."""

import contextlib
import json
import time
import zlib
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic.dataclasses import dataclass

from flip_flop.console import command, hardware, now, versions
from flip_flop.errors import InputError, Value
from flip_flop.files import (
    MAX_JSON,
    Json,
    flush,
    fsync_folder,
    read_json,
    read_object,
    sha256_file,
    sha256_text,
    write_json,
)

NAMED = 8  # audits in a hint
BROKEN_HINT = "Restore it, or run it again into a new folder."
RUN_FILE = "run.json"
CLASSIFIER_FILE = "classifier.json"
RELATIVE = "./"  # begins the name of a model that is beside the file of its classifier
MANIFEST = "MANIFEST.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
# Keys of an adapter's configuration that do not change it.
NOT_DECIDING = ("_name_or_path", "base_model_name_or_path", "transformers_version", "peft_version", "chat_template")
# The beginnings of the names of files that are never loaded: hidden ones, model card, tokenizer and manifest.
UNREAD = (".", "README.md", "tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges", MANIFEST)
READABLE_JSON = f"readable JSON of at most {MAX_JSON // 2**20} MB"
Kind = Literal["audit", "train"]
Facts = Mapping[str, Any]  # a part whose keys are not fixed
# The errors of damaged files. Deeply nested JSON raises a RecursionError.
UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error)
STRICT = pydantic.ConfigDict(extra="forbid")
# The file has these keys only if they are not None.
OPTIONAL = {
    *("system", "assistant_prefix", "chat_template_kwargs", "num_validation", "num_dropped", "eval_limit"),
    *("num_too_long", "endpoint", "quantization", "chat_template", "chat", "flip_flop_version", "uses_labels"),
    *("levels", "scale", "answer", "extract", "id_field", "average", "stop_lead"),
}


class Section:
    """A JSON object of ``run.json``. Unknown keys are refused."""

    def to_json(self) -> Json:
        """Return the keys in the order of the fields, without paths of this machine."""
        values = {name: _plain(value) for name, value in vars(self).items() if not isinstance(value, Path)}
        return {name: value for name, value in values.items() if name not in OPTIONAL or value is not None}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TemplateRecord(Section):
    """The texts of a template, and its level on each axis."""

    name: str
    jinja: str = ""
    answer_choices: str | None = None
    digest: str = ""
    levels: Mapping[str, str] | None = None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class TaskRecord(Section):
    """A task, its templates and the data of one split, by digest; see :attr:`flip_flop.tasks.RenderedSplit.record`.

    ``instances_digest`` differs between two samples of one file. ``digests`` is empty.
    """

    name: str
    labels: tuple[Any, ...]
    label_names: tuple[str, ...] = ()
    digest: str
    split: str
    num_instances: int = 0
    has_gold: bool = False
    f1: Literal["auto", "binary", "macro"] = "auto"
    held_out_templates: tuple[str, ...] = ()
    templates: tuple[TemplateRecord, ...]
    data: Facts = field(default_factory=dict)
    instances_digest: str = ""
    digests: Facts = field(default_factory=dict)
    system: str | None = None
    assistant_prefix: str | None = None
    chat_template_kwargs: Facts | None = None
    num_validation: int | None = None
    num_dropped: int | None = None
    eval_limit: int | None = None
    num_too_long: int | None = None
    scale: bool | None = None
    answer: Facts | None = None
    extract: str | None = None
    id_field: str | None = None

    def design(self, names: Sequence[str]) -> Json:
        """Return the values of :class:`flip_flop.metrics.Design` for templates."""
        by_name = {template.name: template.levels or {} for template in self.templates}
        levels = tuple(by_name.get(name, {}) for name in names)
        return {"average": self.f1, "levels": levels, "is_scale": bool(self.scale)}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class ModelRecord(Section):
    """The base model. ``digest`` covers its weight files, or its name on the hub and its commit."""

    name: str = ""
    revision: str | None = None
    digest: str | None = None
    num_parameters: int | None = None
    dtype: str | None = None
    is_demo: bool = False
    digests: Facts = field(default_factory=dict)
    endpoint: str | None = None
    quantization: Facts | None = None

    def differs_from(self, other: "ModelRecord") -> bool:
        """Return whether the weights differ, if both digests are known, and both of the hub or both of files."""
        is_comparable = bool(self.revision) == bool(other.revision) and None not in (self.digest, other.digest)
        return is_comparable and self.digest != other.digest


@dataclass(frozen=True, kw_only=True, config=STRICT)
class AdapterRecord(Section):
    """An adapter, with the method and the chat settings of its training if its record is known.

    ``folder`` is its path even if the current folder changes. It is not written.
    """

    path: str = ""
    digest: str | None = None
    method: str | None = None
    uses_labels: bool | None = None  # of the training
    digests: Facts = field(default_factory=dict)
    chat_template: bool | None = None
    chat: Facts | None = None
    folder: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "folder", Path(self.path).absolute())


@dataclass(frozen=True, kw_only=True, config=STRICT)
class RunRecord(Section):
    """The inputs and settings of a run: enough to repeat it, and to compare it with another run.

    ``allowed_changes`` are inputs that had changed when a run was resumed: ``weights``, ``task``, ``rows`` or
    ``method``, the code of a custom one. For an audit: ``weights`` if the adapter was trained on other weights.
    """

    kind: Kind
    flip_flop_version: str | None = None
    name: str | None = None
    command: str | None = None
    created: str | None = None
    task: TaskRecord
    model: ModelRecord
    adapter: AdapterRecord | None = None
    scoring: Facts = field(default_factory=dict)
    training: Facts | None = None
    seed: int | None = None
    versions: Facts = field(default_factory=dict)
    hardware: Facts = field(default_factory=dict)
    seconds: float | None = None
    allowed_changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, kind: Kind | None = None, *, check_files: bool = True) -> "RunRecord":
        """Read the record of a run directory, and compare the present files with the manifest.

        Raises:
            InputError: ``E-RUN-MISSING`` without a folder or ``run.json``, or for a run of another kind;
                ``E-RUN-BROKEN`` for an invalid or changed file.
        """
        path = folder / RUN_FILE
        hint = "Give the folder of a finished run."
        if not path.is_file():
            raise InputError(
                "E-RUN-MISSING",
                f"{folder} has no {RUN_FILE}." if folder.is_dir() else f"{folder} is not a folder.",
                _audits_inside(folder) if kind == "audit" else hint,
            )
        with reading(path, READABLE_JSON):
            value = read_json(path)
        stored = value.get("kind") if isinstance(value, dict) else None
        if kind is not None and stored != kind:
            raise InputError("E-RUN-MISSING", f"{folder} holds a run of kind {stored!r}, not {kind!r}.", hint)
        if damage := find_change(folder, loaded_files(folder) if check_files else (RUN_FILE,)):
            raise InputError("E-RUN-BROKEN", f"{folder / damage}.", BROKEN_HINT)
        return validated(cls, value, path)

    @classmethod
    def of_adapter(cls, adapter: Path) -> "RunRecord | None":
        """Return the record of the training that wrote this ``adapter/`` folder, or ``None`` if it was moved.

        Raises:
            InputError: ``E-RUN-BROKEN``.
        """
        try:
            return cls.read(adapter.resolve().parent, "train", check_files=False)
        except InputError as error:
            if error.code == "E-RUN-MISSING":
                return None
            raise

    def write(self, folder: Path) -> None:
        """Write ``run.json``, and the manifest of the run, last."""
        write_json(folder / RUN_FILE, self.to_json())
        write_manifest(folder)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Classifier(Section):
    """What an audit or a training run decided, for new rows: ``classifier.json``.

    Attributes:
        decision: The template to use, or why the vote of several is used.
        model: The base model. The name of a local one is an absolute path, or begins with ``./``: beside the file.
        adapter: The adapter. A path in a file is relative to the folder of the file.
        task: The task with the templates to use. The label is the majority vote of several.
        scoring: The settings with which the prompts were scored.
        seed: The seed of templates with random choices.
        offsets: Nats that are added to the score of each label, by template. Empty without calibration.
        calibration: ``method`` and ``label_prior`` of the offsets.
        abstain_below: The smallest confidence of an answer.
        average: The axis over which the probabilities of a template and its variants are averaged.
        stop_lead: The lead of the mean over the first templates at which the others are skipped.
        measured: Metrics on the rows of the audit, as fractions.
    """

    flip_flop_version: str
    decision: str
    model: ModelRecord
    adapter: AdapterRecord | None = None
    task: TaskRecord
    scoring: Facts
    seed: int = 0
    offsets: Mapping[str, tuple[pydantic.FiniteFloat, ...]] = field(default_factory=dict)
    calibration: Facts = field(default_factory=dict)
    abstain_below: Annotated[float, pydantic.Field(ge=0.0, le=1.0)] = 0.0
    average: Literal["order"] | None = None
    stop_lead: pydantic.FiniteFloat | None = None
    measured: Facts = field(default_factory=dict)

    @classmethod
    def of_run(
        cls, record: RunRecord, names: Sequence[str], *, offsets: Mapping[str, Sequence[float]] = {}, **decided: Any
    ) -> "Classifier | None":
        """Return the classifier of these templates of a run, or None if their texts are unknown."""
        by_name = {template.name: template for template in record.task.templates if template.jinja}
        if not by_name.keys() >= {*names}:
            return None
        data = {key: value for key, value in record.task.data.items() if key == "prompt_value_limit"}  # no paths
        decided |= {
            "task": replace(record.task, templates=tuple(by_name[name] for name in names), data=data),
            "offsets": {name: tuple(offsets[name]) for name in names if offsets},
        }
        version = record.versions.get("flip_flop", "")
        return cls(flip_flop_version=version, scoring=record.scoring, seed=record.seed or 0, **decided)

    @classmethod
    def read(cls, file: Path) -> "Classifier":
        """Read a file.

        Raises:
            InputError: ``E-RUN-MISSING`` without the file; ``E-RUN-BROKEN`` if it is invalid, or has changed since the
                training run that wrote it.
        """
        with reading(file, READABLE_JSON):
            value = read_json(file)
        parent = file.resolve().parent
        if damage := find_change(parent.parent, (f"{parent.name}/{file.name}",)):
            raise broken(file, f"has changed since its training ({damage})")
        found = validated(cls, value, file)
        sizes = {template.name: len(found.task.labels) for template in found.task.templates}
        if found.offsets and sizes != {name: len(values) for name, values in found.offsets.items()}:
            raise broken(file, "has offsets that do not fit its templates and labels")
        if found.model.name.startswith(RELATIVE):
            found = replace(found, model=replace(found.model, name=str(parent / found.model.name)))
        if found.adapter is None:
            return found
        return replace(found, adapter=replace(found.adapter, path=str(parent / found.adapter.path)))

    def write(self, folder: Path) -> None:
        """Write the file into a folder."""
        write_json(folder / CLASSIFIER_FILE, self.to_json())


def validated(kind: type[Value], value: Any, path: Path) -> Value:
    """Return the JSON value of a file as a type that pydantic checks.

    Raises:
        InputError: ``E-RUN-BROKEN`` with the first error.
    """
    try:
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))[:100]
        if first["type"] == "unexpected_keyword_argument":
            newer = ", maybe of a newer flip-flop"
        else:
            newer = ""
        raise broken(path, f"is invalid{' at ' if place else ''}{place}: {first['msg']}{newer}") from None


def broken(path: Path, why: str) -> InputError:
    """Return the error for an invalid file of a run directory."""
    return InputError("E-RUN-BROKEN", f"{path} {why}.", BROKEN_HINT)


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Convert the errors of reading a file of a run directory.

    Raises:
        InputError: ``E-RUN-MISSING`` without the file, ``E-RUN-BROKEN`` for a file that is not of this kind.
    """
    if not path.is_file():
        raise InputError(
            "E-RUN-MISSING", f"{path.parent} has no {path.name}.", "Give a folder that `flip-flop audit` wrote."
        )
    try:
        yield
    except UNREADABLE as error:
        raise broken(path, f"is not {kind} ({type(error).__name__})") from error


def this_process(started: float) -> Json:
    """Return arguments of :class:`RunRecord` for a run that this process began at ``time.monotonic() == started``."""
    seconds = time.monotonic() - started
    return {
        "command": command(),
        "created": now(seconds_ago=seconds),
        "versions": versions(),
        "hardware": hardware(),
        "seconds": round(seconds, 2),
    }


def _audits_inside(folder: Path) -> str:
    """Return a hint that names the audits up to two folders deeper."""
    inside = sorted(str(path.parent) for depth in ("*", "*/*") for path in folder.glob(f"{depth}/metrics.json"))
    if not inside:
        return "Give the folder of a finished run."
    return f"Name the audits inside it: {' '.join(inside[:NAMED])}{' ...' if len(inside) > NAMED else ''}."


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def check_adapter_folder(adapter: Path) -> None:
    """Check that an adapter's files exist; raises ``E-ADAPTER``."""
    for file in (ADAPTER_CONFIG, ADAPTER_WEIGHTS):
        if not (adapter / file).is_file():
            raise InputError("E-ADAPTER", f"{adapter} has no {file}.", "Give the adapter/ folder of a training run.")


def loaded_files(folder: Path) -> list[str]:
    """List the files of a folder and of its adapter, without those that are never loaded."""
    files = (file for file in (*folder.glob("*"), *folder.glob("adapter/*")) if file.is_file())
    return sorted(str(file.relative_to(folder)) for file in files if not file.name.startswith(UNREAD))


def write_manifest(folder: Path) -> None:
    """Flush every file of a folder to disk, then write its manifest.

    The parent folder is flushed too, so that a new checkpoint is on disk before an older one is deleted.
    """
    flush(folder)
    write_json(folder / MANIFEST, {name: _digest(folder / name) for name in loaded_files(folder)})
    fsync_folder(folder.parent)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file. Notes of libraries in an adapter's configuration do not change it."""
    content = read_object(file) if file.name == ADAPTER_CONFIG else None
    if content is None:
        return sha256_file(file)
    decisive = {key: value for key, value in content.items() if key not in NOT_DECIDING}
    return sha256_text(json.dumps(decisive, sort_keys=True, default=str))  # escapes lone surrogates


def find_corruption(folder: Path, only: Container[str] = ()) -> str | None:
    """Return the damage of a folder's files, or ``only`` of these; ``None`` if they match the manifest."""
    if not (folder / MANIFEST).exists():
        return "it was not finished"
    manifest = read_object(folder / MANIFEST)
    present = loaded_files(folder)
    if not manifest:
        return f"{MANIFEST} cannot be read"
    for name, expected in manifest.items():
        if Path(name).name.startswith(UNREAD) or (only and name not in only):
            continue
        if name not in present:
            return f"{name} is missing"
        if expected != _digest(folder / name):
            return f"{name} is damaged"
    return None


def find_change(folder: Path, only: Container[str] = ()) -> str | None:
    """Return the damage of a folder's files. Without a manifest they are not checked."""
    if (folder / MANIFEST).exists():
        return find_corruption(folder, only)
    return None
