"""Outputs are refused before anything is computed, and nothing but a regular file is ever replaced."""

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading

import pytest

from tests.cli.project import one_line
from tests.cli.test_mistakes import AUDIT, PREDICT, files

AUDIT_OUT, TRAIN_OUT = AUDIT[:-1], ("train", "-m", "MODEL", "-t", "tickets.yaml", "--quiet", "--out")
REPORT = ("report", "run", "--out")
# Every option that writes, as the last word of its command.
FOLDERS = {
    "audit": AUDIT_OUT,
    "train": TRAIN_OUT,
    "demo": ("demo", "--out"),
    "figures": (*REPORT, "report.html", "--figures"),
    "study": ("study", "run", "smoke", "--out"),
    "study plan": ("study", "plan", "smoke", "--out"),
}
FILES = {
    "markdown": (*AUDIT, "--markdown"),
    "predict": (*PREDICT, "--out"),
    "report": REPORT,
    "latex": (*REPORT, "report.html", "--latex"),
    "init": ("init", "test.csv", "--overwrite", "--out"),
    "vary": ("templates", "vary", "tickets.yaml", "--axis", "format=1", "--overwrite", "--out"),
    "export": ("study", "run", "smoke", "--export"),
}
SUFFIXES = {"predict": ".csv", "report": ".html", "latex": ".tex", "init": ".yaml", "vary": ".yaml"}
SECONDS = 60


def make_device(path, kind=stat.S_IFCHR):
    """Make a node with the numbers of /dev/null."""
    try:
        os.mknod(path, kind | 0o666, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("only root makes devices")


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)  # relative: the whole path may be too long for a socket


@pytest.fixture
def run(flip_flop, model):
    """A command of the tables above. It fails instead of hanging, as a writer to a pipe may."""

    def run(command, out):
        answers = []
        words = [str(model) if word == "MODEL" else word for word in (*command, str(out))]
        thread = threading.Thread(target=lambda: answers.append(flip_flop(*words)), daemon=True)
        thread.start()
        thread.join(SECONDS)
        assert answers, f"{words} hangs"
        return answers[0]

    return run


def nodes(folder):
    """The type and device of each entry, and where a link leads."""
    states = {path: path.lstat() for path in folder.rglob("*")}
    links = {path: os.readlink(path) for path in states if path.is_symlink()}
    return links, {path: (stat.S_IFMT(state.st_mode), state.st_rdev, state.st_ino) for path, state in states.items()}


PLACES = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "device": make_device,
    "block device": lambda path: make_device(path, stat.S_IFBLK),
    "folder": lambda path: path.mkdir(),
    "loop": lambda path: path.symlink_to(path.name),
    "link to a pipe": lambda path: (os.mkfifo(path.with_name("node")), path.symlink_to("node")),
    "below a file": None,
    "long name": None,
}
OUTS = {"below a file": "test.csv/below", "long name": "x" * 300}
# One place for each option. A folder never replaces a special file, and a file never replaces a socket, a disk or a
# folder: all places for one option of either kind.
REFUSED = [
    *((name, "socket") for name in FOLDERS | FILES),
    *(("audit", place) for place in PLACES if place not in ("socket", "folder")),
    *(("predict", place) for place in ("block device", "folder", "loop", *OUTS)),
]


@pytest.mark.parametrize(("name", "place"), REFUSED)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_computed(run, project, name, place):
    out = OUTS.get(place, "out") + SUFFIXES.get(name, "")
    if PLACES[place] is not None:
        PLACES[place](project / out)
    before, contents = nodes(project), files(project)
    one_line(run((FOLDERS | FILES)[name], out), "E-OUT-PATH", out)
    assert (nodes(project), files(project)) == (before, contents)


@contextlib.contextmanager
def reader(path):
    """Read a pipe to its end, as `cat` does."""
    texts = []
    thread = threading.Thread(target=lambda: texts.append(path.read_text()), daemon=True)
    thread.start()
    yield texts
    thread.join(SECONDS)
    assert texts, "the pipe has no end"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["init", "vary"])  # they need no model
def test_a_file_is_written_into_a_pipe_and_a_device(run, project, name):
    assert run(FILES[name], "plain.yaml").code == 0
    os.mkfifo(project / "pipe.yaml")
    with reader(project / "pipe.yaml") as texts:
        assert run(FILES[name], "pipe.yaml").code == 0
    assert len(texts[0]) == len((project / "plain.yaml").read_text())
    assert (project / "pipe.yaml").is_fifo()
    make_device(project / "null.yaml")
    (project / "link.yaml").symlink_to("null.yaml")
    assert run(FILES[name], "link.yaml").code == 0
    assert (project / "null.yaml").is_char_device()


def test_a_link_to_a_file_stays_a_link(run, project):
    (project / "real").mkdir()
    (project / "task.yaml").symlink_to("real/other.yaml")  # first without its file
    for _ in range(2):
        assert run(FILES["init"], "task.yaml").code == 0
        assert (project / "task.yaml").is_symlink()
        assert (project / "real" / "other.yaml").read_text().startswith("# ")
    assert os.listdir(project / "real") == ["other.yaml"]


def test_names_that_are_not_utf_8_are_read_and_written(flip_flop, project, model):
    name = os.fsdecode(b"caf\xe9")
    try:
        (project / f"{name}.csv").write_bytes((project / "test.csv").read_bytes())
    except OSError:
        pytest.skip("this file system has UTF-8 names only")
    assert (
        flip_flop("init", f"{name}.csv", "--kind", "yes_no", "--question", "Urgent?", "--out", "other.yaml").code == 0
    )
    words = ("--model", str(model), "--task", "other.yaml", "--quiet", "--out", f"{name}/run")
    assert flip_flop("audit", *words).code == 0
    assert flip_flop("report", f"{name}/run", "--out", f"{name}/report.html").code == 0
    assert "caf" in (project / name / "report.html").read_text(encoding="utf-8")


WRITE = """
import sys
from pathlib import Path
from flip_flop.files import write_text
print("before", flush=True)
write_text(Path(sys.argv[1]), "written\\n")
print("after", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("out", "is_file"), [("/dev/stdout", False), ("/dev/fd/1", True), ("/dev/stderr", True)])
def test_standard_output_is_written_in_order_and_not_replaced(tmp_path, out, is_file):
    with (tmp_path / "shown").open("w+") as shown:
        target = shown if is_file else subprocess.PIPE
        words = [sys.executable, "-c", WRITE, out]
        done = subprocess.run(words, stdout=target, stderr=subprocess.STDOUT, text=True, timeout=300, check=True)
    assert ((tmp_path / "shown").read_text() or done.stdout) == "before\nwritten\nafter\n"
    assert os.listdir(tmp_path) == ["shown"]


def test_a_pipe_without_a_reader_is_one_line(run, project):
    os.mkfifo(project / "pipe.yaml")
    one_line(run(FILES["init"], "pipe.yaml"), "E-OUT-PATH", "a process that reads it")
    assert (project / "pipe.yaml").is_fifo()
