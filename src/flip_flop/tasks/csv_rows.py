"""Rows of a CSV file, every cell the text that was written."""

import csv
import io
from collections.abc import Sequence

from flip_flop.errors import InputError

_MAX_CELL = 1 << 20
_QUOTES = 'Write a quote inside a quoted cell as "".'


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name (``E-DATA-DUPCOL``)."""
    for index, column in enumerate(columns):
        if column in columns[:index]:
            raise InputError("E-DATA-DUPCOL", f"{where}: two columns are named {column!r}.")


def read_csv_rows(text: str, delimiter: str, where: str) -> list[tuple[int, dict[str, str]]]:
    r"""The rows under a header line, each with the line at which it begins; blank lines are skipped.

    No type is guessed: a cell is the text between its delimiters. ``where`` names the file in an error.

    Raises:
        InputError: ``E-DATA-PARSE``, ``E-DATA-RAGGED``, ``E-DATA-DUPCOL`` or ``E-ROW-TOO-BIG``.

    Example:
        >>> read_csv_rows("id,text\n007,NA\n", ",", "tickets.csv")
        [(2, {'id': '007', 'text': 'NA'})]
    """
    previous_limit = csv.field_size_limit(_MAX_CELL)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
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
            elif len(cells) != len(header):
                message = f"{where} line {first_line}: {len(cells)} cells under {len(header)} columns."
                raise InputError("E-DATA-RAGGED", message, f'Put a cell that holds {delimiter!r} in "quotes".')
            else:
                rows.append((first_line, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        if "unexpected end" in str(error):
            message = f'{where} line {line}: a " in the row that begins here is never closed.'
            raise InputError("E-DATA-PARSE", message, f"Close it. {_QUOTES}") from None
        if "field larger" in str(error):
            message = f"{where} line {line}: a cell of more than {_MAX_CELL:,} characters."
            raise InputError("E-ROW-TOO-BIG", message, "Shorten it, or close a quote that was left open.") from None
        raise InputError("E-DATA-PARSE", f"{where} line {reader.line_num}: {error}.", _QUOTES) from None
    finally:
        csv.field_size_limit(previous_limit)
    return rows
