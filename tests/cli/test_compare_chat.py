"""``audit --compare-chat``: both runs in one table, in two folders."""

import os

import pytest

from tests.cli.project import one_line, record
from tests.tiny import byte_bpe, save_tiny, with_chat_template


@pytest.fixture
def compare(flip_flop, project, tmp_path):
    chat = save_tiny(tmp_path / "chat", tokenizer=with_chat_template(byte_bpe()))

    def run(*more, model=chat):
        return flip_flop("audit", "-m", model, "-t", "tickets.yaml", "-o", "out", "--compare-chat", *more)

    return run


def test_both_runs_are_in_one_table_and_in_two_folders(compare, flip_flop):
    shown = compare("--fail-under", "agreement=0")
    assert shown.code == 0, shown.err
    assert [line.split("  ")[0] for line in shown.out.splitlines()[3:5]] == ["base (chat-on)", "base (chat-off)"]
    assert shown.out.count("tickets, test, 4 templates, 9 instances") == 1
    assert "next, flip-flop report out/chat-on out/chat-off --out report.html" in shown.out
    assert [record(f"out/chat-{each}")["scoring"]["chat_template"] for each in ("on", "off")] == [True, False]
    assert sorted(os.listdir("out")) == ["chat-off", "chat-on"]
    one_line(compare(), "E-OUT-USED", "out/chat-on", "--overwrite")
    assert compare("--overwrite", "--quiet", "--calibrate", "batch").out.count("(calibrated)") == 2
    assert flip_flop("report", "out/chat-on", "out/chat-off", "--out", "report.md").code == 0


def test_a_model_without_chat_template_is_rejected_before_scoring(compare, model):
    one_line(compare("--quiet", model=model), "E-CHAT-TEMPLATE", "no chat template")
    assert not os.path.exists("out/chat-on")
