"""Instances that exceed a model's context. All are found before scoring starts."""

import contextlib
import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flip_flop.console import count, spreadsheet_cell
from flip_flop.errors import InputError, log
from flip_flop.files import write_text
from flip_flop.scoring.options import TooLongPolicy

TOO_LONG_FILE = "too_long.csv"
NAMED = 3  # instances in a message
NONE_LEFT = "None would be left: shorten the texts or the template, or use a model with a longer context."
HINT = "Use --too-long skip, shorten the texts or the template, or use a model with a longer context."


@dataclass(frozen=True)
class TooLong:
    """The tokens of a prompt and its longest answer, and the limit of the model's context.

    ``template`` is an index. ``split`` distinguishes instances of several splits, whose ids may be equal.
    """

    id: str
    template: int
    tokens: int
    limit: int
    split: str = ""


class TooLongError(InputError):
    """``E-TOO-LONG`` with the prompts that are too long among ``num_instances`` instances."""

    def __init__(self, too_long: Sequence[TooLong], num_instances: int, names: Sequence[str] = ()):
        self.found = tuple(too_long)
        self.names = names
        hint = NONE_LEFT if count_instances(too_long) == num_instances else HINT
        super().__init__("E-TOO-LONG", f"{_summary(too_long, num_instances, names)}.", hint)


def refuse_or_skip(
    too_long: Sequence[TooLong], num_instances: int, policy: TooLongPolicy, names: Sequence[str] = ()
) -> None:
    """Refuse instances that are too long, or warn that they are skipped. If all are too long, refuse them.

    Raises:
        TooLongError: ``E-TOO-LONG``.
    """
    if too_long and (policy == "refuse" or count_instances(too_long) == num_instances):
        raise TooLongError(too_long, num_instances, names)
    if too_long:
        log.warning("W-TOO-LONG: skipped: %s.", _summary(too_long, num_instances, names))


def ids_of(too_long: Sequence[TooLong]) -> set[str]:
    """Return the ids of the instances."""
    return {sequence.id for sequence in too_long}


def count_instances(too_long: Sequence[TooLong]) -> int:
    """Return the number of instances of all splits."""
    return len({(sequence.split, sequence.id) for sequence in too_long})


def words(sequence: TooLong, names: Sequence[str] = ()) -> str:
    """Describe the length of a prompt and its template."""
    if names:
        template = repr(names[sequence.template])
    else:
        template = f"template number {sequence.template + 1}"
    return f"{sequence.tokens} tokens under {template}"


@contextlib.contextmanager
def listed_beside(out: Path) -> Iterator[None]:
    """If instances are refused as too long, list them in ``OUT.too_long.csv``, and name this file in the error."""
    try:
        yield
    except TooLongError as error:
        path = out if out.name else out.resolve()  # the folder "." has no name
        path = path.with_name(f"{path.name.removesuffix('.csv').removesuffix('.jsonl')}.{TOO_LONG_FILE}")
        write_too_long(path, error.found, error.names)
        raise InputError(error.code, f"{error.message} All are in {path}.", error.hint) from None


def write_too_long(path: Path, too_long: Sequence[TooLong], names: Sequence[str]) -> None:
    """Write a row per prompt: id, template, tokens, limit, and the split if there are several."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    of_splits = any(sequence.split for sequence in too_long)
    writer.writerow(["id", "template", "tokens", "limit", *(["split"] if of_splits else [])])
    for sequence in too_long:
        cells = (sequence.id, names[sequence.template] if names else sequence.template + 1)
        split = [sequence.split] if of_splits else []
        writer.writerow([*map(spreadsheet_cell, cells), sequence.tokens, sequence.limit, *split])
    write_text(path, text.getvalue())


def _summary(too_long: Sequence[TooLong], num_instances: int, names: Sequence[str]) -> str:
    longest: dict[tuple[str, str], TooLong] = {}
    for sequence in too_long:
        key = (sequence.split, sequence.id)
        longest[key] = max(sequence, longest.get(key, sequence), key=lambda one: one.tokens)
    shown = [f"{sequence.id!r} has {words(sequence, names)}" for sequence in [*longest.values()][:NAMED]]
    verb = "is" if len(longest) == 1 else "are"
    more = ", ..." if len(longest) > NAMED else ""
    return (
        f"{len(longest):,} of {count(num_instances, 'instance')} {verb} longer than the model's context of "
        f"{too_long[0].limit} tokens: {', '.join(shown)}{more}"
    )
