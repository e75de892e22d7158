"""A small part of `make torture`: an attack ends in the right result or an error of one line."""

import sys

import pytest
from torture.__main__ import ATTACKS, main

from tests.processes import end, start


def attack(*words):
    sys.argv = ["torture", *words]
    sys.exit(main())


@pytest.mark.slow
def test_nothing_but_a_right_result_or_one_line_comes_of_an_attack(tmp_path):
    shown = tmp_path / "shown.txt"
    # Other tests stop a study, damage audits and start two runs in one folder.
    without = ("stop-audit", "stop-predict", "stop-study", "damage-audit", "race")
    assert end([start(attack, "--share", "0.001", "--without", ",".join(without), output=shown)], 600) == [0], (
        shown.read_text()
    )
    assert len(shown.read_text().splitlines()) == 1 + len(ATTACKS.keys() - without)
