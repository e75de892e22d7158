"""Every mistake prints its code and one line, exits with status 2 and leaves no files."""

import contextlib
import errno
import fcntl
import os
import re
import resource

import pytest

from flip_flop.errors import InputError
from tests.cli.project import TASK, csv_of, one_line, ticket

AUDIT = ("audit", "--model", "MODEL", "--task", "tickets.yaml", "--out", "out")
TRAIN = ("train", "--model", "MODEL", "--task", "tickets.yaml", "--out", "out", "--quiet")
PREDICT = ("predict", "--model", "MODEL", "--task", "tickets.yaml", "--input", "test.csv")


def write(**files):
    """A change of the project: these files instead."""

    def change(folder):
        for name, content in files.items():
            path = folder / name.replace("__", ".")
            path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return change


def task(old, new):
    """A change of the task file."""
    assert TASK.count(old) >= 1, old
    return write(tickets__yaml=TASK.replace(old, new))


FEW_LABELS = (*PREDICT, "--out", "o.csv", "--calibrate", "prior", "--few-labels")


def served(address):
    return (*AUDIT, "--model", f"openai:http://{address}")


ROWS = "text,urgent\ngood room,1\n"

# One for each thing that a command reads; how each may be wrong is in the tests of what reads it.
# name: (change of the project, command, code, words of the line)
MISTAKES = {
    "undefined name": (task("{{ text }}. Is", "{{ txt }}. Is"), AUDIT, "E-TPL-RENDER", ["line 2", "mean 'text'?"]),
    "empty render": (task('"{{ text }}", ', '"{% if no is defined %}x{% endif %}", '), AUDIT, "E-TPL-EMPTY", ["terse"]),
    "undeclared label": (write(test__csv=ROWS + "room,2\n"), AUDIT, "E-LABEL", ["line 3", "'2'", "0, 1"]),
    "empty file": (write(test__csv=""), AUDIT, "E-DATA-ROWS", ["test.csv"]),
    "no such file": (task("test.csv", "tset.csv"), AUDIT, "E-DATA-FILE", ["'test.csv'"]),
    "task name": (None, ("audit", "-m", "MODEL", "-t", "dmo", "-o", "out"), "E-TASK-UNKNOWN", ["'demo'"]),
    "task file": (None, ("audit", "-m", "MODEL", "-t", "ticket.yaml", "-o", "out"), "E-TASK-FILE", ["'tickets.yaml'"]),
    "semicolons": (write(test__csv="id;text;urgent\n1;room;1\n"), AUDIT, "E-DATA-ENCODING", ['delimiter: ";"']),
    "excel": (task("test.csv", "test.xls"), AUDIT, "E-DATA-FILE", ["spreadsheet", "CSV"]),
    "syntax error": (task("labels: [0, 1]", "labels: [0, 1"), AUDIT, "E-TASK-FILE", ["tickets.yaml line"]),
    "leak": (task("{{ text }}. Is", "{{ text }} {{ urgent }}. Is"), AUDIT, "E-TPL-LABEL-LEAK", ["'urgent'"]),
    "split": (None, (*AUDIT, "--split", "tset"), "E-TASK-UNKNOWN", ["'test'"]),
    "held out": (None, (*AUDIT, "--templates", "held_out"), "E-TASK-UNKNOWN", ["held_out_templates"]),
    "chat template": (
        None, (*AUDIT, "--out", "deep/out", "--quiet", "--chat-template", "on"), "E-CHAT-TEMPLATE", ["off"],
    ),
    "asked again": (None, (*AUDIT, "--ask-again"), "E-ENDPOINT", ["--ask-again applies only to served"]),
    "threshold": (None, (*AUDIT, "--fail-under", "agreement"), "E-FAIL-UNDER", ["METRIC=VALUE"]),
    "threshold in percent": (None, (*AUDIT, "--fail-under", "agreement=90"), "E-FAIL-UNDER", ["0 to 1"]),
    "threshold nan": (None, (*AUDIT, "--fail-under", "agreement=nan"), "E-FAIL-UNDER", ["0 to 1"]),
    "gate without labels": (
        task("label_field: urgent\nlabels: [0, 1]\n", ""), (*AUDIT, "--fail-under", "mean_f1=0.5"),
        "E-FAIL-UNDER", ["mean_f1 has no value", "0 gold labels"],
    ),
    "gate of one template": (
        None, (*AUDIT, "--templates", "plain", "--fail-under", "agreement=0.5"), "E-FAIL-UNDER", ["1 template."],
    ),
    "metric": (None, (*AUDIT, "--fail-under", "agreemnt=0.9"), "E-FAIL-UNDER", ["'agreement'"]),
    "model": (None, ("audit", "-m", "./tiny", "-t", "tickets.yaml", "-o", "out"), "E-MODEL-FILE", ["./tiny does"]),
    "address without openai": (
        None, (*AUDIT, "--model", "http://127.0.0.1:8000/v1"), "E-MODEL-FILE", ["write openai:URL#NAME"],
    ),
    "no split to train on": (
        task("train: train.jsonl, ", ""), TRAIN, "E-TASK-UNKNOWN", ["no split 'train'. Add train: FILE to its data."],
    ),
    "adapter": (None, (*AUDIT, "--adapter", "runs/f2c/adapter"), "E-ADAPTER", ["runs/f2c/adapter"]),
    "chat twice": (None, (*AUDIT, "--compare-chat", "--chat-template", "off"), "E-CHAT-TEMPLATE", ["--compare-chat"]),
    "data as task": (None, ("audit", "-m", "MODEL", "-t", "test.csv", "-o", "out"), "E-TASK-FILE", ["init test.csv"]),
    "dtype": (None, (*AUDIT, "--dtype", "int8"), "E-MODEL-DEVICE", ["float32"]),
    "device": (None, (*AUDIT, "--device", "abacus"), "E-MODEL-DEVICE", ["abacus"]),
    "one template": (None, (*TRAIN, "--templates", "plain"), "E-NO-CONSENSUS", ["1 template"]),
    "config key": (None, (*TRAIN, "--lora-rr", "4"), "E-CONFIG", ["'--lora-rr'", "'--lora-r'"]),
    "config key in a file": (
        write(f2c__yaml="lerning_rate: 1e-4\n"), (*TRAIN, "--config", "f2c.yaml"),
        "E-CONFIG", ["f2c.yaml", "'learning_rate'"],
    ),
    "config value": (None, (*TRAIN, "--lora-r", "four"), "E-CONFIG", ["--lora-r is", "valid integer"]),
    "short flag": (None, (*TRAIN, "--lr", "fast"), "E-CONFIG", ["--lr is 'fast'. It must be a valid number"]),
    "no near setting": (None, (*TRAIN, "--qqq", "4"), "E-CONFIG", ["nearest are --"]),
    "the command's own flag": (None, (*TRAIN, "--lmit", "4"), "E-CONFIG", ["'--limit'"]),
    "method": (None, (*TRAIN, "--method", "f2d"), "E-CONFIG", ["'f2c'"]),
    "config range": (None, (*TRAIN, "--flip-temperature", "0"), "E-CONFIG", ["above 0"]),
    "no config file": (None, (*TRAIN, "--config", "f2c.yaml"), "E-CONFIG", ["f2c.yaml"]),
    "config is no mapping": (write(f2c__yaml="- 1\n"), (*TRAIN, "--config", "f2c.yaml"), "E-CONFIG", ["settings"]),
    "config syntax": (write(f2c__yaml="a: [1\n"), (*TRAIN, "--config", "f2c.yaml"), "E-CONFIG", ["f2c.yaml line"]),
    "stray word": (None, (*TRAIN, "--lora-r", "4", "8"), "E-CONFIG", ["'8'"]),
    "undefined in train": (task("{{ text }}. Is", "{{ txt }}. Is"), TRAIN, "E-TPL-RENDER", ["train.jsonl line 1"]),
    "undefined in validation": (
        write(validation__csv="txt,urgent\nroom,1\n"), TRAIN, "E-TPL-RENDER", ["validation.csv line 2"],
    ),
    "no train split": (task("train: train.jsonl, ", ""), TRAIN, "E-TASK-UNKNOWN", ["'train'"]),
    "input in another encoding": (
        lambda folder: (folder / "old.csv").write_bytes("text\nsehr schön\n".encode("cp1252")),
        (*PREDICT, "--input", "old.csv", "--out", "out.csv"), "E-DATA-ENCODING",
        ["old.csv is not utf-8 at byte 13. Save it in UTF-8 and with commas, or like the task's own files."],
    ),
    "input in another folder": (
        lambda folder: (folder / "deep").mkdir() or (folder / "deep/new.csv").touch(),
        (*PREDICT, "--input", "deep/nex.csv", "--out", "out.csv"), "E-DATA-FILE", ["Did you mean 'deep/new.csv'?"],
    ),
    "no such input": (None, (*PREDICT, "--input", "tset.csv", "--out", "out.csv"), "E-DATA-FILE", ["'test.csv'"]),
    "chat template in predict": (
        None, (*PREDICT, "--out", "deep/out.csv", "--quiet", "--chat-template", "on"), "E-CHAT-TEMPLATE", ["off"],
    ),
    "spreadsheet": (None, (*PREDICT, "--out", "out.ods"), "E-OUT-PATH", [".csv or .xlsx"]),
    "predict onto its input": (None, (*PREDICT, "--out", "test.csv"), "E-OUT-PATH", ["that this command reads"]),
    "predict onto other rows": (None, (*PREDICT, "--out", "train.jsonl"), "E-OUT-PATH", ["that this command reads"]),
    "Markdown onto the task": (
        None,
        ("audit", "-m", "MODEL", "-t", "tickets.yaml", "-o", "new", "--markdown", "tickets.yaml"),
        "E-OUT-PATH",
        ["that this command reads"],
    ),
    "predict a label": (
        task("{{ text }}. Is", "{{ text }} {{ urgent }}. Is"), (*PREDICT, "--out", "out.csv"),
        "E-TPL-LABEL-LEAK", ["'urgent'"],
    ),
    "predict into a folder": (None, (*PREDICT, "--out", "."), "E-OUT-PATH", ["is a folder"]),
    "predict below a file": (None, (*PREDICT, "--out", "test.csv/out.csv"), "E-OUT-PATH", ["Cannot write to"]),
    "audit below a file": (
        None, ("audit", "-m", "MODEL", "-t", "tickets.yaml", "-o", "test.csv/out"), "E-OUT-PATH", ["test.csv"],
    ),
    "prior without calibration": (
        None, (*PREDICT, "--out", "out.csv", "--label-prior", "0.3,0.7"), "E-LABEL-PRIOR", ["--calibrate none"],
    ),
    "calibration without its prior": (None, (*AUDIT, "--calibrate", "prior"), "E-LABEL-PRIOR", ["--few-labels"]),
    "prior of three labels": (
        None, (*AUDIT, "--calibrate", "batch", "--label-prior", "0.3,0.3,0.4"), "E-LABEL-PRIOR", ["2 labels"],
    ),
    "prior twice": (
        None, (*AUDIT, "--calibrate", "prior", "--label-prior", "0.3,0.7", "--few-labels", "test.csv"),
        "E-LABEL-PRIOR", ["both"],
    ),
    "few labels without labels": (
        None, (*PREDICT, "--out", "out.csv", "--calibrate", "prior", "--few-labels", "train.jsonl"),
        "E-DATA-COLUMN", ["'urgent'"],
    ),
    "few labels without calibration": (
        None, (*TRAIN, "--few-labels", "test.csv", "--vote-calibration", "none"), "E-CONFIG",
        ["vote-calibration"],
    ),
    **{
        f"few labels: {name}": (write(few__csv=text), (*FEW_LABELS, file), code, words)
        for name, text, file, code, words in (
            ("unknown label", "text,urgent\nroom,1\nfood,2\n", "few.csv", "E-LABEL", ["few.csv line 3"]),
            ("missing column", "text,label\nroom,1\n", "few.csv", "E-DATA-COLUMN", ["'urgent'"]),
            ("no label", "text,urgent\nroom,\n", "few.csv", "E-LABEL-PRIOR", ["few.csv has no labels"]),
            ("no file", "text,urgent\nroom,1\n", "fw.csv", "E-DATA-FILE", ["fw.csv"]),
        )
    },
    "few labels: missing text": (
        write(few__csv="txt,urgent\nroom,1\n"), (*TRAIN, "--supervised-weight", "0.5", "--few-labels", "few.csv"),
        "E-TPL-RENDER", ["few.csv line 2"],
    ),
    "few labels: no match": (
        write(few__csv="text,urgent\nroom,1\n"), (*TRAIN, "--supervised-weight", "0.5", "--few-labels", "few.csv"),
        "E-DATA-ROWS", ["few.csv line 2 is not a row of the training data. Label rows of the split train; "],
    ),
    "few labels: no match in a sample": (
        write(few__csv="text,urgent\nroom,1\n"),
        (*TRAIN, "--limit", "5", "--supervised-weight", "0.5", "--few-labels", "few.csv"),
        "E-DATA-ROWS", ["few.csv line 2 is not a row of the training data. Leave --limit out. "],
    ),
    "few labels: two labels": (
        write(few__csv=csv_of([200] * 3) + '"{text}",1\n'.format(**ticket(200))),
        (*TRAIN, "--supervised-weight", "0.5", "--few-labels", "few.csv"),
        "E-DATA-ROWS", ["few.csv line 5 repeats line 2 with another label."],
    ),
    "negative weight": (None, (*TRAIN, "--supervised-weight", "-1"), "E-CONFIG", ["--supervised-weight is -1"]),
    "endpoint without a port": (None, served("HOST:PORT/v1#x"), "E-ENDPOINT", ["is not an endpoint and model"]),
    "endpoint of brackets": (None, served("[::1/v1#x"), "E-ENDPOINT", ["is not an endpoint and model"]),
    "endpoint without http": (
        None, (*AUDIT, "--model", "openai:localhost#x"), "E-ENDPOINT",
        ["is not an endpoint and model. Write openai:http"],
    ),
    "key in an endpoint": (
        None, served("me:pw@h/v1#x"), "E-ENDPOINT", ["A key does not belong ", "OPENAI_API_KEY"],
    ),
    "dtype of a served model": (
        None, (*served("h/v1#x"), "--dtype", "float32"), "E-ENDPOINT", ["--dtype applies"],
    ),
    "training of a served model": (
        None, (*TRAIN, "--model", "openai:http://h/v1#x"), "E-ENDPOINT",
        ["openai:http://h/v1#x is a served model: ", " audit or predict"],
    ),
    "generation by a local model": (
        None, (*AUDIT, "--by", "generation"), "E-ENDPOINT", ["--by applies only to served"],
    ),
    "requests to a local model": (
        None, (*AUDIT, "--concurrency", "3"), "E-ENDPOINT", ["--concurrency applies only to served"],
    ),
    "API of a local model": (None, (*AUDIT, "--api", "echo"), "E-ENDPOINT", ["--api applies only to served"]),
    "passes of a served model": (
        None, (*served("h/v1#x"), "--batch-tokens", "7"), "E-ENDPOINT", ["--batch-tokens applies only to local"],
    ),
    "API of generated answers": (
        None, (*served("h/v1#x"), "--by", "generation", "--api", "echo"), "E-ENDPOINT", ["--api echo has no effect"],
    ),
    "report of no run": (None, ("report", "runs", "--out", "out.html"), "E-RUN-MISSING", ["runs"]),
    "report of a foreign folder": (None, ("report", ".", "--out", "out.html"), "E-RUN-MISSING", ["run.json"]),
    "report of a folder of audits": (
        lambda folder: [(folder / name).mkdir(parents=True) or (folder / name / "metrics.json").touch()
                        for name in ("all/base", "all/f2c/audit")],
        ("report", "all", "--out", "deep/out.html"), "E-RUN-MISSING", ["audits inside it: all/base all/f2c/audit."],
    ),
    "report as a spreadsheet": (None, ("report", ".", "--out", "out.xlsx"), "E-OUT-PATH", [".html"]),
}  # fmt: skip


