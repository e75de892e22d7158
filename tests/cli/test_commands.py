"""The commands: their output, files and exit codes, from a first audit to predictions, and plug-ins."""

import csv
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from flip_flop import TrainingRun, load_run
from flip_flop.cli.main import COMMANDS
from flip_flop.evaluation.audit import audit as audit_function
from flip_flop.method import METHODS
from flip_flop.scoring import distributed
from tests.cases import read_cases
from tests.cli.project import errors_of, one_line, record
from tests.processes import command, end, launched, start
from tests.tiny import byte_bpe, save_tiny, with_chat_template

# The package gives its function the module's name.
AUDITING = sys.modules[audit_function.__module__]
COMMAND = Path(sys.executable).with_name("flip-flop")
NAMES = [*COMMANDS, "env"]


@pytest.fixture
def audit(flip_flop, model, project):
    def run(*more, out="out", model=model):
        return flip_flop("audit", "--model", model, "--task", "tickets.yaml", "--out", out, *more)

    return run


@pytest.mark.slow
@pytest.mark.skipif(not COMMAND.exists(), reason="the package is not installed")
def test_the_installed_command_runs():
    found = subprocess.run([COMMAND, "--version"], capture_output=True, text=True)
    assert found.stdout.strip() == f"flip-flop, version {version('flip-flop-consistency')}"


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_in_a_write_ends_with_one_line_and_leaves_no_file(tmp_path, name, code):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "good room,yes\nbad food,no\n" * 5)
    program = (
        "import os, signal, sys\nfrom flip_flop.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background process may ignore it
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        f"sys.addaudithook(lambda event, _: event == 'os.rename' and os.kill(os.getpid(), signal.{name}))\n"
        "sys.argv = ['flip-flop', 'init', 'reviews.csv']\nmain()"
    )
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stderr.strip().splitlines()[-1]) == (code, "stopped")
    assert os.listdir(tmp_path) == ["reviews.csv"]


TRAIN = ("train", "--model", "demo", "--task", "demo", "--out", "out")
TYPED_WRONG = read_cases("cli/typed_wrong.yaml")
FIRST = read_cases("cli/first_lines.yaml")
HELP = [("--help",), ("--version",), *((verb, "--help") for verb in NAMES)]
SLOW = ("torch", "transformers", "peft")  # to import
PROGRAM = f"""
import json, resource, sys
class Stopping:
    encoding = "utf-8"
    def write(self, line):
        sys.exit(line)
from flip_flop.cli.main import main
codes = []
for words in {[*HELP, *map(shlex.split, TYPED_WRONG)]!r}:
    sys.argv = ["flip-flop", *words]
    try:
        main()
    except SystemExit as stop:
        codes.append(stop.code or 0)
lines = []
for words in {[*map(shlex.split, FIRST)]!r}:
    sys.argv, sys.stderr = ["flip-flop", *words], Stopping()
    try:
        main()
    except SystemExit as stop:
        lines.append(stop.code)
    sys.stderr = sys.__stderr__
used = resource.getrusage(resource.RUSAGE_SELF)
imported = [name for name in {SLOW!r} if name in sys.modules]
print("\\n" + json.dumps([codes, lines, used.ru_utime + used.ru_stime, imported]))
"""


