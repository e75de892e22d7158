"""A complete study."""

import pytest

from flip_flop.paper import run
from tests.studies.small_studies import here, outcome, run_here, tables, write_study


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A study without interruptions, all in this process: its folder, its results and its tables."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "run_units", run_here)
        assert here("run", write_study(folder), "--out", folder / "out") == 0
    return folder / "out", outcome(folder / "out"), tables(folder / "out")
