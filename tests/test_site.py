"""The site: its pages of metrics and methods, generated reference, links and navigation."""

import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import yaml

from flip_flop import _MODULES
from flip_flop.errors import install_command
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS
from flip_flop.training.settings import TrainingSettings

ROOT = Path(__file__).parents[1]
spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
TEXTS = [
    path
    for pattern in (
        "*.md",
        "docs/**/*.md",
        "src/**/*.py",
        "src/**/*.yaml",
        "src/**/*.txt",
        "benchmarks/*",
        "examples/**/*.md",
    )
    for path in sorted(ROOT.glob(pattern))
    if path.is_file()
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
DEFINITIONS = site.METRIC_DEFINITIONS | site.METHOD_DEFINITIONS


def test_every_metric_and_every_method_has_a_page():
    assert list(site.METRIC_DEFINITIONS) == list(METRICS)
    own = [name for name in site.METHOD_DEFINITIONS if name != "others"]
    others = (ROOT / "docs/methods/others.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in others for name in METHODS if name not in own)
    for name, page in site.written_pages().items():
        assert page.startswith("# "), name
    assert METRICS["posix"].meaning in site.metric_page("posix")
    table = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    assert all(f"`{name}`" in table for name in METRICS)
    for name in site.METHOD_DEFINITIONS:
        path = f"docs/methods/{name}.md"
        page = site.complete((ROOT / path).read_text(encoding="utf-8"), path)
        assert all(
            part in page for part in ("```math", "## Differences", "## Validation", "## Results", "## Definition")
        )


def test_the_navigation_has_every_page_once():
    def places(nav):
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from [entry] if isinstance(entry, str) else places(entry)

    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    found = list(places(navigation))
    assert sorted(found) == sorted([*site.PAGES.values(), *site.written_pages()])


def test_the_reference_has_every_command_and_setting():
    commands = site.command_sections()
    for words in ("audit", "templates vary", "study run"):
        assert f"## flip-flop {words}\n\n```text\nUsage: flip-flop {words} [OPTIONS]" in commands
    assert "--fail-under METRIC=VALUE" in commands
    names = re.findall(r"^\| `(\w+)` \|(?:[^|]|\\\|)+\|[^|]+\|[^|]+\|[^|]+\|$", site.setting_rows(), flags=re.MULTILINE)
    assert names == [item.name for item in fields(TrainingSettings)]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("README.md", "[a](docs/how-to/extend.md#add-a-metric)", "[a](how-to/extend.md#add-a-metric)"),
        ("README.md", "![a](docs/method.svg) [b](examples/reviews)", "![a](method.svg) b"),
        ("docs/how-to/extend.md", "[a](../../examples), [b](own-data.md)", "a, [b](own-data.md)"),
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


def documented_parameters(thing):
    section = re.search(r"^Args:\n((?: {4}.*\n?|\n)+)", inspect.getdoc(thing) or "", flags=re.MULTILINE)
    return re.findall(r"^ {4}(\S.*?)(?: \(.+\))?: ", section[1], flags=re.MULTILINE) if section else []


def test_a_documented_parameter_is_in_the_signature():
    names = [f"{module}.{name}" for module, listed in _MODULES.items() for name in listed]
    for name in [*names, *(name for listed in DEFINITIONS.values() for name in listed)]:
        module, _, last = f"flip_flop.{name}".rpartition(".")
        thing = getattr(importlib.import_module(module), last)
        documented = documented_parameters(thing)
        if documented:
            assert set(documented) <= inspect.signature(thing).parameters.keys(), name


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_installs_the_project_by_name_from_an_index(path):
    installed = re.findall(r"pip install .*", path.read_text(encoding="utf-8"))
    assert not [line for line in installed if re.search("flip-flop-consistency(?! @)", line)]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_remedy_for_a_missing_package_installs_the_extra_into_the_running_python(extra):
    python, *words = shlex.split(install_command(extra))
    assert python == sys.executable
    assert words == ["-m", "pip", "install", *EXTRAS[extra]]


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
