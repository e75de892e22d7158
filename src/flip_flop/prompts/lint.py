"""Errors and warnings about templates on rendered rows."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import NamedTuple

from flip_flop.console import count, is_blank
from flip_flop.errors import InputError
from flip_flop.prompts.sandbox import SEPARATOR, Fields, draws_at_random, names_of, reference, without_constants
from flip_flop.prompts.template import Rendering, Template, TemplateSet, check_rendering

LONG = 8192
"""Characters from which a prompt counts as long: about the context of a small model, in characters."""

_ROWS_FOR_DRAWS = 5
_ROWS_FOR_TOKENS = 200
_ROWS_FOR_LABEL_TWINS = 20
_NO = frozenset(["no", "false", "incorrect", "wrong", "never", "negative", "impossible"])
_POSITIONS = frozenset(["a", "b", "c", "1", "2", "3", "first", "second", "third", "one", "two", "left", "right"])
_YES = frozenset(["yes", "true", "correct", "right", "always", "positive", "guaranteed"])
# In the code of a template, a method of a dictionary that is not called.
UNCALLED = re.compile(
    r"\{[{%](?:(?![%}]\}).)*?\.(clear|copy|fromkeys|get|items|keys|pop|popitem|setdefault|update|values)\b(?!\s*\()",
    re.S,
)

Encode = Callable[[Rendering, Fields], Iterable[str]]


class LintRow(NamedTuple):
    """One row: its location for messages, its fields, and its gold label's index or None.

    ``renderings`` has the prompt and the answers under each template. It is empty for a row that is not rendered yet.
    """

    location: str
    fields: Fields
    gold: int | None
    renderings: Sequence[Rendering] = ()


@dataclass(frozen=True)
class Finding:
    """An error (``E-``) or warning (``W-``) about a template, in ``num_rows`` rows.

    ``row`` names the first of these rows. It is empty for a finding about all rows.
    """

    code: str
    template: str
    row: str
    message: str
    num_rows: int = 1

    @property
    def is_error(self) -> bool:
        """Whether the template must be changed."""
        return self.code.startswith("E-")


def lint_templates(
    templates: TemplateSet,
    rows: Sequence[LintRow],
    *,
    label_field: str | None,
    num_labels: int | None = None,
    seed: int = 0,
    encode: Encode | None = None,
    limit: int | None = None,
) -> list[Finding]:
    """Check templates on rows. Errors come first, in the order of the templates.

    Of rows with renderings, only targets and random choices are rendered.

    Args:
        templates: The templates.
        rows: The rows.
        label_field: The field that templates must not read.
        num_labels: The number of answers; by default that of the first rendering.
        seed: The seed of random choices.
        encode: Encodes a prompt with its answers, raises the errors of a model's tokenizer, and returns the special
            tokens that are printed from the row's fields.
        limit: Check the renderings of this many rows; all are searched for blank texts.
    """
    lint = _Lint(templates, rows[:limit], label_field, num_labels, seed)
    for number, row in enumerate(lint.rows):
        for index, template in enumerate(templates):
            rendering = lint.rendering(index, template, row)
            lint.renderings[template.name].append(rendering)
            if rendering is None:
                continue
            lint.check_length_and_prefixes(template, row, *rendering)
            if encode is not None and number < _ROWS_FOR_TOKENS:
                lint.check_tokens(template, row, rendering, encode)
            if row.gold is not None and SEPARATOR in template.jinja:
                lint.check_target(template, row, rendering[1], row.gold)
    columns = {column for row in rows for column in row.fields} - {label_field}
    for template in templates:
        if draws_at_random(f"{template.jinja} {template.answer_choices}"):
            lint.check_draws(template)
        lint.check_code(template, columns)
        lint.check_fields(template, rows, columns)
    lint.check_label_twins()
    lint.check_duplicates()
    lint.check_word_order()
    names = templates.names
    return sorted(
        lint.findings.values(),
        key=lambda finding: (not finding.is_error, names.index(finding.template), finding.code),
    )


def lines_of(findings: Sequence[Finding]) -> list[tuple[str, str, str]]:
    """Return code, template and message of each finding, in one line for several templates with the same finding."""
    names: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        message = finding.message
        if finding.row:
            message = f"{finding.row}{_and_more(finding.num_rows)}: {message}"
        names.setdefault((finding.code, message), []).append(finding.template)
    return [
        (code, f"{templates[0]}{_and_more(len(templates))}", message) for (code, message), templates in names.items()
    ]


def _and_more(number: int) -> str:
    return f" and {number - 1:,} more" if number > 1 else ""


@dataclass
class _Lint:
    """The findings by code and template, each with the message of its first row and the number of its rows."""

    templates: TemplateSet
    rows: Sequence[LintRow]
    label_field: str | None
    num_labels: int | None
    seed: int
    findings: dict[tuple[str, str], Finding] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.renderings: dict[str, list[Rendering | None]] = {name: [] for name in self.templates.names}
        self.targets: dict[str, set[int]] = {name: set() for name in self.templates.names}

    def add(self, code: str, template: str, row: str, message: str) -> None:
        first = self.findings.get((code, template), Finding(code, template, row, message, 0))
        self.findings[code, template] = replace(first, num_rows=first.num_rows + 1)

    def add_error(self, error: InputError, template: Template, row: LintRow, code: str = "", prefix: str = "") -> None:
        message = error.message.split(f"{row.location}: ", 1)[-1]
        message = message.split("template number 1: ", 1)[-1]
        self.add(code or error.code, template.name, row.location, f"{prefix}{message} {error.hint}".strip())

    def render(self, template: Template, row: LintRow, seed: int) -> Rendering:
        return template.render(
            row.fields,
            self.label_field,
            instance_id=row.location,
            seed=seed,
            row=row.location,
            value_limit=self.templates.value_limit,
            has_choices=self.templates.has_choices,
        )

    def rendering(self, index: int, template: Template, row: LintRow) -> Rendering | None:
        """Return a row's valid prompt and answers under a template. Add the error of others, and return None."""
        try:
            prompt, choices = row.renderings[index] if row.renderings else self.render(template, row, self.seed)
            check_rendering(template, prompt, choices, self.num_labels or len(choices), row.location)
        except InputError as error:
            self.add_error(error, template, row)
            return None
        self.num_labels = self.num_labels or len(choices)
        return prompt, choices

    def check_length_and_prefixes(
        self, template: Template, row: LintRow, prompt: str, choices: tuple[str, ...]
    ) -> None:
        if len(prompt) > LONG:
            self.add("W-TPL-LONG", template.name, row.location, f"the prompt has {len(prompt):,} characters.")
        for short, long in combinations(sorted(choices, key=len), 2):
            if long.lower().startswith(short.lower()):
                but = "" if long.startswith(short) else ", apart from upper and lower case"
                self.add(
                    "W-TPL-CHOICE-PREFIX",
                    template.name,
                    row.location,
                    f"the answer {short!r} is the beginning of the answer {long!r}{but}.",
                )

    def check_tokens(self, template: Template, row: LintRow, rendering: Rendering, encode: Encode) -> None:
        """Check that the model's tokens distinguish the answers."""
        try:
            found = sorted(encode(rendering, row.fields))
        except InputError as error:
            self.add_error(error, template, row)
            return
        if found:
            what = f"its fields have special tokens of the model, such as {', '.join(found[:3])}."
            self.add("W-SPECIAL-TOKEN", template.name, row.location, what)

    def check_target(self, template: Template, row: LintRow, choices: tuple[str, ...], gold: int) -> None:
        """Check that the template's target is the answer of the gold label."""
        try:
            target = template.target(row.fields, choices, seed=self.seed, row=row.location)
        except InputError as error:
            self.add_error(error, template, row, "W-TPL-TARGET", "its target fails: ")
            return
        if target in choices:
            index = choices.index(target)
            self.targets[template.name].add(index)
            if index != gold:
                self.add(
                    "E-TPL-LABELS",
                    template.name,
                    row.location,
                    f"its target is answer {index + 1}, {target!r}; the gold label is number {gold + 1}.",
                )

    def check_draws(self, template: Template) -> None:
        """Check whether the text depends on the seed."""
        for row, rendering in zip(self.rows[:_ROWS_FOR_DRAWS], self.renderings[template.name], strict=False):
            if rendering is None:
                continue
            for seed in range(self.seed + 1, self.seed + 4):
                try:
                    again = self.render(template, row, seed)
                except InputError:
                    again = ("", ())
                if again != rendering:
                    what = "prompt changes" if again[0] != rendering[0] else "answers change"
                    self.add("W-TPL-RANDOM", template.name, row.location, f"the {what} with the seed.")
                    return

    def check_code(self, template: Template, columns: set[str]) -> None:
        """Check whether the code reads the fields that the template names."""
        code = without_constants(f"{template.jinja} {template.answer_choices}")
        in_braces = re.findall(r"(?<!\{)\{\s*([^{}]+?)\s*\}(?!\})", without_constants(template.jinja))
        for column in sorted(columns.intersection(in_braces)):
            expression = reference(column, columns)
            self.add("W-TPL-BRACES", template.name, "", f"{{{column}}} is only text. Write {{{{ {expression} }}}}.")
        for method in UNCALLED.findall(code):
            what = f".{method} is a dictionary's method. Write [{method!r}] for an item."
            self.add("W-TPL-METHOD", template.name, "", what)

    def check_fields(self, template: Template, rows: Sequence[LintRow], columns: set[str]) -> None:
        """Check whether the prompt prints a text of each row."""
        renderings = self.renderings[template.name]
        is_same = any(renderings) and len(set(renderings)) == 1
        if is_same and any(row.fields != self.rows[0].fields for row in self.rows):
            self.add("W-TPL-CONSTANT", template.name, "", "the prompt is the same for every row.")
        printed = columns & names_of(template.jinja, printed=True)
        blank = [row.location for row in rows if all(is_blank(row.fields.get(column)) for column in printed)]
        if printed and blank:
            where = f"{count(len(blank), 'row')}, first {', '.join(blank[:3])}"
            self.add("W-TPL-BLANK", template.name, "", f"every field that it prints is blank in {where}.")

    def check_label_twins(self) -> None:
        """Check whether a prompt reads a field that determines the gold label."""
        rows = [row for row in self.rows if row.gold is not None]
        golds = {row.gold for row in rows}
        if len(rows) < _ROWS_FOR_LABEL_TWINS or len(golds) < 2:
            return
        for name in rows[0].fields:
            pairs = {(repr(row.fields.get(name)), row.gold) for row in rows}
            values = {value for value, _ in pairs}
            is_twin = len(values) == len(pairs) == len(golds)
            if name == self.label_field or not is_twin:
                continue
            what = f"it reads the field {name!r}, which gives away the gold label in all {len(rows):,} rows."
            for template in self.templates:
                if _reads(template, rows[0], name):
                    self.add("W-TPL-LABEL-TWIN", template.name, "", what)

    def check_duplicates(self) -> None:
        """Check whether two templates are equal, which would count twice in the vote."""
        if len(self.rows) < 2:
            return
        first: dict[tuple[Rendering | None, ...], str] = {}
        for name, renderings in self.renderings.items():
            if not any(renderings):
                continue
            earlier = first.setdefault(tuple(renderings), name)
            if earlier != name:
                self.add("E-TPL-DUP", name, "", f"it renders every row as the template {earlier!r} does.")

    def check_word_order(self) -> None:
        """Check whether two templates of one order have reversed answers, and lack targets that confirm theirs.

        Answers that name positions, such as A and B, must differ between two orders of one wording.
        """
        wordings = {template.name: template.levels.get("wording") for template in self.templates}
        orders = {template.name: template.levels.get("order") for template in self.templates}
        confirmed = {name for name, targets in self.targets.items() if len(targets) == self.num_labels}
        answers = {}
        for name, renderings in self.renderings.items():
            seen = {rendering[1] for rendering in renderings if rendering}
            if len(seen) == 1 and () not in seen:  # open answers have no choices
                answers[name] = seen.pop()
        for name, other in _reversed_words(answers):
            if orders[name] == orders[other] and not {name, other} <= confirmed:
                what = f"its answers {answers[name]} are in the reverse order of {other!r}, {answers[other]}."
                self.add("W-TPL-LABEL-ORDER", name, "", what)
        for other, name in combinations(answers, 2):
            is_swapped = wordings[name] == wordings[other] and orders[name] != orders[other]
            names_positions = all(_POSITIONS & {*choice.casefold().split()} for choice in answers[name])
            if is_swapped and names_positions and answers[name] == answers[other]:
                what = f"its answers {answers[name]} are also those of {other!r}, which has another order."
                self.add("W-TPL-LABEL-ORDER", name, "", what)


def _reads(template: Template, row: LintRow, name: str) -> bool:
    """Return whether the template reads the field of a row."""
    if name not in f"{template.jinja} {template.answer_choices}":
        return False
    try:
        template.render(row.fields, name, row=row.location)
    except InputError as error:
        return error.code == "E-TPL-LABEL-LEAK"
    return False


def _reversed_words(answers: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Yield pairs of templates with the same words in another order, or with yes and no reversed."""
    earlier: dict[str, tuple[str, ...]] = {}
    for name, answer in answers.items():
        words = tuple(choice.casefold().rstrip(".!") for choice in answer)
        signs = _signs(words)
        for other, theirs in earlier.items():
            other_signs = _signs(theirs)
            if signs and other_signs:
                is_reversed = signs != other_signs
            elif sorted(words) == sorted(theirs):
                is_reversed = words != theirs
            else:
                continue
            if is_reversed:
                yield name, other
            break
        earlier[name] = words


def _signs(choices: Sequence[str]) -> tuple[bool, bool] | None:
    """Return for each of two answers whether it means yes; None for other answers."""
    if len(choices) != 2 or not all(choice in _YES | _NO for choice in choices):
        return None
    first, second = (choice in _YES for choice in choices)
    return (first, second) if first != second else None
