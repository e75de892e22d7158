"""The record of a run (``run.json``), typed, and the comparison of its parts with another run."""

import contextlib
import datetime
import importlib.metadata
import json
import os
import platform
import re
import shlex
import sys
import time
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from flip_flop.errors import InputError
from flip_flop.files import MAX_JSON, read_json, read_object, sha256_file, sha256_text, write_json

# The parts of a run (flip_flop.record): a name, as --allow-changed takes it, and what it is in words.
MODEL_PARTS = {
    "weights": "weights",
    "config": "config.json",
    "tokenizer": "tokenizer",
    "chat_template": "chat template",
}
DATA_PARTS = {
    "templates": "templates",
    "task": "task (its name, labels or F1, or the order of its templates)",
    "rows": "training rows",
    "gold": "gold labels of the training rows",
    "validation": "validation rows",
    "validation_gold": "gold labels of the validation rows",
}
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
ADAPTER_PARTS = {"adapter": ADAPTER_WEIGHTS, "adapter_config": ADAPTER_CONFIG}
TRAINING_PARTS = MODEL_PARTS | DATA_PARTS
LOADED_PARTS = MODEL_PARTS | ADAPTER_PARTS


NAMED = 8  # audits in a hint
RUN_FILE = "run.json"
READABLE_JSON = f"readable JSON of at most {MAX_JSON // 2**20} MB"
Kind = Literal["audit", "train"]
S = TypeVar("S", bound="Section")


@dataclass(frozen=True, kw_only=True)
class Section:
    """A JSON object with known keys. A key that this version does not know is kept in ``extra``."""

    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_json(cls: type[S], value: object) -> S:
        """Check what JSON gave.

        Raises:
            ValueError: What is wrong, to follow the file's name in a sentence.
        """
        if not isinstance(value, Mapping):
            raise ValueError("does not hold a JSON object")
        known = {item.name: item for item in fields(cls) if item.name != "extra"}
        for name, item in known.items():
            if name not in value and item.default is MISSING and item.default_factory is MISSING:
                raise ValueError(f"has no {name!r}")
        found = {name: _value(value[name], item.type, name) for name, item in known.items() if name in value}
        return cls(**found, extra={name: value[name] for name in value if name not in known})

    def to_json(self) -> dict[str, Any]:
        """The keys in the order of the fields, then the unknown ones."""
        return {name: _plain(value) for name, value in vars(self).items() if name != "extra"} | dict(self.extra)


@dataclass(frozen=True, kw_only=True)
class TemplateRecord(Section):
    """A template's texts."""

    name: str
    jinja: str = ""
    answer_choices: str | None = None
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskRecord(Section):
    """The task, its templates and the data of one split, by digest; see :attr:`flip_flop.tasks.RenderedSplit.record`.

    ``instances_digest`` tells two samples of one file apart; ``digests`` has more parts of :mod:`flip_flop.record`.
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
    data: Mapping[str, Any] = field(default_factory=dict)
    instances_digest: str = ""
    digests: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ModelRecord(Section):
    """The base model. ``digest`` is of its weight files, or of its name on the hub and its commit.

    ``digests`` has more parts of :mod:`flip_flop.record`; a commit on the hub covers its files.
    """

    name: str = ""
    revision: str | None = None
    digest: str | None = None
    num_parameters: int | None = None
    dtype: str | None = None
    is_demo: bool = False
    digests: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AdapterRecord(Section):
    """An adapter, and its method where the record of its training lies beside it."""

    path: str = ""
    digest: str | None = None
    method: str | None = None
    digests: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RunRecord(Section):
    """What a run was: enough to run it again, and to see what two runs share.

    ``allowed_changes`` are the parts that had changed, and that ``--allow-changed`` went on with.
    """

    kind: Kind
    flip_flop_version: str | None = None
    name: str | None = None
    command: str | None = None
    created: str | None = None
    task: TaskRecord
    model: ModelRecord
    adapter: AdapterRecord | None = None
    scoring: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] | None = None
    seed: int | None = None
    versions: Mapping[str, Any] = field(default_factory=dict)
    hardware: Mapping[str, Any] = field(default_factory=dict)
    seconds: float | None = None
    allowed_changes: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path, kind: Kind | None = None) -> "RunRecord":
        """Read a run directory's record.

        Raises:
            InputError: ``E-RUN-MISSING`` without a folder or ``run.json``, or for a run of another kind;
                ``E-RUN-BROKEN`` where it cannot be read.
        """
        path, hint = folder / RUN_FILE, "Give the folder of a finished run."
        if not path.is_file():
            message = f"{folder} has no {RUN_FILE}." if folder.is_dir() else f"{folder} is not a folder."
            raise InputError("E-RUN-MISSING", message, _runs_inside(folder) if kind == "audit" else hint)
        try:
            value = read_json(path)
        except (OSError, ValueError, RecursionError) as error:
            raise _broken(path, f"is not {READABLE_JSON} ({type(error).__name__})") from error
        found = value.get("kind") if isinstance(value, dict) else None
        if kind is not None and found != kind:
            raise InputError("E-RUN-MISSING", f"{folder} holds a run of kind {found!r}, not {kind!r}.", hint)
        try:
            return cls.from_json(value)
        except ValueError as error:
            raise _broken(path, str(error)) from error

    @classmethod
    def of_adapter(cls, adapter: Path) -> "RunRecord | None":
        """The record of the training whose ``adapter/`` folder this is; ``None`` where it lies elsewhere.

        Raises:
            InputError: ``E-RUN-BROKEN``.
        """
        try:
            return cls.read(adapter.resolve().parent, "train")
        except InputError as error:
            if error.code == "E-RUN-MISSING":
                return None
            raise

    def write(self, folder: Path) -> None:
        """Write ``run.json``."""
        write_json(folder / RUN_FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The keys in the order in which they are written."""
        found = super().to_json()
        if self.flip_flop_version is None:
            del found["flip_flop_version"]
        if self.kind == "train":  # the format of 0.1.0: a training's times come last
            found |= {name: found.pop(name) for name in ("created", "seconds")}
        return found


