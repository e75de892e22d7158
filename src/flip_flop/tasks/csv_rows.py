"""Rows of a CSV file, every cell the text that was written."""

import csv
import io
from collections.abc import Sequence

from flip_flop.errors import InputError

_MAX_CELL = 1 << 20


def check_columns(columns: Sequence[str], where: str) -> None:
    """Refuse two columns of one name.

    Raises:
        InputError: ``E-DATA-DUPCOL``.

    Example:
        >>> check_columns(["text", "label"], "tickets.csv")
    """
    for index, column in enumerate(columns):
        if column in columns[:index]:
            message = f"{where}: two columns are named {column!r}."
            raise InputError("E-DATA-DUPCOL", message, "Rename one of them.")


def read_csv_rows(text: str, delimiter: str, where: str) -> list[tuple[int, dict[str, str]]]:
    r"""The rows under a header line, each with the line at which it begins.

    Nothing is guessed: a cell is the text between its delimiters. Blank lines are skipped.

    Args:
        text: The file's text.
        delimiter: What stands between cells.
        where: Words that name the file in an error.

    Raises:
        InputError: ``E-DATA-PARSE``, ``E-DATA-RAGGED`` or ``E-DATA-DUPCOL``.

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
                hint = f'Put a cell that holds {delimiter!r} in "quotes".'
                raise InputError("E-DATA-RAGGED", message, hint)
            else:
                rows.append((first_line, dict(zip(header, cells, strict=True))))
    except csv.Error as error:
        raise _parse_error(str(error), text, delimiter, line, reader.line_num, where) from None
    finally:
        csv.field_size_limit(previous_limit)
    return rows


def _parse_error(problem: str, text: str, delimiter: str, first_line: int, last_line: int, where: str) -> InputError:
    if "unexpected end" in problem:
        opening = _opening_line(text, delimiter, first_line)
        message = f'{where} line {opening}: a " opens there and is never closed.'
        return InputError("E-DATA-PARSE", message, 'Close it, or write a quote inside a quoted cell as "".')
    if "field larger" in problem:
        message = f"{where} line {first_line}: a cell of more than {_MAX_CELL:,} characters."
        return InputError("E-ROW-TOO-BIG", message, "Shorten it, or close a quote that was left open.")
    message = f"{where} line {last_line}: {problem}."
    return InputError("E-DATA-PARSE", message, 'Write a quote inside a quoted cell as "".')


def _opening_line(text: str, delimiter: str, first_line: int) -> int:
    """The line of the quote that is never closed, in the record that begins at ``first_line``."""
    line, opening = 1, first_line
    quoted, just_closed, at_cell_start = False, False, True
    for character in io.StringIO(text, newline=None).read():
        if line >= first_line:
            is_quote = character == '"'
            if is_quote and at_cell_start:
                quoted, opening = True, line
            elif is_quote and (quoted or just_closed):
                # A doubled quote closes and opens again: the opening that counts is the cell's.
                quoted, just_closed = not quoted, quoted
            else:
                just_closed = False
            at_cell_start = not quoted and character in (delimiter, "\n")
        line += character == "\n"
    return opening
