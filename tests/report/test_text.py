import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.console import align_columns, spreadsheet_cell, visible
from tests.report.made_runs import HOSTILE


@given(st.text(alphabet=st.characters(), max_size=30), st.booleans())
def test_invisible_characters_are_escaped(text, one_line):
    kept = "\u200c\u200d" if one_line else "\u200c\u200d\n\t"
    for character in visible(text, one_line=one_line):
        assert character in kept or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    visible(text).encode("utf-8")


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=30))
def test_plain_text_is_unchanged(text):
    assert visible(text) == text


def test_columns_are_aligned_for_all_names():
    lines = align_columns([["run", "F1"], [HOSTILE, "8.25"], ["b", "10.5"]], num_left=1, rule=True).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "-" * len(visible(HOSTILE, one_line=True)) + "  ----"
    assert align_columns([["a", "b"], ["long", ""]], indent="  ").splitlines() == ["  a     b", "  long"]


@pytest.mark.parametrize("sign", "=+-@\t\r\n＝＋－＠")
def test_formulas_are_quoted_and_numbers_are_not(sign):
    assert spreadsheet_cell(f"{sign}1+1") == f"'{sign}1+1"
    assert spreadsheet_cell(f"a{sign}") == f"a{sign}"
    assert spreadsheet_cell(-0.5) == -0.5
