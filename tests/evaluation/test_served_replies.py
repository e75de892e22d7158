"""Replies of a server are untrusted: a wrong reply ends the audit with an error, and every request ends in time."""

import contextlib
import functools
import itertools
import json
import random
import re
import socket
import time
import tracemalloc
import types

import numpy as np
import pytest

from flip_flop import ScoringOptions, audit
from flip_flop.errors import InputError
from flip_flop.files import compress
from flip_flop.prompts import Template
from flip_flop.served.scorer import EndpointScorer, first_token_scores
from tests.cases import read_cases
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.refused import refused
from tests.served import serving

pytest.importorskip("openai", reason="the package openai is not installed")
GENERATION, ECHO = ScoringOptions(by="generation"), ScoringOptions(api="echo")
CHAT = ScoringOptions(by="generation", chat_template="on")
TOP = ScoringOptions(api="top_logprobs", chat_template="on")
ONE_BY_ONE = {"retries": 0, "seconds": 20.0}
FEW = make_task(make_rows(2))


@pytest.fixture
def assert_fault(served, task, tmp_path):
    """Check that an audit of a server with these switches ends with one error, which does not show the key."""

    def check(words, scoring=None, data=task, **switches):
        server, name = served
        vars(server).update(switches)
        scorer = EndpointScorer(name, **ONE_BY_ONE)
        line = refused(words, audit, scorer, data, quiet=True, scoring=scoring or ScoringOptions())
        assert not re.search(r"\d answers are stored|longer than its context|a-secret", line)
        assert not [path for path in tmp_path.rglob("*") if path.is_file() and b"a-secret" in path.read_bytes()]

    return check


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


def without_last_two(values):
    return values[:-2]


def with_last_twice(values):
    return [*values, values[-1]]


def with_a_number(values):
    return [*values[:-1], 3]


def certain(reply):
    """Log-probabilities of a sampler that has no choice."""
    values = reply["choices"][0]["logprobs"]["token_logprobs"]
    values[1:] = [0.0] * len(values[1:])


def with_usage(**counts):
    return lambda reply: reply["usage"].update(counts)


def without_usage_and_with_other_text(reply):
    reply.pop("usage")
    reply["choices"][0]["logprobs"]["tokens"][0] += "x"


def without_last_token(reply):
    """llama.cpp's Python server for models without a BOS."""
    for name in ("tokens", "token_logprobs"):
        reply["choices"][0]["logprobs"][name].pop()


def with_top(*top):
    listed = [{"token": token, "logprob": value} for token, value in top]
    content = [listed[0] | {"top_logprobs": listed}]
    return lambda reply: reply["choices"][0].update(logprobs={"content": content})


def refusing(refusal):
    """A server that answers 400 with the words that a function of the request returns."""

    def sends(handler, content):
        words = refusal(handler.asked)
        body = content if words is None else json.dumps({"error": {"message": words}}).encode()
        handler.reply(body, 200 if words is None else 400)

    return {"sends": sends}


def with_choices(choices):
    return make_task(templates=[*TEMPLATES[:2], Template("place", "{{ text }}?", choices)])


ANSWER = "E-ENDPOINT-ANSWER: Instance"
INVALID = f"{ANSWER} .*tiny at http.* sends an invalid reply (?!.*(pydantic|generation))"
NO_LOG_PROBS = (5, 0.1, True, "-1", [1], -1e300, float("nan"), -float("inf"), {})
LISTS = ("tokens", "token_logprobs")
WRONG_LOG_PROBS = [
    *map(with_log_prob, NO_LOG_PROBS),
    *(with_list(name, without_last_two) for name in LISTS),
    *(with_list(name, with_last_twice) for name in LISTS),
    with_list("tokens", with_a_number),
    with_list("tokens", "".join),
    with_list("text_offset", lambda values: [0]),
]
WRONG_COUNTS = [*(with_usage(completion_tokens=count) for count in (0, 2, 5)), without_last_token]


@pytest.mark.slow
@pytest.mark.parametrize("change", [*WRONG_LOG_PROBS, *WRONG_COUNTS])
def test_reply_with_invalid_log_probabilities_is_one_error(assert_fault, change):
    assert_fault(INVALID, ECHO, changes=changed(change))


