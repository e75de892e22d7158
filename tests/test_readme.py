"""README.md: its length, its task file and its Python. tests/test_docs.py checks its links and commands."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_is_short_and_has_a_command_in_its_first_150_words():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1100
    assert len(README.split("    make demo")[0].split()) < 150


def test_the_task_file_of_the_readme_loads(tmp_path):
    from flip_flop.tasks import load_task

    text = re.search(r"```yaml\n(.*?)```", README, flags=re.DOTALL).group(1)
    (tmp_path / "task.yaml").write_text(text)
    (tmp_path / "labelled.csv").write_text("text,urgent\nThe server is on fire.,1\n")
    task = load_task(tmp_path / "task.yaml")
    instance = task.instances("test")[0]
    assert instance.prompts == (
        "Ticket: The server is on fire.\nIs this urgent?",
        "The server is on fire.\nTrue or false: this cannot wait.",
        "The server is on fire.\nThis ticket",
    )
    assert instance.label == 1


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", README, flags=re.DOTALL).group(1)
    assert (ROOT / "examples" / "ten_lines.py").read_text().endswith('"""\n\n' + code)  # mypy checks this file
    exec(code, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # run, P_o, low, to, high, mean F1, ...
    before, after = (line for line in lines if line[:1] in (["base"], ["f2c"]) and line[1] != "(calibrated)")
    assert (before[0], after[0]) == ("base", "f2c")
    assert float(after[1]) > float(before[1]) + 5  # agreement
    assert float(after[5]) > float(before[5])  # mean F1
