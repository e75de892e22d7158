"""A commented task file for a data file: columns, labels and four templates, checked on its rows."""

import contextlib
import os
import re
import shlex
import string
import unicodedata
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml

from flip_flop.console import count, visible
from flip_flop.drafting.columns import (
    MAX_LABELS,
    NAMES,
    Ask,
    Columns,
    answer_columns,
    asked_columns,
    find_columns,
    judged_columns,
    verdict_column,
)
from flip_flop.drafting.library import (
    KINDS,
    choose_phrasings,
    guess_kind,
    know_sentiment,
    make_templates,
    prompt_phrasings,
    read_prompt,
)
from flip_flop.errors import InputError, log, require_known
from flip_flop.prompts import Finding, LintRow, Template, TemplateSet, lint_templates
from flip_flop.reading import NUMBER, AnswerFormat
from flip_flop.tasks import (
    PARTS,
    Rows,
    Task,
    are_grades,
    cell_text,
    holdout_size,
    label_text,
    label_words,
    parts_of,
    right_answers,
)
from flip_flop.texts import render
from flip_flop.variation.vary import vary_templates

NUM_TEMPLATES = 4  # of a drafted task
LINTED_ROWS = 1000
MIN_ROWS_TO_DIVIDE = 20
MIN_LABELLED_TO_DIVIDE = 100  # a decision needs 50 for testing
_REASONING = r".*(?:####|\\boxed\{|answer(?::| is:?))\s*"  # before a right answer, as in GSM8K and MATH
_FINAL = re.compile(rf"(?is){_REASONING}(.+)")


@dataclass(frozen=True)
class Draft:
    """A drafted task.

    Attributes:
        labels: The values of the label column, in the order of the answers. ``words`` has their meanings.
        language: The language of the templates, and whether that of the labels is known. Empty for a prompt.
        form: ``delimiter`` and ``encoding`` of the file, if they are not a comma and UTF-8.
        parts: The numbers of rows and of rows with a blank label in each part of the file. Empty if all rows are for
            testing, because the file is too small to be divided.
        findings: The warnings of lint.
        answer: The format of open answers.
    """

    source: Path
    kind: str
    columns: Columns
    labels: tuple[str, ...]
    words: tuple[str, ...]
    templates: tuple[Template, ...]
    language: str
    parts: dict[str, tuple[int, int]]
    form: dict[str, str]
    findings: tuple[Finding, ...] = field(repr=False)
    answer: AnswerFormat | None = None

    def text(self, out: Path) -> str:
        """Return the text of the task file ``out``. Its paths are relative to its folder."""
        path = Path(os.path.relpath(self.source, out.parent)).as_posix()
        filters = {"visible": visible, "scalar": _scalar, "quoted": _quoted, "label": _label}
        known = {"holdout_size": holdout_size, "are_grades": are_grades, "columns": self.columns, "path": path}
        return render("flip_flop.drafting", "task.yaml.jinja", filters=filters, draft=self, **known)


