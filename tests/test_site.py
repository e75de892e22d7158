"""The site's own pages: one for each metric and method, with its formula; links that lead somewhere on the site."""

import importlib
import importlib.util
import inspect
from pathlib import Path

import pytest
import yaml

from flip_flop.method import METHODS
from flip_flop.metrics import METRICS

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
DEFINITIONS = site.METRIC_DEFINITIONS | site.METHOD_DEFINITIONS


def test_every_metric_and_every_method_has_a_page():
    assert list(site.METRIC_DEFINITIONS) == list(METRICS)
    assert list(site.METHOD_DEFINITIONS) == list(METHODS)
    for name, page in site.written_pages().items():
        assert page.startswith("# "), name
    assert METRICS["posix"].meaning in site.metric_page("posix")


@pytest.mark.parametrize("definitions", DEFINITIONS.values(), ids=DEFINITIONS)
def test_a_page_has_the_formula_of_what_defines_its_subject(definitions):
    found = []
    for definition in definitions:
        module, name = definition.rsplit(".", 1)
        found.append(inspect.getdoc(getattr(importlib.import_module(f"flip_flop.{module}"), name)))
    assert all(found)
    assert any(".. math::" in text for text in found)


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("README.md", "[a](docs/extend.md#add-a-metric)", "[a](extend.md#add-a-metric)"),
        ("README.md", "![a](docs/method.svg) [b](examples/reviews)", "![a](method.svg) b"),
        ("docs/extend.md", "[task](../examples/reviews/task.yaml), [b](evidence.md)", "task, [b](evidence.md)"),
        (
            "docs/evidence.md",
            "[a](../README.md) [b](../benchmarks/RESULTS.md)",
            "[a](index.md) [b](benchmarks/results.md)",
        ),
        (
            "benchmarks/RESULTS.md",
            "[a](README.md) [b](https://aclanthology.org)",
            "[a](how.md) [b](https://aclanthology.org)",
        ),
    ],
)
def test_links_between_files_become_links_of_the_site_or_text(path, text, expected):
    assert site.site_links(text, path) == expected


def test_workflows_call_targets_of_make_that_exist():
    targets = {line.split(":")[0] for line in (ROOT / "Makefile").read_text().splitlines() if line[:1].isalpha()}
    runs = [
        step["run"].split()
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    called = {words[1] for words in runs if words[0] == "make"}
    assert called == {"test", "docs", "release"} <= targets
