"""A user's folder, and a tiny model on disk."""

import pytest

from tests.cli.project import make_project
from tests.tiny import save_tiny


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The user's folder, and the command runs in it."""
    folder = make_project(tmp_path / "work")
    monkeypatch.chdir(folder)
    return folder