@pytest.mark.slow
@pytest.mark.parametrize("scoring", [ScoringOptions(), GENERATION])
@pytest.mark.parametrize(
    "change",
    [
        *(with_usage(prompt_tokens=value) for value in ("7", -7, 7.0, True, 10**400)),
        lambda reply: reply.update(usage="none"),
        lambda reply: reply.update(choices=[3]),
        lambda reply: reply.update(choices=[]),
        lambda reply: reply.update(choices=2 * reply["choices"]),
        lambda reply: reply["choices"][0].update(text=0),
    ],
)
def test_reply_with_invalid_usage_or_choices_is_one_error(assert_fault, change, scoring):
    assert_fault(ANSWER, scoring, changes=changed(change))


PAD = ("<pad>", -9999.0)


@pytest.mark.slow
@pytest.mark.parametrize("top", [[PAD], [PAD] * 20, [("a", -900.0), ("b", -950.0)]])
def test_reply_without_a_probable_token_is_one_error(assert_fault, top):
    assert_fault(f"{ANSWER}.* sends an invalid reply", TOP, kind="chat", changes=changed(with_top(*top)))


NO_MODEL = {"message": "no such model: tiny"}


@pytest.mark.slow
@pytest.mark.parametrize("scoring", [CHAT, ScoringOptions(), TOP])
@pytest.mark.parametrize(
    "body", [{"error": NO_MODEL | {"code": 404}}, {"error": NO_MODEL["message"]}, {"error": NO_MODEL, "choices": []}]
)
def test_reply_that_holds_an_error_is_one_error(assert_fault, body, scoring):
    assert_fault(f"{ANSWER} .* no such model: tiny", scoring, changes=lambda content: json.dumps(body))


NO_USAGE = changed(without_usage_and_with_other_text)
NO_LOG_PROB = "Instance .*: tiny at http.* sends no log-probability of some of the .* --by generation"
LOGIN = "<html>Log in</html>"
REFUSAL = "the temperature and max_completion_tokens are wrong"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "scoring", "switches"),
    [
        ("E-ENDPOINT-LOGPROBS: .*: no usage", ECHO, {"changes": NO_USAGE}),
        (f"E-ENDPOINT-LOGPROBS: {NO_LOG_PROB}", ECHO, {"changes": changed(with_log_prob(None))}),
        (f"{ANSWER} .* sends a reply that is not JSON: {LOGIN}", None, {"changes": lambda content: LOGIN}),
        ("E-ENDPOINT-LOGPROBS: .* Add --by generation", None, {"log_probs": False}),
        (f"{ANSWER} 'test-1', template 'plain': .*answers 400", None, {"fails": [400] * 3}),
        (rf"{ANSWER} .* tiny at http.* answers 401: .*no: Bearer \*\*\*", None, {"fails": [401] * 3}),
        (REFUSAL, CHAT, refusing(lambda asked: REFUSAL)),
        (r"E-ENDPOINT-LOGPROBS: Instance 'test-1', template 'plain'.* 3\.00", ECHO, {"changes": changed(certain)}),
    ],
)
def test_fault_of_a_server_is_one_error(assert_fault, words, scoring, switches):
    assert_fault(words, scoring, **switches)


ONE_ROW = {"id": "a", "prompts": ["Is it?"], "choices": [["Yes", "yes"]], "label": None}
ALIKE = r"E-ENDPOINT-LOGPROBS: Template 'place': the answers .* begin alike"
SHARED = changed(with_top(("S", -0.1), ("Ohio", -3.0)))


@pytest.mark.slow
def test_answers_that_the_server_cannot_distinguish_are_one_error(assert_fault):
    words = "E-ENDPOINT: Generated texts cannot distinguish the answers 'Yes', 'yes'"
    assert_fault(words, GENERATION, [ONE_ROW])


@pytest.mark.slow
@pytest.mark.parametrize("choices", ["New York ||| New Jersey ||| Ohio", "Yes ||| Yesterday ||| No"])
def test_answers_that_begin_alike_are_one_error(assert_fault, choices):
    assert_fault(ALIKE, None, with_choices(choices), kind="chat")


@pytest.mark.slow
def test_probable_token_of_two_answers_is_one_error(assert_fault):
    words = r"E-ENDPOINT-LOGPROBS: .*template 'place'.* does not identify"
    assert_fault(words, TOP, with_choices("Sports ||| Sci/Tech ||| Ohio"), kind="chat", changes=SHARED)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chat_template", "api", "words"),
    [("on", "echo", "E-CHAT-TEMPLATE: --api .* --tokenizer"), ("off", "top_logprobs", "E-CHAT-TEMPLATE: --api")],
)
def test_api_that_does_not_fit_the_chat_template_is_one_error(assert_fault, chat_template, api, words):
    assert_fault(words, ScoringOptions(chat_template=chat_template, api=api))


