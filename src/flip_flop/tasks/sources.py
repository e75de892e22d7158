"""Sources of rows: a file, the hub or its mirror, and memory. Their division into splits and samples."""

import itertools
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from flip_flop.console import count, warn_once
from flip_flop.errors import InputError, Value, nearest, require_whole
from flip_flop.files import Json, derive_seed, inputs_of_command, sha256_file, sha256_text
from flip_flop.hub import commit_on_hub, is_offline, why_unreachable
from flip_flop.prompts import Fields, RenderedInstance
from flip_flop.tasks.readers import (
    DELIMITERS,
    SEPARATED,
    NumberedRow,
    cell_text,
    check_columns,
    first_line,
    label_text,
    lost_header,
    read_rows,
    with_short_floats,
)

MIRROR_VARIABLE = "FLIP_FLOP_HUB_MIRROR"
PARTS = ("train", "test")
MAX_NAMED = 8  # conflicting labels in a warning
_FLOAT32 = ("float32", "Float32", "float[pyarrow]")  # the types of pandas
_ROWS = "Give a list of dicts, a datasets.Dataset, a pandas.DataFrame or a file's path."


def parts_of(
    rows: Sequence[Fields],
    by: Sequence[str] = (),
    label_field: str | None = None,
    labels: Collection[object] = (),
) -> list[tuple[str, bool]]:
    """Divide the rows of a file without splits. Returns each row's part (:data:`PARTS`) and whether its label is blank.

    Unlabelled rows are for training. Labelled rows are for testing if at least half of the rows are unlabelled.
    Otherwise a hash of their content assigns about half of them to each part. The hash also divides a file without
    labels. The content is the fields ``by``, or all fields. Rows of equal content are in the same part.
    """
    contents = []
    for row in rows:
        fields = {name: row.get(name) for name in by or row}
        contents.append(json.dumps(fields, sort_keys=True, default=str))
    blank = [label_field is not None and not label_text(row.get(label_field), labels) for row in rows]
    labelled = {content for content, is_blank in zip(contents, blank, strict=True) if not is_blank} or set(contents)
    mostly_blank = 2 * len(labelled) <= len(set(contents))

    def part_of(content: str) -> str:
        if content not in labelled:
            return "train"
        if mostly_blank:
            return "test"
        return PARTS[derive_seed(0, "part", content) % len(PARTS)]

    return list(zip(map(part_of, contents), blank, strict=True))


@runtime_checkable
class Source(Protocol):
    """Anything that gives the rows of a split."""

    def load(self) -> "Rows":
        """The rows."""


