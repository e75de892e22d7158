"""One reader per kind of file: unconverted rows with their line numbers.

The usual CSV readers guess types ("NA" is missing, "007" is seven) and shift the columns of a row with a cell too many.
"""

import codecs
import contextlib
import csv
import io
import itertools
import json
import math
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

from flip_flop.console import count, is_blank
from flip_flop.errors import InputError, first_repeated, nearest_file, require_package
from flip_flop.files import Json


class NumberedRow(NamedTuple):
    """One row, and its line or row number."""

    number: int
    fields: Json


_MAX_CELL = 1 << 20
_ROWS_FOR_HEADER = 1000
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
    kind = _kind_of(path)
    unit = "row" if kind in (".json", ".parquet", ".xlsx") else "line"
    if kind == ".parquet":
        rows = _read_parquet(path)
    elif kind == ".xlsx":
        rows = _read_excel(path)
    elif kind == ".json":
        rows = _read_json(read_text(path, encoding), path)
    else:
        lines = io.StringIO(read_text(path, encoding), newline="")
        rows = [*_read_lines(lines, kind, delimiter, path)]
    if not rows:
        raise InputError("E-DATA-ROWS", f"{path} has no rows.", "Add rows.")
    return rows, unit


def stream_rows(path: Path) -> Iterator[NumberedRow]:
    """Yield the rows of a file in UTF-8, of any size if it is CSV, TSV or JSONL; errors as :func:`read_rows`."""
    kind = _kind_of(path)
    if kind not in (*SEPARATED, ".jsonl"):
        yield from read_rows(path)[0]
        return
    with _text_errors(path, "utf-8"), path.open(encoding="utf-8-sig", newline="") as file:
        yield from _read_lines(file, kind, None, path)


def _read_lines(lines: Iterable[str], kind: str, delimiter: str | None, path: Path) -> Iterator[NumberedRow]:
    if kind == ".jsonl":
        return _read_jsonl(lines, path)
    return read_csv_rows(lines, delimiter, str(path), kind)


def _kind_of(path: Path) -> str:
    """Return the suffix of a file that exists and can be read (``E-DATA-FILE``)."""
    kind = path.suffix.lower()
    if kind not in READABLE:
        raise InputError(
            "E-DATA-FILE",
            f"{path} is none of {', '.join(READABLE)}.",
            "Save another spreadsheet as .xlsx or CSV UTF-8, convert another file, or correct the suffix.",
        )
    if not path.is_file():
        raise InputError("E-DATA-FILE", f"there is no file {path}.", nearest_file(path))
    return kind