OLD_ANSWER = {"score": -9.0, "tokens": 1, "merged": False, "read": 9, "written": 1}


def damages(line, first):
    """A stored line with no JSON, empty, in no UTF-8, and with another value, another answer, or another question."""
    question, _, digest = json.loads(line)
    _, *other = json.loads(first)
    changed_json = [OLD_ANSWER, [question, OLD_ANSWER, digest], [question, *other]]
    return [line[:-9], "", line.replace(line[9], "\udcff"), *map(json.dumps, changed_json)]


@pytest.mark.slow
def test_damaged_stored_answers_are_requested_again(served, tmp_path):
    expected = audit(served[1], FEW, quiet=True)
    (store,) = (tmp_path / "cache").rglob("*.jsonl")
    first, *others = filter(None, store.read_text().splitlines())
    assert len(others) > 2 * 6
    lines = [first, *(damages(line, first)[number % 6] for number, line in enumerate(others))]
    store.write_text("\n".join(lines), errors="surrogateescape")
    again = audit(served[1], FEW, quiet=True)
    assert (again.scores == expected.scores).all()
    assert again.record.scoring["num_asked"] == len(others) + 1
    assert audit(served[1], FEW, quiet=True).record.scoring["num_asked"] == 10


OVERLOADED = ({"code": 429, "message": "wait"}, {"code": "rate_limit_exceeded"}, "Too many requests", {"code": "503"})


@pytest.mark.slow
@pytest.mark.parametrize(
    "bodies", [[], ["<html>", '{"choices": [{'], *([json.dumps({"error": error})] * 2 for error in OVERLOADED)]
)
def test_overloaded_server_is_asked_again(served, bodies):
    server, name = served
    expected = audit(name, FEW, quiet=True)
    server.fails, rest = ([], iter(bodies)) if bodies else ([429, 503, 500], iter(()))
    server.changes = lambda content: next(rest, content)
    num_requests = len(server.requests)
    theirs = audit(name.replace("#tiny", "#other"), FEW, quiet=True)
    assert (theirs.scores == expected.scores).all()
    assert theirs.record.scoring["num_asked"] == theirs.scores.size
    assert len(server.requests) - num_requests == theirs.scores.size + (len(bodies) or 3)
    assert set(server.keys) == {"Bearer a-secret"}


def test_server_that_asks_for_short_waits_is_asked_for_about_a_minute(served, monkeypatch):
    server, name = served
    server.sends = lambda handler, content: handler.reply(content, 429, {"Retry-After": "1"})
    waits = []
    monkeypatch.setattr("openai._base_client.time", types.SimpleNamespace(sleep=waits.append, time=time.time))
    refused("E-ENDPOINT-ANSWER: .* answers 429", audit, name, FEW, quiet=True, scoring=ECHO)
    assert 40 < sum(waits) < 60


def test_refused_connection_is_reported_within_five_seconds(task, monkeypatch, caplog):
    waits = []

    def sleep(seconds):
        waits.append(seconds)
        assert sum(waits) < 5 or "requests fail; retrying" in caplog.text

    monkeypatch.setattr("openai._base_client.time", types.SimpleNamespace(sleep=sleep, time=time.time))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        name = f"openai:http://127.0.0.1:{free.getsockname()[1]}/v1#tiny"
        scoring = ScoringOptions(concurrency=1)
        refused("E-ENDPOINT-ANSWER: .* does not answer", audit, name, task, quiet=True, scoring=scoring)
    assert sum(waits) > 5
    assert caplog.text.count("requests fail; retrying for about a minute") == 1


@pytest.mark.parametrize(
    ("status", "value", "words"),
    [
        (200, 5, "ANSWER: .*less than or equal to.* 12 of 24 answers are stored. Run the command again to continue.$"),
        (200, None, "LOGPROBS: .*tokens. Add --by generation to use generated answers.$"),  # as the next time
        (400, 5, "ANSWER: .* answers 400: .* See the server's log.$"),
    ],
)
def test_invalid_reply_keeps_the_stored_answers(served, status, value, words):
    server, name = served
    audit(name, make_task(make_rows(1)), quiet=True, scoring=ECHO)
    number = iter(range(100))
    of_text = changed(with_log_prob(value))
    server.sends = lambda handler, content: handler.reply(
        *((content, 200) if next(number) < 10 else (of_text(content).encode(), status))
    )
    refused(f"E-ENDPOINT-{words}", audit, name, FEW, quiet=True, scoring=ECHO)


