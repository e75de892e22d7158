"""Plug-ins: `flip-flop init method` and `metric`, and packages with tasks."""

import subprocess
import sys
import tomllib

import pytest

from tests.cli.project import one_line

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


def run(folder, *arguments):
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); sys.argv = ['flip-flop', *sys.argv[1:]]\n"
    code += "from flip_flop.cli.main import main; main()"
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["method", "metric"])
def test_init_writes_a_plugin_that_passes_its_test_when_installed(kind, flip_flop, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = flip_flop("init", kind, "word_gap")
    assert result.code == 0, result.err
    folder = tmp_path / "word_gap"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    install(folder, "word_gap", {group: next(iter(each.items())) for group, each in project["entry-points"].items()})
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder]
    tested = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert tested.returncode == 0, tested.stdout
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
    result = run(tmp_path, "audit", *options)
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("tea, test, 2 templates, 2 instances\n")
    assert "W-PLUGIN: cannot import 'broken' (no_such_module:METRIC)" in result.stderr
    assert '"formats": {' in (tmp_path / "out" / "metrics.json").read_text()