@pytest.fixture
def run(flip_flop, model):
    """A command of the table above, with the model's path in it."""
    return lambda words, *more: flip_flop(*(model if word == "MODEL" else word for word in words), *more)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_with_its_code_and_leaves_nothing(run, project, mistake):
    change, command, code, words = MISTAKES[mistake]
    if change is not None:
        change(project)
    before = sorted(project.rglob("*"))
    contents = files(project)
    one_line(run(command), code, *words)
    assert files(project) == contents
    assert sorted(project.rglob("*")) == before


REVERSED = """\
name: split votes
data: {train: train.jsonl, validation: train.jsonl}
templates:
  - {name: plain, jinja: "{{ text }}", answer_choices: "No ||| Yes"}
  - {name: reversed, jinja: "{{ text }}", answer_choices: "Yes ||| No"}
"""


def test_too_many_open_files_are_one_line_whatever_library_finds_them(run, project, monkeypatch):
    def fail(*_, **__):
        try:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except OSError as error:
            raise ModuleNotFoundError("Could not import module 'Trainer'") from error

    monkeypatch.setattr("flip_flop.cli.options.BaseModelOptions.load", fail)
    one_line(run(AUDIT, "--quiet"), "E-OS", "Too many open files", "ulimit")


def test_an_error_is_one_line_that_can_be_printed():
    assert str(InputError("E-OS", "no\nroom \ud800.", "Free some.")) == "E-OS: no room \\ud800. Free some."