def like_gpt_5(asked):
    if "max_tokens" in asked:
        return (
            "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        )
    if "temperature" in asked:
        return "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) is supported."
    return None


@pytest.mark.slow
def test_refused_parameters_are_changed_and_recorded(served, task, capsys):
    server, name = served
    vars(server).update(refusing(like_gpt_5))
    theirs = audit(name, task, scoring=CHAT)
    assert theirs.record.scoring["adapted"] == {"max_tokens": "max_completion_tokens", "temperature": "default"}
    assert "max_tokens: max_completion_tokens; temperature: default" in capsys.readouterr().err
    assert len(server.requests) == theirs.predictions.size + 2
    assert all("max_completion_tokens" in asked and "temperature" not in asked for asked in server.requests[2:])
    server.writes = lambda prompt: "something else"  # its temperature is not 0
    assert (audit(name, task, quiet=True, scoring=CHAT).predictions == theirs.predictions).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    ["'top_logprobs' must be less than or equal to 5.", "Requested logprobs of 20, the maximum is: 5", "5 logprobs"],
)
def test_fewer_top_logprobs_are_requested_as_the_server_allows(served, task, words):
    server, name = served
    server.kind = "chat"
    vars(server).update(refusing(lambda asked: words if asked["top_logprobs"] > 5 else None))
    theirs = audit(name, task, quiet=True, scoring=TOP)
    server.sends, server.num_top = None, 5
    silent = audit(name.replace("#tiny", "#silent"), task, quiet=True, scoring=TOP)
    assert (silent.scores == theirs.scores).all()
    assert silent.record.scoring["adapted"] == theirs.record.scoring["adapted"] == {"top_logprobs": 5}


@pytest.mark.parametrize("case", read_cases("evaluation/first_tokens.yaml"))
def test_answers_rank_by_the_probability_of_all_tokens_that_begin_them(case):
    scores = first_token_scores([tuple(pair) for pair in case["top"]], case["choices"], "")
    assert np.argsort(scores).tolist()[::-1] == case["order"]


def test_answer_that_shares_a_probable_token_has_no_label():
    """``S`` may begin the answer that is second without it."""
    sections = ["Sports", "Sci/Tech", "World"]
    for top in ([("World", -1.0), ("Sports", -1.4), ("S", -1.6)], [("Sports", -1.0), ("Sci", -1.2), ("S", -2.0)]):
        assert first_token_scores(top, sections, "") == [-np.inf] * 3
    assert np.argmax(first_token_scores([("World", -0.5), ("Sports", -1.6), ("S", -2.0)], sections, "")) == 2
    # Whichever of both it begins, the answer is not Sci/Tech.
    assert np.argmax(first_token_scores([("Sports", -1.0), ("Sci", -2.5), ("S", -2.0)], sections, "")) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["in the vocabulary", "without spaces"])
def test_tokens_may_be_listed_as_in_the_vocabulary_or_without_their_spaces(served, task, kind):
    server, name = served
    server.kind, server.num_top = "chat", 400
    expected, decode = audit(name, task, quiet=True, scoring=TOP), server.shows
    without_spaces = kind == "without spaces"
    server.shows = (lambda token: decode(token).strip()) if without_spaces else server.tokenizer.convert_ids_to_tokens
    theirs = audit(name.replace("#tiny", "#other"), task, quiet=True, scoring=TOP)
    assert np.abs(theirs.scores - expected.scores).max() < 1e-5


THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "No complaint."}]}


@pytest.mark.slow
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
    change = {"message": {"role": "assistant"} | message}
    served[0].changes = changed(lambda reply: reply["choices"][0].update(change))
    task = make_task(make_rows(2)).with_templates(["plain"])
    assert (audit(served[1], task, quiet=True, scoring=CHAT).predictions == label).all()


def drip(handler):
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    for _ in range(600):
        handler.wfile.write(b" ")
        time.sleep(0.05)


def drip_headers(handler):
    for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 600:
        handler.wfile.write(bytes([letter]))
        time.sleep(0.05)


