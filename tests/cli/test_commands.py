"""The commands: their output, files and exit codes."""

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from flip_flop.cli.main import COMMANDS
from flip_flop.evaluation.audit import audit as audit_function
from flip_flop.method import METHODS
from tests.cli.project import errors_of, one_line, record
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
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_in_a_write_ends_with_one_line_and_leaves_no_file(tmp_path, name, code):
    (tmp_path / "reviews.csv").write_text("text,label\n" + "good room,yes\nbad food,no\n" * 5)
    program = (
        "import os, signal, sys\nfrom flip_flop.cli.main import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background process may ignore it
        f"sys.addaudithook(lambda event, _: event == 'os.rename' and os.kill(os.getpid(), signal.{name}))\n"
        "sys.argv = ['flip-flop', 'init', 'reviews.csv']\nmain()"
    )
    words = [sys.executable, "-c", program]
    ended = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, stdin=subprocess.DEVNULL)
    assert (ended.returncode, ended.stderr.strip().splitlines()[-1]) == (code, "stopped")
    assert os.listdir(tmp_path) == ["reviews.csv"]


TRAIN = ("train", "--model", "demo", "--task", "demo", "--out", "out")
TYPED_WRONG = [
    (("audit", "-m", "demo", "-t", "ticket.yaml", "-o", "out"), "E-TASK-FILE: "),
    (("audit", "-m", "demo", "-t", "tickets.yaml", "-o", "out", "--fail-under", "mean_f2=1"), "E-FAIL-UNDER: "),
    (("audit", "-m", "owner/name", "-t", "tickets.yaml", "-o", "out"), "E-MODEL-FILE: "),
    (("audit", "-m", "demo", "-t", "tickets.yaml", "-o", "out", "--adapter", "none"), "E-ADAPTER: "),
    (("predict", "-m", "./none", "-t", "tickets.yaml", "-i", "test.csv", "-o", "out.csv"), "E-MODEL-FILE: "),
    (("report", "none", "-o", "out.html"), "E-RUN-MISSING: "),
    ((*TRAIN, "--learning-rat", "3"), "E-CONFIG: Unknown setting '--learning-rat' in the command line."),
    ((*TRAIN, "--config", "c.yaml"), "E-CONFIG: Unknown setting 'learning_rat' in c.yaml"),
    (("study", "plan", "smoke", "--set", "learning_rat=3"), "E-CONFIG: Unknown setting 'learning_rat' in --set"),
    ((*TRAIN, "--learning-rate", "abc"), "E-CONFIG: --learning-rate is 'abc'. It must be a valid number."),
    ((*TRAIN, "--epochs", "0"), "E-CONFIG: --epochs is 0.0."),
    ((*TRAIN, "--method", "nosuch"), "E-CONFIG: method is 'nosuch'."),
    (("study", "plan", "smoke", "--set", "learning_rate=abc"), "E-CONFIG: learning_rate is 'abc'."),
    (("study", "plan", "smoke", "--methods", "nosuch"), "E-STUDY: study smoke: methods: there is no 'nosuch'."),
    (("study", "run", "smoke", "--tasks", "nosuch"), "E-STUDY: --tasks, study smoke: there is no 'nosuch'."),
    *(
        (("study", verb, "nosuch"), "E-STUDY: there is no study 'nosuch'")
        for verb in ("plan", "run", "status", "tables")
    ),
    (("study", "status", "smoke", "-o", "none"), "E-STUDY: "),
    (("study", "tables", "smoke", "-o", "none"), "E-STUDY: "),
    (("templates", "vary", "nosuch.yaml", "-o", "more.yaml"), "E-TASK-FILE: "),
    (("study", "run", "smoke", "--sed", "3"), "Error: No such option '--sed'"),
    (("audit", "--modl", "demo"), "Error: No such option '--modl'"),
    (("predict", "--modl", "demo"), "Error: No such option '--modl'"),
    (("report", "--ot", "x"), "Error: No such option '--ot'"),
    (("templates", "lint", "--ot", "x"), "Error: No such option '--ot'"),
    (("vary",), "Error: No such command 'vary'."),
    (("audti",), "Error: No such command 'audti'. Did you mean 'audit'?"),
]


