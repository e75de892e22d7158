"""Requests are changed as a server wants, its own words are shown, and every request ends in time."""

import contextlib
import json
import re
import time

import pytest

from flip_flop import ScoringOptions, audit
from flip_flop.errors import InputError
from flip_flop.scoring import EndpointScorer
from tests.evaluation.conftest import make_rows, make_task
from tests.served import serving
from tests.tiny import with_chat_template

pytest.importorskip("openai", reason="the package openai is not installed")
CHAT = ScoringOptions(by="generation", chat_template="on")
TOP = ScoringOptions(api="top_logprobs", chat_template="on")


@pytest.fixture
def served(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(loaded.model, with_chat_template(loaded.tokenizer)) as found:
        yield found


@pytest.fixture
def task():
    return make_task(make_rows(3)).with_templates(["plain", "terse"])


def refusing(refusal):
    """A server that answers 400 with the words that a function of the request returns."""

    def sends(handler, content):
        words = refusal(handler.asked)
        body = content if words is None else json.dumps({"error": {"message": words}}).encode()
        handler.reply(body, 200 if words is None else 400)

    return sends


def like_gpt_5(asked):
    if "max_tokens" in asked:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    if "temperature" in asked:
        return "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
    return None


def test_refused_parameters_are_changed_and_recorded(served, task, capsys):
    server, name = served
    server.sends = refusing(like_gpt_5)
    found = audit(name, task, scoring=CHAT)
    assert found.record.scoring["adapted"] == {"max_tokens": "max_completion_tokens", "temperature": "default"}
    assert "max_tokens: max_completion_tokens; temperature: default" in capsys.readouterr().err
    assert found.predictions.shape == (3, 2)
    assert len(server.requests) == found.predictions.size + 2
    assert all("max_completion_tokens" in each and "temperature" not in each for each in server.requests[2:])
    server.writes = lambda prompt: "something else"  # its temperature is not 0
    assert (audit(name, task, quiet=True, scoring=CHAT).predictions == found.predictions).all()


@pytest.mark.parametrize(
    "words",
    ["'top_logprobs' must be less than or equal to 5.", "Requested logprobs of 20, the maximum is: 5", "5 logprobs"],
)
def test_fewer_top_logprobs_are_requested_as_the_server_allows(served, task, words):
    server, name = served
    server.kind = "chat"
    server.sends = refusing(lambda asked: words if asked["top_logprobs"] > 5 else None)
    found = audit(name, task, quiet=True, scoring=TOP)
    assert found.record.scoring["adapted"] == {"top_logprobs": 5}
    server.sends, server.num_top = None, 5
    silent = audit(name.replace("#tiny", "#silent"), task, quiet=True, scoring=TOP)
    assert (silent.scores == found.scores).all()
    assert silent.record.scoring["adapted"] == {"top_logprobs": 5}


def test_refusal_that_no_change_solves_has_the_words_of_the_server(served, task):
    served[0].sends = refusing(lambda asked: "the temperature and max_completion_tokens are wrong")
    with pytest.raises(InputError, match="the temperature and max_completion_tokens are wrong") as told:
        audit(served[1], task, quiet=True, scoring=CHAT)
    assert "longer than its context" not in str(told.value)


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such model: tiny", "code": 404}},
        {"error": "no such model: tiny"},
        {"error": {"message": "no such model: tiny"}, "choices": []},
    ],
)
@pytest.mark.parametrize("scoring", [CHAT, ScoringOptions(), TOP])
def test_error_in_a_reply_has_the_words_of_the_server(served, task, body, scoring):
    served[0].changes = lambda content: json.dumps(body)
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: Instance .* no such model: tiny"):
        audit(served[1], task, quiet=True, scoring=scoring)


@pytest.mark.parametrize(
    "error", [{"code": 429, "message": "wait"}, {"code": "rate_limit_exceeded"}, "Too many requests", {"code": "503"}]
)
def test_overload_in_a_reply_is_retried(served, task, error):
    server, name = served
    expected = audit(name, task, quiet=True)
    bodies = iter([json.dumps({"error": error})] * 2)
    server.changes = lambda content: next(bodies, content)
    found = audit(name.replace("#tiny", "#other"), task, quiet=True)
    assert (found.scores == expected.scores).all()


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "No complaint."}]}


