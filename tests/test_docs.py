"""The pages: links, commands, examples, packages and types."""

import csv
import importlib
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path

import click
import pytest
import yaml

from flip_flop.cli.main import cli
from flip_flop.errors import InputError
from flip_flop.metrics import METRICS, add_metric
from tests.cli.project import one_line
from tests.test_architecture import FLOOR_OF

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCE = ROOT / "src"
EXTEND = (ROOT / "docs" / "how-to" / "extend.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", EXTEND, flags=re.DOTALL))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The page's files in an empty folder, from which Python imports them."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_method_of_the_page_trains_and_logs_its_term(folder, flip_flop):
    (line,) = re.findall(r"^    PYTHONPATH=. flip-flop (train .*)$", EXTEND, flags=re.MULTILINE)
    assert flip_flop(*line.split(), "--limit", "24", "--logging-steps", "1", "--keep-worse").code == 0
    log = [json.loads(each) for each in (folder / "out/margin/log.jsonl").read_text().splitlines()]
    assert all(entry["margin"] > 0 for entry in log if "loss" in entry)
    assert json.loads((folder / "out/margin/run.json").read_text())["name"] == "margin"


def test_the_metric_of_the_page_is_in_an_audit_and_its_report(folder, flip_flop):
    lines = re.findall(r"^    PYTHONPATH=. flip-flop (.* --metric .*)$", EXTEND, flags=re.MULTILINE)
    try:
        assert [flip_flop(*line.split()).code for line in lines] == [0, 0]
        sys.modules.pop("flips")
        with pytest.raises(InputError, match=r"metric: 'any_flip' is the name of another metric\."):
            add_metric("flips:ANY_FLIP")
    finally:
        METRICS.pop("any_flip", None)
    found = json.loads((folder / "out/flips/metrics.json").read_text())
    low, high = found["intervals"]["any_flip"]
    assert 0 < low < found["any_flip"] < high < 1
    assert "any flip" in (folder / "out/flips.html").read_text(encoding="utf-8")
    one_line(
        flip_flop(*lines[0].replace(":ANY", ":NO").split()),
        "E-CONFIG",
        "metric is 'flips:NO_FLIP'",
        "PYTHONPATH=.",
    )


def test_the_python_of_the_page_audits_and_answers(folder):
    door = importlib.import_module("door")
    assert door.found.scores.shape == (2, 2, 2)
    assert door.votes[0] in ("bad", "good")


def test_the_dataset_of_the_page_is_the_one_in_the_catalog():
    (text,) = re.findall(r"```yaml\n(.*?)```", EXTEND, flags=re.DOTALL)
    (path,) = SOURCE.rglob("rte.yaml")
    assert yaml.safe_load(text) == yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_architecture_of_the_page_is_packed(folder):
    importlib.import_module("newest")


def test_the_architecture_page_has_every_package_in_the_order_of_imports():
    listed = re.findall(r"^\| `(\w+)`.* \|.*\|$", ARCHITECTURE.split("## Six types")[0], flags=re.MULTILINE)
    packages = {path.parent.name for path in SOURCE.glob("flip_flop/*/__init__.py")}
    assert packages <= set(listed)
    floors = [FLOOR_OF[name] for name in listed if name in FLOOR_OF]
    assert floors == sorted(floors)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_a_file_and_a_heading(path):
    text = path.read_text(encoding="utf-8")
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(path):
    """The anchors of the headings of a page, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme():
    linked = {
        (ROOT / target).resolve() for target in re.findall(r"\]\(([^)#:]+)", PAGES[0].read_text(encoding="utf-8"))
    }
    assert set(PAGES) - {PAGES[0]} <= linked


COMMANDS = {
    (
        path.relative_to(ROOT),
        re.split(r"\s#", line.split("flip-flop ", 1)[1])[0].strip(),
    )
    for path in PAGES
    for line in path.read_text(encoding="utf-8").splitlines()
    if re.match(r"    (\.venv/bin/|PYTHONPATH=\. )?flip-flop ", line)
}


@pytest.mark.parametrize(("path", "line"), sorted(COMMANDS, key=str), ids=str)
def test_every_command_of_a_page_is_valid(path, line):
    words = shlex.split(line)
    command, context = cli, click.Context(cli)
    while isinstance(command, click.Group):
        name = words.pop(0) if words[0] in command.list_commands(context) else "data"  # init FILE is init data FILE
        command = command.get_command(context, name)
        context = click.Context(command, info_name=name, parent=context)
    command.make_context(name, words, parent=context.parent)
    files = [word for word in words if word.startswith(("examples/", "evidence/"))]
    assert all((ROOT / file).exists() for file in files)


def test_the_workflow_for_ci_runs_with_the_demo_model(tmp_path, monkeypatch, flip_flop):
    page = (ROOT / "docs" / "how-to" / "ci.md").read_text(encoding="utf-8")
    (workflow,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, flags=re.DOTALL))
    (job,) = workflow["jobs"].values()
    assert {"runs-on", "timeout-minutes", "steps"} == job.keys()
    actions = [step["uses"].split("@")[0] for step in job["steps"] if "uses" in step]
    assert actions == [f"actions/{name}" for name in ("checkout", "setup-python", "cache", "upload-artifact")]
    cache = next(step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache"))
    assert cache == {"path": "~/.cache/huggingface", "key": "model-${{ env.MODEL }}"}
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "reviews", tmp_path, dirs_exist_ok=True)
    (stored,) = [f"flip-flop {line}" for path, line in COMMANDS if path.name == "ci.md"]
    steps = [step["run"].replace("\\\n", " ") for step in job["steps"] if "flip-flop " in step.get("run", "")]
    lines = [line for step in steps for line in step.splitlines() if line.startswith("flip-flop ")]
    assert len(lines) == 2
    for line in (stored, *lines):
        words = shlex.split(line.replace(workflow["env"]["MODEL"], "demo").replace("$MODEL", "demo"))[1:]
        result = flip_flop(*words)
        assert result.code == 0, result.err
    assert {"audit", "junit.xml", "summary.md", "report.html"} <= set(os.listdir("out"))
    assert 'cat out/summary.md >> "$GITHUB_STEP_SUMMARY"' in steps[-1]
    assert "not worse than ci/stored | passed" in Path("out/summary.md").read_text()


@pytest.mark.slow
def test_the_steps_of_the_tutorial_run(tmp_path, monkeypatch, flip_flop):
    monkeypatch.chdir(tmp_path)
    with (ROOT / "examples" / "reviews" / "labelled.csv").open(encoding="utf-8") as file:
        rows = [{"text": row["review"], "label": int(row["verdict"] == "positive")} for row in csv.DictReader(file)]
    rows += [{"text": row["text"] + " Fine.", "label": None} for row in rows]
    Path("reviews.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    lines = [line for path, line in COMMANDS if path.name == "tutorial.md"]
    order = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8").index
    for line in sorted(lines, key=order):
        words = shlex.split(line.replace("models/SmolLM2-135M-Instruct", "demo"))
        quick = ["--lr", "3e-4", "--keep-worse"] if words[0] == "train" else []
        assert flip_flop(*words, *quick).code == 0, line
