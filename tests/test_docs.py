"""The pages and the site: links, commands, examples, generated reference, options and error codes."""

import csv
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement

from flip_flop import _MODULES, F2CConfig
from flip_flop.cli.main import cli
from flip_flop.errors import error_table, install_command
from flip_flop.method import METHODS
from flip_flop.metrics import METRICS, add_metric
from flip_flop.tasks import load_task
from flip_flop.training.config import make_config
from flip_flop.training.settings import TrainingSettings
from tests.cli.project import one_line
from tests.refused import refused
from tests.test_architecture import FLOOR_OF

ROOT = Path(__file__).parents[1]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def blocks(page, language):
    """The code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page, flags=re.DOTALL)


spec = importlib.util.spec_from_file_location("site_pages", ROOT / "docs" / "site.py")
site = importlib.util.module_from_spec(spec)
spec.loader.exec_module(site)
PAGES = [
    ROOT / "README.md",
    *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PATTERNS = ("*.md", "docs/**/*.md", "src/**/*.py", "src/**/*.yaml", "src/**/*.txt", "benchmarks/*", "examples/**/*.md")
TEXTS = sorted(path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file())
README, EXTEND, RELEASE = read("README.md"), read("docs/how-to/extend.md"), read("docs/release.md")
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", EXTEND, flags=re.DOTALL))
EXTRAS = tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"]
DEFINITIONS = site.METRIC_DEFINITIONS | site.METHOD_DEFINITIONS
OPTIONS = sorted(set(re.findall(r"`(\w+): ([\w.-]+)`", RELEASE)) - {("protocol", "paper"), ("protocol", "release")})
CODE = r"[EW]-[A-Z]+(?:-[A-Z]+)*"
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


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


@pytest.mark.slow
def test_the_method_of_the_page_trains_and_logs_its_term(folder, flip_flop):
    (line,) = re.findall(r"^    PYTHONPATH=. flip-flop (train .*)$", EXTEND, flags=re.MULTILINE)
    assert flip_flop(*line.split(), "--limit", "24", "--logging-steps", "1", "--keep-worse").code == 0
    log = [json.loads(line) for line in (folder / "out/margin/log.jsonl").read_text().splitlines()]
    assert all(entry["margin"] > 0 for entry in log if "loss" in entry)
    assert json.loads((folder / "out/margin/run.json").read_text())["name"] == "margin"


@pytest.mark.slow
def test_the_metric_of_the_page_is_in_an_audit_and_its_report(folder, flip_flop):
    lines = re.findall(r"^    PYTHONPATH=. flip-flop (.* --metric .*)$", EXTEND, flags=re.MULTILINE)
    try:
        audited, reported = lines[0].split(), (*lines[1].split(), "--latex", "out/flips.tex")
        shown = [flip_flop(*words) for words in (audited, reported)]
        assert [result.code for result in shown] == [0, 0]
        sys.modules.pop("flips")
        refused(r"metric: 'any_flip' is the name of another metric\.", add_metric, "flips:ANY_FLIP")
    finally:
        METRICS.pop("any_flip", None)
    metrics = json.loads((folder / "out/flips/metrics.json").read_text())
    low, high = metrics["intervals"]["any_flip"]
    assert 0 < low < metrics["any_flip"] < high < 1
    assert "any flip" in shown[0].out
    assert f"{100 * metrics['any_flip']:.1f} ({100 * low:.1f} to {100 * high:.1f})" in shown[0].out
    assert "any flip" in (folder / "out/flips.tex").read_text(encoding="utf-8")
    assert "any flip" in (folder / "out/flips.html").read_text(encoding="utf-8")
    one_line(
        flip_flop(*lines[0].replace(":ANY", ":NO").replace("out/flips", "out/other").split()),
        "E-CONFIG",
        "metric is 'flips:NO_FLIP'",
        "PYTHONPATH=.",
    )


def test_the_python_of_the_page_audits_and_answers(folder):
    door = importlib.import_module("door")
    assert door.found.scores.shape == (2, 2, 2)
    assert door.votes[0] in ("bad", "good")


def test_the_architecture_page_has_every_package_in_the_order_of_imports():
    tables = read("docs/architecture.md").split("## Six types")[0]
    listed = re.findall(r"^\| `(\w+)`.* \|.*\|$", tables, flags=re.MULTILINE)
    packages = {path.parent.name for path in (ROOT / "src").glob("flip_flop/*/__init__.py")}
    assert packages <= set(listed)
    floors = [FLOOR_OF[name] for name in listed if name in FLOOR_OF]
    assert floors == sorted(floors)


@every_page
def test_links_lead_to_a_file_and_a_heading(path):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", read(path)):
        linked = (path.parent / target).resolve() if target else path
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), f"{target}#{anchor}"


def anchors(path):
    """The anchors of the headings of a page, as GitHub and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", read(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_linked_from_the_readme():
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)#:]+)", README)}
    assert set(PAGES) - {ROOT / "README.md"} <= linked


