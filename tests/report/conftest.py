import hashlib
import shutil

import pytest

from flip_flop import write_report
from tests.report.made_runs import TEMPLATES, demo_runs, hostile_runs, make_scores, write_run


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    return demo_runs(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def demo_report(demo, tmp_path_factory):
    return write_report(demo, tmp_path_factory.mktemp("page") / "report.html")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    return hostile_runs(tmp_path_factory.mktemp("hostile"))


@pytest.fixture(scope="session")
def stored(tmp_path_factory):
    """A folder for the runs of all tests, which are written once."""
    return tmp_path_factory.mktemp("stored")


@pytest.fixture
def make_run(tmp_path, stored):
    """A function that returns a folder with a run of the given options."""

    def make(name="base", seed=1, num_instances=40, num_templates=8, pull=0.0, shift=0.0, folder=None, **options):
        values = (name, seed, num_instances, num_templates, pull, shift, options)
        made = stored / hashlib.sha256(repr(values).encode()).hexdigest()
        if not made.exists():
            scores, gold = make_scores(seed, num_instances, num_templates, 2, pull, shift)
            more = {"labels": ("negative", "positive")} | options
            write_run(made, name, scores, gold, TEMPLATES[:num_templates], **more)
            (made / "MANIFEST.json").unlink()  # tests change the files
        return shutil.copytree(made, tmp_path / (folder or name))

    return make
