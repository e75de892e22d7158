"""An audit whose decision is a calibrated template, and the engine of its classifier."""

import pytest
from fastapi.testclient import TestClient

from flip_flop import load_classifier
from flip_flop.serving.app import create_app
from flip_flop.serving.engine import Engine
from tests.classifier.conftest import decided, folder, rows  # noqa: F401


@pytest.fixture(scope="session")
def engine(decided):  # noqa: F811
    return Engine(load_classifier(decided))


@pytest.fixture
def client(engine):
    with TestClient(create_app(engine)) as client:
        yield client