# The first lines of commands, which are printed before the imports.
FIRST = [
    (("audit", "-m", "demo", "-t", "demo", "-o", "out"), "loading demo"),
    (("predict", "-m", "demo", "-t", "tickets.yaml", "-i", "test.csv", "-o", "out.csv"), "loading demo"),
    (TRAIN, "reading demo"),
    (("templates", "vary", "tickets.yaml", "-o", "more.yaml", "-m", "demo"), "loading demo"),
    *((("study", verb, "smoke"), "reading study smoke") for verb in ("plan", "run", "status", "tables")),
]
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
for words in {[*HELP, *(words for words, _ in TYPED_WRONG)]!r}:
    sys.argv = ["flip-flop", *words]
    try:
        main()
    except SystemExit as stop:
        codes.append(stop.code or 0)
lines = []
for words in {[words for words, _ in FIRST]!r}:
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
    (project / "c.yaml").write_text("learning_rat: 3\n")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes, first, seconds, imported = json.loads(done.stdout.splitlines()[-1])
    assert codes == [0] * len(HELP) + [2] * len(TYPED_WRONG)
    assert first == [line for _, line in FIRST]
    assert all(f"\n  {verb} " in done.stdout for verb in NAMES)
    lines = [line for line in done.stderr.splitlines() if line.startswith(("E-", "Error: "))]
    for line, (words, begun) in zip(lines, TYPED_WRONG, strict=True):
        assert line.startswith(begun), words
    assert imported == []
    assert seconds < 5
    assert sorted(os.listdir(".")) == ["c.yaml", "test.csv", "tickets.yaml", "train.jsonl", "validation.csv"]


def test_an_audit_prints_a_table_and_leaves_a_run(audit, model):
    result = audit()
    assert result.code == 0
    assert result.out.startswith("tickets, test, 4 templates, 9 instances\n")
    assert all(words in result.out for words in ("base", "next, flip-flop report out", "\nIn percent. P_o: how likely"))
    assert errors_of(result) == f"loading {model}\n"
    assert (record("out")["model"]["name"], record("out")["model"]["is_demo"]) == (str(model), False)
    assert record("out")["command"].startswith(f"flip-flop audit --model {model} ")
    with np.load("out/scores.npz") as file:
        assert file["scores"].shape == (9, 4, 2)


def test_an_interrupt_exits_with_130_and_a_fault_of_our_own_is_no_users_mistake(audit, monkeypatch):
    def stop(*arguments, **keywords):
        raise errors.pop()

    monkeypatch.setattr(AUDITING, "score_calibrated", stop)
    errors = [AssertionError, KeyboardInterrupt]
    result = audit("-q")
    assert (result.code, result.err.strip()) == (130, "stopped")
    with pytest.raises(AssertionError):
        audit("-q")
    assert not os.path.exists("out")


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
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:5]] == ["base (chat-on)", "base (chat-off)"]
    assert shown.out.count("tickets, test, 4 templates, 9 instances") == 1
    assert "next, flip-flop report out/chat-on out/chat-off --out report.html" in shown.out
    assert [record(f"out/chat-{choice}")["scoring"]["chat_template"] for choice in ("on", "off")] == [True, False]
    assert sorted(os.listdir("out")) == ["chat-off", "chat-on"]
    one_line(compare(), "E-OUT-USED", "out/chat-on", "--overwrite")
    assert compare("--overwrite", "--quiet", "--calibrate", "batch").out.count("(calibrated)") == 2
    assert flip_flop("report", "out/chat-on", "out/chat-off", "--out", "report.md").code == 0


def test_a_model_without_chat_template_is_rejected_before_scoring(compare, model):
    one_line(compare("--quiet", model=model), "E-CHAT-TEMPLATE", "no chat template")
    assert not os.path.exists("out/chat-on")
