"""A set of PromptSource's as a task: its own templates, and labels as their targets say them.

A target, rendered on a row, is one of the row's answers: its place is the gold index, whatever the label field holds.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_file
from flip_flop.hub import hub_answers, is_offline
from flip_flop.prompts import Template
from flip_flop.prompts.archive import FILE_NAME, templates_folder
from flip_flop.prompts.promptsource import SourceTemplate, filter_templates, promptsource_names, read_promptsource
from flip_flop.tasks.readers import cell_text
from flip_flop.tasks.sources import HubSource, Rows, Source
from flip_flop.tasks.task import Label, Task

log = logging.getLogger("flip_flop")

PREFIX = "promptsource:"
TARGET_FIELD = "target_index"
_SPLITS = ("train", "validation", "test")
_ROWS_FOR_TARGETS = 2000
_NO_LABEL = "-1"  # how the hub writes that a row's label is not given

Fields = Mapping[str, Any]


def set_task(
    name: str, data: Mapping[str, Source] | None = None, /, *, hub_mirror: Path | None = None, **given: Any
) -> tuple[Task, tuple[tuple[str, str], ...]]:
    """The task of a set, and name and reason of each template that is not used.

    ``data`` holds the rows; without it they are the hub's, of the set's name. ``given`` holds a task's own keys.

    Raises:
        InputError: ``E-TPL-FETCH``, ``E-TPL-UNKNOWN`` or ``E-TPL-EMPTY``; ``E-TASK-KEY`` where the labels of a field
            that is named cannot be told; or an error of the data.
    """
    folder = templates_folder()
    candidates = read_promptsource(folder, name)
    splits = {key: source.load() for key, source in data.items()} if data else _hub_rows(name, hub_mirror)
    label_field, labels = given.pop("label_field", None), given.pop("labels", None)
    usable = [each.template for each in candidates if each.is_usable and isinstance(each.template, Template)]
    hidden: str | None = label_field
    wrong: dict[str, str] = {}
    if labels is None and usable:
        found = _find_labels(name, usable, splits, label_field)
        splits, labels, hidden, label_field, wrong = found.splits, found.labels, found.hidden, found.field, found.wrong
    if data is None:
        splits = _labelled_test(splits, label_field)
    left = [each for each in candidates if each.name not in wrong]
    num_labels, splits = _same_size(name, [each for each in usable if each.name not in wrong], splits, labels, hidden)
    rows = (row.fields for each in splits.values() for row in each.rows)
    chosen = filter_templates(left, rows, label_field=hidden, num_labels=num_labels)
    dropped = tuple(sorted([*chosen.dropped, *wrong.items()]))
    if not len(chosen.kept):
        reasons = [f"{each.name!r}: {dict(dropped)[each.name]}" for each in candidates if each.is_usable]
        why = reasons[0] if reasons else "none has answers and asks for the set's own task"
        hint = "Name the columns as the templates do, or write templates of your own."
        raise InputError("E-TPL-EMPTY", f"{name}: no template of PromptSource's can be used; {why}.", hint)
    source = {"promptsource": name, "sha256": sha256_file(folder / name / FILE_NAME)}
    splits = {key: replace(each, provenance={**each.provenance, "templates": source}) for key, each in splits.items()}
    given["name"] = given.get("name") or name.replace("/", "_")
    given["templates"] = replace(chosen.kept, value_limit=given.pop("value_limit", None))
    return Task(data=splits, labels=labels, label_field=label_field, **given), dropped


def _hub_rows(name: str, mirror: Path | None) -> dict[str, Rows]:
    """The set's splits on the hub, or in a mirror, there under any owner; without gold labels in it, no test split."""
    repo, _, config = name.partition("/")
    found: dict[str, Rows] = {}
    first: InputError | None = None
    for place in dict.fromkeys([(repo, config or None), (name, None)]):
        for split in _SPLITS:
            try:
                found[split] = HubSource(place[0], place[1], split, mirror=mirror).of_any_owner().load()
            except InputError as error:
                first = first or error
                is_lost = found and error.code != "E-DATA-FILE"  # a split that is there, and cannot be read
                if is_lost or (mirror is None and not is_offline() and not hub_answers()):  # nor for the next one
                    raise
        if found:
            return found
    assert first is not None
    hint = f"Name your rows in a task file: data:, and templates: {{promptsource: {name}}}."
    raise InputError(first.code, first.message, hint)