@pytest.mark.slow
def test_help_errors_of_options_and_first_lines_are_printed_before_torch_is_imported(project):
    """In a moment, without the seconds of imports."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes, first, seconds, imported = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0] * len(HELP) + [2] * len(TYPED_WRONG)
    assert first == list(FIRST.values())
    assert all(f"\n  {verb} " in done.stdout for verb in NAMES)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E-", "Error: "))]
    for line, (words, begun) in zip(lines, TYPED_WRONG.items(), strict=True):
        assert line.startswith(begun), words
    assert imported == []
    assert seconds < 5
    assert sorted(os.listdir(".")) == ["test.csv", "tickets.yaml", "train.jsonl", "validation.csv"]


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ((*TRAIN, "--learning-rat", "3"), "E-CONFIG: Unknown setting '--learning-rat' in the command line."),
        ((*TRAIN, "--config", "c.yaml"), "E-CONFIG: Unknown setting 'learning_rat' in c.yaml"),
        ((*TRAIN, "--learning-rate", "abc"), "E-CONFIG: --learning-rate is 'abc'. It must be a valid number."),
        ((*TRAIN, "--epochs", "0"), "E-CONFIG: --epochs is 0.0."),
        ((*TRAIN, "--method", "nosuch"), "E-CONFIG: method is 'nosuch'."),
        (("study", "plan", "smoke", "--set", "learning_rat=3"), "E-CONFIG: Unknown setting 'learning_rat' in study"),
        (("study", "plan", "smoke", "--set", "learning_rate=abc"), "E-CONFIG: learning_rate is 'abc'."),
    ],
)
def test_a_wrong_setting_is_one_line_and_writes_nothing(project, flip_flop, words, line):
    (project / "c.yaml").write_text("learning_rat: 3\n")
    done = flip_flop(*words)
    assert (done.code, errors_of(done).splitlines()[-1].startswith(line)) == (2, True), errors_of(done)
    assert not (project / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("no_colour", "columns"), [("", 80), ("1", 120)])
def test_a_terminal_has_the_decision_in_bold_and_lines_that_fit(no_colour, columns, flip_flop, project, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", no_colour)
    shown = flip_flop("audit", "-m", "demo", "-t", "demo", "-o", "out", "--limit", "60", "--explain").out
    words = " ".join(shown.split())
    assert bool(re.search(r"\x1b\[1mUse \w+[^\x1b]* labelled rows\.[^\x1b]*\x1b\[0m", words)) is not bool(no_colour)
    assert no_colour or shown.count("\x1b") == 2
    lines = re.sub(r"\x1b\[\dm", "", shown).splitlines()
    assert columns - 20 < max(map(len, lines)) <= columns
    assert "sigma F1: standard deviation of F1 over templates." in words
    assert "--explain" not in words


def test_an_audit_prints_a_table_and_leaves_a_run(audit, model):
    result = audit()
    assert result.code == 0
    assert result.out.startswith("tickets, test, 4 templates, 9 instances, in percent\n")
    assert all(words in result.out for words in ("base", "next, flip-flop report out", "\n--explain explains"))
    assert errors_of(result) == f"loading {model}\n"
    assert (record("out")["model"]["name"], record("out")["model"]["is_demo"]) == (str(model), False)
    assert record("out")["command"].startswith(f"flip-flop audit --model {model} ")
    with np.load("out/scores.npz") as file:
        assert file["scores"].shape == (9, 4, 2)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"WORLD_SIZE": ""}, "WORLD_SIZE is '', but RANK is not set. Unset it"),
        ({"WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0", "MASTER_PORT": "29500"}, "but MASTER_ADDR is not set"),
        (launched("two"), "WORLD_SIZE is 'two'. Unset it"),
    ],
)
def test_variables_that_no_launcher_sets_are_refused(audit, monkeypatch, variables, words):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    one_line(audit("-q"), "E-DISTRIBUTED", words)


def test_a_rank_without_other_processes_does_not_silence_the_command(audit, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert "P_o" in audit().out
    assert os.path.exists("out/run.json")


def test_an_interrupt_exits_with_130_and_a_fault_of_our_own_is_no_users_mistake(audit, monkeypatch):
    def stop(*arguments, **keywords):
        raise errors.pop()

    monkeypatch.setattr(AUDITING, "score_calibrated", stop)
    monkeypatch.setattr(distributed, "join_processes", lambda device: None)
    errors = [RuntimeError("of torch"), AssertionError, KeyboardInterrupt, KeyboardInterrupt]
    for rank, shown in ((1, ""), (0, "stopped")):
        for name, value in launched(2, rank).items():
            monkeypatch.setenv(name, value)
        result = audit("-q")
        assert (result.code, result.err.strip()) == (130, shown)
    for kind in (AssertionError, RuntimeError):
        with pytest.raises(kind):
            audit("-q")
    assert not os.path.exists("out")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to"), "E-MEMORY: CUDA out of memory. See docs/memory.md."),
        (
            RuntimeError("[gloo/pair.cc:553] Closed by peer. It"),
            "E-DISTRIBUTED: another process has ended",
        ),
        (
            torch.distributed.DistBackendError("NCCL was aborted"),
            "E-DISTRIBUTED: another process has ended",
        ),
    ],
)
def test_failures_of_memory_and_of_another_process_are_a_line(audit, monkeypatch, error, line):
    monkeypatch.setattr(AUDITING, "score_calibrated", Mock(side_effect=error))
    result = audit("-q")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert result.err.startswith(line)


def test_help_names_the_methods_that_there_are(flip_flop):
    shown = " ".join(flip_flop("train", "--help").out.split())
    names = shown.split("--method TEXT ")[1].split(", or package.module:name")[0]
    assert set(names.replace(" (default)", "").split(", ")) == set(METHODS)


@pytest.fixture
def compare(flip_flop, project, tmp_path):
    chat = save_tiny(tmp_path / "chat", tokenizer=with_chat_template(byte_bpe()))

    def run(*more, model=chat):
        return flip_flop("audit", "-m", model, "-t", "tickets.yaml", "-o", "out", "--compare-chat", *more)

    return run


@pytest.mark.slow
def test_both_runs_are_in_one_table_and_in_two_folders(compare, flip_flop):
    shown = compare("--fail-under", "agreement=0")
    assert shown.code == 0, shown.err
    assert [line.split(": ")[0] for line in shown.out.splitlines()[-2:]] == ["out/chat-on", "out/chat-off"]
    assert "--compare-chat" not in shown.err, "it is not advised to do what was done"
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:5]] == ["base (chat-on)", "base (chat-off)"]
    assert shown.out.count("tickets, test, 4 templates, 9 instances") == 1
    assert "next, flip-flop report out/chat-on out/chat-off --out report.html" in shown.out
    assert [record(f"out/chat-{choice}")["scoring"]["chat_template"] for choice in ("on", "off")] == [True, False]
    assert sorted(os.listdir("out")) == ["chat-off", "chat-on"]
    with_chat, without = (load_run(f"out/chat-{choice}") for choice in ("on", "off"))
    assert without.value("chat_flips") == pytest.approx((with_chat.predictions != without.predictions).mean())
    flips = without.to_pandas("axes").set_index("axis").loc["chat"]
    assert (flips.flips, flips.pairs) == (without.value("chat_flips"), 36)
    assert "\nchat template " in shown.out
    one_line(compare(), "E-OUT-USED", "out/chat-on", "--overwrite")
    assert compare("--overwrite", "--quiet", "--calibrate", "batch").out.count("(calibrated)") == 2
    assert flip_flop("report", "out/chat-on", "out/chat-off", "--out", "report.md").code == 0


def test_a_model_without_chat_template_is_rejected_before_scoring(compare, model):
    one_line(compare("--quiet", model=model), "E-CHAT-TEMPLATE", "no chat template")
    assert not os.path.exists("out/chat-on")


# ---- from a first audit to predictions ----


CONFIG = """\
num_train_epochs: 1
learning_rate: 1e-2
lora_r: 8
divergence_space: labels
per_device_train_batch_size: 4
stop_on_collapse: false
"""


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


@pytest.fixture
def train(flip_flop, model, project):
    (project / "f2c.yaml").write_text(CONFIG)

    def run(*more, out="runs/f2c"):
        common = ("train", "--model", model, "--task", "tickets.yaml", "--config", "f2c.yaml", "--lora-r=4")
        # A random model may become worse in a few steps. These tests need its adapter anyway.
        return flip_flop(*common, "--out", out, "--keep-worse", *more)

    return run


def test_from_a_first_audit_to_predictions(flip_flop, model, project, train):
    audit = ("audit", "--model", model, "--task", "tickets.yaml", "--quiet")
    assert flip_flop(*audit, "--out", "runs/base").code == 0

    trained = train("--seed", "3")
    assert trained.code == 0, trained.err
    assert trained.out.startswith("runs/f2c/adapter: next, flip-flop audit ")
    assert "E-" not in trained.err
    assert "f2c: step 3/3  P_o " in trained.err
    assert {"run.json", "adapter", "checkpoints", "log.jsonl"} <= set(os.listdir("runs/f2c"))
    run = record("runs/f2c")
    assert run["kind"] == "train"
    settings = ("method", "seed", "lora_r", "learning_rate", "num_train_epochs", "divergence_space")
    assert [run["training"][name] for name in settings] == ["f2c", 3, 4, 0.01, 1, "labels"]
    assert run["task"]["has_gold"] is False
    assert load_file("runs/f2c/adapter/adapter_model.safetensors")
    lines = [json.loads(line) for line in read("runs/f2c/log.jsonl").splitlines()]
    assert [line["step"] for line in lines if "eval_observed_agreement" in line] == [0, 1, 2, 3]

    before = os.stat("runs/f2c/run.json").st_mtime_ns
    again = train("--seed", "3", "--resume")
    assert again.code == 0
    assert again.err.endswith("runs/f2c is complete already\n")
    assert os.stat("runs/f2c/run.json").st_mtime_ns == before

    assert flip_flop(*audit, "--adapter", "runs/f2c/adapter", "--out", "runs/after").code == 0
    after = record("runs/after")
    assert (after["name"], after["adapter"]["method"], after["training"]["lora_r"]) == ("f2c", "f2c", 4)
    assert after["model"]["digest"] == record("runs/base")["model"]["digest"]

    for kind in ("html", "md", "csv", "txt"):
        shown = flip_flop("report", "runs/base", "runs/after", "--out", f"report.{kind}", "--title", "Desks & rooms")
        assert (shown.code, shown.out.splitlines()[-1], shown.err) == (0, f"report.{kind}", "")
    assert "Desks &amp; rooms" in read("report.html")
    rows = [line.split()[1] for line in read("report.md").splitlines() if line.startswith("| ")]
    assert rows[-2:] == ["base", "f2c"]
    assert [line.split()[0] for line in read("report.txt").splitlines()[-2:]] == ["base", "f2c"]
    rows = list(csv.DictReader(read("report.csv").splitlines()))
    for row, folder in zip(rows, ("runs/base", "runs/after"), strict=True):
        assert float(row["observed_agreement"]) == json.loads(read(f"{folder}/metrics.json"))["observed_agreement"]

    predict = ("predict", "--model", model, "--adapter", "runs/f2c/adapter", "--task", "tickets.yaml", "--quiet")
    shown = flip_flop(*predict, "--input", "train.jsonl", "--out", "answers/votes.csv")
    assert shown.code == 0
    assert shown.out.startswith("answers/votes.csv: 12 rows (0: ")
    votes = list(csv.DictReader(read("answers/votes.csv").splitlines()))
    assert len(votes) == 12
    assert {row["vote"] for row in votes} <= {"0", "1"}


@pytest.mark.slow
def test_a_few_labelled_rows_calibrate_audit_training_and_predictions(flip_flop, model, train):
    # Of test.csv's nine tickets four are urgent: with one added to each count the prior is 6 to 5.
    common = ("--model", model, "--task", "tickets.yaml", "--few-labels", "test.csv", "--quiet")
    shown = flip_flop("audit", *common, "--calibrate", "prior", "--out", "runs/base")
    assert (shown.code, shown.err.count("W-CALIBRATION-ROWS")) == (0, 1)
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:]] == ["base", "base (calibrated)"]
    after = json.loads(read("runs/base/metrics.json"))["calibrated"]
    assert after["label_prior"] == pytest.approx([6 / 11, 5 / 11])
    assert after["label_shares"] == pytest.approx([5 / 9, 4 / 9])
    assert flip_flop("predict", *common, "--calibrate", "contextual", "--input", "test.csv", "--out", "a.csv").code == 0
    calibrated = ("--vote-calibration", "prior", "--few-labels", "test.csv", "--votes", "frozen", "--max-steps", "1")
    assert train(*calibrated, "--quiet").code == 0
    assert record("runs/f2c")["training"]["label_prior"] == pytest.approx([6 / 11, 5 / 11])


@pytest.mark.parametrize(("changes", "code"), [({"stopped_by": signal.SIGTERM}, 143), ({"withheld": True}, 1)])
def test_a_training_without_an_adapter_has_an_exit_code(train, monkeypatch, changes, code):
    monkeypatch.setattr("flip_flop.training.run.train", lambda *_, **__: TrainingRun(Path("runs"), None, **changes))
    result = train("--quiet")
    assert (result.code, result.out) == (code, "")


# ---- plug-ins ----


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
    options = ["--model", "demo", "--task", "drinks:tea", "--out", tmp_path / "out"]
    codes, shown = installed(tmp_path, command, "audit", *options)
    assert codes == [0], shown
    assert "tea, test, 2 templates, 2 instances, in percent\n" in shown
    assert "W-PLUGIN: cannot import 'broken' (no_such_module:METRIC)" in shown
