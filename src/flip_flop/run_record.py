"""``run.json``, typed: what a run was, of an audit and of a training."""

import time
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, get_args, get_origin

from flip_flop.errors import InputError
from flip_flop.files import MAX_JSON, read_json, write_json
from flip_flop.provenance import command, hardware, now, versions

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

    ``instances_digest`` tells two samples of one file apart; ``digests`` has more parts of :mod:`flip_flop.identity`.
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

    ``digests`` has more parts of :mod:`flip_flop.identity`; a commit on the hub covers its files.
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