# A formula without a value, in spreadsheets in English, German, French, Spanish and Italian, and in LibreOffice.
CELL_ERRORS = frozenset(
    re.findall(
        r"\S+",
        "#REF! #NAME? #VALUE! #DIV/0! #N/A #NUM! #NULL! #SPILL! #CALC! #FIELD! #BLOCKED! #CONNECT! #UNKNOWN! #ERROR! "
        "#GETTING_DATA #BEZUG! #WERT! #ZAHL! #NV #VALEUR! #NOM? #NOMBRE! #NUL! #N/D #¡REF! #¡VALOR! #¿NOMBRE? #¡DIV/0! "
        "#¡NUM! #¡NULO! #RIF! #VALORE! #NOME? Err:501 Err:502 Err:503 Err:504 Err:508 Err:509 Err:511 Err:512 Err:513 "
        "Err:519 Err:520 Err:522 Err:523 Err:524 Err:525 Err:532",
    )
)
# The texts that pandas reads or writes for a missing value, and those errors.
MISSING = CELL_ERRORS.union(
    ("", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>"),
    ("N/A", "NA", "NULL", "NaN", "NaT", "None", "n/a", "nan", "null"),
)


def only_item(value: object) -> object:
    """Return the item of a list of one, None for an empty list, and any other value unchanged."""
    if isinstance(value, list | tuple) and len(value) < 2:
        return value[0] if value else None
    return value


def cell_text(value: object) -> str:
    """Return a cell's value as text in NFC: empty without visible characters, and for None, NaN and pandas' NA and NaT.

    ``1.0`` is ``1``, because pandas stores a column of integers with missing values as floats. A list of one label is
    this label, and an empty list is missing.
    """
    value = only_item(value)
    is_missing = is_blank(value) if isinstance(value, str) else str(value) in MISSING
    if is_missing:
        return ""
    return re.sub(r"\A(-?\d+)\.0\Z", r"\1", unicodedata.normalize("NFC", str(value)))


def label_text(value: object, labels: Iterable[object] = ()) -> str:
    """Return the text of a label: :func:`cell_text`, or empty for a text of :data:`MISSING` that is not a label."""
    if (text := cell_text(value)).strip() in MISSING.difference(map(str, labels)):
        return ""
    return text


def lost_header(rows: Sequence[NumberedRow]) -> str | None:
    """Return a column that has the name of one of its values: the first row of a file may be data, and no header.

    Return None if another column has a name, which is one word and much shorter than the texts below it.
    """
    found = None
    for name in rows[0].fields:
        cells = [str(row.fields.get(name)) for row in rows[:_ROWS_FOR_HEADER]]
        if name in cells:
            found = found or name
        elif name.isidentifier() and 3 * len(name) * len(cells) < sum(map(len, cells)):
            return None
    return found


def label_words(labels: Collection[object], answer: Any) -> Collection[object]:
    """Return the labels, or :data:`MISSING` if answers are open texts, which can then be any word."""
    if answer is not None and answer.kind == "text":
        return MISSING
    return labels


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Read a text file (``E-DATA-FILE``, ``E-DATA-ENCODING``, ``E-DATA-PARSE``)."""
    with _text_errors(path, encoding):
        # Spreadsheets begin a text with a byte order mark, which does not belong to the first column's name.
        text = path.read_bytes().decode(encoding).removeprefix("\ufeff")
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InputError(
            "E-DATA-PARSE", f"{path} line {line} holds a NUL byte.", f"Remove it, or set encoding: {UTF16}."
        )
    return text


@contextlib.contextmanager
def _text_errors(path: Path, encoding: str) -> Iterator[None]:
    """Convert the errors of reading a text file."""
    try:
        yield
    except InputError:
        raise
    except OSError as error:
        raise InputError("E-DATA-FILE", f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeError as error:
        content = path.read_bytes()[:_MAX_CELL]
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


def check_columns(columns: Sequence[str], where: str) -> None:
    """Reject two columns of one name (``E-DATA-COLUMN``)."""
    if (name := first_repeated(columns)) is not None:
        raise InputError("E-DATA-COLUMN", f"{where}: two columns are named {name!r}.", "Rename one of them.")


def read_csv_rows(lines: Iterable[str], delimiter: str | None, where: str, kind: str = ".csv") -> Iterator[NumberedRow]:
    r"""Yield the rows under a header line, each with the line at which it begins; blank lines are skipped.

    A cell is a text: types are not guessed. An error of a spreadsheet is None. The default delimiter is that of the
    file's suffix; Excel's first line ``sep=;`` gives another. ``where`` names the file in an error.

    Raises:
        InputError: ``E-DATA-ENCODING``, ``E-DATA-PARSE`` or ``E-DATA-COLUMN``.
    """
    return _under_names(_csv_cells(lines, delimiter, where, kind), where, "line", str)


def _csv_cells(lines: Iterable[str], delimiter: str | None, where: str, kind: str) -> Iterator[tuple[int, list[str]]]:
    given = iter(lines)
    first = next(given, "")
    declared = re.match(r'"?sep=([^"\r\n])"?(\r?\n|\Z)', first)
    delimiter = declared[1] if declared else delimiter
    between = delimiter or SEPARATED[kind]
    reader = csv.reader(itertools.chain([first], given), delimiter=between, strict=True)
    line = 1
    columns = 0
    previous_limit = csv.field_size_limit(_MAX_CELL)
    try:
        for cells in reader:
            first_line = line
            line = reader.line_num + 1
            if not cells or (declared and first_line == 1) or not (columns or any(map(cell_text, cells))):
                continue
            if not columns:
                columns = len(cells)
                _check_delimiter(cells, delimiter, where)
            if len(cells) != columns:
                raise InputError(
                    "E-DATA-PARSE",
                    f"{where} line {first_line}: {count(len(cells), 'cell')} under {count(columns, 'column')}.",
                    f'Put a cell that holds {between!r} in "quotes".'
                    if len(cells) > columns
                    else f"Add the missing cells, with {between!r} between them.",
                )
            if between == "\t" and any("\t" in cell and "\n" in cell for cell in cells):
                raise InputError(
                    "E-DATA-PARSE",
                    f"{where} line {first_line}: a cell in quotes holds a tab and a line break.",
                    'Put a cell that begins with a quote in quotes, and write a quote inside it as "".',
                )
            yield first_line, cells
    except csv.Error as error:
        raise InputError(
            "E-DATA-PARSE",
            f"{where} line {line}: {error}.",
            'Close each quote, and write a quote inside a quoted cell as "".',
        ) from None
    finally:
        csv.field_size_limit(previous_limit)


def _check_delimiter(columns: Sequence[str], delimiter: str | None, where: str) -> None:
    """Refuse a single column that seems to hold the names of several (``E-DATA-ENCODING``)."""
    other = max((each for each in DELIMITERS if each != delimiter), key=columns[0].count)
    if len(columns) == 1 and other in columns[0]:
        message = f"{where} has one column, {columns[0]!r}: its cells seem to be separated by {DELIMITERS[other]}."
        entry = f"{{path: ..., delimiter: {json.dumps(other)}}}"
        raise InputError(
            "E-DATA-ENCODING",
            message,
            f"Write it as {entry} in the task file (init: --delimiter), or save it with commas.",
        )


def _under_names(
    rows: Iterator[tuple[int, Sequence[Any]]], where: str, unit: str, letter: Callable[[int], str]
) -> Iterator[NumberedRow]:
    """Yield the rows under the first row that is not blank, which names their cells (``E-DATA-COLUMN``).

    A column without a name must be blank. The first one may hold row numbers, which pandas writes there.
    """
    header = next((cells for _, cells in rows if any(map(cell_text, cells))), ())
    names = {place: str(cell) for place, cell in enumerate(header) if cell_text(cell)}
    check_columns([*names.values()], where)
    seen = set()
    for number, cells in rows:
        values = [None if cell in CELL_ERRORS else cell for cell in cells]
        fields = {name: values[place] if place < len(values) else "" for place, name in names.items()}
        for place, cell in enumerate(cells):
            if place not in names and (text := cell_text(cell)):
                if place or text in seen or not text.isdecimal():
                    raise InputError(
                        "E-DATA-COLUMN",
                        f"{where}: column {letter(place + 1)} has no name, but {unit} {number} holds {text!r} in it.",
                        "Name each column in the first row, remove a title above the names, or write no row numbers.",
                    )
                seen.add(text)
                fields = {"": cell, **fields}
        yield NumberedRow(number, fields)


def _unique_keys(pairs: list[tuple[str, Any]]) -> Json:
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


def _json_object(value: Any, name: str = "it") -> Json:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


def _read_jsonl(lines: Iterable[str], path: Path) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield NumberedRow(number, _json_object(_parse_json(line)))
            except ValueError as error:
                reason = str(error).replace(": line 1", ",")
                raise InputError("E-DATA-PARSE", f"{path} line {number}: {reason}.") from None


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
        raise InputError("E-DATA-PARSE", f"{path}: {first_line(error)}.", "Write the parquet file again.") from None
    return [NumberedRow(number, fields) for number, fields in enumerate(rows, start=1)]


def with_short_floats(table: Any) -> Any:
    """Return a table whose 32-bit floats are the nearest short decimals: 0.1, and not 0.10000000149."""
    import pyarrow

    def with_numbers(kind: Any, numbers: Any) -> Any:
        """Return a type with other numbers in the place of 32-bit floats."""
        if pyarrow.types.is_float32(kind):
            return numbers
        if pyarrow.types.is_struct(kind):
            return pyarrow.struct([(field.name, with_numbers(field.type, numbers)) for field in kind])
        is_list = isinstance(kind, pyarrow.ListType | pyarrow.LargeListType | pyarrow.FixedSizeListType)
        if is_list:
            return pyarrow.list_(with_numbers(kind.value_type, numbers))
        return kind

    for place, (name, kind) in enumerate(zip(table.column_names, table.schema.types, strict=True)):
        text, wide = (with_numbers(kind, numbers) for numbers in (pyarrow.string(), pyarrow.float64()))
        if text != wide:
            table = table.set_column(place, name, table[place].cast(text).cast(wide))
    return table


def first_line(error: Exception) -> str:
    """Return the first line of an error, at most 200 characters without a final period."""
    return str(error).strip().split("\n")[0][:200].rstrip(".")


def _read_excel(path: Path) -> list[NumberedRow]:
    """Read the first visible sheet, with the row numbers of the spreadsheet. Skip empty rows."""
    require_package("openpyxl", "xlsx", "E-DATA-FILE", str(path))
    import openpyxl

    try:
        with path.open("rb") as file:
            sheets = openpyxl.load_workbook(file, read_only=True, data_only=True).worksheets
            sheet = next((each for each in sheets if each.sheet_state == "visible"), sheets[0])
            _check_sheet(sheet, path)
            sheet.reset_dimensions()  # one far cell would widen every row
            cells = ([*map(_plain, row)] for row in sheet.iter_rows(max_row=1 << 20))  # Excel has no more
            rows = [*_under_names(enumerate(cells, 1), str(path), "row", openpyxl.utils.get_column_letter)]
    except InputError:
        raise
    except Exception as error:  # a damaged archive raises many kinds
        raise InputError(
            "E-DATA-PARSE", f"{path}: {type(error).__name__}: {first_line(error)}.", "Save it again as .xlsx."
        ) from None
    return [row for row in rows if any(map(cell_text, row.fields.values()))]


def _check_sheet(sheet: Any, path: Path) -> None:
    """Refuse what openpyxl reads as blank cells: formulas without a result, and merged cells but the first."""
    for _, element in ElementTree.iterparse(sheet._get_source()):
        parts = {part.tag.rpartition("}")[2]: part for part in element}
        if "mergeCell" in parts:
            raise InputError(
                "E-DATA-PARSE",
                f"{path}: the cells {parts['mergeCell'].get('ref')} are merged.",
                "Unmerge them, and write the value in each.",
            )
        is_cell = element.tag.rpartition("}")[2] == "c"
        if is_cell and "f" in parts and element.get("t") != "str" and ("v" not in parts or not parts["v"].text):
            raise InputError(
                "E-DATA-PARSE",
                f"{path} cell {element.get('r')} has a formula without its result.",
                "Open and save the file in Excel or LibreOffice.",
            )
        if parts:
            element.clear()


def _plain(cell: Any) -> Any:
    """Return the value of a spreadsheet's cell: whole numbers as integers, dates as text, None for an error."""
    if cell.data_type == "e":
        return None
    value = "" if cell.value is None else cell.value
    if isinstance(value, str):  # it has control characters as _x000D_
        return re.sub("_x(?!0000)(00[0-9A-Fa-f]{2})_", lambda code: chr(int(code[1], 16)), value)
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(value, int | float):
        return value
    return str(value)
