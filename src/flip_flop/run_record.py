"""``run.json``: what a run was, of an audit and of a training. One reader and one writer."""

import datetime
import json
import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from flip_flop.errors import InputError
from flip_flop.files import write_json
from flip_flop.provenance import command, hardware, versions

RUN_FILE = "run.json"
Kind = Literal["audit", "train"]
S = TypeVar("S", bound="Section")
OTHER_KIND = {
    "audit": "Audit the model first: `flip-flop audit --model M --adapter A --task T --out DIR`.",
    "train": "Give the folder of a training.",
}


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
        found = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "extra"}
        absent = {item.name for item in fields(self) if item.metadata.get("optional") and found[item.name] is None}
        return {name: _plain(value) for name, value in found.items() if name not in absent} | dict(self.extra)


def _optional() -> Any:
    """A key that is not there where it has no value; any other would be null."""
    return field(default=None, metadata={"optional": True})


@dataclass(frozen=True, kw_only=True)
class TemplateRecord(Section):
    """A template's texts."""

    name: str
    jinja: str = ""
    answer_choices: str | None = None
    digest: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskRecord(Section):
    """The task, its templates and the data of one split, by digest; see :func:`flip_flop.tasks.record.describe_task`.

    ``instances_digest`` tells two samples of one file apart. The last two keys are a training's.
    """

    name: str
    labels: tuple[Any, ...]
    digest: str
    split: str
    num_instances: int = 0
    has_gold: bool = False
    f1: Literal["auto", "binary", "macro"] = "auto"
    held_out_templates: tuple[str, ...] = ()
    templates: tuple[TemplateRecord, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    instances_digest: str = ""
    num_validation: int | None = _optional()
    num_dropped: int | None = _optional()


@dataclass(frozen=True, kw_only=True)
class ModelRecord(Section):
    """The base model. ``digest`` is of its weight files, or of its name on the hub and its commit."""

    name: str = ""
    revision: str | None = None
    digest: str | None = None
    num_parameters: int | None = None
    dtype: str | None = None
    is_demo: bool = False


@dataclass(frozen=True, kw_only=True)
class AdapterRecord(Section):
    """An adapter; ``method`` and ``chat_template`` where the record of its training lies beside it."""

    path: str = ""
    digest: str | None = None
    method: str | None = None
    chat_template: bool | None = _optional()


@dataclass(frozen=True, kw_only=True)
class RunRecord(Section):
    """What a run was: enough to run it again, and to see what two runs share."""

    kind: Kind
    flip_flop_version: str | None = _optional()
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

    @classmethod
    def read(cls, folder: Path, kind: Kind | None = None) -> "RunRecord":
        """Read a run directory's record.

        Raises:
            InputError: ``E-RUN-MISSING`` without a folder or ``run.json``, or for a run of another kind;
                ``E-RUN-BROKEN`` where it cannot be read.
        """
        path = folder / RUN_FILE
        if not path.is_file():
            message = f"{folder} has no {RUN_FILE}." if folder.is_dir() else f"{folder} is not a folder."
            raise InputError("E-RUN-MISSING", message, "Give the folder of a finished run.")
        value = _load(path)
        found = value.get("kind") if isinstance(value, Mapping) else kind
        if kind is not None and found != kind:
            message = f"{folder} holds a run of kind {found!r}, not {kind!r}."
            raise InputError("E-RUN-MISSING", message, OTHER_KIND[kind])
        return cls._checked(path, value)

    @classmethod
    def of_adapter(cls, adapter: Path) -> "RunRecord | None":
        """The record of the training whose ``adapter/`` folder this is; ``None`` where it lies elsewhere.

        Raises:
            InputError: ``E-RUN-BROKEN``.
        """
        path = adapter.resolve().parent / RUN_FILE
        value = _load(path) if path.is_file() else None
        return cls._checked(path, value) if isinstance(value, Mapping) and value.get("kind") == "train" else None

    @classmethod
    def _checked(cls, path: Path, value: object) -> "RunRecord":
        try:
            return cls.from_json(value)
        except ValueError as error:
            raise _broken(path, str(error)) from error

    def write(self, folder: Path) -> None:
        """Write ``run.json``."""
        write_json(folder / RUN_FILE, self.to_json())

    def to_json(self) -> dict[str, Any]:
        """The keys in the order in which they are written."""
        found = super().to_json()
        if self.kind == "train":  # the format of 0.1.0: a training's times come last
            found |= {name: found.pop(name) for name in ("created", "seconds")}
        return found


def this_process(started: float) -> dict[str, Any]:
    """What a record says of the process that writes it, as arguments of :class:`RunRecord`.

    Args:
        started: ``time.monotonic()`` when the run began.
    """
    seconds = time.monotonic() - started
    created = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return {
        "command": command(),
        "created": created.isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": hardware(),
        "seconds": round(seconds, 2),
    }


def _broken(path: Path, why: str) -> InputError:
    return InputError("E-RUN-BROKEN", f"{path} {why}.", "Restore it, or run it again into a new folder.")


def _load(path: Path) -> object:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _broken(path, f"is not readable JSON ({type(error).__name__})") from error


def _value(value: object, kind: Any, name: str) -> Any:
    """A JSON value as a field of this type holds it."""
    if get_origin(kind) is UnionType:
        kind = next((each for each in get_args(kind) if value is not None and each is not type(None)), type(None))
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
    return float(value) if origin is float else value


def _plain(value: Any) -> Any:
    if isinstance(value, Section):
        return value.to_json()
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return dict(value) if isinstance(value, Mapping) else value
