"""The README is true: its tree, its commands, its words."""

import re
import shlex
from pathlib import Path

import click
import pytest

from flip_flop.cli.main import cli
from flip_flop_paper.data.catalog import catalog_names

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def tree():
    block = README.split("## What is where")[1].split("\n\n")[1]
    return dict(re.findall(r"^ {4,}(\S+) +(\S.*)$", block, flags=re.MULTILINE))


def test_the_tree_has_every_room_and_every_folder():
    package = ROOT / "src" / "flip_flop"
    rooms = {f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").is_file()}
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}
    others = {"tests/", "benchmarks/", "evidence/", "torture/", "examples/", "docs/"}
    assert set(tree()) == rooms | files | others


def test_the_tree_stands_in_the_order_of_the_floors():
    from tests.test_architecture import FLOOR_OF

    floors = [FLOOR_OF[name.rstrip("/").removesuffix(".py")] for name in tree() if not (ROOT / name).exists()]
    assert floors == sorted(floors)


COMMANDS = [line.strip() for line in README.splitlines() if line.strip().startswith(".venv/bin/flip-flop")]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_that_the_program_takes(line):
    words = shlex.split(line)[1:]
    command = cli.get_command(click.Context(cli), words[0])
    context = command.make_context(words[0], words[1:])
    paths = [value for key, value in context.params.items() if key in ("task", "source")]
    assert all(path in catalog_names() or (ROOT / path).exists() for path in paths)


def test_there_is_a_command_for_each_step():
    verbs = [shlex.split(line)[1] for line in COMMANDS]
    assert verbs[:5] == ["audit", "train", "audit", "report", "predict"]
    assert verbs[5:10] == ["templates", "tasks", "templates", "audit", "train"]
    assert verbs[10:] == ["study", "study", "study"]


def test_every_linked_file_is_there():
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert all((ROOT / link).exists() for link in links)


def test_the_task_in_the_readme_is_read_by_the_program(tmp_path):
    from flip_flop.tasks import load_task

    text = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL).group(1)
    (tmp_path / "task.yaml").write_text(text)
    (tmp_path / "labelled.csv").write_text("text,urgent\nThe server is on fire.,1\n")
    task = load_task(tmp_path / "task.yaml")
    instance = task.instances("test")[0]
    assert instance.prompts == (
        "Ticket: The server is on fire.\nIs this urgent?",
        "The server is on fire.\nTrue or false: this cannot wait.",
        "The server is on fire.\nCan this wait, or must somebody come now? It",
    )
    assert instance.label == 1


@pytest.mark.slow
def test_the_lines_of_python_in_the_readme_run(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL).group(1)
    assert (ROOT / "examples" / "ten_lines.py").read_text().endswith('"""\n\n' + code)  # which mypy reads
    exec(code, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[-4:]]
    before, after = (line for line in lines if line[1] != "(calibrated)")
    assert (before[0], after[0]) == ("base", "f2c")
    assert float(after[1]) > float(before[1]) + 5  # agreement
    assert float(after[2]) > float(before[2])  # mean F1
