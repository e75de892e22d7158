"""No network, one thread, warnings are errors; and names that every docstring example may use."""

import gc
import logging
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Expected values are for float32 on a CPU. With a GPU, the default is bfloat16. CUDA_VISIBLE_DEVICES=0 tests on it.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import socket
import sys
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import numpy as np
import peft  # noqa: F401  as transformers.trainer
import pytest
import torch
import transformers.trainer  # noqa: F401  before our modules: their imports are compiled again for type checks
from hypothesis import settings

from flip_flop import LoadedModel, method, metrics, prompts
from flip_flop.cli.main import main
from flip_flop.console import warn_once
from flip_flop.errors import InputError
from flip_flop.paper.data.promptsource import templates_folder
from tests.cli.project import make_project
from tests.paper.made_datasets import make_datasets
from tests.tiny import save_tiny

torch.set_num_threads(1)
# The time of an example is not informative on a shared machine.
settings.register_profile("shared machine", deadline=None, max_examples=40)
settings.load_profile("shared machine")


def pytest_collection_finish():
    """Exclude imported objects from garbage collection, which every training run calls."""
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Run slow tests first, so that workers finish at about the same time."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


SHARED_HUB = Path(__file__).parents[2] / "shared" / "hub"
SHARED_LANGUAGE = SHARED_HUB.with_name("language")


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    connect = socket.socket.connect

    def refuse(self, address, *rest):
        if self.family != socket.AF_UNIX and address[0] != "127.0.0.1":  # a server of the test
            raise AssertionError(f"a test wants to connect to {address}")
        return connect(self, address, *rest)

    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture(autouse=True)
def _warnings_anew():
    warn_once.cache_clear()


@pytest.fixture(autouse=True)
def _docstring_names(doctest_namespace):
    doctest_namespace.update(np=np, torch=torch)
    for package in (method, metrics, prompts):
        doctest_namespace.update({name: getattr(package, name) for name in dir(package) if not name.startswith("_")})


@pytest.fixture(scope="session")
def hub_mirror():
    """Real rows of the paper's datasets. Tests are skipped if the folder is missing."""
    if not SHARED_HUB.is_dir():
        pytest.skip("the folder of real rows, ../shared/hub, is not there")
    return SHARED_HUB


@pytest.fixture(scope="session")
def language():
    """Real sentences, and the base of docs/evidence.md. Tests are skipped if the folder is missing."""
    if not SHARED_LANGUAGE.is_dir():
        pytest.skip("the folder of real sentences, ../shared/language, is not there")
    return SHARED_LANGUAGE


@pytest.fixture(scope="session", autouse=True)
def no_kept_answers():
    """A model writes its answers in every test, so that no test passes with those of another."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LoadedModel, "keep_answers", lambda loaded: loaded)
        yield


@pytest.fixture(scope="session")
def promptsource_folder():
    """PromptSource's templates, from `flip-flop templates fetch`."""
    try:
        return templates_folder()
    except InputError:
        pytest.skip("PromptSource's templates are not fetched")


@pytest.fixture
def untyped(monkeypatch):
    """Users have no type checks."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The paper's eleven datasets with made rows and made templates, and a temporary cache."""
    datasets = make_datasets(tmp_path / "made")
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(datasets.promptsource))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)
    return datasets


class Result(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def flip_flop(monkeypatch, capsys):
    """Run ``flip-flop`` and return its exit status and output."""
    monkeypatch.setattr(logging.getLogger("flip_flop"), "handlers", [])  # the command's holds this test's stderr

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["flip-flop", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        printed = capsys.readouterr()
        return Result(stop.value.code or 0, printed.out, printed.err)

    return run


@pytest.fixture(scope="module")
def quiet_transformers():
    """Only errors of the library, which warns of every random model."""
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    yield
    library.setLevel(level)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A tiny model on disk."""
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The empty folder in which the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's folder, in which the command runs."""
    folder = make_project(tmp_path / "work")
    monkeypatch.chdir(folder)
    return folder