COMMANDS = {
    (
        path.relative_to(ROOT),
        re.split(r"\s#", line.split("flip-flop ", 1)[1])[0].strip(),
    )
    for path in PAGES
    for line in read(path).splitlines()
    if re.match(r"    (\.venv/bin/|PYTHONPATH=\. )?flip-flop ", line)
}


@pytest.mark.parametrize(("path", "line"), sorted(COMMANDS, key=str), ids=str)
def test_every_command_of_a_page_is_valid(path, line):
    words = shlex.split(line)
    command, context = cli, click.Context(cli, **cli.context_settings)
    while isinstance(command, click.Group):
        name = words.pop(0) if words[0] in command.list_commands(context) else "data"  # init FILE is init data FILE
        command = command.get_command(context, name)
        context = click.Context(command, info_name=name, parent=context)
    command.make_context(name, words, parent=context.parent)
    files = [word for word in words if word.startswith(("examples/", "evidence/"))]
    assert all((ROOT / file).exists() for file in files)


@pytest.mark.slow
def test_the_workflow_for_ci_runs_with_the_demo_model(tmp_path, monkeypatch, flip_flop):
    (workflow,) = map(yaml.safe_load, blocks(read("docs/how-to/ci.md"), "yaml"))
    (job,) = workflow["jobs"].values()
    assert {"runs-on", "timeout-minutes", "steps"} == job.keys()
    actions = [step["uses"].split("@")[0] for step in job["steps"]]
    known = [f"actions/{name}" for name in ("checkout", "setup-python", "cache")]
    assert actions == [*known, "OWNER/flip-flop-consistency", "actions/upload-artifact"]
    cache = next(step["with"] for step in job["steps"] if step.get("uses", "").startswith("actions/cache"))
    assert cache == {"path": "~/.cache/huggingface", "key": "model-${{ env.MODEL }}"}
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples" / "reviews", tmp_path, dirs_exist_ok=True)
    stored, _ = sorted((line for path, line in COMMANDS if path.name == "ci.md"), key=len, reverse=True)
    assert flip_flop(*shlex.split(stored.replace(workflow["env"]["MODEL"], "demo"))).code == 0
    given = next(step["with"] for step in job["steps"] if step["uses"].startswith("OWNER/"))
    task = Path("task.yaml").read_text()
    for words, outcome in (("Was the guest satisfied?", "passed"), ("Was the guest angry?", "**failed**")):
        Path("task.yaml").write_text(task.replace("Was the guest satisfied?", words))
        shutil.rmtree("out", ignore_errors=True)
        codes = run_action(given | {"model": "demo"}, tmp_path)
        assert codes == [0 if outcome == "passed" else 1, 0]
        assert {"audit", "summary.md", "report.html"} <= set(os.listdir("out"))
        assert f"not worse than ci/stored | {outcome}" in Path("summary").read_text()
    assert "satisfied changed" in Path("summary").read_text()


def run_action(given, folder):
    """Run the steps of the action after the installation with these inputs, and return their exit codes."""
    action = yaml.safe_load(read("action.yml"))
    assert given.keys() <= action["inputs"].keys()
    inputs = {name: each.get("default") for name, each in action["inputs"].items()} | given
    program = folder / "bin" / "flip-flop"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m flip_flop "$@"\n')
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    codes = []
    for step in action["runs"]["steps"][1:]:
        names = {key: re.fullmatch(r"\$\{\{ inputs\.(.+) \}\}", value)[1] for key, value in step["env"].items()}
        env = {key: inputs[name] for key, name in names.items()} | {"GITHUB_STEP_SUMMARY": "summary"}
        command = ["bash", "-eo", "pipefail", "-c", step["run"]]
        codes.append(subprocess.run(command, env=os.environ | path | env, capture_output=True).returncode)
    return codes


