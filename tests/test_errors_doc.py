"""docs/errors.md is the table of errors, and the table and the source name the same codes."""

import re
from pathlib import Path

import pytest

from flip_flop.errors import error_page, error_table

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").glob("flip_flop*/**/*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = r"[EW]-[A-Z]+(?:-[A-Z]+)*"


def raised():
    """Codes at the beginning of a string: an error's code, or a warning's line."""
    return {code for path in SOURCES for code in re.findall(rf'"({CODE})(?=[":])', path.read_text(encoding="utf-8"))}


def test_every_code_of_the_source_is_in_the_table_and_no_other():
    assert set(error_table()) == raised()


def test_every_code_says_what_is_wrong_and_how_to_fix_it_in_sentences():
    assert list(error_table()) == sorted(error_table())
    for entry in error_table().values():
        assert list(entry) == ["what", "fix"]
        assert all(text.endswith(".") for text in entry.values()), entry


def test_the_page_is_written_from_the_table():
    page = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert page == error_page(), "python -m flip_flop.errors > docs/errors.md"


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_code_that_is_mentioned_exists(path):
    mentioned = set(re.findall(rf"`({CODE}-[A-Z]+)`", path.read_text(encoding="utf-8")))
    assert mentioned <= raised()
