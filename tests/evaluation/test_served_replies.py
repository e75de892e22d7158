"""Replies of a server are untrusted: invalid replies end the audit with an error."""

import json
import time

import pytest

from flip_flop import ScoringOptions, audit
from flip_flop.errors import InputError
from flip_flop.scoring import EndpointScorer
from tests.evaluation.conftest import make_rows, make_task
from tests.served import serving

pytest.importorskip("openai", reason="the package openai is not installed")
GENERATION, ECHO = ScoringOptions(by="generation"), ScoringOptions(api="echo")
NO_RETRY = {"retries": 0, "seconds": 20.0}


@pytest.fixture
def served(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    with serving(loaded.model, loaded.tokenizer) as found:
        yield found


@pytest.fixture
def task():
    return make_task()


def changed(change):
    """A change of a reply's JSON, as one of its text."""

    def of_text(content):
        reply = json.loads(content)
        change(reply)
        return json.dumps(reply)

    return of_text


def with_log_prob(value):
    return lambda reply: reply["choices"][0]["logprobs"]["token_logprobs"].__setitem__(-2, value)


def with_list(name, change):
    return lambda reply: reply["choices"][0]["logprobs"].update(
        {name: change(reply["choices"][0]["logprobs"].get(name))}
    )


def with_usage(**counts):
    return lambda reply: reply["usage"].update(counts)


def without_last_token(reply):
    """llama.cpp's Python server for models without a BOS."""
    for name in ("tokens", "token_logprobs"):
        reply["choices"][0]["logprobs"][name].pop()


@pytest.mark.parametrize(
    "change",
    [
        *(with_log_prob(value) for value in (5, 0.1, True, "-1", [1], -1e300, float("nan"), -float("inf"), {}, None)),
        *(with_list(name, lambda given: given[:-2]) for name in ("tokens", "token_logprobs")),
        *(with_list(name, lambda given: [*given, given[-1]]) for name in ("tokens", "token_logprobs")),
        *(with_list("tokens", change) for change in (lambda given: [*given[:-1], 3], "".join)),
        with_list("text_offset", lambda given: [0]),
        *(with_usage(completion_tokens=count) for count in (0, 2, 5)),
        without_last_token,
    ],
)
def test_inconsistent_log_probabilities_are_rejected(served, task, change):
    served[0].changes = changed(change)
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: Instance .*tiny at http") as told:
        audit(EndpointScorer(served[1], **NO_RETRY), task, quiet=True, scoring=ECHO)
    assert "--by generation" in told.value.hint


@pytest.mark.parametrize("scoring", [ScoringOptions(concurrency=1), ScoringOptions(by="generation", concurrency=1)])
@pytest.mark.parametrize(
    "change",
    [
        *(with_usage(prompt_tokens=value) for value in (None, "7", -7, 7.0, True, 10**400)),
        with_usage(completion_tokens=-1),
        lambda reply: reply.update(usage="none"),
        lambda reply: reply.update(choices=[3]),
        lambda reply: reply["choices"][0].update(text=0),
    ],
)
def test_invalid_reply_keeps_stored_answers(served, task, scoring, change):
    server, name = served
    kinds = iter([lambda content: content] * 6)
    server.changes = lambda content: next(kinds, changed(change))(content)
    with pytest.raises(InputError, match=r"E-ENDPOINT-(ANSWER|LOGPROBS): Instance"):
        audit(EndpointScorer(name, **NO_RETRY), task, quiet=True, scoring=scoring)
    server.changes = lambda content: content
    found = audit(name, task, quiet=True, scoring=scoring)
    num_questions = found.scores.size if scoring.by == "probability" else found.predictions.size
    assert found.record.scoring["num_asked"] == num_questions - 6


OLD_ANSWER = {"score": -9.0, "tokens": 1, "merged": False, "read": 9, "written": 1}
DAMAGED = {
    "not JSON": lambda line, lines: line[:-9],
    "empty": lambda line, lines: "",
    "not UTF-8": lambda line, lines: line.replace(line[9], "\udcff"),
    "another value": lambda line, lines: json.dumps(OLD_ANSWER),
    "another answer": lambda line, lines: json.dumps([json.loads(line)[0], OLD_ANSWER, json.loads(line)[2]]),
    "answer of another question": lambda line, lines: json.dumps([json.loads(line)[0], *json.loads(lines[0])[1:]]),
}


@pytest.mark.parametrize("damage", DAMAGED)
@pytest.mark.parametrize("scoring", [ScoringOptions(), GENERATION])
def test_damaged_stored_answers_are_requested_again(served, task, tmp_path, damage, scoring):
    expected = audit(served[1], task, quiet=True, scoring=scoring)
    (store,) = (tmp_path / "cache").rglob("*.jsonl")
    first, *others = filter(None, store.read_text().splitlines())
    lines = [first, *(DAMAGED[damage](line, [first]) for line in others)]
    store.write_text("\n".join(lines), errors="surrogateescape")
    found = audit(served[1], task, quiet=True, scoring=scoring)
    assert (found.scores == expected.scores).all()
    assert found.record.scoring["num_asked"] == len(others)
    assert audit(served[1], task, quiet=True, scoring=scoring).record.scoring["num_asked"] == 0


def test_ten_stored_answers_are_requested_again(served, task):
    server, name = served
    audit(name, task, quiet=True)
    num_requests = len(server.requests)
    audit(name, task, quiet=True)
    assert len(server.requests) - num_requests == 10
    model = server.model
    server.model = lambda ids: type("Output", (), {"logits": model(ids).logits * 1.5})
    with pytest.raises(InputError, match="E-ENDPOINT-ANSWER"):
        audit(name, make_task(make_rows(6)), quiet=True)
    assert len(server.requests) - num_requests <= 20


def drip(handler, content):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(1200):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def drip_headers(handler, content):
    for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1200:
        handler.wfile.write(bytes([letter]))
        time.sleep(0.05)


@pytest.mark.parametrize("sends", [drip, drip_headers])
def test_slow_reply_ends_after_a_deadline(served, task, sends):
    server, name = served
    audit(name, make_task(make_rows(1)), quiet=True)
    server.sends, started = sends, time.monotonic()
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .* 1 seconds.* 12 of 60 answers are stored"):
        audit(EndpointScorer(name, seconds=1), task, quiet=True, scoring=ScoringOptions(concurrency=2))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("target", ["another host", "itself", "file:///etc/passwd"])
def test_redirect_is_rejected(served, loaded, task, target):
    with serving(loaded.model, loaded.tokenizer) as (other, address):
        url = {"another host": address, "itself": served[1]}.get(target, target)
        url = url.removeprefix("openai:").replace("#tiny", "/completions")
        served[0].sends = lambda handler, content: handler.reply(b"", 307, {"Location": url})
        with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: Instance .* 307.*[Rr]edirect"):
            audit(served[1], task, quiet=True, scoring=ScoringOptions(concurrency=1))
        assert (len(served[0].requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize("key", ["s3cr3t\ntwo", "s3crët", "s3cr3t\ttwo"])
def test_key_with_a_line_break_is_rejected(served, task, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with pytest.raises(InputError, match=r"E-ENDPOINT: .*OPENAI_API_KEY") as told:
        audit(served[1], task, quiet=True)
    assert key.split()[0] not in str(told.value)
    assert not served[0].requests
