"""Which templates render for every row, and which rows render alike: found once, and kept in the user's cache."""

import functools
import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import flip_flop.prompts
from flip_flop.files import sha256_file, sha256_json, write_json
from flip_flop.progress import track
from flip_flop.prompts.archive import cache_folder
from flip_flop.prompts.promptsource import SourceTemplate
from flip_flop.prompts.selection import Selection, select_templates
from flip_flop.prompts.template_set import TemplateSet
from flip_flop.tasks import paper_splits
from flip_flop.tasks.paper_splits import Doubles, find_doubles
from flip_flop.tasks.sources import Rows

log = logging.getLogger("flip_flop")

# Into a log, fewer rows than these are done before anyone would read that they are being done.
_WORTH_A_LINE = 100_000


@dataclass(frozen=True)
class Screening:
    """What all rows of a dataset together decide.

    Attributes:
        selection: The templates that are kept, and why the others are not.
        doubles: The rows of train that render like another one.
    """

    selection: Selection
    doubles: Doubles


def screen(
    name: str, candidates: Sequence[SourceTemplate], train: Rows, test: Rows, *, label_field: str, num_labels: int
) -> Screening:
    """Render every row of both splits under every candidate; the second time, read what was found.

    Args:
        name: The dataset's name, for the progress bar.
        candidates: Its templates in PromptSource.
        train: The named rows of the official train split.
        test: Those of the official split that is tested on.
        label_field: The gold label's field.
        num_labels: The number of labels.
    """
    path = (
        cache_folder().parent / "screenings" / f"{name}-{_key(candidates, train, test, label_field, num_labels)}.json"
    )
    kept = _read(path, candidates, len(train), len(test))
    if kept is not None:
        return kept
    total = len(train) + len(test)
    quiet = total < _WORTH_A_LINE and not sys.stderr.isatty()
    with track(f"{name}: templates that render", total, "rows", quiet=quiet) as advance:

        def all_rows() -> Iterator[Mapping[str, Any]]:
            for row in (*train.rows, *test.rows):
                yield row.fields
                advance(1)

        selection = select_templates(candidates, all_rows(), label_field=label_field, num_labels=num_labels)
    with track(f"{name}: rows that render alike", total * len(selection.kept), "renderings", quiet=quiet) as advance:
        doubles = find_doubles(train, test, selection.kept, label_field, advance=advance)
    found = Screening(selection, doubles)
    try:
        write_json(path, {"kept": selection.kept.names, "dropped": selection.dropped, "doubles": asdict(doubles)})
    except OSError as error:  # a cache that cannot be written costs time, nothing else
        log.info("%s: what all rows decide is not kept: %s", name, error.strerror)
    return found


def _read(path: Path, candidates: Sequence[SourceTemplate], num_train: int, num_test: int) -> Screening | None:
    """What is kept under this name; None where there is nothing, or nothing that this code would write."""
    try:
        found = json.loads(path.read_bytes())
        templates = {each.name: each.template for each in candidates if each.template is not None}
        kept = TemplateSet(tuple(templates[name] for name in found["kept"]))
        dropped = tuple((name, reason) for name, reason in found["dropped"])
        doubles = Doubles(**{key: tuple(indices) for key, indices in found["doubles"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    complete = sorted([*kept.names, *(name for name, _ in dropped)]) == sorted(each.name for each in candidates)
    limits = {"unanswerable_test": num_test}
    within = all(
        isinstance(index, int) and 0 <= index < limits.get(key, num_train)
        for key, indices in asdict(doubles).items()
        for index in indices
    )
    return Screening(Selection(kept, dropped), doubles) if complete and within else None


def _key(candidates: Sequence[SourceTemplate], train: Rows, test: Rows, label_field: str, num_labels: int) -> str:
    content = {
        "templates": [[each.name, each.jinja, each.answer_choices, each.original_task] for each in candidates],
        "data": [train.provenance["sha256"], test.provenance["sha256"], label_field, num_labels],
        "names": [sha256_json(train.ids), sha256_json(test.ids)],
        "code": _code_digest(),
    }
    return sha256_json(content)[:24]


@functools.cache
def _code_digest() -> str:
    """The digest of what renders and compares: another version of it looks anew."""
    prompts = sorted(Path(flip_flop.prompts.__file__).parent.glob("*.py"))
    files = [*prompts, Path(paper_splits.__file__), Path(__file__)]
    return sha256_json([importlib.metadata.version("jinja2"), *map(sha256_file, files)])
