"""The pages under docs/ are true: the extensions run, and every name of the architecture is where the page says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "flip_flop"
EXTEND = (ROOT / "docs" / "extend.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", EXTEND, flags=re.DOTALL))


@pytest.fixture
def run(tmp_path):
    """Write the page's files into an empty folder and run Python there."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / "examples").symlink_to(ROOT / "examples")

    def call(*arguments):
        environment = {"PYTHONPATH": f"{tmp_path}:{SOURCE.parent}", "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


@pytest.mark.slow
def test_the_method_of_the_page_trains_and_logs_its_term(run, tmp_path):
    (line,) = re.findall(r"^    PYTHONPATH=. flip-flop (train .*)$", EXTEND, flags=re.MULTILINE)
    run("-m", "flip_flop.cli.main", *line.split(), "--limit", "24", "--logging-steps", "1", "--quiet")
    log = [json.loads(each) for each in (tmp_path / "out/margin/log.jsonl").read_text().splitlines()]
    assert all(entry["margin"] > 0 for entry in log if "loss" in entry)
    assert json.loads((tmp_path / "out/margin/run.json").read_text())["name"] == "margin"


@pytest.mark.slow
def test_the_metric_of_the_page_is_in_an_audit_with_its_interval(run):
    audit = "import flips\nfrom flip_flop import audit, load_model, load_task\n"
    audit += "found = audit(load_model('demo'), load_task('examples/reviews/task.yaml'), quiet=True).metrics\n"
    audit += "print(*found['intervals']['any_flip'], found['any_flip'])"
    low, high, value = map(float, run("-c", audit).split())
    assert 0 < low < value < high < 1


def test_the_dataset_of_the_page_is_the_one_that_is_shipped():
    (text,) = re.findall(r"```yaml\n(.*?)```", EXTEND, flags=re.DOTALL)
    assert yaml.safe_load(text) == yaml.safe_load((SOURCE / "tasks/catalog/rte.yaml").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_architecture_of_the_page_is_packed(run):
    run("newest.py")


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