def test_training_without_any_consensus_is_refused(run, project):
    lines = (project / "train.jsonl").read_text().splitlines(keepends=True)
    (project / "train.jsonl").write_text("".join(lines[:6]))
    (project / "other.jsonl").write_text("".join(lines[6:]))
    (project / "tickets.yaml").write_text(REVERSED.replace("validation: train", "validation: other"))
    result = run(TRAIN, "--out", "deep/out")
    assert result.code == 2
    *notes, last = result.err.splitlines()
    assert last.startswith("E-NO-CONSENSUS: none of the 6 instances ")
    assert all(note.startswith(("first votes: ", "W-")) for note in notes)
    assert not (project / "deep").exists()


@pytest.mark.parametrize("command", [AUDIT, TRAIN])
def test_what_is_in_the_place_of_the_output_is_refused_and_kept(run, project, command):
    (project / "out").write_text("precious")
    one_line(run(command), "E-OUT-PATH", "is a file")
    assert (project / "out").read_text() == "precious"
    (project / "out").unlink()
    (project / "out").mkdir()
    (project / "out" / "thesis.txt").write_text("precious")
    (project / "tickets.yaml").write_text("")
    for more in ([], ["--overwrite" if command is AUDIT else "--resume"]):
        one_line(run(command, *more), "E-OUT-USED", "out is not empty")
    assert os.listdir(project / "out") == ["thesis.txt"]


