"""Every mistake prints its code and one line, exits with status 2 and leaves no files."""

import contextlib
import errno
import fcntl
import os
import re
import resource
import shlex

import pytest

from flip_flop.errors import InputError
from tests.cases import read_cases
from tests.cli.project import TASK, one_line

AUDIT = ("audit", "--model", "MODEL", "--task", "tickets.yaml", "--out", "out")
TRAIN = ("train", "--model", "MODEL", "--task", "tickets.yaml", "--out", "out", "--quiet")
PREDICT = ("predict", "--model", "MODEL", "--task", "tickets.yaml", "--input", "test.csv")
SHORT = {"AUDIT": AUDIT, "TRAIN": TRAIN, "PREDICT": PREDICT}
MISTAKES = read_cases("cli/mistakes.yaml")


@pytest.fixture
def run(flip_flop, model):
    """A command, with the model's path in it."""
    return lambda words, *more: flip_flop(*(model if word == "MODEL" else word for word in words), *more)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def prepare(project, mistake):
    """Change the project as the table says."""
    task = TASK
    for old, new in mistake.get("replace", {}).items():
        assert old in task
        task = task.replace(old, new)
    (project / "tickets.yaml").write_text(task)
    for name, content in mistake.get("files", {}).items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding=mistake.get("encoding", "utf-8"))


def words_of(command):
    first, *others = shlex.split(command)
    return [*SHORT.get(first, [first]), *others]


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line_with_its_code_and_leaves_nothing(run, project, name):
    mistake = MISTAKES[name]
    prepare(project, mistake)
    before = sorted(project.rglob("*"))
    contents = files(project)
    one_line(run(words_of(mistake["command"])), mistake["code"], *mistake["words"])
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