@dataclass(frozen=True)
class _Labels:
    """What is known of a set's labels; ``hidden`` is the field that prompts must not read."""

    splits: dict[str, Rows]
    labels: Sequence[Label] | None
    hidden: str | None
    field: str | None
    wrong: dict[str, str]


def _find_labels(name: str, templates: Sequence[Template], splits: dict[str, Rows], label_field: str | None) -> _Labels:
    rows = [row.fields for each in splits.values() for row in each.rows]
    sample = rows[:: max(1, len(rows) // _ROWS_FOR_TARGETS)]
    reads = {each.name: _reading(each, sample) for each in templates}
    targets = {each.name: [each.target_index(reads[each.name](row)) for row in sample] for each in templates}
    # Templates may order or count their answers otherwise than the rest: the most frequent way is the set's.
    ways = Counter(tuple(found) for found in targets.values() if any(each is not None for each in found))
    way = ways.most_common(1)[0][0] if ways else ()
    wrong = {
        key: "its answers are in another order, or of another number, than most templates' (E-TPL-LABEL-ORDER)"
        for key, found in targets.items()
        if way and any(None not in (ours, most) and ours != most for ours, most in zip(found, way, strict=True))
    }
    left = [each for each in templates if each.name not in wrong]
    fields = dict.fromkeys(key for row in sample for key in row)
    named = [key for key in fields if any(key in each.names for each in left)]
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
    words = f"{name}: no label field of the rows is known from the templates, so there is no gold label"
    hint = f"Write label_field: and labels: in a task file, in the order of the answers {order}."
    for key, without in unanswered.items():
        message = f"{name}: the templates have no answer for {without} of the field {key!r}."
        raise InputError("E-TASK-KEY", message, hint)
    if label_field is not None:
        words = f"{name}: the templates do not say which values of {label_field!r} are which answer"
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
        return any(asking.target_index(read(row)) != at for row, at in zip(hiding, way, strict=True))

    hidden = next(filter(decides, names), None)
    if hidden is not None:
        splits = _without(splits, hidden, ())
    with_index = {split: _with_index(each, asking, read, hidden) for split, each in splits.items()}
    return _Labels(with_index, tuple(range(size)), hidden, TARGET_FIELD, wrong)


def _reading(template: Template, sample: Sequence[Fields]) -> Callable[[Fields], Fields]:
    """Rows as they are, or with texts as numbers where targets then give more of the answers."""
    as_they_are, typed = (
        {template.target_index(read(row)) for row in sample[:200]} - {None} for read in (dict, _typed)
    )
    return _typed if len(typed) > len(as_they_are) else dict


def _typed(fields: Fields) -> dict[str, Any]:
    """A row whose numbers and truth values may come from a CSV file, as texts."""
    words = {"true": True, "false": False}

    def value_of(value: Any) -> Any:
        if not isinstance(value, str) or len(value) > 9:
            return value
        return int(value) if value.lstrip("-").isdecimal() else words.get(value.lower(), value)

    return {key: value_of(value) for key, value in fields.items()}


def _by_hiding(names: Sequence[str], templates: Sequence[Template], sample: Sequence[Fields]) -> list[str]:
    """The fields that at least half of the templates do without in their prompts: first those that all do without."""
    missing = {}
    for name in names:
        row = next((row for row in sample if row.get(name) is not None), None)
        if row is not None and isinstance(row[name], str | int | float):
            missing[name] = sum(not each.renders(row, name) for each in templates)
    return sorted((name for name in missing if 2 * missing[name] <= len(templates)), key=lambda name: missing[name])


def _size(templates: Sequence[Template], sample: Sequence[Fields]) -> int:
    """How many answers most rows have."""
    sizes = Counter(len(choices) for row in sample[:200] for each in templates if (choices := each.answers(row)))
    return sizes.most_common(1)[0][0] if sizes else 0


def _by_target(
    values: Sequence[str | None], way: Sequence[int | None], raw: Sequence[Any], size: int
) -> tuple[Label, ...] | None:
    """The values of a field in the order of the answers, where each value has one answer and each answer one value."""
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
    # A label that no row has is known where labels are numbers, counted as the answers are.
    if len(labels) < 2 or not all(str(value).lstrip("-").isdecimal() for value in labels.values()):
        return None
    offset, *others = {int(value) - at for at, value in labels.items()}
    if others:
        return None
    kind = type(next(iter(labels.values())))
    return tuple(kind(at + offset) for at in range(size))


def _by_words(values: Sequence[str | None], templates: Sequence[Template]) -> tuple[Label, ...] | None:
    """The words of a field that are some template's answers, in their order."""
    words = {value for value in values if value and value != _NO_LABEL}
    for template in templates:
        order = {each.casefold(): at for at, each in enumerate(template.answers({}) or ())}
        found = {order.get(word.strip().casefold()): word for word in words}
        if len(found) == len(words) == len(order) and None not in found:
            return tuple(found[at] for at in range(len(order)))
    return None


def _without(splits: dict[str, Rows], field: str, labels: Sequence[Label]) -> dict[str, Rows]:
    """The splits with None for a label that is not given."""
    if _NO_LABEL not in map(str, labels):
        splits = {
            split: replace(
                rows,
                rows=tuple(
                    row._replace(fields={**row.fields, field: None}) if str(row.fields.get(field)) == _NO_LABEL else row
                    for row in rows.rows
                ),
            )
            for split, rows in splits.items()
        }
    return splits


def _labelled_test(splits: dict[str, Rows], field: str | None) -> dict[str, Rows]:
    """The splits; validation stands in for a test split that is missing, or has no labels."""

    def is_labelled(split: str) -> bool:
        return any(cell_text(row.fields.get(field or "")) for row in splits[split].rows)

    if "validation" in splits and ("test" not in splits or (not is_labelled("test") and is_labelled("validation"))):
        log.info("the test split is the official validation split")
        return {**{key: rows for key, rows in splits.items() if key != "validation"}, "test": splits["validation"]}
    return splits


def _with_index(rows: Rows, template: Template, read: Callable[[Fields], Fields], hidden: str | None) -> Rows:
    """Add the index of the target among the answers as a field; None if the ``hidden`` field is blank."""
    found = (
        None if hidden and not cell_text(row.fields.get(hidden)) else template.target_index(read(row.fields))
        for row in rows.rows
    )
    more = (row._replace(fields={**row.fields, TARGET_FIELD: at}) for row, at in zip(rows.rows, found, strict=True))
    return replace(rows, rows=tuple(more))


def _same_size(
    name: str,
    templates: Sequence[Template],
    splits: dict[str, Rows],
    labels: Sequence[Label] | None,
    hidden: str | None,
) -> tuple[int | None, dict[str, Rows]]:
    """The number of labels, and the splits without rows that have another number of answers under all templates."""
    rows = [row.fields for each in splits.values() for row in each.rows]
    size = len(labels) if labels is not None else _size(templates, rows[:200]) or None
    # Answers that are the same for all rows need no look at each row.
    varying = [each for each in templates if "{" in (each.answer_choices or "")]
    if size is None or not varying or len(varying) < len(templates):
        return size, splits

    def is_whole(fields: Fields) -> bool:
        visible = {key: value for key, value in fields.items() if key != hidden}
        found: Iterator[tuple[str, ...] | None] = (each.answers(visible) for each in varying)
        sizes = [len(set(each)) == len(each) == size for each in found if each is not None]
        return not sizes or any(sizes)

    whole = {split: tuple(row for row in each.rows if is_whole(row.fields)) for split, each in splits.items()}
    left_out = {split: len(each) - len(whole[split]) for split, each in splits.items()}
    if any(left_out.values()):
        log.warning("%s: %d rows are left out: they have not %d different answers", name, sum(left_out.values()), size)
    return size, {
        split: replace(each, rows=whole[split], provenance={**each.provenance, "num_rows": len(whole[split])})
        for split, each in splits.items()
    }


def search(word: str = "") -> Iterator[tuple[str, list[SourceTemplate] | InputError]]:
    """Each set whose name, or a template's, holds the word, and its templates or why they cannot be read."""
    folder = templates_folder()
    for name in promptsource_names(folder):
        found: list[SourceTemplate] | InputError
        try:
            found = read_promptsource(folder, name)
        except InputError as error:
            found = error
        names = [name] if isinstance(found, InputError) else [name, *(each.name for each in found)]
        if any(word.casefold() in each.casefold() for each in names):
            yield name, found
