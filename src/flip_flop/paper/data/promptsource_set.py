"""Any PromptSource set as a task, with gold labels from the targets of its templates.

A target is the text behind a template's ``|||``, rendered on a labelled row. Its place among the answers is the gold
index, for any values of the label field.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_file
from flip_flop.hub import hub_answers, is_offline
from flip_flop.paper.data.promptsource import FILE_NAME, filter_templates, read_promptsource, templates_folder
from flip_flop.prompts import Template
from flip_flop.prompts.sandbox import names_of
from flip_flop.tasks import HubSource, Rows, Task, TaskRequest
from flip_flop.tasks.plugins import COMPUTED_LABEL
from flip_flop.tasks.readers import NumberedRow, cell_text
from flip_flop.tasks.task import Label

log = logging.getLogger("flip_flop")

_SPLITS = ("train", "validation", "test")
_ROWS_FOR_TARGETS = 2000
_NO_LABEL = "-1"  # the hub's label of an unlabelled row

Fields = Mapping[str, Any]


def load(request: TaskRequest) -> Task:
    """Load a set: the entry point ``promptsource``. Rows come from a task file, or from the hub's dataset of this name.

    Raises:
        InputError: ``E-TPL-FETCH``, ``E-TPL-UNKNOWN``, ``E-TPL-EMPTY``, ``E-TASK-KEY`` (unknown labels of a given
            field), or an error of the data.
    """
    folder, name, given = templates_folder(), request.name, dict(request.fields)
    candidates = read_promptsource(folder, name)
    sources = given.pop("data", None)
    splits = {key: each.load() for key, each in sources.items()} if sources else _hub_rows(name, request.hub_mirror)
    label_field, labels = given.pop("label_field", None), given.pop("labels", None)
    usable = [each.template for each in candidates if each.is_usable and isinstance(each.template, Template)]
    found = _Labels(splits, labels, label_field, label_field, {})
    if labels is None and usable:
        found = _find_labels(name, usable, splits, label_field)
    splits = found.splits if sources else _labelled_test(found.splits, found.field)
    left = [each for each in candidates if each.name not in found.wrong]
    usable = [each for each in usable if each.name not in found.wrong]
    num_labels, splits = _same_size(name, usable, splits, found)
    rows = (row.fields for each in splits.values() for row in each.rows)
    chosen = filter_templates(left, rows, label_field=found.hidden, num_labels=num_labels)
    dropped = tuple(sorted([*chosen.dropped, *found.wrong.items()]))
    if not len(chosen.kept):
        reasons = [f"{each.name!r}: {dict(dropped)[each.name]}" for each in candidates if each.is_usable]
        why = reasons[0] if reasons else "none has answers and asks for the dataset's own task"
        hint = "Name the columns as the templates do, or write your own templates."
        raise InputError("E-TPL-EMPTY", f"{name}: no PromptSource template can be used; {why}.", hint)
    source = {"promptsource": name, "sha256": sha256_file(folder / name / FILE_NAME)}
    splits = {key: replace(each, provenance={**each.provenance, "templates": source}) for key, each in splits.items()}
    return Task(
        **{"name": name.replace("/", "_"), **given},
        data=splits,
        templates=replace(chosen.kept, value_limit=request.value_limit),
        labels=found.labels,
        label_field=found.field,
        dropped_templates=dropped,
    )


def _hub_rows(name: str, mirror: Path | None) -> dict[str, Rows]:
    """Load the splits of the hub's dataset of this name; a mirror may have it under any owner."""
    repo, _, config = name.partition("/")
    found: dict[str, Rows] = {}
    first: InputError | None = None
    for place in dict.fromkeys([(repo, config or None), (name, None)]):
        for split in _SPLITS:
            try:
                found[split] = HubSource(place[0], place[1], split, mirror=mirror).of_any_owner().load()
            except InputError as error:
                first = first or error
                is_damaged = found and error.code != "E-DATA-FILE"
                if is_damaged or (mirror is None and not is_offline() and not hub_answers()):
                    raise
        if found:
            return found
    assert first is not None
    hint = f"Name your rows in a task file: data:, and templates: {{promptsource: {name}}}."
    raise InputError(first.code, first.message, hint)


@dataclass(frozen=True)
class _Labels:
    """The labels of a set.

    Attributes:
        hidden: The field that prompts must not read.
        wrong: Name and reason of each template with another order of answers.
    """

    splits: dict[str, Rows]
    labels: Sequence[Label] | None
    hidden: str | None
    field: str | None
    wrong: dict[str, str]