def draft_task(
    rows: Rows,
    *,
    texts: Sequence[str] = (),
    label: str | None = None,
    labels: Sequence[str] = (),
    kind: str | None = None,
    question: str = "",
    ask: Ask = None,
    prompt: Path | None = None,
) -> Draft:
    """Draft a task for the rows of a data file. The same file and arguments give the same draft.

    Args:
        rows: The rows.
        texts: One or two columns of text; by default found. Two columns are joined, unless ``kind``, their names or
            the labels suggest a pair.
        label: The column of gold labels or right answers; by default found, if the file has one.
        labels: The values of the label column in the order of the answers, or the words for numbers.
        kind: One of ``KINDS``; by default guessed.
        question: The question about a text, for ``yes_no``.
        ask: Asks the user for missing arguments. Without it, ambiguity is an error.
        prompt: A prompt to start from, instead of the question, and of texts and kind unless the kind is ``judge``. Two
            answers that it compares are exchanged in another template.

    Raises:
        InputError: ``E-INIT``, or the first error of lint.
    """
    is_judge = kind == "judge"
    if len(texts) > 2 and (not is_judge or len(texts) > 3):
        raise InputError(
            "E-INIT",
            f"--text names {len(texts)} columns.",
            "Give a question and one or two answers." if is_judge else "Give one or two.",
        )
    if prompt and (question or (not is_judge and (texts or kind))):
        raise InputError(
            "E-INIT",
            "--prompt has the text and the question.",
            "Leave --text, --question, and --kind unless it is judge, out.",
        )
    entries = []
    is_compared = len(texts) > 2
    if prompt:
        text, printed = read_prompt(prompt, rows.columns())
        require_known(texts, printed, "E-INIT", f"{prompt} does not print")
        if not texts:
            answers = answer_columns(printed)
            is_compared = is_judge and len(answers) == 2
            texts = [name for name in printed if name not in answers] + answers
        entries = prompt_phrasings(prompt, text, kind, "pair" if is_compared else "")
        kind = entries[0].kind
    if is_judge and not texts:
        texts = judged_columns(rows)
        is_compared = len(texts) > 2
    usual = ("first", "second") if is_compared else ("fail", "pass")
    is_named = label is not None or bool(labels)
    if is_judge and not is_named and (label := verdict_column(rows, texts)) is not None:
        verdicts = {label_text(row.fields.get(label)) for row in rows.rows}
        labels = usual if verdicts <= {"", *usual} else ()
    is_open = kind == "open"
    if is_open and labels:
        raise InputError("E-INIT", "--labels are of answer choices, and open answers have none.", "Leave it out.")
    if is_open:
        texts, label = asked_columns(rows, texts, label)
    columns = find_columns(rows, texts=texts, label=label, labels=labels, ask=ask, is_open=is_open)
    values, words = ((), ()) if is_open else _labels(rows, columns, tuple(labels), kind, ask, usual)
    has_options = bool(columns.options)
    has_question = [*map(str.lower, columns.texts[1:])] == ["question"]
    of_a_pair = kind in ("entailment", "yes_no") or "entail" in " ".join(words).lower()
    is_known_pair = [name.strip().lower() for name in columns.texts] in NAMES["pair"]
    is_pair = len(columns.texts) > 1 and (of_a_pair or has_question or is_known_pair)
    word = "" if is_pair or question else _word(columns.label)
    if kind == "sentiment" and not know_sentiment(words):
        log.warning(
            "W-INIT: the labels %s are not words of a sentiment. Use --kind topic for topics.",
            ", ".join(map(repr, words)),
        )
    if kind is None and (columns.label or "").lower() in NAMES["sentiment"] and len(words) == 2:
        kind = "sentiment"
    if kind is None:
        asked = has_question or bool(question or word)
        kind = guess_kind(words, is_pair=is_pair and not asked, has_options=has_options, has_question=asked)
        if ask is not None:
            kind = ask("Which kind of task is it?", kind or KINDS[0], KINDS)
    if kind is None:
        raise InputError(
            "E-INIT",
            f"{rows.source}: the meaning of {', '.join(map(repr, words))} is unknown.",
            "Add --kind, and --labels with a word for each label.",
        )
    given = set()
    if question or word or is_pair:
        given.add("question")
    if is_pair or (kind == "judge" and len(texts) == 2):
        given.add("other")
    if has_options:
        given.add("options")
    if is_compared:
        given.add("pair")
    cells = [str(row.fields.get(name)) for row in rows.rows[:LINTED_ROWS] for name in columns.texts]
    phrasings, order = choose_phrasings(kind, words, given, by_place=bool(labels), texts=cells, among=entries)
    is_known = is_open or (prompt and not is_judge) or phrasings.order(words, by_place=False)
    if kind == "judge" and not is_named and not is_known and columns.label:
        _refuse_no_verdicts(rows, columns)
    language = phrasings.language + ("" if is_known or prompt else " (the language of the labels is unknown)")
    if phrasings.question and (word or kind == "judge"):
        question = question or string.Template(phrasings.question).substitute(word=word)
    options = columns.options if kind == "choice" else ()
    if options:
        values = words = _option_labels(rows, columns)
        order = tuple(range(len(values)))
    values = tuple(values[index] for index in order)
    words = tuple(words[index] for index in order)
    templates = make_templates(
        phrasings, columns=rows.columns(), texts=columns.texts, words=words, options=options, question=question
    )
    linted = _lint_rows(rows, columns.label, values)
    if prompt:
        task = Task(prompt.stem, TemplateSet(tuple(templates)), {}, values, columns.label)
        number = NUM_TEMPLATES // len(templates) - 1
        if number:
            with contextlib.suppress(InputError):  # no template has another format
                task, _ = vary_templates(task, linted, {"format": number})
            templates = list(task.templates)
    findings = _lint(linted, templates, columns.label, len(options) or len(words))
    answer = _answer_format(rows, columns.label) if is_open else None
    if answer is not None:
        drafted = Task(rows.source, TemplateSet(tuple(templates)), label_field=columns.label, answer=answer)
        drafted.references(replace(rows, rows=rows.rows[:LINTED_ROWS]))  # refuses what an audit cannot read
    parts = _count_parts(rows, columns, label_words(values, answer))
    form = {key: rows.provenance[key] for key in ("delimiter", "encoding") if key in rows.provenance}
    return Draft(
        Path(rows.source),
        kind,
        columns,
        values,
        words,
        tuple(templates),
        language,
        parts,
        form,
        findings,
        answer,
    )


