"""A small part of `make torture`: an attack ends in the right result or an error of one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torture.__main__ import ATTACKS


@pytest.mark.slow
def test_nothing_but_a_right_result_or_one_line_comes_of_an_attack():
    command = [sys.executable, "-m", "torture", "--share", "0.004"]
    found = subprocess.run(
        command,
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[1],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert found.returncode == 0, found.stdout + found.stderr[-2000:]
    assert len(found.stdout.splitlines()) == 1 + len(ATTACKS)