@pytest.mark.slow
def test_the_steps_of_the_tutorial_run(tmp_path, monkeypatch, flip_flop):
    monkeypatch.chdir(tmp_path)
    movies = Path(shutil.copytree(ROOT / "examples/movies", "examples/movies"))
    reviews = csv.DictReader(read("examples/reviews/labelled.csv").splitlines())
    rows = [{"text": row["review"], "label": int(row["verdict"] == "positive")} for row in reviews]
    unlabelled = [{"text": row["text"] + " Fine.", "label": None} for row in rows]
    for split, members in (("test", rows[:24]), ("validation", unlabelled[:10]), ("train", unlabelled[10:34])):
        lines = "".join(json.dumps(row) + "\n" for row in members)
        (movies / f"{split}.jsonl").write_text(lines, encoding="utf-8")
    lines = [line for path, line in COMMANDS if path.name == "tutorial.md"]
    for line in sorted(lines, key=read("docs/tutorial.md").index):
        words = shlex.split(line.replace("models/SmolLM2-135M-Instruct", "demo"))
        quick = ["--lr", "3e-4", "--keep-worse", "--max-steps", "2"] if words[0] == "train" else []
        assert flip_flop(*words, *quick).code == 0, line


def test_the_task_file_of_the_readme_loads(tmp_path):
    (tmp_path / "task.yaml").write_text(blocks(README, "yaml")[0])
    (tmp_path / "labelled.csv").write_text("text,urgent\nThe server is on fire.,1\n")
    instance = load_task(tmp_path / "task.yaml").instances("test")[0]
    assert instance.prompts == (
        "Ticket: The server is on fire.\nIs this urgent?",
        "The server is on fire.\nTrue or false: this cannot wait.",
        "The server is on fire.\nThis ticket",
    )
    assert instance.label == 1


@pytest.mark.slow
def test_the_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    reviews = shutil.copytree(ROOT / "examples" / "reviews", tmp_path / "examples" / "reviews")
    rows = (reviews / "unlabelled.jsonl").read_text().splitlines(keepends=True)
    (reviews / "unlabelled.jsonl").write_text("".join(rows[:150]))
    monkeypatch.chdir(tmp_path)
    code = blocks(README, "python")[0]
    assert read("examples/ten_lines.py").endswith('"""\n\n' + code)  # mypy checks this file
    exec(code, {})
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    # run, P_o, low, to, high, mean F1, ...
    before, after = (line for line in lines if line[:1] in (["base"], ["f2c"]) and line[1] != "(calibrated)")
    assert (before[0], after[0]) == ("base", "f2c")
    assert float(after[1]) > float(before[1])  # agreement
    assert float(after[5]) > float(before[5])  # mean F1


@pytest.mark.slow
@pytest.mark.parametrize("name", ["judges", "open-answers"])
def test_the_python_of_judges_and_of_open_answers_runs(name, tmp_path, monkeypatch, capsys, flip_flop):
    monkeypatch.chdir(tmp_path)
    page = read(f"docs/how-to/{name}.md")
    command = re.search("    flip-flop (init .*)", page)[1].partition(" #")[0]
    lines = [f"question {row},answer {row}" for row in range(100)]
    (tmp_path / "verdicts.csv").write_text("\n".join(["question,answer", *lines]))
    assert flip_flop(*shlex.split(command.replace("svamp.jsonl", "verdicts.csv"))).code == 0
    (task,) = tmp_path.glob("*.yaml")
    short = "max_tokens: 8, extract: '[ae]'"  # whole answers of the toy model all differ
    task.write_text(task.read_text().replace("max_tokens: 64", short))
    # Two validation rows must not decide whether the adapter is saved.
    small = "max_steps=1, learning_rate=1e-9, per_device_train_batch_size=8, use_cpu=True"
    exec(blocks(page, "python")[0].replace("MODEL", "demo").replace("max_steps=30", small), {})
    printed = capsys.readouterr().out
    assert "P_o" in printed
    assert ("changed_by" in printed) == (name == "judges")


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_every_option_of_the_release_page_is_a_setting_that_takes_the_value(name, value):
    setting = getattr(make_config({name: value}), name)
    assert str(getattr(setting, "value", setting)).lower() == value or float(setting) == float(value)


def test_the_release_page_has_both_values_of_every_setting_that_a_protocol_decides():
    bundles = {item.name: item.metadata for item in fields(F2CConfig) if "release" in item.metadata}
    values = [(name, bundle["paper"], bundle["release"]) for name, bundle in bundles.items()]
    listed = {(name, str(value).lower()) for name, *both in values if both[0] != both[1] for value in both}
    assert listed <= set(OPTIONS)


