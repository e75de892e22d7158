import pytest

from tests.report.made_runs import TEMPLATES, demo_runs, hostile_runs, make_scores, write_run


@pytest.fixture(scope="session")
def demo(tmp_path_factory):
    return demo_runs(tmp_path_factory.mktemp("demo"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory):
    return hostile_runs(tmp_path_factory.mktemp("hostile"))


@pytest.fixture
def make_run(tmp_path):
    """A function that writes one run with the given options."""

    def make(name="base", seed=1, num_instances=40, num_templates=8, pull=0.0, shift=0.0, **options):
        scores, gold = make_scores(seed, num_instances, num_templates, 2, pull, shift)
        labels = options.pop("labels", ("negative", "positive"))
        folder = tmp_path / options.pop("folder", name)
        made = write_run(folder, name, scores, gold, TEMPLATES[:num_templates], labels=labels, **options)
        (made / "MANIFEST.json").unlink()  # as an earlier version wrote it: tests change the files
        return made

    return make
