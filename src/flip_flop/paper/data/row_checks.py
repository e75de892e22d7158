"""The templates that render for every row of a dataset, and its duplicate rows, cached for the user."""

import importlib.metadata
import json
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from flip_flop.console import track
from flip_flop.files import sha256_json, write_json
from flip_flop.paper.data.promptsource import SourceTemplate, TemplateFilter, cache_folder, filter_templates
from flip_flop.paper.data.splits import Duplicates, find_duplicates
from flip_flop.prompts import Template, TemplateSet
from flip_flop.tasks import Rows

log = logging.getLogger("flip_flop")

_MIN_LOGGED = 100_000  # rows that are logged without a terminal


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
    """Render every row of two official splits under every candidate, or read the cached result.

    The kept templates have the ``value_limit``.
    """
    key = _key(candidates, train, test, label_field, num_labels, value_limit)
    path = cache_folder().parent / "screenings" / f"{name}-{key}.json"
    if (cached := _read(path, candidates, value_limit)) is not None:
        return cached
    total = len(train) + len(test)
    quiet = total < _MIN_LOGGED and not sys.stderr.isatty()
    with track(f"{name}: templates that render", total, "rows", quiet=quiet) as advance:

        def all_rows() -> Iterator[Mapping[str, Any]]:
            for row in (*train.rows, *test.rows):
                yield row.fields
                advance(1)

        templates = filter_templates(candidates, all_rows(), label_field=label_field, num_labels=num_labels)
        templates = replace(templates, kept=replace(templates.kept, value_limit=value_limit))
    with track(f"{name}: duplicate rows", total * len(templates.kept), "renderings", quiet=quiet) as advance:
        duplicates = find_duplicates(train, test, templates.kept, label_field, advance=advance)
    content = {"kept": templates.kept.names, "dropped": templates.dropped, "duplicates": asdict(duplicates)}
    try:
        write_json(path, content)
    except OSError as error:
        log.info("%s: the check of all rows is not cached: %s", name, error.strerror)
    return templates, duplicates


def _read(
    path: Path, candidates: Sequence[SourceTemplate], value_limit: int | None
) -> tuple[TemplateFilter, Duplicates] | None:
    """Read a cached result; None for a missing or damaged file."""
    templates = {
        candidate.name: candidate.template for candidate in candidates if isinstance(candidate.template, Template)
    }
    try:
        content = json.loads(path.read_bytes())
        kept = TemplateSet(tuple(templates[name] for name in content["kept"]), value_limit)
        dropped = tuple((name, reason) for name, reason in content["dropped"])
        return TemplateFilter(kept, dropped), Duplicates(
            **{key: tuple(indices) for key, indices in content["duplicates"].items()}
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _key(candidates: Sequence[SourceTemplate], train: Rows, test: Rows, *shape: str | int | None) -> str:
    content = {
        "templates": [
            [source.name, source.jinja, source.answer_choices, source.original_task] for source in candidates
        ],
        "data": [train.provenance["sha256"], test.provenance["sha256"], *shape],
        "names": [sha256_json(train.ids), sha256_json(test.ids)],
        "versions": [importlib.metadata.version(name) for name in ("flip-flop-consistency", "jinja2")],
    }
    return sha256_json(content)[:24]
