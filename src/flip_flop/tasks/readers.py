"""One reader per kind of file: rows as they stand there, each with its place.

The CSV reader is ours: the usual ones guess types, so that "NA" becomes a missing value and "007" a seven,
and shift the columns of a row with one cell too many.
"""

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from flip_flop.errors import InputError, nearest
from flip_flop.tasks.csv_rows import check_columns, read_csv_rows


class NumberedRow(NamedTuple):
    """One row, and the line or row number at which it stands."""

    number: int
    fields: dict[str, Any]


READABLE = (".csv", ".tsv", ".jsonl", ".json", ".parquet")


def read_rows(path: Path, encoding: str = "utf-8") -> tuple[list[NumberedRow], str]:
    """Read a file by its suffix.

    Args:
        path: A ``.csv``, ``.tsv``, ``.jsonl``, ``.json`` (a list), or ``.parquet`` file.
        encoding: The encoding of a text file.

    Returns:
        The rows, and the word for their numbers: ``"line"`` or ``"row"``.

    Raises:
        InputError: ``E-DATA-FILE``, ``E-DATA-KIND``, ``E-DATA-ENCODING``, ``E-DATA-PARSE``,
            ``E-DATA-RAGGED``, ``E-DATA-DUPCOL`` or ``E-DATA-EMPTY``.
    """
    kind = path.suffix.lower()
    if kind not in READABLE:
        message = f"{path} is none of {', '.join(READABLE)}."
        raise InputError("E-DATA-KIND", message, "Convert it, or rename it to what it is.")
    if not path.is_file():
        beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
        raise InputError("E-DATA-FILE", f"there is no file {path}.", nearest(path.name, beside))
    if kind == ".parquet":
        rows, unit = _read_parquet(path), "row"
    else:
        text = _read_text(path, encoding)
        if kind in (".csv", ".tsv"):
            found = read_csv_rows(text, "," if kind == ".csv" else "\t", str(path))
            rows, unit = [NumberedRow(*row) for row in found], "line"
        elif kind == ".jsonl":
            rows, unit = _read_jsonl(text, path), "line"
        else:
            rows, unit = _read_json(text, path), "row"
    if not rows:
        raise InputError("E-DATA-EMPTY", f"{path} has no rows.", "Add at least one row.")
    return rows, unit


def _read_text(path: Path, encoding: str) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}."
        raise InputError("E-DATA-FILE", message, "Check its permissions.") from None
    try:
        # A byte order mark is how spreadsheets write UTF-8: it is no part of the first column's name.
        text = content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except LookupError:
        message = f"{path}: there is no encoding {encoding!r}."
        raise InputError("E-DATA-ENCODING", message, "Name one that Python knows, such as latin-1.") from None
    except UnicodeError as error:
        at = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        guess = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "latin-1"
        message = f"{path} is not {encoding}{at}."
        raise InputError("E-DATA-ENCODING", message, f"Save it as UTF-8, or set encoding: {guess}.") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError("E-DATA-PARSE", f"{path} line {line} holds a NUL byte.", "Remove it.")
    return text


class _BadValueError(ValueError):
    """A JSON value that JSON does not have, or that hides another."""


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    repeated = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
    if repeated:
        raise _BadValueError(f"the key {repeated[0]!r} stands twice in one object")
    return dict(pairs)


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _BadValueError(f"the number {text} is not finite")
    return value


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_pairs, parse_constant=_float, parse_float=_float)
    except RecursionError:
        raise _BadValueError("it is nested too deeply") from None
    if "\\ud" in text.lower():
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError:
            raise _BadValueError("a \\ud escape is half of a character") from None
    return value


def _read_jsonl(text: str, path: Path) -> list[NumberedRow]:
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = _parse_json(line)
            if not isinstance(value, dict):
                raise _BadValueError(f"it is not an object but {_json_kind(value)}")
        except ValueError as error:
            torn = number == len(lines) and isinstance(error, json.JSONDecodeError)
            hint = "The file seems cut short: remove or complete its last line." if torn else "Mend that line."
            problem = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else error
            raise InputError("E-DATA-PARSE", f"{path} line {number}: {problem}.", hint) from None
        rows.append(NumberedRow(number, value))
    return rows


def _read_json(text: str, path: Path) -> list[NumberedRow]:
    if not text.strip():
        return []
    try:
        values = _parse_json(text)
        if not isinstance(values, list):
            raise _BadValueError(f"it is not a list of objects but {_json_kind(values)}")
        for number, value in enumerate(values, start=1):
            if not isinstance(value, dict):
                raise _BadValueError(f"row {number} is not an object but {_json_kind(value)}")
    except ValueError as error:
        hint = "Write a list of objects, or one object per line in a .jsonl file."
        raise InputError("E-DATA-PARSE", f"{path}: {error}.", hint) from None
    return [NumberedRow(number, value) for number, value in enumerate(values, start=1)]


def _json_kind(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), "a number")


def _read_parquet(path: Path) -> list[NumberedRow]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
        columns = table.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        first_line = str(error).strip().split("\n")[0][:200].rstrip(".")
        raise InputError("E-DATA-PARSE", f"{path}: {first_line}.", "Write the parquet file again.") from None
    check_columns(table.column_names, str(path))
    return [NumberedRow(number, fields) for number, fields in enumerate(columns, start=1)]