# JSON that is nested too deep is a RecursionError.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, EOFError, RecursionError, zlib.error)


def broken(path: Path, why: str) -> InputError:
    """That a file contradicts itself or another."""
    return InputError("E-RUN-BROKEN", f"{path} {why}.", "Run the audit again into a new folder.")


@contextlib.contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn what goes wrong inside into one line.

    Raises:
        InputError: ``E-RUN-MISSING`` where the file is not there, ``E-RUN-BROKEN`` where it is not ``what``.
    """
    if not path.is_file():
        hint = "Name a folder that `flip-flop audit` wrote; a run directory is complete or it is not there."
        raise InputError("E-RUN-MISSING", f"{path.parent} has no {path.name}.", hint)
    try:
        yield
    except _UNREADABLE as error:
        raise broken(path, f"is not {what} ({type(error).__name__})") from error


def this_process(started: float) -> dict[str, Any]:
    """Arguments of :class:`RunRecord` about this process, whose run began at ``time.monotonic() == started``."""
    seconds = time.monotonic() - started
    return {
        "command": command(),
        "created": now(seconds_ago=seconds),
        "versions": versions(),
        "hardware": hardware(),
        "seconds": round(seconds, 2),
    }


def _runs_inside(folder: Path) -> str:
    """The audits that lie up to two folders deeper, to be named instead; metrics are theirs alone."""
    inside = sorted(str(path.parent) for depth in ("*", "*/*") for path in folder.glob(f"{depth}/metrics.json"))
    if not inside:
        return "Give the folder of a finished run."
    return f"Name the audits inside it: {' '.join(inside[:NAMED])}{' ...' if len(inside) > NAMED else ''}."


def _broken(path: Path, why: str) -> InputError:
    return InputError("E-RUN-BROKEN", f"{path} {why}.", "Restore it, or run it again into a new folder.")


def _value(value: object, kind: Any, name: str) -> Any:
    """A JSON value as a field of this type holds it."""
    if get_origin(kind) is UnionType:  # with None
        kind = type(None) if value is None else get_args(kind)[0]
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if isinstance(origin, type) and issubclass(origin, Section):
        try:
            return origin.from_json(value)
        except ValueError as error:
            raise ValueError(f"{error} in {name!r}") from error
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(_value(each, arguments[0], name) for each in value)
    accepted: Any = {Literal: str, tuple: list, float: (int, float), Any: object}.get(origin, origin)
    if not isinstance(value, accepted) or (origin is Literal and value not in arguments):
        raise ValueError(f"has the value {value!r} for {name!r}")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value


PACKAGES = ("torch", "transformers", "peft", "accelerate", "datasets", "tokenizers", "numpy", "jinja2")
# Only at the beginning of a word: "task-tickets" holds an "sk-" too.
SECRET = re.compile(r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,}|[0-9a-f]{40}\b)|(?<=://)[^/@\s]+(?=@)")
# Flags whose value is a secret whatever it looks like.
SECRET_FLAG = re.compile(r"(--[\w-]*(?:token|password|secret|api[-_]key))(?:=.*)?", re.DOTALL)


def versions() -> dict[str, str]:
    """Versions of Python, of this package and of what its results depend on."""
    found = {"python": platform.python_version(), "flip_flop": _version("flip-flop-consistency")}
    return found | {name: _version(name) for name in PACKAGES}


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def hardware() -> dict[str, Any]:
    """The processor, the number of cores, and the GPU where there is one."""
    import torch

    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name[^:\n]*:(.*)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor()


def command() -> str:
    """The command line as typed, with tokens and keys replaced; a commit after ``--revision`` is no key."""
    words = [Path(sys.argv[0]).name.replace("main.py", "flip-flop")]
    for argument in sys.argv[1:]:
        is_commit = words[-1] == "--revision" or argument.startswith("--revision=")
        if SECRET_FLAG.fullmatch(words[-1]) and "=" not in words[-1]:
            words.append("***")
        elif "=" in argument and (flag := SECRET_FLAG.fullmatch(argument)):
            words.append(f"{flag[1]}=***")
        else:
            words.append(argument if is_commit else SECRET.sub("***", argument))
    return shlex.join(words)


def now(seconds_ago: float = 0) -> str:
    """The time in UTC, to the second."""
    time = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds_ago)
    return time.isoformat(timespec="seconds")


# What a template writes and the task's digest change with it.
_FOLLOW_TEMPLATES = ("task", "rows", "validation")
# Notes of libraries in a configuration file, and a template that is a part of its own.
_NOT_DECIDING = ("_name_or_path", "base_model_name_or_path", "transformers_version", "peft_version", "chat_template")


def digests_of(
    task: TaskRecord | None = None, model: ModelRecord | None = None, adapter: AdapterRecord | None = None
) -> dict[str, Any]:
    """The digest of each part that these records name: SHA-256; for ``templates`` one per name."""
    found: dict[str, Any] = {}
    if task is not None:
        templates = {each.name: each.digest for each in task.templates}
        found |= {"templates": templates, "task": task.digest, "rows": task.instances_digest, **task.digests}
    if model is not None:
        found |= {"weights": model.digest, **model.digests}
    if adapter is not None:
        found |= {"adapter": adapter.digest, **adapter.digests}
    return found


def check_adapter_folder(adapter: Path) -> None:
    """Look for an adapter's files before a model is loaded; raises ``E-ADAPTER-FILE``."""
    for file in reversed(ADAPTER_PARTS.values()):
        if not (adapter / file).is_file():
            message = f"{adapter} has no {file}."
            raise InputError("E-ADAPTER-FILE", message, "Give the adapter/ folder of a training run.")


