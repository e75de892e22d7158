"""Plug-ins: `flip-flop init method` and `metric`, and packages with tasks."""

import sys
import tomllib

import pytest

from tests.cli.project import one_line
from tests.processes import command, end, start

TASK = """
from flip_flop.prompts import Template
from flip_flop.tasks import Task


def load(request):
    rows = [{"drink": request.name, "warm": "yes"}, {"drink": "ice", "warm": "no"}]
    texts = {"plain": "Is {{ drink }} warm?", "short": "Warm, {{ drink }}:"}
    templates = [Template(name, text, "No ||| Yes") for name, text in texts.items()]
    return Task(request.name, templates, {"test": rows}, labels=("no", "yes"), label_field="warm")
"""


def install(folder, name, groups):
    """Write the metadata of an installed package with these entry points."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [line for group, (key, value) in groups.items() for line in (f"[{group}]", f"{key} = {value}")]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


def installed(folder, work, *words):
    """Do this in a process that finds the package, and return the exit code and the output."""
    output = folder.with_suffix(".txt")
    return end([start(find, folder, work, *words, output=output)]), output.read_text()


def find(folder, work, *words):
    sys.path.insert(0, str(folder))
    work(*words)


def run_tests(folder):
    sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "metric"])
def test_init_writes_a_plugin_that_passes_its_test_when_installed(kind, flip_flop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = flip_flop("init", kind, "word_gap")
    assert result.code == 0, result.err
    folder = tmp_path / "word_gap"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    install(folder, "word_gap", {group: next(iter(each.items())) for group, each in project["entry-points"].items()})
    monkeypatch.chdir(folder)
    codes, shown = installed(folder, run_tests, folder)
    assert codes == [0], shown
    assert len((folder / "word_gap.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", ["f2c", "Gap", "a-b", "class", "../x", ""])
def test_init_rejects_an_invalid_name(name, flip_flop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    one_line(flip_flop("init", "method", name), "E-CONFIG")
    (tmp_path / "gap").mkdir()
    one_line(flip_flop("init", "metric", "gap"), "E-OUT-USED")


@pytest.mark.slow
def test_a_package_adds_a_task(tmp_path):
    (tmp_path / "drinks.py").write_text(TASK)
    install(tmp_path, "drinks", {"flip_flop.tasks": ("drinks", "drinks:load")})
    install(tmp_path, "broken", {"flip_flop.metrics": ("broken", "no_such_module:METRIC")})
    options = ["--model", "demo", "--task", "drinks:tea", "--vary", 2, "--out", tmp_path / "out"]
    codes, shown = installed(tmp_path, command, "audit", *options)
    assert codes == [0], shown
    assert "tea, test, 2 templates, 2 instances\n" in shown
    assert "W-PLUGIN: cannot import 'broken' (no_such_module:METRIC)" in shown
    assert '"formats": {' in (tmp_path / "out" / "metrics.json").read_text()