def _count_parts(rows: Rows, columns: Columns, labels: Collection[object]) -> dict[str, tuple[int, int]]:
    """Count the rows and the blank labels of each part, unless the labelled rows are too few to be divided."""
    if len(rows) < MIN_ROWS_TO_DIVIDE:
        return {}
    fields = [row.fields for row in rows.rows]
    counts = Counter(parts_of(fields, (*columns.texts, *columns.options), columns.label, labels))
    if counts["train", False] and counts["train", False] + counts["test", False] < MIN_LABELLED_TO_DIVIDE:
        return {}
    return {part: (counts[part, False] + counts[part, True], counts[part, True]) for part in PARTS}


def _labels(
    rows: Rows, columns: Columns, given: tuple[str, ...], kind: str | None, ask: Ask, usual: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the values of the label column and their words, in one order."""
    values = tuple(columns.values)
    if columns.options:
        return values, values
    if not values:
        if not given and kind == "judge":
            given = usual
        elif not given and ask is not None:
            given = split_labels(ask("No column holds labels. Which are there, such as no,yes?", "", ()))
        elif not given:
            named = [
                name for name in rows.columns() if name.strip().lower() in NAMES["label"] and name not in columns.texts
            ]
            why = "has no column of labels" + (f"; {named[0]!r} may be one" if named else "")
            hint = f"Give --label {shlex.quote(named[0])}, or name them" if named else "Name them"
            raise InputError("E-INIT", f"{rows.source} {why}.", f'{hint} with --labels, such as --labels "no,yes".')
        return given, given
    are_numbers = all(re.fullmatch(r"-?\d+", value) for value in values)
    is_scale = kind == "judge" and not given and "fail" in usual and len(values) > 2
    grades = [*map(int, values)] if is_scale and all(map(str.isdecimal, values)) else []
    if grades and max(grades) <= 10:
        values = tuple(map(str, range(min(grades), max(grades) + 1)))  # also grades that no row has
    if not given:
        if ask is not None and are_numbers and kind not in ("sentiment", "yes_no"):
            given = split_labels(ask(f"What do {', '.join(values)} mean, in this order?", ",".join(values), ()))
        elif are_numbers and (kind in ("topic", "entailment") or "first" in usual):
            raise InputError(
                "E-INIT",
                f"{rows.source}: the labels in {columns.label!r} are numbers: {', '.join(values)}.",
                "Give their words in this order with --labels.",
            )
        else:
            return values, values
    if set(values) <= set(given):
        return given, given
    if are_numbers and len(given) == len(values):
        return values, given
    raise InputError(
        "E-INIT",
        f"{rows.source}: {columns.label!r} holds {', '.join(map(repr, values))}, not {', '.join(map(repr, given))}.",
        "Give --labels all of its values, or a word for each number. Add --label none if it has no gold labels.",
    )


def _refuse_no_verdicts(rows: Rows, columns: Columns) -> None:
    """Refuse labels of a judge that the user has not named if they are perhaps no verdicts."""
    values = columns.values
    is_usual = (columns.label or "").strip().lower() in NAMES["label"]
    are_texts = len(values) == sum(values.values()) or not is_usual
    if len(values) > MAX_LABELS or (are_texts and not all(map(str.isdecimal, values))):
        raise InputError(
            "E-INIT",
            f"{rows.source}: {columns.label!r} holds {', '.join(map(repr, list(values)[:3]))}, which are perhaps no "
            "verdicts.",
            "Give --label COLUMN, or --label none.",
        )


def _answer_format(rows: Rows, label: str | None) -> AnswerFormat:
    """Return the format of texts, or what reads all right answers: numbers, or the answers that end a reasoning."""
    cells = [row.fields.get(label or "") for row in rows.rows]
    known = [text for cell in cells for text in map(label_text, right_answers(cell)) if text]
    ends = [found[1] for found in map(_FINAL.match, known) if found]
    number = AnswerFormat("number", stop=("\nQ",), max_tokens=256)
    if known and all(map(_is_number, known)):
        return number
    if not known or len(ends) < len(known):
        return AnswerFormat("text", stop=("\n",))
    if all(map(_is_number, ends)):
        return replace(number, extract="last_number")
    if all("\\boxed" in text for text in known):
        return replace(number, kind="latex")
    return replace(number, kind="text", extract=rf"(?is)(?:{_REASONING})?(.+)")


def _is_number(text: str) -> bool:
    text = text.strip(" \n.$}%*")
    return NUMBER.fullmatch(text) is not None and AnswerFormat("number").key(text) is not None


def split_labels(text: str) -> tuple[str, ...]:
    """Parse ``"no, yes"`` as two labels.

    Raises:
        InputError: ``E-INIT`` for fewer than two labels, an empty label or a duplicate.
    """
    found = tuple(part.strip() for part in unicodedata.normalize("NFC", text).split(","))
    if len(found) < 2 or "" in found or len(set(found)) < len(found):
        raise InputError(
            "E-INIT",
            f"--labels {text!r} are not two or more different labels.",
            "Write them with commas, such as no,yes.",
        )
    return found


def _word(label: str | None) -> str:
    """Return the word to ask about from the name of a label column; empty for a name such as ``label``."""
    word = re.sub(r"(?i)^(is|has|was|does|ist|hat|war|est|es|è)[ _]", "", (label or "").strip()).replace("_", " ")
    if word.lower().replace(" ", "_") in NAMES["label"]:
        return ""
    return word


def _option_labels(rows: Rows, columns: Columns) -> tuple[str, ...]:
    """Return the label of each option: a number from 0 or 1, a letter, or the option's column."""
    number = len(columns.options)
    values = set(columns.values)
    if not values:
        return ()
    forms = dict.fromkeys(
        [
            tuple(map(str, range(number))),
            tuple(map(str, range(1, number + 1))),
            tuple(string.ascii_uppercase[:number]),
            tuple(string.ascii_lowercase[:number]),
            columns.options,
        ]
    )
    fitting = [form for form in forms if set(form) == values] or [form for form in forms if values <= set(form)]
    if len(fitting) == 1:
        return fitting[0]
    message = f"{rows.source}: {columns.label!r} holds {', '.join(columns.values)}"
    hint = "letter or column there"
    if fitting:
        raise InputError("E-INIT", f"{message}, counted from 0 or from 1.", f"Write an option's {hint}.")
    raise InputError(
        "E-INIT", f"{message}, which do not name {count(number, 'option')}.", f"Write an option's number, {hint}."
    )


def _lint_rows(rows: Rows, label: str | None, values: Sequence[str]) -> list[LintRow]:
    index_of = {value: index for index, value in enumerate(values)} if label else {}
    return [
        LintRow(rows.location(row), row.fields, index_of.get(cell_text(row.fields.get(label or ""))))
        for row in rows.rows[:LINTED_ROWS]
    ]


def _lint(
    rows: Sequence[LintRow], templates: Sequence[Template], label: str | None, num_labels: int
) -> tuple[Finding, ...]:
    """Lint the templates on rows, and return the warnings.

    Raises:
        InputError: The first error.
    """
    asked = TemplateSet(tuple(templates), has_choices=num_labels > 0)
    found = lint_templates(asked, rows, label_field=label, num_labels=num_labels)
    for finding in found:
        if finding.is_error:
            where, hint = (f"{finding.row}: ", " ") if finding.row else ("", "")  # an error in a row has its hint
            raise InputError(finding.code, f"template {finding.template!r}, {where}{finding.message}", hint)
    return tuple(found)


def _scalar(text: str) -> str:
    """Return a text as YAML, quoted if YAML would read another value."""
    is_plain = re.fullmatch(r"[A-Za-z][\w./-]*", text, flags=re.ASCII) and yaml.safe_load(text) == text
    return text if is_plain else _quoted(text)


def _label(value: str) -> str:
    if re.fullmatch(r"0|-?[1-9]\d{0,8}", value):
        return value
    return _scalar(value)


def _quoted(text: str) -> str:
    return yaml.safe_dump(text, default_style='"', allow_unicode=True, width=float("inf")).strip()