def send_forever(handler):
    handler.send_response(200)
    handler.end_headers()
    while True:
        handler.wfile.write(b" " * 2**16)


def send_bomb(handler):
    handler.send_response(200)
    handler.send_header("Content-Encoding", "gzip")
    handler.end_headers()
    for part in compress(" " * 2**20 for _ in range(2**8)):
        handler.wfile.write(part)


@pytest.mark.parametrize("sends", [send_forever, send_bomb])
def test_large_reply_is_refused_before_it_fills_memory(served, sends):
    server, name = served
    server.slow, scorer = {"/v1/completions": sends}, EndpointScorer(name)
    tracemalloc.start()
    try:
        refused("E-ENDPOINT-ANSWER: .* sends a reply of more than 16 MB", audit, scorer, FEW, quiet=True, scoring=ECHO)
        assert tracemalloc.get_traced_memory()[1] < 2**27
    finally:
        tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "path", "slow", "words"),
    [
        ("completions", "/v1/completions", drip_headers, "1 seconds.* 12 of 60 answers are stored"),
        ("completions", "/v1/completions", drip, "1 seconds.* 12 of 60 answers are stored"),
        ("vllm", "/v1/chat/completions", drip, "no reply in 1 seconds"),
    ],
)
def test_slow_reply_ends_after_a_deadline(served, task, kind, path, slow, words):
    server, name = served
    server.kind = kind
    options = ScoringOptions(concurrency=2, chat_template="on" if kind == "vllm" else "off")
    audit(name, make_task(make_rows(1)), quiet=True, scoring=options)
    server.slow, started = {path: slow}, time.monotonic()
    refused(f"E-ENDPOINT-ANSWER: .*{words}", audit, EndpointScorer(name, seconds=1), task, quiet=True, scoring=options)
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("target", ["another host", "itself", "file:///etc/passwd"])
def test_redirect_is_rejected(served, loaded, task, target):
    with serving(loaded.model, loaded.tokenizer) as (other, address):
        url = {"another host": address, "itself": served[1]}.get(target, target)
        url = url.removeprefix("openai:").replace("#tiny", "/completions")
        served[0].sends = lambda handler, content: handler.reply(b"", 307, {"Location": url})
        refused(
            r"E-ENDPOINT-ANSWER: Instance .* 307.*[Rr]edirect",
            audit,
            served[1],
            task,
            quiet=True,
            scoring=ScoringOptions(concurrency=1),
        )
        assert (len(served[0].requests), len(other.requests)) == (1, 0)


@pytest.mark.parametrize("key", ["s3cr3t\ntwo", "s3crët"])
def test_key_with_a_line_break_is_rejected(served, task, monkeypatch, key):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    line = refused(r"E-ENDPOINT: .*OPENAI_API_KEY", audit, served[1], task, quiet=True)
    assert key.split()[0] not in line
    assert not served[0].requests


@pytest.mark.parametrize(("key", "words"), [("a", "a bad key"), ("no", "no: not a nose"), ("key-0", "monkey-01")])
def test_short_key_is_not_hidden_inside_words(served, task, monkeypatch, key, words):
    monkeypatch.setenv("OPENAI_API_KEY", key)
    vars(served[0]).update(refusing(lambda asked: f"{words}; it is {key}"))
    line = refused("^E-", audit, served[1], task, quiet=True, scoring=CHAT)
    assert re.sub(rf"\b{key}\b", "***", words) in line
    assert "it is ***" in line


