"""Instances that are longer than a model's context: all of them are found before anything is scored."""

import contextlib
import csv
import io
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from flip_flop.console import count, spreadsheet_cell
from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.scoring.options import TooLongPolicy

log = logging.getLogger("flip_flop")

TOO_LONG_FILE = "too_long.csv"
NAMED = 3  # instances in a message
NONE_LEFT = "None would be left: shorten the texts or the template, or use a model with a longer context."
HINT = "Use --too-long skip, shorten the texts or the template, or use a model with a longer context."


@dataclass(frozen=True)
class TooLong:
    """A prompt with its longest answer, in tokens, that is longer than the model's context, the limit.

    ``template`` is its number, from 0; ``split`` is the instance's, where there are several: ids are unique in one.
    """

    id: str
    template: int
    tokens: int
    limit: int
    split: str = ""


class TooLongError(InputError):
    """``E-TOO-LONG``, with all that is too long among ``num_instances`` instances; a ``path`` lists them."""

    def __init__(
        self, found: Sequence[TooLong], num_instances: int, names: Sequence[str] = (), path: Path | None = None
    ):
        self.found, self.num_instances, self.names = tuple(found), num_instances, names
        hint = NONE_LEFT if count_instances(found) == num_instances else HINT
        listed = f" All are in {path}." if path else ""
        super().__init__("E-TOO-LONG", f"{_summary(found, num_instances, names)}.{listed}", hint)


def refuse_or_skip(
    found: Sequence[TooLong], num_instances: int, policy: TooLongPolicy, names: Sequence[str] = ()
) -> None:
    """Refuse instances that are too long, or say that they are skipped; refused too where none is left.

    Raises:
        InputError: ``E-TOO-LONG``, as :class:`TooLongError`.
    """
    if found and (policy == "refuse" or count_instances(found) == num_instances):
        raise TooLongError(found, num_instances, names)
    if found:
        log.warning("W-TOO-LONG: skipped: %s.", _summary(found, num_instances, names))


def ids_of(found: Sequence[TooLong]) -> set[str]:
    """The ids of a split's instances."""
    return {each.id for each in found}


def count_instances(found: Sequence[TooLong]) -> int:
    """How many instances of all splits."""
    return len({(each.split, each.id) for each in found})


def words(each: TooLong, names: Sequence[str] = ()) -> str:
    """How long a prompt is, with the template's name where that is known."""
    template = repr(names[each.template]) if names else f"template number {each.template + 1}"
    return f"{each.tokens} tokens under {template}"


@contextlib.contextmanager
def listed_beside(out: Path, names: Sequence[str]) -> Iterator[None]:
    """Where instances are refused as too long, list them all in ``OUT.too_long.csv`` and name that file."""
    try:
        yield
    except TooLongError as error:
        names = error.names or names
        path = out if out.name else out.resolve()  # the folder "." has no name
        path = path.with_name(f"{path.name.removesuffix('.csv').removesuffix('.jsonl')}.{TOO_LONG_FILE}")
        write_too_long(path, error.found, names)
        raise TooLongError(error.found, error.num_instances, names, path) from None


def write_too_long(path: Path, found: Sequence[TooLong], names: Sequence[str]) -> None:
    """Write a row per instance and template that is too long: id, template, tokens, limit, and split if several."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    of_splits = any(each.split for each in found)
    writer.writerow(["id", "template", "tokens", "limit", *(["split"] if of_splits else [])])
    for each in found:
        cells = (each.id, names[each.template] if names else each.template + 1)
        split = [each.split] if of_splits else []
        writer.writerow([*map(spreadsheet_cell, cells), each.tokens, each.limit, *split])
    write_text(path, text.getvalue())


def _summary(found: Sequence[TooLong], num_instances: int, names: Sequence[str]) -> str:
    longest: dict[tuple[str, str], TooLong] = {}
    for each in found:
        key = (each.split, each.id)
        longest[key] = max(each, longest.get(key, each), key=lambda one: one.tokens)
    shown = [f"{each.id!r} has {words(each, names)}" for each in [*longest.values()][:NAMED]]
    verb, more = "is" if len(longest) == 1 else "are", ", ..." if len(longest) > NAMED else ""
    return (
        f"{len(longest):,} of {count(num_instances, 'instance')} {verb} longer than the model's context of "
        f"{found[0].limit} tokens: {', '.join(shown)}{more}"
    )
