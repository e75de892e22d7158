"""One reader per kind of file: unconverted rows with their line numbers.

The usual CSV readers guess types ("NA" is missing, "007" is seven) and shift the columns of a row with a cell too many.
"""

import codecs
import csv
import io
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flip_flop.console import is_blank
from flip_flop.errors import InputError, first_repeated, nearest_file, require_package


class NumberedRow(NamedTuple):
    """One row, and its line or row number."""

    number: int
    fields: dict[str, Any]


_MAX_CELL = 1 << 20
SEPARATED = {".csv": ",", ".tsv": "\t"}  # and by what
ENCODINGS = "cp1252 (Western Europe), cp1254 (Turkish), gb18030 (Chinese), cp932 (Japanese) or cp949 (Korean)"
UTF16 = "utf-16-le (or utf-16-be)"  # without a mark at its beginning
READABLE = (*SEPARATED, ".jsonl", ".json", ".parquet", ".xlsx")
# What else may separate cells, with its name.
DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}


def read_rows(path: Path, encoding: str = "utf-8", delimiter: str | None = None) -> tuple[list[NumberedRow], str]:
    """Read a file by its suffix: its rows, and the word for their numbers, ``"line"`` or ``"row"``.

    ``delimiter`` separates the cells of a ``.csv`` or ``.tsv`` file, by default a comma or a tab.

    Raises:
        InputError: ``E-DATA-FILE``, ``E-DATA-ENCODING``, ``E-DATA-PARSE``, ``E-DATA-COLUMN`` or ``E-DATA-ROWS``.
    """
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise InputError(
            "E-DATA-FILE",
            f"{path} is none of {', '.join(READABLE)}.",
            "Save another spreadsheet as .xlsx or CSV UTF-8, convert another file, or correct the suffix.",
        )
    if not path.is_file():
        raise InputError("E-DATA-FILE", f"there is no file {path}.", nearest_file(path))
    unit = "row" if kind in (".json", ".parquet", ".xlsx") else "line"
    if kind == ".parquet":
        rows = _read_parquet(path)
    elif kind == ".xlsx":
        rows = _read_excel(path)
    else:
        text = read_text(path, encoding)
        if kind == ".jsonl":
            rows = _read_jsonl(text, path)
        elif kind == ".json":
            rows = _read_json(text, path)
        else:
            rows = [NumberedRow(*row) for row in read_csv_rows(text, delimiter, str(path), kind)]
    if not rows:
        raise InputError("E-DATA-ROWS", f"{path} has no rows.", "Add rows.")
    return rows, unit


# The texts that pandas reads or writes for a missing value.
MISSING = frozenset(
    (
        *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
        *("N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"),
    )
)


def cell_text(value: object) -> str:
    """Return a cell's value as text in NFC: empty without visible characters, and for None, NaN and pandas' NA and NaT.

    ``1.0`` is ``1``, because pandas stores a column of integers with missing values as floats.
    """
    is_missing = is_blank(value) if isinstance(value, str) else str(value) in MISSING
    return "" if is_missing else re.sub(r"\A(-?\d+)\.0\Z", r"\1", unicodedata.normalize("NFC", str(value)))


def label_text(value: object, labels: Iterable[object] = ()) -> str:
    """Return the text of a label: :func:`cell_text`, or empty for a text of :data:`MISSING` that is not a label."""
    return "" if (text := cell_text(value)).strip() in MISSING.difference(map(str, labels)) else text


