"""A chat template that prints the date: each run has one date, records it, and keeps it on resume."""

from dataclasses import replace

import numpy as np
import pytest

from flip_flop import audit, compare, load_run, train, write_report
from flip_flop.scoring.options import ScoringOptions
from tests.evaluation.conftest import make_task as make_audit_task
from tests.refused import refused
from tests.tiny import CHAT_TEMPLATE, byte_bpe, save_tiny, with_chat_template
from tests.training.conftest import adapter_bytes, before_step, load_tiny, make_task, record_of, settings

DATED = "Today: {{ strftime_now('%d %b %Y, %H:%M') }}\n" + CHAT_TEMPLATE
FIRST, SECOND = "2026-03-30", "2026-03-31"


@pytest.fixture
def on(monkeypatch):
    """Set the clock to noon of a day."""

    def set_clock(day):
        monkeypatch.setattr("flip_flop.console.now", lambda: f"{day}T12:00:00+00:00")

    return set_clock


def chat_tokenizer():
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template = DATED
    return tokenizer


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("model") / "chat", tokenizer=chat_tokenizer())


@pytest.mark.slow
def test_audits_of_two_days_differ_and_say_so(model, on, tmp_path):
    def run(name, day, **scoring):
        on(day)
        result = audit(str(model), make_audit_task(), name=name, quiet=True, scoring=ScoringOptions(**scoring))
        return load_run(result.write(tmp_path / name))

    first, second = run("first", FIRST), run("second", SECOND)
    again, off = run("again", SECOND, prompt_date=FIRST), run("off", SECOND, chat_template="off")
    runs = (first, second, again, off)
    assert [run.record.scoring["prompt_date"] for run in runs] == [FIRST, SECOND, FIRST, SECOND]
    prompts = [next(iter(run.instances)).prompts[0] for run in (first, second)]
    assert [text.partition("\n")[0] for text in prompts] == ["Today: 30 Mar 2026, 00:00", "Today: 31 Mar 2026, 00:00"]
    assert not np.array_equal(first.scores, second.scores)
    assert np.array_equal(first.scores, again.scores)
    digests = [run.record.scoring["prompts_digest"] for run in runs]
    assert digests[0] == digests[2]
    assert len({*digests}) == 3
    assert compare(first, again).other_prompts == compare(first, off).other_prompts == []
    (line,) = compare(first, second).other_prompts
    assert line.startswith("W-PROMPTS: ")
    assert f"printed date: {FIRST}, {SECOND}" in line
    assert line in repr(compare(first, second))
    page = write_report([tmp_path / "first", tmp_path / "second"], tmp_path / "report.html").read_text()
    assert f"printed date: {FIRST}, {SECOND}" in page


RUN = {"eval_strategy": "steps", "eval_steps": 2, "num_train_epochs": -1, "max_steps": 4}


@pytest.mark.slow
def test_training_resumed_on_another_day_keeps_its_date(on, tmp_path, monkeypatch):
    def run(name, resume=False, **changes):
        model, config = replace(load_tiny(), tokenizer=chat_tokenizer()), settings(**RUN, **changes)
        train(model, make_task(), config, tmp_path / name, resume=resume, quiet=True, keep_worse=True)

    def crash():
        raise RuntimeError("crash")

    on(FIRST)
    run("whole")
    with monkeypatch.context() as patch:
        before_step(patch, 3, crash)
        with pytest.raises(RuntimeError, match="crash"):
            run("resumed")
    on(SECOND)
    refused(
        rf"E-RESUME-CHANGED: .*prompt_date \('{FIRST}', now '{SECOND}'\)",
        run,
        "resumed",
        resume=True,
        prompt_date=SECOND,
    )
    run("resumed", resume=True)
    assert adapter_bytes(tmp_path / "resumed") == adapter_bytes(tmp_path / "whole")
    records = [record_of(tmp_path / name) for name in ("whole", "resumed")]
    assert [record["training"]["prompt_date"] for record in records] == [FIRST, FIRST]
    for key in ("prompts_digest", "validation_prompts_digest"):
        assert records[0]["scoring"][key] == records[1]["scoring"][key]