def changed_parts(before: Mapping[str, Any], now: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, str]:
    """The parts that have a digest in both and another one now, by name, in words.

    A template that differs is named, and what follows from it is not: rows, whose digests are of prompts, are then not
    compared.
    """
    changed = {
        name: words for name, words in parts.items() if before.get(name) and now.get(name) and before[name] != now[name]
    }
    if "templates" in changed:
        old, new = (dict(each["templates"]) if isinstance(each["templates"], Mapping) else {} for each in (before, now))
        differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changed = {name: words for name, words in changed.items() if name not in _FOLLOW_TEMPLATES}
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        changed["templates"] = f"template {', '.join(map(repr, differing[:3]))}{more}"
    return changed


def check_parts(names: Iterable[str], parts: Collection[str]) -> None:
    """Refuse a name that is none of the parts.

    Raises:
        InputError: ``E-ALLOW-CHANGED``.
    """
    for name in names:
        if name not in parts:
            message = f"--allow-changed takes no {name!r} here."
            raise InputError("E-ALLOW-CHANGED", message, f"Name one of {', '.join(parts)}.")


def refuse_changed(code: str, message: str, changed: Mapping[str, str], allowed: Collection[str], hint: str) -> None:
    """Refuse changed parts that are not allowed; the message ends with them, the hint with how to go on.

    Raises:
        InputError: Of this ``code``.
    """
    refused = {name: words for name, words in changed.items() if name not in allowed}
    if refused:
        flags = " ".join(f"--allow-changed {name}" for name in refused)
        raise InputError(code, f"{message}: {', '.join(refused.values())}.", f"{hint} To go on all the same: {flags}.")


def config_digest(path: Path) -> str:
    """The SHA-256 of a configuration in JSON, but for the notes of libraries in it; else of the file."""
    content = read_object(path)
    if content is None:
        return sha256_file(path)
    return json_digest({key: value for key, value in content.items() if key not in _NOT_DECIDING})


def json_digest(value: Any) -> str:
    """The SHA-256 of a JSON value, whatever characters are in it."""
    return sha256_text(json.dumps(value, sort_keys=True, default=str))
