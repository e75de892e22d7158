import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.console import align_columns, spreadsheet_cell, visible
from flip_flop.report.charts import answer_cells, share_bar, strip
from tests.report.made_runs import HOSTILE
from tests.report.pages import Page


@given(st.text(alphabet=st.characters(), max_size=30), st.booleans())
def test_nothing_invisible_is_left(text, one_line):
    kept = "\u200c\u200d" if one_line else "\u200c\u200d\n\t"
    for character in visible(text, one_line=one_line):
        assert character in kept or unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}
    visible(text).encode("utf-8")


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S", "Zs"]), max_size=30))
def test_plain_text_is_left_as_it_is(text):
    assert visible(text) == text


def test_columns_stand_under_one_another_whatever_the_names():
    lines = align_columns([["run", "F1"], [HOSTILE, "8.25"], ["b", "10.5"]], num_left=1, rule=True).splitlines()
    assert len(lines) == 4
    assert len({len(line) for line in lines}) == 1
    assert lines[1] == "-" * len(visible(HOSTILE, one_line=True)) + "  ----"
    assert align_columns([["a", "b"], ["long", ""]], indent="  ").splitlines() == ["  a     b", "  long"]


@pytest.mark.parametrize("sign", "=+-@\t\r\n＝＋－＠")
def test_text_that_a_spreadsheet_would_run_is_guarded_and_numbers_are_not(sign):
    assert spreadsheet_cell(f"{sign}1+1") == f"'{sign}1+1"
    assert spreadsheet_cell(f"a{sign}") == f"a{sign}"
    assert spreadsheet_cell(-0.5) == -0.5


def test_charts_are_well_formed_whatever_the_names():
    charts = [
        strip([0.5, None, 0.9], (0.4, 1.0), 0.8),
        strip([None], (0.4, 1.0)),
        share_bar([0.25, 0.75], [HOSTILE, "plain"]),
        answer_cells([0, 1, 8], [0.0, 0.5, 1.0], [False, True, False], [HOSTILE] * 3),
    ]
    for chart in charts:
        page = Page(str(chart))
        assert page.faults == []
        assert "script" not in {tag for tag, _ in page.tags}


def test_a_mark_stands_where_its_value_is():
    chart = str(strip([0.5, 0.875], (0.5, 1.0), 0.75))
    assert '<svg x="75%"' in chart
    assert '<line class="reference" x1="50%"' in chart
    assert '<line class="before" x1="0%"' in chart
