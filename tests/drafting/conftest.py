"""A user's folder, and a tiny model on disk."""

import pytest

from tests.cli.conftest import model, project

__all__ = ["folder", "model", "project"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path
