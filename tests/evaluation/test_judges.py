"""Served judges that decide by content only have no flips, in any form of reply."""

import json
import re

import numpy as np
import pytest

from flip_flop import audit, load_run, load_task, write_report
from flip_flop.evaluation.audit import ask_again
from flip_flop.metrics import METRICS, Design, Scores, answers_by_position
from flip_flop.scoring import ScoringOptions
from flip_flop.served.scorer import EndpointScorer
from tests.report.pages import Page

pytest.importorskip("openai", reason="the package openai is not installed")
GENERATION = ScoringOptions(by="generation")
NUM_ROWS = 12


@pytest.fixture
def judges(flip_flop, tmp_path, monkeypatch):
    """The task that ``init`` drafts for pairs of answers. The better answer is the one that praises."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = []
    for number in range(NUM_ROWS):
        first, second = ("rain", "praise") if number % 3 else ("praise", "rain")
        verdict = "second" if number % 3 else "first"
        rows.append({"question": f"Why {number}?", "answer_a": first, "answer_b": second, "verdict": verdict})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = tmp_path / "judge.yaml"
    assert flip_flop("init", tmp_path / "rows.jsonl", "--kind", "judge", "--out", out).code == 0
    return load_task(out).with_rows(rows)


def better(prompt):
    """The letter of the answer that praises."""
    return re.search("Answer ([AB]): praise", prompt)[1]


# the form of a reply: whether it is read
FORMS = {
    "{}": True,
    "Verdict: {}": True,
    '{{"winner": "{}"}}': True,
    "Answer {}": True,
    "I cannot judge {}": False,
}


@pytest.mark.parametrize(("form", "is_read"), FORMS.items())
def test_judge_by_content_has_no_flips_whatever_it_writes(served, judges, tmp_path, form, is_read):
    server, name = served
    server.writes = lambda prompt: form.format(better(prompt))
    run = audit(name, judges, scoring=GENERATION, quiet=True)
    run = ask_again(EndpointScorer(name), judges.render("test"), run, GENERATION, quiet=True)
    flips = ("order_flips", "wording_flips", "repeat_flips")
    assert [run.value(flip) for flip in flips] == [0.0 if is_read else None] * 3
    assert [run.interval(flip) is not None for flip in flips] == [is_read] * 3
    pairs = {"order_flips": 3 * NUM_ROWS, "wording_flips": 6 * NUM_ROWS, "repeat_flips": 6 * NUM_ROWS}
    assert run.metrics["flip_pairs"] == {name: number * is_read for name, number in pairs.items()}
    assert run.value("unmapped_share") == 1 - is_read
    assert run.value("accuracy") == is_read
    assert "by position" not in run.decision.text
    begin = (
        f"100.0 % of the answers cannot be read, such as '{form.format('B')}' and '{form.format('A')}'. Set extract "
    )
    assert run.decision.sentences[0].startswith(begin) == (not is_read)
    assert run.reading == (run.decision.sentences[0] if not is_read else "")
    stored = load_run(run.write(tmp_path / "run"))
    assert (stored.decision, stored.metrics["flip_pairs"]) == (run.decision, run.metrics["flip_pairs"])
    page = Page(write_report([stored], tmp_path / "report.html").read_text())
    assert page.faults == []
    result = " ".join(page.text.split()).split(" Result ")[1]
    assert result.startswith(" ".join(run.decision.sentences[0].split()))
    changed = stored.to_pandas("instances")["changed_by"]
    assert changed.tolist() == [""] * NUM_ROWS if is_read else changed.isna().all()
    assert len(stored.to_pandas("flips")) == 0


def test_mostly_unread_judge_is_about_reading_and_then_as_the_others(served, judges, tmp_path):
    """The replies to one of three wordings are not read."""
    server, name = served
    server.writes = lambda prompt: "I do not know\nwhat" if "with care" in prompt else better(prompt)
    run = audit(name, judges, scoring=GENERATION, quiet=True)
    assert run.value("unmapped_share") == pytest.approx(1 / 3)
    assert run.decision.sentences[0].startswith("33.3 % of the answers cannot be read, such as 'I do not know what'. ")
    assert run.metrics["flip_pairs"] == {"order_flips": 2 * NUM_ROWS, "wording_flips": 2 * NUM_ROWS}
    assert run.value("order_flips") == run.value("wording_flips") == 0.0
    assert audit(name, judges, quiet=True).reading == "", "scores need no reading"


@pytest.mark.parametrize(("num_read", "is_by_position"), [(60, True), (40, True), (20, False), (0, False)])
def test_answers_by_position_need_pairs_that_were_read(num_read, is_by_position):
    predictions = np.full((60, 4), -1)
    predictions[:num_read] = [0, 1, 0, 1]  # always A
    scores = np.where(predictions[..., None] == np.arange(2), 0.0, -np.inf)
    levels = [{"wording": wording, "order": order} for wording in "ab" for order in ("given", "swapped")]
    data = Scores(scores, np.full(60, -1), design=Design(levels=levels))
    assert METRICS["order_flips"].value(data) == (1.0 if num_read else None)
    assert answers_by_position(data) is is_by_position