def test_every_metric_and_every_method_has_a_page():
    assert list(site.METRIC_DEFINITIONS) == list(METRICS)
    others, table = read("docs/methods/others.md"), read("docs/reference/metrics.md")
    assert all(f"`{name}`" in others for name in METHODS if name not in site.METHOD_DEFINITIONS)
    assert all(f"`{name}`" in table for name in METRICS)
    assert all(page.startswith("# ") for page in site.written_pages().values())
    assert METRICS["posix"].meaning in site.metric_page("posix")
    parts = ("```math", "## Differences", "## Validation", "## Results", "## Definition")
    for path in (f"docs/methods/{name}.md" for name in site.METHOD_DEFINITIONS):
        page = site.complete(read(path), path)
        assert all(part in page for part in parts), path


def test_the_navigation_has_every_page_once():
    listed = re.findall(r"[\w/-]+\.md", read("mkdocs.yml").split("\nnav:")[1])
    assert sorted(listed) == sorted([*site.PAGES.values(), *site.written_pages()])


@pytest.mark.parametrize("path", site.REFERENCE, ids=lambda path: path.stem)
def test_the_committed_reference_is_that_of_the_source(path):
    page = read(path)
    assert site.with_reference(page) == page, "Run make reference."
    before, _, after = page.partition(" -->\n")
    assert site.with_reference(f"{before} -->\nold text\n{site.END}{after.partition(site.END)[2]}") == page
    last = page.splitlines()[-3]
    assert site.complete(page, str(path.relative_to(ROOT))).count(last) == page.count(last)


REQUIREMENTS = tomllib.loads(read("pyproject.toml"))
PINS = dict(re.findall(r"^([\w-]+)==(\S+)$", read("constraints.txt"), flags=re.MULTILINE))


@pytest.mark.parametrize(
    "group",
    [
        REQUIREMENTS["project"]["dependencies"],
        *(EXTRAS[extra] for extra in re.search(r"--editable '\.\[(.+)\]'", read("Makefile"))[1].split(",")),
        *(REQUIREMENTS["dependency-groups"][name] for name in ("dev", "docs")),
    ],
    ids=str,
)
def test_every_package_that_make_installs_is_pinned_in_the_range_of_the_project(group):
    for requirement in map(Requirement, group):
        assert requirement.specifier.contains(PINS[requirement.name]), requirement


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
        if documented := documented_parameters(thing):
            assert set(documented) <= inspect.signature(thing).parameters.keys(), name


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_installs_the_project_by_name_from_an_index(path):
    installed = re.findall(r"pip install .*", read(path))
    assert not [line for line in installed if re.search("flip-flop-consistency(?! @)", line)]


@pytest.mark.parametrize("extra", EXTRAS)
def test_the_remedy_for_a_missing_package_installs_the_extra_into_the_running_python(extra):
    python, *words = shlex.split(install_command(extra))
    assert python == sys.executable
    assert words == ["-m", "pip", "install", *EXTRAS[extra]]


# Codes at the beginning of a string: of an error, or of a warning's line.
RAISED = {code for path in SOURCES for code in re.findall(rf'"({CODE})(?=[":])', read(path))}


def test_the_table_of_errors_has_the_codes_of_the_source_with_a_meaning_and_a_fix_in_sentences():
    assert list(error_table()) == sorted(RAISED)
    for entry in error_table().values():
        assert list(entry) == ["what", "fix"]
        assert all(text.endswith(".") for text in entry.values()), entry


def test_the_page_of_errors_has_every_code():
    path = "docs/reference/errors.md"
    page = site.complete(read(path), path)
    assert re.findall(rf"^\| `({CODE})` \| .+ \| .+ \|$", page, flags=re.MULTILINE) == list(error_table())


@pytest.mark.parametrize("path", [*SOURCES, *PAGES], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_code_that_is_mentioned_exists(path):
    assert set(re.findall(rf"`({CODE}-[A-Z]+)`", read(path))) <= RAISED


def test_the_readme_is_short_and_has_a_command_in_its_first_100_words():
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1100
    assert len(README.split("\n$ flip-flop audit")[0].split()) < 100


def test_workflows_call_targets_of_make_that_exist():
    targets = set(re.findall(r"^(\w[^:]*):", read("Makefile"), flags=re.MULTILINE))
    workflows = "\n".join(map(read, (ROOT / ".github/workflows").glob("*.yml")))
    called = set(re.findall(r"run: make (\w+)", workflows))
    assert called == {"test", "docs", "release"} <= targets
