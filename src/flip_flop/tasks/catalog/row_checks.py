"""Which templates render for every row, and which rows render alike: found once, and kept in the user's cache."""

import functools
import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flip_flop.console import track
from flip_flop.files import sha256_file, sha256_json, write_json
from flip_flop.prompts import Template, TemplateSet, archive
from flip_flop.prompts.archive import cache_folder
from flip_flop.prompts.promptsource import SourceTemplate, TemplateFilter, filter_templates
from flip_flop.tasks import splits
from flip_flop.tasks.sources import Rows
from flip_flop.tasks.splits import Duplicates, find_duplicates

log = logging.getLogger("flip_flop")

_MIN_LOGGED = 100_000  # fewer rows are done before anyone reads about them in a log


def check_rows(
    name: str,
    candidates: Sequence[SourceTemplate],
    train: Rows,
    test: Rows,
    *,
    label_field: str,
    num_labels: int,
    value_limit: int | None = None,
) -> tuple[TemplateFilter, Duplicates]:
    """Render every named row of both official splits of a dataset under every candidate; the second time, read it.

    The templates that are kept have the ``value_limit``.
    """
    key = _key(candidates, train, test, label_field, num_labels, value_limit)
    path = cache_folder().parent / "screenings" / f"{name}-{key}.json"
    total = len(train) + len(test)
    found = _read(path, candidates, total, value_limit)
    if found is not None:
        return found
    quiet = total < _MIN_LOGGED and not sys.stderr.isatty()
    with track(f"{name}: templates that render", total, "rows", quiet=quiet) as advance:

        def all_rows() -> Iterator[Mapping[str, Any]]:
            for row in (*train.rows, *test.rows):
                yield row.fields
                advance(1)

        templates = filter_templates(candidates, all_rows(), label_field=label_field, num_labels=num_labels)
        templates = replace(templates, kept=replace(templates.kept, value_limit=value_limit))
    with track(f"{name}: rows that render alike", total * len(templates.kept), "renderings", quiet=quiet) as advance:
        duplicates = find_duplicates(train, test, templates.kept, label_field, advance=advance)
    content = {"kept": templates.kept.names, "dropped": templates.dropped, "duplicates": asdict(duplicates)}
    try:
        write_json(path, content)
    except OSError as error:  # a cache that cannot be written costs time, nothing else
        log.info("%s: the check of all rows is not cached: %s", name, error.strerror)
    return templates, duplicates


def _read(
    path: Path, candidates: Sequence[SourceTemplate], num_rows: int, value_limit: int | None
) -> tuple[TemplateFilter, Duplicates] | None:
    """What is cached; None where there is nothing, or nothing that this code would write."""
    try:
        found = json.loads(path.read_bytes())
        templates = {each.name: each.template for each in candidates if isinstance(each.template, Template)}
        kept = TemplateSet(tuple(templates[name] for name in found["kept"]), value_limit)
        dropped = tuple((name, reason) for name, reason in found["dropped"])
        duplicates = Duplicates(**{key: tuple(indices) for key, indices in found["duplicates"].items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    names = [*kept.names, *(name for name, _ in dropped)]
    indices = [index for kind in vars(duplicates).values() for index in kind]
    is_whole = sorted(names) == sorted(each.name for each in candidates) and all(
        isinstance(index, int) and 0 <= index < num_rows for index in indices
    )
    return (TemplateFilter(kept, dropped), duplicates) if is_whole else None


def _key(candidates: Sequence[SourceTemplate], train: Rows, test: Rows, *shape: str | int | None) -> str:
    content = {
        "templates": [[each.name, each.jinja, each.answer_choices, each.original_task] for each in candidates],
        "data": [train.provenance["sha256"], test.provenance["sha256"], *shape],
        "names": [sha256_json(train.ids), sha256_json(test.ids)],
        "code": _code_digest(),
    }
    return sha256_json(content)[:24]


@functools.cache
def _code_digest() -> str:
    """The digest of what renders and compares: another version of it does not read this one's cache."""
    prompts = sorted(Path(archive.__file__).parent.glob("*.py"))
    files = [*prompts, Path(splits.__file__), Path(__file__)]
    return sha256_json([importlib.metadata.version("jinja2"), *map(sha256_file, files)])
