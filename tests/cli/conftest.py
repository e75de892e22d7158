"""The command in this process, a user's folder, and a tiny model on disk."""

import sys
from typing import NamedTuple

import pytest

from flip_flop.cli.main import main
from tests.cli.project import make_project
from tests.evaluation.saved import save_tiny


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def flip_flop(monkeypatch, capsys):
    """``flip-flop`` with these arguments: its exit status, and what it printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["flip-flop", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return Result(stop.value.code or 0, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The user's folder, and the command runs in it."""
    folder = make_project(tmp_path / "work")
    monkeypatch.chdir(folder)
    return folder
