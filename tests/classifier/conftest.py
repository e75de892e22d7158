"""An audit on disk whose decision is a calibrated template, and its rows."""

import pytest

from flip_flop import audit, load_model
from tests.evaluation.conftest import make_rows, make_task
from tests.tiny import save_tiny

NUM_ROWS = 80


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=3)


@pytest.fixture(scope="session")
def rows(folder):
    """Rows whose labels are the calibrated predictions under the template `truth`."""
    plain = audit(load_model(folder), make_task(make_rows(NUM_ROWS)), quiet=True)
    labels = plain.calibrated.predictions[:, 1].tolist()
    return [row | {"mood": label} for row, label in zip(make_rows(NUM_ROWS), labels, strict=True)]


@pytest.fixture(scope="session")
def decided(folder, rows, tmp_path_factory):
    """The audit, in its folder."""
    run = audit(load_model(folder), make_task(rows), quiet=True)
    assert (run.decision.template, run.decision.is_calibrated) == ("truth", True)
    return run.write(tmp_path_factory.mktemp("runs") / "audit")
