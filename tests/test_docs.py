"""The pages under docs/ are true: the extensions run, and every name of the architecture is where the page says."""

import importlib
import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from flip_flop import audit, load_model, load_task
from flip_flop.metrics import METRICS

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flip_flop"
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
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
    assert flip_flop(*line.split(), "--limit", "24", "--logging-steps", "1", "--quiet").code == 0
    log = [json.loads(each) for each in (folder / "out/margin/log.jsonl").read_text().splitlines()]
    assert all(entry["margin"] > 0 for entry in log if "loss" in entry)
    assert json.loads((folder / "out/margin/run.json").read_text())["name"] == "margin"


def test_the_metric_of_the_page_is_in_an_audit_with_its_interval(folder, monkeypatch):
    monkeypatch.setitem(METRICS, "any_flip", None)  # the page's file puts it there; it is gone after the test
    importlib.import_module("flips")
    found = audit(load_model("demo"), load_task("examples/reviews/task.yaml"), quiet=True).metrics
    low, high = found["intervals"]["any_flip"]
    assert 0 < low < found["any_flip"] < high < 1


def test_the_python_of_the_page_audits_and_answers(folder):
    door = importlib.import_module("door")
    assert door.found.scores.shape == (2, 2, 2)
    assert door.votes[0] in ("bad", "good")


def test_the_dataset_of_the_page_is_the_one_that_is_shipped():
    (text,) = re.findall(r"```yaml\n(.*?)```", EXTEND, flags=re.DOTALL)
    assert yaml.safe_load(text) == yaml.safe_load(
        (SOURCE.parent / "flip_flop_paper/data/datasets/rte.yaml").read_text(encoding="utf-8")
    )


def test_the_architecture_of_the_page_is_packed(folder):
    importlib.import_module("newest")


NAMES = re.findall(r"`([\w/]+\.py): (\w+)(?:\.(\w+))?`", ARCHITECTURE)


@pytest.mark.parametrize(("path", "name", "member"), NAMES, ids=lambda part: part)
def test_every_name_of_the_architecture_is_where_the_page_says(path, name, member):
    text = (SOURCE / path).read_text(encoding="utf-8")
    assert re.search(rf"^(class|def) {name}\b|^{name}\b.*=", text, flags=re.MULTILINE)
    assert not member or re.search(rf"^    def {member}\(", text, flags=re.MULTILINE)


def test_every_type_of_the_architecture_is_defined():
    types = set(re.findall(r"`([A-Z][a-z]\w+)(?:\(.*?\))?`", ARCHITECTURE))
    defined = {name for path in SOURCE.rglob("*.py") for name in re.findall(r"class (\w+)", path.read_text())}
    assert types <= defined