# Of each API: the kind of server, its chat template, and the parts of its replies that are changed.
APIS = {
    "echo": ("completions", "off", {"text", "tokens", "token_logprobs", "usage", "logprobs", "choices"}),
    "prompt_logprobs": ("vllm", "on", {"prompt_logprobs", "usage"}),
    "top_logprobs": ("chat", "on", {"content", "usage", "choices"}),
}
WRONG = (None, "x", -1, 7.5, True, [], {}, 10**400, float("nan"), float("-inf"))
# These values are numbers in the reply, so another valid number cannot be known as wrong.
WRONG_VALUES_OF_LOG_PROBS = (None, "x", 5, True, [], {}, 10**400, float("nan"), float("-inf"), -9999.0)
SHORTER = {
    "without the first": lambda values: values[1:],
    "without the last": lambda values: values[:-1],
    "without the middle": lambda values: values[: len(values) // 2] + values[len(values) // 2 + 1 :],
    "empty": lambda values: [],
}
LONGER = {
    "first twice": lambda values: values[:1] + values,
    "last twice": lambda values: values + values[-1:],
    "all twice": lambda values: values + values,
    "with null": lambda values: [*values, None],
    "in a list": lambda values: [values],
}
IN_ANOTHER_ORDER = {
    "first two swapped": lambda values: [*values[1::-1], *values[2:]],
    "last two swapped": lambda values: [*values[:-2], *values[:-3:-1]],
    "reversed": lambda values: values[::-1],
}
NUM_CHANGES = 20  # of each API; set it to 10,000 for all


def places(value, path=()):
    """The paths of the parts of a reply. Of a list, only the first, the second and the last item."""
    yield path
    keys = value if isinstance(value, dict) else sorted({0, 1, len(value) - 1}) if isinstance(value, list) else ()
    for key in keys:
        if isinstance(key, str) or 0 <= key < len(value):
            yield from places(value[key], (*path, key))


def part_of(reply, path):
    return functools.reduce(lambda value, key: value[key], path, reply)


def put(value):
    return lambda reply, path: part_of(reply, path[:-1]).__setitem__(path[-1], value)


def replaced(change):
    return lambda reply, path: put(change(part_of(reply, path)))(reply, path)


def changes_of(reply, parts):
    """The name, path and function of each change."""
    for path in places(reply):
        if not parts & {*path}:
            continue
        value = part_of(reply, path)
        is_log_prob = "token_logprobs" in path or path[-1] == "logprob"
        changes = {"is missing": lambda reply, path: part_of(reply, path[:-1]).__delitem__(path[-1])}
        others = WRONG_VALUES_OF_LOG_PROBS if is_log_prob else WRONG
        changes |= {f"is {str(other)[:9]}": put(other) for other in others if repr(other) != repr(value)}
        if isinstance(value, list) and path[-1] != "bytes":
            lists = SHORTER | LONGER
            if not is_log_prob:
                lists |= IN_ANOTHER_ORDER
            changes |= {name: replaced(change) for name, change in lists.items()}
        if isinstance(value, int) and not isinstance(value, bool):
            changes |= {"-1": put(value - 1), "+1": put(value + 1)}
        for name, change in changes.items():
            yield f"{path} {name}", path, change


def mutating(path, change, which):
    """A change of all replies that have the path, or of one of them."""
    seen = itertools.count(1)

    def of_text(content):
        reply = json.loads(content)
        with contextlib.suppress(KeyError, IndexError, TypeError):
            part_of(reply, path)
            if which in ("all", next(seen)):
                change(reply, path)
        return json.dumps(reply)

    return of_text


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_changed_reply_is_refused_or_has_the_same_scores(served, api):
    """A wrong reply never gives another number."""
    server, name = served
    kind, chat_template, parts = APIS[api]
    instances = make_task(make_rows(1)).with_templates(["plain", "truth"]).instances("test")
    log_probs_of = functools.cache(lambda ids, plain=server.log_probs_of: plain([*ids]))
    server.kind, server.log_probs_of = kind, lambda ids: log_probs_of((*ids,))

    def asked(number, change):
        server.changes = change
        options = ScoringOptions(api=api, chat_template=chat_template, concurrency=1)
        scorer = EndpointScorer(name.replace("#tiny", f"#tiny{number}"), **ONE_BY_ONE)
        return scorer.scores(instances, options, names=["plain", "truth"]).scores

    replies, changes, wrong = [], {}, []
    expected = asked("", lambda content: replies.append(json.loads(content)) or content)
    for reply in replies:
        for change_name, path, change in changes_of(reply, parts):
            changes.setdefault(change_name, (path, change))
    assert len(changes) >= NUM_CHANGES
    for number, change_name in enumerate(random.Random(0).sample(sorted(changes), NUM_CHANGES)):
        path, change = changes[change_name]
        # An id that every reply gives to the text of another token cannot be known as wrong.
        which = 1 if path[-1] == "id" else ("all", 1, "all", 2, "all", 3)[number % 6]
        with contextlib.suppress(InputError):
            scored = asked(number, mutating(path, change, which))
            same_counts = np.array_equal(scored.token_counts, expected.token_counts)
            if not (same_counts and np.array_equal(scored.values, expected.values)):
                wrong.append((change_name, which))
    assert not wrong
