"""The columns of texts, labels and options in a data file, found by their contents and names."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from flip_flop.console import text_width
from flip_flop.errors import InputError, first_repeated, log, require_known
from flip_flop.reading import has_spaces
from flip_flop.tasks import MISSING, Rows, cell_text, label_text, only_item

# Asks the user, with a proposed answer; None without a terminal.
Ask = Callable[[str, str, Sequence[str]], str] | None

MAX_LABELS = 20  # a column of more values has labels only if the user names it
_MAX_NAMED_LABELS = 100
_LABEL_LENGTH = 50
_TEXT_LENGTH = 15
NAMES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
_ANSWER_NAME = re.compile(r"(?i)\s*(answer|response|output|completion|reply)_?([ab12])?\s*")
_NESTED = re.compile(r"""\s*[\[{]\s*(?:["'\[\]{}]|-?\d)""")  # the text of a list or an object, as JSON or in Python
_OPTION_NAME = re.compile(r"((?i:choice|option|ending|alternative|candidate|answer))_?([0-9A-Za-z])|[A-E]")


@dataclass(frozen=True)
class Columns:
    """The columns of a file.

    Attributes:
        texts: One or two columns of texts.
        label: The column of gold labels, or None.
        values: The frequencies of its values, sorted by value.
        options: The columns of options, for the kind ``choice``.
        ids: The column that names the rows, if there is one.
        missing: The texts of the label column that mean a missing label, such as ``None``.
    """

    texts: tuple[str, ...]
    label: str | None
    values: dict[str, int]
    options: tuple[str, ...]
    ids: tuple[str, ...]
    missing: tuple[str, ...]


def find_columns(
    rows: Rows,
    *,
    texts: Sequence[str] = (),
    label: str | None = None,
    labels: Sequence[str] = (),
    ask: Ask = None,
    is_open: bool = False,
) -> Columns:
    """Find the columns of a file, except the given ``texts`` and ``label``.

    A column that holds only the given ``labels`` is the label column. With ``is_open``, the label is an open answer.

    Raises:
        InputError: ``E-INIT`` for an unknown column, several candidates, or a label column of one value or too many.
    """
    names = rows.columns()
    has_none = label == "none" and label not in names
    label = None if has_none else label
    given = [*texts, *([] if label is None else [label])]
    require_known(given, names, "E-INIT", f"{rows.source} has no column")
    if label in texts:
        raise InputError("E-INIT", f"{label!r} cannot be both a text and the label.", "Give one of the two.")
    options = _options(names)
    if is_open or (texts and set(texts) & set(options)):
        options = ()
    if label is None and not has_none and not is_open:
        label = _label_column(rows, [name for name in names if name not in (*texts, *options)], labels, ask)
    values = {} if label is None or is_open else _label_values(rows, label, labels)
    if not texts:
        texts = _text_columns(rows, [name for name in names if name not in (label, *options)], ask)
    named = [name for name in names if name not in (*texts, label, *options) and _is_named_id(name)]
    ids = [name for name in named if _names_rows(rows, name)]
    repeated = {name: first_repeated(map(cell_text, _cells(rows, name))) for name in named if not ids}
    for name in [name for name, value in repeated.items() if value is not None][:1]:
        log.info("%s: the column %r does not name the rows, because %r occurs again", rows.source, name, repeated[name])
    missing = {cell_text(row.fields.get(label or "")).strip() for row in rows.rows} & MISSING
    return Columns(tuple(texts), label, values, options, tuple(ids[:1]), tuple(sorted(missing - {"", *labels})))


def judged_columns(rows: Rows) -> tuple[str, ...]:
    """Return the column of questions and one or two columns of answers, for the kind ``judge``.

    The answers have the order of their numbers or letters.

    Raises:
        InputError: ``E-INIT`` without them.
    """
    question = _named(rows, rows.columns(), NAMES["question"])
    answers = answer_columns(rows.columns())
    if question is None or not 1 <= len(answers) <= 2:
        raise InputError(
            "E-INIT",
            f"{rows.source}: no column of questions with one or two of answers by name.",
            "Give --text QUESTION --text ANSWER, and for pairs another --text ANSWER.",
        )
    return question, *answers


def answer_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of answers by name, in the order of their numbers or letters."""
    matches = [match for match in map(_ANSWER_NAME.fullmatch, names) if match]
    return [match.string for match in sorted(matches, key=lambda match: (match[2] or "").lower())]


def verdict_column(rows: Rows, texts: Sequence[str]) -> str | None:
    """Return the column of human verdicts by name, unless it is blank, for the kind ``judge``."""
    name = _named(rows, rows.columns(), NAMES["verdict"])
    if name and name not in texts and _cells(rows, name):
        return name
    return None


def asked_columns(rows: Rows, texts: Sequence[str], label: str | None) -> tuple[Sequence[str], str | None]:
    """Return the columns of texts and the column of right answers or None, for the kind ``open``.

    By default, the texts are a column of questions, after a column of context if there is one.

    Raises:
        InputError: ``E-INIT`` without questions.
    """
    names = rows.columns()
    if not texts:
        question = _named(rows, names, NAMES["question"])
        context = _named(rows, names, NAMES["context"])
        if question is None:
            raise InputError("E-INIT", f"{rows.source}: no column of questions by name.", "Give --text COLUMN.")
        texts = tuple(filter(None, (context, question)))
    reference = label or _named(rows, names, NAMES["reference"])
    return texts, label or (None if reference in texts else reference)


def _named(rows: Rows, names: Sequence[str], wanted: Sequence[str], ask: Ask = None) -> str | None:
    """Return the column of the first wanted name, in any case; ``E-INIT`` for two of it, unless ``ask`` follows."""
    plain = [name.strip().lower() for name in names]
    first = next((name for name in wanted if name in plain), None)
    alike = [name for name in names if name.strip().lower() == first]
    exact = [name for name in alike if name in wanted] or alike
    if len(exact) > 1 and ask is None:
        raise InputError(
            "E-INIT",
            f"{rows.source}: the names of the columns {' and '.join(map(repr, exact))} differ only in case or spaces.",
            "Give --text or --label.",
        )
    return exact[0] if exact else None


def _is_named_id(name: str) -> bool:
    """Whether a column has the name of an id, such as ``Ticket Nr.``."""
    words = re.findall(r"[^\W_]+|№", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ").lower())
    return not set(NAMES["id"]).isdisjoint(words)


def _names_rows(rows: Rows, name: str) -> bool:
    """Whether a column has another value in each row."""
    return len({cell_text(row.fields.get(name)) for row in rows.rows} - {""}) == len(rows)


def _cells(rows: Rows, name: str, labels: Sequence[str] = ()) -> list[Any]:
    found = (row.fields.get(name) for row in rows.rows)
    return [value for value in found if label_text(value, labels)]


def _options(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of a numbered or lettered series, such as ``choice1`` and ``choice2``."""
    by_stem: dict[str, list[str]] = {}
    for name in names:
        if found := _OPTION_NAME.fullmatch(name):
            by_stem.setdefault((found[1] or "").lower(), []).append(name)
    longest = max(by_stem.values(), key=len, default=[])
    return tuple(longest) if len(longest) > 1 else ()


def _label_column(rows: Rows, names: Sequence[str], labels: Sequence[str], ask: Ask) -> str | None:
    values_of = {}
    for name in names:
        cells = list(map(only_item, _cells(rows, name, labels)))
        if name.lower() not in NAMES["label"] and not all(isinstance(cell, str | int | float) for cell in cells):
            continue
        values = set(map(cell_text, cells))
        if 2 <= len(values) <= MAX_LABELS and len(values) < len(cells) and max(map(len, values)) <= _LABEL_LENGTH:
            values_of[name] = values
    candidates = list(values_of)
    fitting = [name for name in candidates if labels and values_of[name] <= set(labels)]
    column = fitting[0] if len(fitting) == 1 else _named(rows, candidates, NAMES["label"], ask)
    if labels and not fitting and column is None and ask is None:  # words for numbers, or labels of no column
        candidates = [name for name in candidates if len(values_of[name]) == len(labels)]
    if column is None and len(candidates) == 1:
        (column,) = candidates
    if ask is not None and candidates:
        answer = ask("Which column holds the labels?", column or "none", [*candidates, "none"])
        return None if answer == "none" else answer
    if column is None and candidates:
        raise InputError(
            "E-INIT",
            f"{rows.source}: the labels may be in {_listed(candidates)}.",
            "Give --label COLUMN, or --label none.",
        )
    return column


def _label_values(rows: Rows, label: str, labels: Sequence[str]) -> dict[str, int]:
    counts = Counter(map(cell_text, _cells(rows, label, labels)))
    nested = [value for value in counts if _NESTED.match(value) and value not in labels]
    if nested:
        raise InputError(
            "E-INIT",
            f"{rows.source}: the column {label!r} holds {nested[0]!r}, which is not one label.",
            "Write one label in each cell, or none.",
        )
    least = 1 if labels else 2  # all rows may have one of the given labels
    if not least <= len(counts) <= _MAX_NAMED_LABELS:
        raise InputError(
            "E-INIT",
            f"{rows.source}: the column {label!r} has {len(counts):,} different values.",
            f"A label column has 2 to {_MAX_NAMED_LABELS}. Name labels of no row with --labels.",
        )
    as_numbers = all(re.fullmatch(r"-?\d{1,9}", value) for value in counts)
    return {value: counts[value] for value in sorted(counts, key=int if as_numbers else None)}


def _text_columns(rows: Rows, names: Sequence[str], ask: Ask) -> tuple[str, ...]:
    worded = [name for name in names if _has_words(rows, name)]
    candidates = [name for name in worded if _is_text(rows, name)]
    plain = {name.strip().lower() for name in worded}
    for pair in NAMES["pair"]:
        if plain.issuperset(pair):
            return tuple(name for part in pair if (name := _named(rows, worded, [part])))
    alone = candidates[0] if len(candidates) == 1 else _named(rows, worded, NAMES["text"], ask)
    if alone is None and not candidates and len(worded) == 1:
        (alone,) = worded
    if ask is not None and worded:
        choices = candidates or worded
        return (ask("Which column holds the text?", alone or choices[0], choices),)
    if alone is None:
        if candidates:
            fault = f"the text may be in {_listed(candidates)}"
        else:
            fault = "no column holds texts"
        raise InputError("E-INIT", f"{rows.source}: {fault}.", "Give --text COLUMN; twice for a pair.")
    return (alone,)


def _has_words(rows: Rows, name: str) -> bool:
    return any(isinstance(value, str) and re.search(r"[^\W\d_]", value) for value in _cells(rows, name))


def _is_text(rows: Rows, name: str) -> bool:
    cells = [value for value in _cells(rows, name) if isinstance(value, str)]
    lengths = sum(map(text_width, cells)) / max(len(cells), 1)
    return lengths >= _TEXT_LENGTH and any(" " in value.strip() or not has_spaces(value) for value in cells)


def _listed(names: Sequence[str]) -> str:
    if len(names) > 1:
        return ", ".join(map(repr, names[:-1])) + f" or {names[-1]!r}"
    return repr(names[0])
