"""Every error code is in the table of errors, which the site's page shows, and is used in the source."""

import re
from pathlib import Path

import pytest

from flip_flop.errors import error_table
from tests.test_site import site

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
CODE = r"[EW]-[A-Z]+(?:-[A-Z]+)*"


def raised():
    """Codes at the beginning of a string: of an error, or of a warning's line."""
    return {code for path in SOURCES for code in re.findall(rf'"({CODE})(?=[":])', path.read_text(encoding="utf-8"))}


def test_the_table_has_the_codes_of_the_source():
    assert set(error_table()) == raised()


def test_every_code_has_a_meaning_and_a_fix_in_sentences():
    assert list(error_table()) == sorted(error_table())
    for entry in error_table().values():
        assert list(entry) == ["what", "fix"]
        assert all(text.endswith(".") for text in entry.values()), entry


def test_the_page_has_every_code():
    path = "docs/reference/errors.md"
    page = site.complete((ROOT / path).read_text(encoding="utf-8"), path)
    assert re.findall(rf"^\| `({CODE})` \| .+ \| .+ \|$", page, flags=re.MULTILINE) == list(error_table())


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_code_that_is_mentioned_exists(path):
    mentioned = set(re.findall(rf"`({CODE}-[A-Z]+)`", path.read_text(encoding="utf-8")))
    assert mentioned <= raised()