@dataclass(frozen=True)
class Rows:
    """The rows of one split; they are a source of themselves.

    Attributes:
        source: The file's path, or the dataset's name.
        unit: The unit of row numbers: ``"line"`` of a text file, or ``"row"``.
        provenance: For the run's record: ``source``, ``sha256``, ``num_rows``, and more for the hub.
        ids: The names of the rows; by default rows are numbered.
    """

    source: str
    unit: str
    rows: tuple[NumberedRow, ...] = field(repr=False)
    provenance: Mapping[str, Any]
    ids: tuple[str, ...] = field(default=(), repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    def load(self) -> "Rows":
        """The rows themselves."""
        return self

    def location(self, row: NumberedRow) -> str:
        """Words that name a row in an error, such as ``tickets.csv line 3``."""
        return f"{self.source} {self.unit} {row.number}"

    def columns(self) -> tuple[str, ...]:
        """The names of all fields, in the order of their first row."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row.fields))

    def require_columns(self, names: Iterable[str], purpose: str) -> None:
        """Refuse rows without one of the columns (``E-DATA-COLUMN``); ``purpose`` says who needs it."""
        columns = self.columns()
        for name in names:
            if name not in columns:
                raise InputError(
                    "E-DATA-COLUMN", f"{self.source} has no column {name!r}, {purpose}.", nearest(name, columns)
                )

    def ids_from(self, id_field: str) -> tuple[str, ...]:
        """Each row's value of the field that names rows, present (``E-DATA-COLUMN``), unique (``E-DATA-ROWS``)."""
        seen: dict[str, NumberedRow] = {}
        for row in self.rows:
            value = row.fields.get(id_field)
            if not cell_text(value):
                raise InputError(
                    "E-DATA-COLUMN",
                    f"{self.location(row)} has no {id_field!r}, the field that names rows.",
                    "Give every row its own id." if id_field in self.columns() else nearest(id_field, self.columns()),
                )
            if "\0" in str(value):
                raise InputError(
                    "E-DATA-ROWS", f"{self.location(row)}: {id_field!r} has a NUL character.", "Remove it."
                )
            first = seen.setdefault(cell_text(value), row)
            if first is not row:
                raise InputError(
                    "E-DATA-ROWS",
                    f"{self.location(row)} has the {id_field} {value!r} of {self.unit} {first.number}.",
                    "Give every row its own id.",
                )
        return tuple(seen)


@dataclass(frozen=True)
class FileSource:
    """A file of rows (:data:`flip_flop.tasks.readers.READABLE`), or one part of it (:func:`parts_of`)."""

    path: Path
    encoding: str = "utf-8"
    delimiter: str | None = None
    part: str | None = None
    by: tuple[str, ...] = ()
    label_field: str | None = None
    labels: tuple[object, ...] = ()

    def __post_init__(self) -> None:
        inputs_of_command().add(self.path.resolve())
        is_separated = self.path.suffix.lower() in SEPARATED
        if self.delimiter is not None and not (is_separated and re.fullmatch('[^"\r\n]', self.delimiter)):
            raise InputError(
                "E-TASK-KEY",
                f"{self.path}: delimiter is {self.delimiter!r}.",
                'Write one character, such as ";" or "\\t", for a .csv or .tsv file.',
            )

    def load(self) -> Rows:
        """Read the file. Raises the errors of :func:`flip_flop.tasks.readers.read_rows`."""
        rows, unit = read_rows(self.path, self.encoding, self.delimiter)
        if (name := lost_header(rows)) is not None:
            warn_once(
                f"W-DATA-HEADER: {self.path}: the column {name!r} has the name of one of its values, so the first row "
                "is perhaps data. If so, add a row of names above it."
            )
        provenance = {
            "source": str(self.path),
            "sha256": sha256_file(self.path),
            "num_rows": len(rows),
            **({} if self.encoding == "utf-8" else {"encoding": self.encoding}),
            **({} if self.delimiter is None else {"delimiter": self.delimiter}),
        }
        if self.part is not None:
            Rows(str(self.path), unit, tuple(rows), {}).require_columns(self.by, "by")
            parts = parts_of([row.fields for row in rows], self.by, self.label_field, self.labels)
            rows = [row for row, (part, _) in zip(rows, parts, strict=True) if part == self.part]
            provenance |= {"num_rows": len(rows), "part": self.part, "by": list(self.by)}
            if unlabelled := parts.count(("train", True)):
                number = unlabelled + parts.count(("train", False))
                provenance |= {"unlabelled_for_training": unlabelled, "rows_for_training": number}
        return Rows(str(self.path), unit, tuple(rows), provenance)


def load_file(path: Path, delimiters: Iterable[str], encodings: Iterable[str] = ("utf-8",)) -> Rows:
    """Read a file with a comma or one of ``delimiters``, in the first of ``encodings`` that it has.

    Raises:
        InputError: ``E-DATA-ENCODING`` for another delimiter or encoding, or an error of
            the file.
    """
    refusals = []
    # An unusual delimiter is first: without it, its file seems to have one column.
    ordered = sorted((None, *delimiters), key=lambda each: each in (None, *DELIMITERS))
    for encoding, delimiter in itertools.product(encodings, ordered if path.suffix.lower() in SEPARATED else [None]):
        try:
            return FileSource(path, encoding, delimiter).load()
        except InputError as error:
            if error.code not in ("E-DATA-ENCODING", delimiter and "E-DATA-PARSE"):
                raise
            refusals.append(error)
    raise max(refusals, key=lambda error: error.code)  # the line of a row before the delimiter of all


@dataclass(frozen=True)
class RowsSource:
    """Rows in memory, such as generated ones; ``more`` goes into the record. ``first`` is the first row's number."""

    fields: Iterable[Fields] = field(repr=False)
    name: str
    more: Mapping[str, Any] = field(default_factory=dict)
    first: int = 1

    def load(self) -> Rows:
        """Number the rows (``E-DATA-ROWS`` for a row that is not a mapping)."""
        given = enumerate(_rows_of(self.fields), self.first)
        rows = tuple(NumberedRow(number, _fields(row, self.name, number)) for number, row in given)
        if not rows:
            raise InputError("E-DATA-ROWS", f"{self.name} has no rows.", "Add rows.")
        provenance = {"source": self.name, "sha256": _digest(rows), "num_rows": len(rows), **self.more}
        return Rows(self.name, "row", rows, provenance)


def _rows_of(data: Any) -> Iterable[Any]:
    """Return the rows of a ``datasets.Dataset`` with 32-bit floats as the nearest short decimals, and other rows."""
    schema = data.features.arrow_schema if hasattr(data, "select_columns") else ()
    narrow = [column.name for column in schema if re.search(r"\bfloat\b", str(column.type))]  # 32 bits, also in lists
    if not narrow:
        return cast(Iterable[Any], data)
    short = with_short_floats(data.select_columns(narrow).with_format("arrow")[:]).to_pylist()
    return ({**row, **cells} for row, cells in zip(data, short, strict=True))


def _fields(row: object, source: str, number: int) -> Json:
    if not isinstance(row, Mapping):
        raise InputError("E-DATA-ROWS", f"{source} row {number} is of type {type(row).__name__}.", _ROWS)
    fields = {str(name): _without_numpy(value) for name, value in row.items()}
    if len(fields) < len(row):
        check_columns([*map(str, row)], f"{source} row {number}")
    return fields


def _without_numpy(value: Any) -> Any:
    """Return a cell with lists for arrays, Python's numbers for numpy's, and texts as keys, as files have them."""
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]
    if isinstance(value, np.floating):
        return float(str(value))  # a 32-bit float as the nearest short decimal
    if isinstance(value, np.number | np.bool_ | np.str_):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): _without_numpy(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return (tuple if isinstance(value, tuple) else list)(map(_without_numpy, value))
    return value


def as_source(data: Any, name: str = "rows") -> Source:
    """Return a source for a file's path, a ``datasets.Dataset``, a ``pandas.DataFrame`` or a list of dicts.

    A source is returned unchanged. ``name`` is the name of rows in memory, for records and errors.

    Raises:
        InputError: ``E-DATA-ROWS`` for another type.
    """
    if isinstance(data, Source):
        return data
    if isinstance(data, str | os.PathLike):
        return FileSource(Path(data))
    pandas = sys.modules.get("pandas")  # a table exists only if its user has imported pandas
    if pandas and isinstance(data, pandas.DataFrame):
        check_columns([*map(str, data.columns)], name.rstrip(","))
        narrow = [column for column, kind in data.dtypes.items() if str(kind) in _FLOAT32]
        for kind in ("float32", str, float):
            data = data.astype(dict.fromkeys(narrow, kind))
        data = data.astype(object).where(data.notna(), None).to_dict("records")
    if not isinstance(data, Iterable) or isinstance(data, Mapping):
        raise InputError("E-DATA-ROWS", f"{name} is of type {type(data).__name__}.", _ROWS)
    return RowsSource(data if isinstance(data, Sized) else list(data), name)


@dataclass(frozen=True)
class HubSource:
    """A split of a dataset on the hub, such as ``aps/super_glue``, ``rte``, ``validation``.

    ``mirror``, or the variable ``FLIP_FLOP_HUB_MIRROR``, is a folder to read instead:
    ``MIRROR/<repo>/<config>/<split>.parquet``, with ``default`` for no config.
    """

    repo: str
    config: str | None
    split: str
    revision: str | None = None
    mirror: Path | None = None

    def __post_init__(self) -> None:
        # They become a path under the mirror, and must not lead out of it.
        for value in (*self.repo.split("/"), self.config or "default", self.split):
            if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", value) or self.repo.count("/") > 1:
                name = "/".join([self.repo, self.config or "default", self.split])
                raise InputError(
                    "E-DATA-HUB",
                    f"{name!r} is not the name of a dataset: {value!r} is invalid.",
                    "Write repo: owner/name, and plain words for the rest.",
                )

    @property
    def name(self) -> str:
        """The dataset in words."""
        if self.config:
            return f"{self.repo} ({self.config}, {self.split})"
        return f"{self.repo} ({self.split})"

    def of_any_owner(self) -> "HubSource":
        """Find the owner of a repository in a mirror. The hub knows old names without an owner."""
        mirror = self.mirror or os.environ.get(MIRROR_VARIABLE)
        if not mirror or "/" in self.repo or (Path(mirror) / self.repo).is_dir():
            return self
        place = f"*/{self.repo}/{self.config or 'default'}/{self.split}.parquet"
        owners = sorted(path.parts[-4] for path in Path(mirror).glob(place))
        if owners:
            return replace(self, repo=f"{owners[0]}/{self.repo}")
        return self

    def load(self) -> Rows:
        """Read the split from the mirror, if one is set, or from the hub.

        Raises:
            InputError: ``E-DATA-FILE``: the split does not exist. ``E-DATA-HUB``: it cannot be downloaded.
        """
        mirror = self.mirror or os.environ.get(MIRROR_VARIABLE)
        if mirror:
            return self._load_from_mirror(Path(mirror))
        return self._load_from_hub()

    def _load_from_mirror(self, mirror: Path) -> Rows:
        path = mirror / self.repo / (self.config or "default") / f"{self.split}.parquet"
        if not path.is_file():
            raise InputError(
                "E-DATA-FILE",
                f"the mirror has no file {path}.",
                nearest(self.split, (file.stem for file in path.parent.glob("*.parquet")))
                or f"Store the dataset as {MIRROR_VARIABLE}/<repo>/<config>/<split>.parquet.",
            )
        rows, unit = read_rows(path)
        provenance = {"source": self.name, "sha256": _digest(rows), "num_rows": len(rows), "mirror": str(mirror)}
        return Rows(str(path), unit, tuple(rows), provenance)

    def _load_from_hub(self) -> Rows:
        if not is_offline() and (reason := why_unreachable()):
            raise InputError(
                "E-DATA-HUB",
                f"cannot download {self.name}: {reason}.",
                "Give --hub-mirror DIR; or set HF_HUB_OFFLINE=1, to read the cache of earlier downloads.",
            )
        import datasets  # seconds of import, needed for the hub only

        commit = commit_on_hub(self.repo, self.revision, "dataset")
        try:
            rows = datasets.load_dataset(self.repo, self.config, split=self.split, revision=commit or self.revision)
        except Exception as error:  # its transports raise many kinds of errors
            reason = first_line(error)
            message = f"{self.name} could not be loaded: {type(error).__name__}: {reason}."
            is_missing = reason.startswith("Unknown split")
            if not is_missing and not self.revision and not isinstance(error, ConnectionError):
                try:
                    return self._load_converted()
                except FileNotFoundError:
                    is_missing = "scripts are no longer supported" in reason
                except Exception:  # the first error says more
                    pass
            if is_missing:
                raise InputError("E-DATA-FILE", message, "Name a split that the dataset has.") from None
            raise InputError("E-DATA-HUB", message) from None
        return RowsSource(rows, self.name, {"revision": commit or self.revision}).load()

    def _load_converted(self) -> Rows:
        """Load the hub's copy in parquet: ``datasets`` 4 does not run the scripts of older datasets."""
        import datasets

        commit = commit_on_hub(self.repo, _CONVERTED, "dataset")
        folder = f"hf://datasets/{self.repo}@{commit or _CONVERTED}/{self.config or 'default'}/{self.split}"
        rows = datasets.load_dataset("parquet", data_files={self.split: f"{folder}/*.parquet"}, split=self.split)
        return RowsSource(rows, self.name, {"revision": commit, "branch": _CONVERTED}).load()


_CONVERTED = "refs/convert/parquet"


def _digest(rows: Iterable[NumberedRow]) -> str:
    """Digest the rows' content, which is the same for the hub, its mirror, and all versions of parquet."""
    return sha256_text("\n".join(json.dumps(row.fields, sort_keys=True, default=str) for row in rows))


# ---- validation splits, samples and duplicates ----
#
# They depend on the ids of the rows and the seed, and not on the order of the rows or on the machine.

MAX_VALIDATION = 1000


def holdout_size(num_instances: int) -> int:
    """A tenth, at least one and at most :data:`MAX_VALIDATION`."""
    return min(max(round(num_instances * 0.1), 1), MAX_VALIDATION)


def holdout(instances: Sequence[RenderedInstance], *, seed: int, stratify: bool = True) -> list[RenderedInstance]:
    """Draw a tenth of the training instances for validation, at least one and at most :data:`MAX_VALIDATION`.

    ``stratify`` keeps the shares of the labels, and draws from the labelled instances if there are enough of them.
    False does not read labels. The instances keep their order.

    Raises:
        InputError: ``E-DATA-ROWS``: no instance would be left for training, or none for validation.
    """
    wanted = holdout_size(len(instances))
    if len(instances) <= wanted:
        raise InputError(
            "E-DATA-ROWS",
            f"{wanted} of {len(instances)} training instances cannot be held out for validation.",
            "Add training rows, or a validation split.",
        )
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    known = {name: label for name, label in labelled.items() if label is not None}
    held_out = draw_stratified(known if len(known) >= wanted else labelled, wanted, seed)
    return [instance for instance in instances if instance.id in held_out]


def sample_ids(ids: Iterable[str], limit: int, seed: int) -> set[str]:
    """Draw a uniform sample of the ids. A larger sample includes a smaller one.

    Raises:
        InputError: ``E-CONFIG`` if the limit is not a whole number of at least one.
    """
    limit = require_whole("limit", limit, 1)
    return {*sorted(ids, key=lambda identity: derive_seed(seed, "limit", identity))[:limit]}


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw ``wanted`` of the ids of ``labels`` so that every label has its share, by largest remainder."""
    return {
        member
        for members, quota in strata_of(labels, wanted)
        for member in sorted(members, key=lambda identity: derive_seed(seed, "holdout", identity))[:quota]
    }


def strata_of(labels: Mapping[Value, int | None], wanted: int) -> list[tuple[list[Value], int]]:
    """Return the keys of each label, in the order of their first appearance, and how many of ``wanted`` are theirs.

    The shares are by largest remainder. The smaller label wins a tie.

    Example:
        >>> strata_of({"a": 2, "b": 2, "c": 0, "d": 0, "e": 1}, 3)
        [(['a', 'b'], 1), (['c', 'd'], 1), (['e'], 1)]
    """
    strata: dict[int, list[Value]] = {}
    for key, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(key)
    quotas = {label: wanted * len(members) // len(labels) for label, members in strata.items()}
    by_remainder = sorted(strata, key=lambda label: (-(wanted * len(strata[label]) % len(labels)), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    return [(members, quotas[label]) for label, members in strata.items()]


def deduplicate(
    instances: Sequence[RenderedInstance], *, against: Sequence[RenderedInstance] = ()
) -> tuple[list[RenderedInstance], int]:
    """Return one instance of those that render alike and unlike all of ``against``, and how many were dropped.

    The first one with a gold label or a reference stays. It gets the most frequent gold label, or None if several are
    as frequent (``W-LABEL-CONFLICT``), and the references of all.
    """
    excluded = {(instance.prompts, instance.choices) for instance in against}
    copies: dict[tuple[object, ...], list[RenderedInstance]] = {}
    for instance in instances:
        rendered = (instance.prompts, instance.choices)
        if rendered not in excluded:
            copies.setdefault(rendered, []).append(instance)
    _warn_of_conflicts(copies.values())
    kept = [_merged(equal) for equal in copies.values()]
    return kept, len(instances) - len(kept)


def _merged(equal: Sequence[RenderedInstance]) -> RenderedInstance:
    """Return one instance for several that render alike."""
    known = [instance for instance in equal if instance.label is not None]
    if not known:
        return equal[0]
    labels = Counter(instance.label for instance in known).most_common(2)
    is_tie = len(labels) == 2 and labels[0][1] == labels[1][1]
    merged = replace(known[0], label=None if is_tie else labels[0][0])
    if merged.open is None:
        return merged
    references = dict.fromkeys(key for instance in known if instance.open for key in instance.open.references)
    return replace(merged, open=replace(merged.open, references=tuple(references)))


def _warn_of_conflicts(copies: Iterable[Sequence[RenderedInstance]]) -> None:
    """Warn of instances that render alike and have different gold labels."""
    conflicts = []
    for equal in copies:
        labels = {instance.label for instance in equal} - {None}
        if len(labels) > 1:
            conflicts.append(", ".join(instance.id for instance in equal))
    if conflicts:
        number = count(len(conflicts), "text")
        ids = "; ".join(conflicts[:MAX_NAMED])
        rule = "The most frequent label of a text is used, and none in a tie."
        warn_once(f"W-LABEL-CONFLICT: {number} with different labels: {ids}. {rule}")