@pytest.mark.parametrize(
    ("message", "label"),
    [
        ({"content": [THOUGHT, {"type": "text", "text": "good"}]}, 1),
        ({"content": [{"type": "text", "text": "go"}, {"type": "text", "text": "od"}]}, 1),
        ({"content": [{"type": "output_text", "text": "bad"}]}, 0),
        ({"content": [THOUGHT]}, -1),
        ({"content": []}, -1),
        ({"content": "good", "reasoning_content": "bad"}, 1),
        ({"content": None, "reasoning_content": "good"}, -1),
        ({"content": "bad?\n</think>\n\ngood"}, 1),
        ({"content": "<think>good"}, -1),
    ],
)
def test_answer_of_a_message_is_its_text_after_the_reasoning(served, message, label):
    def changes(content):
        reply = json.loads(content)
        reply["choices"][0]["message"] = {"role": "assistant", **message}
        return json.dumps(reply)

    served[0].changes = changes
    task = make_task(make_rows(2)).with_templates(["plain", "plain"][:1])
    found = audit(served[1], task, quiet=True, scoring=CHAT)
    assert (found.predictions == label).all()


def drip(handler):
    with contextlib.suppress(OSError):
        handler.send_response(200)
        handler.send_header("Content-Length", "1000000")
        handler.end_headers()
        for _ in range(600):
            handler.wfile.write(b" ")
            time.sleep(0.05)


def drip_headers(handler):
    with contextlib.suppress(OSError):
        for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 600:
            handler.wfile.write(bytes([letter]))
            time.sleep(0.05)


@pytest.mark.parametrize("gets", [drip, drip_headers])
def test_list_of_models_has_a_deadline(served, task, gets):
    served[0].gets, started = gets, time.monotonic()
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .* no reply in 1 seconds"):
        audit(EndpointScorer(served[1], seconds=1), task, quiet=True)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("which", ["/tokenize", "/apply-template"])
def test_endpoints_of_llama_server_have_a_deadline(served, task, which):
    server, name = served
    server.kind, started = "llama", time.monotonic()
    server.sends = lambda handler, content: drip(handler) if handler.path == which else handler.reply(content)
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .* no reply in 1 seconds"):
        audit(EndpointScorer(name, seconds=1), task, quiet=True, scoring=ScoringOptions(chat_template="on"))
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("path", [("choices", 0, "logprobs"), ("usage",), ("choices", 0, "text")])
def test_invalid_first_reply_does_not_change_the_api(served, task, path):
    def changes(content):
        reply = json.loads(content)
        part = reply
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = [3]
        return json.dumps(reply)

    served[0].changes = changes
    with pytest.raises(InputError, match="E-ENDPOINT-LOGPROBS"):
        audit(served[1], task, quiet=True)
    assert {*map(str, map(sorted, served[0].requests))} == {
        "['echo', 'logprobs', 'max_tokens', 'model', 'prompt', 'temperature']"
    }


def test_api_does_not_change_within_an_audit(served, task):
    scorer = EndpointScorer(served[1])
    assert audit(scorer, task, quiet=True).record.scoring["api"] == "echo"
    served[0].kind = "chat"
    with pytest.raises(InputError, match=r"E-ENDPOINT-ANSWER: .*404"):
        audit(scorer, make_task(make_rows(6)), quiet=True)


@pytest.mark.parametrize(("key", "words"), [("a", "a bad key"), ("no", "no: not a nose"), ("key-0", "monkey-01")])
def test_short_key_is_not_hidden_inside_words(served, task, monkeypatch, key, words):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    served[0].sends = refusing(lambda asked: f"{words}; it is {key}")
    with pytest.raises(InputError) as told:
        audit(served[1], task, quiet=True, scoring=CHAT)
    assert re.sub(rf"\b{key}\b", "***", words) in str(told.value)
    assert "it is ***" in str(told.value)


@pytest.mark.parametrize("top", [[("<pad>", -9999.0)], [("<pad>", -9999.0)] * 20, [("a", -900.0), ("b", -950.0)]])
def test_list_without_probabilities_is_refused(served, task, top):
    def changes(content):
        reply = json.loads(content)
        listed = [{"token": token, "logprob": value} for token, value in top]
        reply["choices"][0]["logprobs"]["content"][0] = {**listed[0], "top_logprobs": listed}
        return json.dumps(reply)

    served[0].kind, served[0].changes = "chat", changes
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: Instance"):
        audit(served[1], task, quiet=True, scoring=TOP)
