"""The table of errors and the source name the same codes."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "src" / "flip_flop").rglob("*.py"))
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CODE = r"[EW]-[A-Z]+(?:-[A-Z]+)*"


def raised() -> set[str]:
    """Codes that stand at the beginning of a string: an error's code, or a warning's line."""
    return {code for path in SOURCES for code in re.findall(rf'"({CODE})(?=[":])', path.read_text(encoding="utf-8"))}


def documented() -> list[str]:
    return re.findall(rf"^\| `({CODE})` \|", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"), re.M)


def test_every_code_of_the_source_is_in_the_table_and_no_other():
    assert set(documented()) == raised()


def test_the_table_is_in_order_and_names_each_code_once():
    assert documented() == sorted(set(documented()))


def test_every_row_says_what_is_wrong_and_how_to_mend_it():
    for line in (ROOT / "docs" / "errors.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 3, line
            assert cells[1].endswith((".", "`")), line
            assert cells[2].endswith((".", "`")), line


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_code_that_is_mentioned_exists(path):
    mentioned = set(re.findall(rf"`({CODE}-[A-Z]+)`", path.read_text(encoding="utf-8")))
    assert mentioned <= raised()