def _find_labels(name: str, templates: Sequence[Template], splits: dict[str, Rows], label_field: str | None) -> _Labels:
    rows = [row.fields for each in splits.values() for row in each.rows]
    sample = rows[:: max(1, len(rows) // _ROWS_FOR_TARGETS)]
    reads = {each.name: _reading(each, sample) for each in templates}
    targets = {each.name: [_target_index(each, reads[each.name](row)) for row in sample] for each in templates}
    # A few templates order or count their answers differently: the set has the most frequent targets.
    ways = Counter(tuple(found) for found in targets.values() if any(each is not None for each in found))
    way = ways.most_common(1)[0][0] if ways else ()
    wrong = {
        key: "its answers are in another order, or of another number, than most templates' (E-TPL-LABEL-ORDER)"
        for key, found in targets.items()
        if way and any(None not in (ours, most) and ours != most for ours, most in zip(found, way, strict=True))
    }
    left = [each for each in templates if each.name not in wrong]
    fields = dict.fromkeys(key for row in sample for key in row)
    named = [key for key in fields if any(key in names_of(each.jinja) for each in left)]
    names = [label_field] if label_field is not None else _by_hiding(named, left, sample)
    size = _size(left, sample)
    unanswered: dict[str, str] = {}
    for key in names:
        values = [cell_text(row.get(key)) or None for row in sample]
        answered = {value for value, at in zip(values, way, strict=False) if at is not None}
        if answered and (others := {*values} - answered - {None, _NO_LABEL}):
            unanswered[key] = ", ".join(map(repr, sorted(map(str, others))[:3]))
            continue
        labels = _by_target(values, way, [row.get(key) for row in sample], size) or _by_words(values, left)
        if labels:
            return _Labels(_without(splits, key, labels), labels, key, key, wrong)
    order = next((each.answer_choices for each in left), "")
    words = f"{name}: the templates do not determine a label field, so the rows have no gold labels"
    hint = f"Write label_field: and labels: in a task file, in the order of the answers {order}."
    for key, without in unanswered.items():
        message = f"{name}: the templates have no answer for {without} of the field {key!r}."
        raise InputError("E-TASK-KEY", message, hint)
    if label_field is not None:
        words = f"{name}: the templates do not map the values of {label_field!r} to answers"
        if label_field not in fields:
            words, hint = f"{name}: the rows have no field {label_field!r}", nearest(label_field, fields)
        raise InputError("E-TASK-KEY", f"{words}.", hint)
    if not any(each is not None for each in way) or not size:
        log.warning("W-SET-LABELS: %s. %s", words, hint)
        return _Labels(splits, None, None, None, wrong)
    asking = next(each for each in left if tuple(targets[each.name]) == way)
    read = reads[asking.name]

    def decides(key: str) -> bool:
        hiding = ({name: value for name, value in row.items() if name != key} for row in sample)
        return any(_target_index(asking, read(row)) != at for row, at in zip(hiding, way, strict=True))

    hidden = next(filter(decides, names), None)
    if hidden is not None:
        splits = _without(splits, hidden, ())
    with_index = {split: _with_index(each, asking, read, hidden) for split, each in splits.items()}
    return _Labels(with_index, tuple(range(size)), hidden, COMPUTED_LABEL, wrong)


def _reading(template: Template, sample: Sequence[Fields]) -> Callable[[Fields], Fields]:
    """Return the conversion of rows under which targets give the most answers: none, or texts to numbers."""
    as_they_are, typed = (
        {_target_index(template, read(row)) for row in sample[:200]} - {None} for read in (dict, _typed)
    )
    return _typed if len(typed) > len(as_they_are) else dict


def _typed(fields: Fields) -> dict[str, Any]:
    """Convert texts of a CSV file to numbers and truth values."""
    words = {"true": True, "false": False}

    def value_of(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > 9:
            return value
        return int(value) if value.lstrip("-").isdecimal() else words.get(value.lower(), value)

    return {key: value_of(value) for key, value in fields.items()}


def _by_hiding(names: Sequence[str], templates: Sequence[Template], sample: Sequence[Fields]) -> list[str]:
    """Return the fields that at least half of the prompts do not read, by the number of prompts that read them."""
    missing = {}
    for name in names:
        row = next((row for row in sample if row.get(name) is not None), None)
        if row is not None and isinstance(row[name], str | int | float):
            missing[name] = sum(not _renders(each, row, name) for each in templates)
    return sorted((name for name in missing if 2 * missing[name] <= len(templates)), key=lambda name: missing[name])


def _size(templates: Sequence[Template], sample: Sequence[Fields]) -> int:
    """Return the most frequent number of answers."""
    sizes = Counter(len(choices) for row in sample[:200] for each in templates if (choices := _answers(each, row)))
    return sizes.most_common(1)[0][0] if sizes else 0


def _by_target(
    values: Sequence[str | None], way: Sequence[int | None], raw: Sequence[Any], size: int
) -> tuple[Label, ...] | None:
    """Return the values of a field in the order of the answers, if values and answers correspond one to one."""
    pairs = {(value, index) for value, index in zip(values, way, strict=False) if None not in (value, index)}
    if len(dict(pairs)) != len(pairs) or len({index for _, index in pairs}) != len(pairs):
        pairs = {pair for pair in pairs if pair[0] != _NO_LABEL}
    by_index = {index: value for value, index in pairs if index is not None}
    if not by_index or not len(by_index) == len(pairs) == len(dict(pairs)):
        return None
    of_value = {str(value): value for value in raw if type(value) is int}
    labels = {at: of_value.get(str(value), str(value)) for at, value in by_index.items()}
    if len(labels) == size:
        return tuple(labels[at] for at in range(size)) if set(labels) == set(range(size)) else None
    # If labels are consecutive numbers, the label of an answer without rows is known.
    if len(labels) < 2 or not all(str(value).lstrip("-").isdecimal() for value in labels.values()):
        return None
    offset, *others = {int(value) - at for at, value in labels.items()}
    if others:
        return None
    kind = type(next(iter(labels.values())))
    return tuple(kind(at + offset) for at in range(size))


def _by_words(values: Sequence[str | None], templates: Sequence[Template]) -> tuple[Label, ...] | None:
    """Return the values of a field that are the answers of some template, in their order."""
    words = {value for value in values if value and value != _NO_LABEL}
    for template in templates:
        order = {each.casefold(): at for at, each in enumerate(_answers(template, {}) or ())}
        found = {order.get(word.strip().casefold()): word for word in words}
        if len(found) == len(words) == len(order) and None not in found:
            return tuple(found[at] for at in range(len(order)))
    return None


def _without(splits: dict[str, Rows], field: str, labels: Sequence[Label]) -> dict[str, Rows]:
    """Replace the hub's label of unlabelled rows by None."""
    if _NO_LABEL in map(str, labels):
        return splits

    def unlabelled(row: NumberedRow) -> NumberedRow:
        is_missing = str(row.fields.get(field)) == _NO_LABEL
        return row._replace(fields={**row.fields, field: None}) if is_missing else row

    return {split: replace(rows, rows=tuple(map(unlabelled, rows.rows))) for split, rows in splits.items()}


def _labelled_test(splits: dict[str, Rows], field: str | None) -> dict[str, Rows]:
    """Use validation as the test split if the test split is missing or has no labels."""

    def is_labelled(split: str) -> bool:
        return any(cell_text(row.fields.get(field or "")) for row in splits[split].rows)

    if "validation" in splits and ("test" not in splits or (not is_labelled("test") and is_labelled("validation"))):
        log.info("the test split is the official validation split")
        return {**{key: rows for key, rows in splits.items() if key != "validation"}, "test": splits["validation"]}
    return splits


def _with_index(rows: Rows, template: Template, read: Callable[[Fields], Fields], hidden: str | None) -> Rows:
    """Add the index of the target among the answers as a field; None if the ``hidden`` field is blank."""
    found = (
        None if hidden and not cell_text(row.fields.get(hidden)) else _target_index(template, read(row.fields))
        for row in rows.rows
    )
    more = (row._replace(fields={**row.fields, COMPUTED_LABEL: at}) for row, at in zip(rows.rows, found, strict=True))
    return replace(rows, rows=tuple(more))


def _same_size(
    name: str, templates: Sequence[Template], splits: dict[str, Rows], found: _Labels
) -> tuple[int | None, dict[str, Rows]]:
    """Return the number of labels, and the splits without the rows that have another number of answers."""
    rows = [row.fields for each in splits.values() for row in each.rows]
    size = len(found.labels) if found.labels is not None else _size(templates, rows[:200]) or None
    if size is None or not templates or not all("{" in (each.answer_choices or "") for each in templates):
        return size, splits  # constant answers are the same for every row

    def is_whole(fields: Fields) -> bool:
        visible = {key: value for key, value in fields.items() if key != found.hidden}
        sizes = [len(set(each)) == len(each) == size for template in templates if (each := _answers(template, visible))]
        return not sizes or any(sizes)

    whole = {split: tuple(row for row in each.rows if is_whole(row.fields)) for split, each in splits.items()}
    if left_out := len(rows) - sum(map(len, whole.values())):
        log.warning("%s: %d rows without %d different answers are excluded", name, left_out, size)
    return size, {
        split: replace(each, rows=whole[split], provenance={**each.provenance, "num_rows": len(whole[split])})
        for split, each in splits.items()
    }


def _answers(template: Template, fields: Fields) -> tuple[str, ...] | None:
    """Render the answers only; None if they do not render."""
    try:
        return replace(template, jinja="-").render(fields, None)[1]
    except InputError:
        return None


def _renders(template: Template, fields: Fields, hidden: str) -> bool:
    try:
        return bool(template.render(fields, hidden)[0])
    except InputError:
        return False


def _target_index(template: Template, fields: Fields) -> int | None:
    """Return the place of the target among the answers; None for another text or an error."""
    choices = _answers(template, fields)
    try:
        target = template.target(fields, choices) if choices else None
    except InputError:
        return None
    return choices.index(target) if choices and target in choices else None
