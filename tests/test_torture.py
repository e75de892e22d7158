"""A hundredth of `make torture`: what comes of an attack is the right result, or one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.__main__ import ATTACKS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_but_a_right_result_or_one_line_comes_of_an_attack(attack):
    command = [sys.executable, "-m", "torture", "--only", attack, "--share", "0.01"]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