def label_words(labels: Collection[object], answer: Any) -> Collection[object]:
    """Return the texts that are labels even if they are among :data:`MISSING`: the labels, or all of open texts."""
    return MISSING if answer is not None and answer.kind == "text" else labels


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file (``E-DATA-FILE``, ``E-DATA-ENCODING``, ``E-DATA-PARSE``)."""
    content = b""
    try:
        content = path.read_bytes()
        # Spreadsheets begin UTF-8 with a byte order mark, which does not belong to the first column's name.
        text = content.decode("utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding)
    except OSError as error:
        raise InputError("E-DATA-FILE", f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeError as error:
        place = f" at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        is_utf16 = content[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        others = UTF16 if b"\0" in content else ENCODINGS
        likely = "utf-16" if is_utf16 else others
        raise InputError(
            "E-DATA-ENCODING",
            f"{path} is not {encoding}{place}.",
            f"Save it as UTF-8, or set encoding (init: --encoding), for example {likely}.",
        ) from None
    except (LookupError, ValueError):  # it may hold a NUL character
        raise InputError(
            "E-DATA-ENCODING", f"{path}: unknown encoding {encoding!r}.", "Name one that Python knows, such as latin-1."
        ) from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(
            "E-DATA-PARSE", f"{path} line {line} holds a NUL byte.", f"Remove it, or set encoding: {UTF16}."
        )
    return text


def check_columns(columns: Sequence[str], where: str) -> None:
    """Reject two columns of one name (``E-DATA-COLUMN``)."""
    if (name := first_repeated(columns)) is not None:
        raise InputError("E-DATA-COLUMN", f"{where}: two columns are named {name!r}.", "Rename one of them.")


def read_csv_rows(text: str, delimiter: str | None, where: str, kind: str = ".csv") -> list[tuple[int, dict[str, str]]]:
    r"""The rows under a header line, each with the line at which it begins; blank lines are skipped.

    A cell is a text: types are not guessed. The default delimiter is that of the file's suffix. ``where`` names the
    file in an error.

    Raises:
        InputError: ``E-DATA-ENCODING``, ``E-DATA-PARSE`` or ``E-DATA-COLUMN``.
    """
    previous_limit = csv.field_size_limit(_MAX_CELL)
    between = delimiter or SEPARATED[kind]
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=between, strict=True)
    header: list[str] | None = None
    rows, line = [], 1
    try:
        for cells in reader:
            first_line, line = line, reader.line_num + 1
            if not cells:
                continue
            if header is None:
                header = cells
                check_columns(header, where)
                if delimiter is None:
                    _check_delimiter(header, where)
            elif len(cells) != len(header):
                raise InputError(
                    "E-DATA-PARSE",
                    f"{where} line {first_line}: {len(cells)} cells under {len(header)} columns.",
                    f'Put a cell that holds {between!r} in "quotes".',
                )
            else:
                rows.append((first_line, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise InputError(
            "E-DATA-PARSE",
            f"{where} line {line}: {error}.",
            'Close each quote, and write a quote inside a quoted cell as "".',
        ) from None
    finally:
        csv.field_size_limit(previous_limit)
    return rows


def _check_delimiter(columns: Sequence[str], where: str) -> None:
    """Refuse a single column that seems to hold the names of several (``E-DATA-ENCODING``)."""
    for delimiter, name in DELIMITERS.items():
        if len(columns) == 1 and delimiter in columns[0]:
            message = f"{where} has one column, {columns[0]!r}: its cells seem to be separated by {name}."
            entry = f"{{path: ..., delimiter: {json.dumps(delimiter)}}}"
            raise InputError(
                "E-DATA-ENCODING",
                message,
                f"Write it as {entry} in the task file (init: --delimiter), or save it with commas.",
            )


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if (key := first_repeated(key for key, _ in pairs)) is not None:
        raise ValueError(f"duplicate key {key!r} in one object")
    return dict(pairs)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):  # Python writes NaN for a missing value
        raise ValueError(f"the number {text} is not finite")
    return value


def _parse_json(text: str) -> Any:
    try:
        value = json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_finite, parse_float=_finite)
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeEncodeError:
        raise ValueError("a \\ud escape is half of a character") from None
    return value


def _json_object(value: Any, name: str = "it") -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


def _read_jsonl(text: str, path: Path) -> list[NumberedRow]:
    lines = text.split("\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                rows.append(NumberedRow(number, _json_object(_parse_json(line))))
            except json.JSONDecodeError as error:
                raise InputError(
                    "E-DATA-PARSE",
                    f"{path} line {number}: column {error.colno}: {error.msg}.",
                    "The file seems incomplete: remove or complete its last line." if number == len(lines) else "",
                ) from None
            except ValueError as error:
                raise InputError("E-DATA-PARSE", f"{path} line {number}: {error}.") from None
    return rows


def _read_json(text: str, path: Path) -> list[NumberedRow]:
    try:
        values = _parse_json(text) if text.strip() else []
        if not isinstance(values, list):
            raise ValueError("it is not a list of objects")
        return [NumberedRow(index, _json_object(value, f"row {index}")) for index, value in enumerate(values, start=1)]
    except ValueError as error:
        raise InputError(
            "E-DATA-PARSE", f"{path}: {error}.", "Write a list of objects, or one object per line in a .jsonl file."
        ) from None


def _read_parquet(path: Path) -> list[NumberedRow]:
    import pyarrow.parquet

    try:
        check_columns(pyarrow.parquet.read_schema(path).names, str(path))
        table = with_short_floats(pyarrow.parquet.read_table(path))
        # A small file can have millions of equal rows. They share their fields.
        batches = table.to_batches(max_chunksize=10_000)
        rows = [fields for batch in batches for fields, equal in itertools.groupby(batch.to_pylist()) for _ in equal]
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ArithmeticError, LookupError, ValueError) as error:
        raise InputError("E-DATA-PARSE", f"{path}: {_first_line(error)}.", "Write the parquet file again.") from None
    return [NumberedRow(number, fields) for number, fields in enumerate(rows, start=1)]


def with_short_floats(table: Any) -> Any:
    """Return a table whose 32-bit floats are the nearest short decimals: 0.1, and not 0.10000000149."""
    import pyarrow

    text, wide = pyarrow.string(), pyarrow.float64()
    for place, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
        if pyarrow.types.is_float32(kind.value_type if is_list else kind):
            steps = [pyarrow.list_(text), pyarrow.list_(wide)] if is_list else [text, wide]
            table = table.set_column(place, name, table[place].cast(steps[0]).cast(steps[1]))
    return table


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200].rstrip(".")


def _read_excel(path: Path) -> list[NumberedRow]:
    """Read the first sheet, with the row numbers of the spreadsheet. Skip empty rows and columns without a name."""
    require_package("openpyxl", "xlsx", "E-DATA-FILE", str(path))
    import openpyxl

    try:
        with path.open("rb") as file:
            sheet = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets[0]
            sheet.reset_dimensions()  # one far cell would widen every row
            rows = sheet.iter_rows(max_row=1 << 20)  # Excel has no more
            named = [(index, str(name)) for index, name in enumerate(map(_plain, next(rows, ()))) if cell_text(name)]
            cells = [{name: _plain(row[index]) if index < len(row) else "" for index, name in named} for row in rows]
    except Exception as error:  # a damaged archive raises many kinds
        raise InputError(
            "E-DATA-PARSE", f"{path}: {type(error).__name__}: {_first_line(error)}.", "Save it again as .xlsx."
        ) from None
    check_columns([name for _, name in named], str(path))
    return [
        NumberedRow(number, fields) for number, fields in enumerate(cells, 2) if any(map(cell_text, fields.values()))
    ]


def _plain(cell: Any) -> Any:
    """Return the value of a spreadsheet's cell: a date as text, None for an error."""
    value = "" if cell.value is None else cell.value
    return None if cell.data_type == "e" else value if isinstance(value, str | int | float) else str(value)