@contextlib.contextmanager
def held(path):
    """What another process holds as long as it lives."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


VOTES = (*PREDICT, "--out", "votes.csv")


@pytest.mark.parametrize(("command", "out"), [(AUDIT, "out"), (VOTES, "votes.csv")])
def test_an_output_is_one_process_s_and_what_a_killed_one_left_of_it_goes(run, project, command, out):
    (project / f".{out}.1234abcd.tmp").mkdir()
    (project / f".{out}.b.1234abcd.tmp").mkdir()
    with held(project / f".{out}.lock"):
        one_line(run(command), "E-OUT-BUSY", out)
        assert (project / f".{out}.1234abcd.tmp").exists()
    assert run(command, "--quiet").code == 0
    assert (project / out).exists()
    assert [path.name for path in project.glob(".*")] == [f".{out}.b.1234abcd.tmp"]  # of another output


def test_training_looks_at_its_output_before_it_reads_a_model(run, project):
    command = ["./no-model" if word == "MODEL" else word for word in TRAIN]
    (project / "out").mkdir()
    with held(project / "out" / ".lock"):
        one_line(run(command), "E-OUT-BUSY", "out")


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_full_disk_is_one_line_with_path_and_space_and_leaves_what_was_there(run, project, overwrite):
    if overwrite:
        assert run(AUDIT, "--quiet").code == 0
    before, (soft, hard) = files(project), resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
        result = run(AUDIT, "--quiet", *(["--overwrite"] if overwrite else []))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    one_line(result, "E-OS", "out/run.json could not be written, with ", " MB free there: File too large.")
    assert files(project) == before


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (("audit", "-m", "./\x1b[31mred", "-t", "tickets.yaml", "-o", "out"), r"./\x1b[31mred"),
        ((*AUDIT[:-1], "\u202etuo"), r"\u202etuo is a file"),
        ((*AUDIT, "--templates", "\x9b31m\u2066"), r"\x9b31m\u2066"),
        (("\x1b]0;title\x07",), r"\x1b]0;title\x07"),
        ((*TRAIN, "--\x1b[2J", "1"), r"\x1b[2J"),
    ],
)
def test_a_terminal_is_not_told_what_to_do(run, project, command, shown):
    (project / "\u202etuo").write_text("a file")
    result = run(command)
    assert result.code == 2
    assert shown in result.err
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]", result.out + result.err)
