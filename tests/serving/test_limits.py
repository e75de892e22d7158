"""Requests that the server refuses, and their statuses: hostile bodies, keys, a full queue, slow answers, a stop."""

import http.client
import json
import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from fastapi.testclient import TestClient

from flip_flop.serving.app import create_app
from flip_flop.serving.wire import Answer, SystemOne
from tests.cases import read_cases
from tests.cli.project import one_line
from tests.processes import command, end, start, wait_for

BODY = {"model": "moods", "state": "a", "questions": {"q": {"type": "noul", "instructions": "b"}}}
HOSTILE = [
    pytest.param(*case.values(), id=str(number)) for number, case in enumerate(read_cases("serving/hostile.yaml"))
]


@pytest.mark.parametrize(("path", "body", "status", "words"), HOSTILE)
def test_a_hostile_body_is_refused(client, path, body, status, words):
    reply = client.post(path, content=body)
    assert reply.status_code == status
    assert all(word in json.dumps(reply.json()["detail"]) for word in words), reply.text


def test_the_request_of_the_page_asks_the_classifier_and_the_model():
    page = (Path(__file__).parents[2] / "docs/how-to/serve.md").read_text(encoding="utf-8")
    body = SystemOne.model_validate_json(re.search(r"-d '(.*?)'", page, re.DOTALL)[1])
    assert [(name, question.type) for name, question in body.named()] == [("reviews", "choice"), ("staff", "noul")]
    assert body.model == "reviews"


def test_deep_json_is_refused_and_usual_json_is_not(client):
    deep = client.post("/v1/systemone", content="[" * 100_000)
    assert (deep.status_code, "recursion limit" in deep.text) == (422, True)
    state = "[" * 100 + "]" * 100
    assert client.post("/v1/systemone", content=json.dumps(BODY).replace('"a"', state)).status_code == 200
    assert client.post("/v1/systemone", content=b"\xff\xfe").status_code == 422


@pytest.mark.parametrize("divided", [False, True])
def test_a_long_body_is_refused(client, divided):
    parts = [b"x" * 100_000] * 20
    reply = client.post("/v1/systemone", content=iter(parts) if divided else b"".join(parts))
    assert reply.status_code == 413
    assert reply.json()["detail"] == "The body has 2,000,000 bytes; 1,048,576 are allowed."


def test_many_questions_about_a_long_state_are_refused(client):
    questions = {str(number): BODY["questions"]["q"] for number in range(100)}
    reply = client.post("/v1/systemone", json=BODY | {"state": "x" * 100_000, "questions": questions})
    assert (reply.status_code, "fewer questions" in reply.text) == (413, True)


def test_other_paths_and_methods_are_refused(client):
    assert client.get("/v1/systemone").status_code == 405
    assert client.get("/docs").status_code == 404


def test_without_the_key_nothing_but_the_health_is_shown(engine):
    with TestClient(create_app(engine, key="sécret")) as client:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": b"Bearer \xff"}, {"authorization": "x"}):
            for reply in (
                client.post("/v1/systemone", json=BODY, headers=given),
                client.get("/v1/models", headers=given),
            ):
                assert (reply.status_code, reply.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/health").json() == {"status": "ok", "waiting": 0}
    with TestClient(create_app(engine, key="secret")) as client:
        given = {"authorization": "Bearer secret"}
        assert client.post("/v1/systemone", json=BODY, headers=given).status_code == 200
        models = client.get("/v1/models", headers=given).json()
    assert [entry["id"] for entry in models["data"]] == [entry["name"] for entry in models["models"]] == ["moods"]


@pytest.fixture
def gate():
    """A model that sets one event when it is asked, and answers when the other is set."""
    asked, opened = threading.Event(), threading.Event()

    def answer(batch):
        asked.set()
        assert opened.wait(60)
        fails = [question.instructions == "fail" for question in batch]
        return [RuntimeError("out of order") if one else Answer(("No", "Yes"), (0.5, 0.5), "No", 1) for one in fails]

    def render(_, question, state):
        return question

    return SimpleNamespace(name="moods", render=render, answer=answer, asked=asked, opened=opened)


def test_a_full_queue_is_429_and_those_that_wait_are_answered(gate):
    with TestClient(create_app(gate, max_waiting=3)) as client, ThreadPoolExecutor(4) as threads:
        first = threads.submit(client.post, "/v1/systemone", json=BODY)
        assert gate.asked.wait(60)
        more = [threads.submit(client.post, "/v1/systemone", json=BODY) for _ in range(3)]
        wait_for(lambda: client.get("/health").json()["waiting"] == 3)
        refused = client.post("/v1/systemone", json=BODY)
        gate.opened.set()
        assert [task.result().status_code for task in (first, *more)] == [200] * 4
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")


def test_a_late_answer_is_529_and_a_failed_one_500(gate):
    with TestClient(create_app(gate, timeout=0.2), raise_server_exceptions=False) as client:
        late = client.post("/v1/systemone", json=BODY)
        gate.opened.set()
        failed = client.post("/v1/systemone", content=json.dumps(BODY).replace('"b"', '"fail"'))
        assert client.post("/v1/systemone", json=BODY).status_code == 200
    assert (late.status_code, late.headers["retry-after"]) == (529, "1")
    assert late.json()["detail"] == "No answer within 0.2 seconds."
    assert failed.status_code == 500


@pytest.fixture
def served(decided, tmp_path):
    """``flip-flop serve`` in another process: its process, log and URL."""
    log = tmp_path / "log"
    process = start(partial(command, "serve", str(decided), "--port", "0", "--max-waiting", "100000"), output=log)
    try:
        yield process, log, wait_for(lambda: log.exists() and re.search(r"http://\S+", log.read_text()))[0]
    finally:
        end([process], 0)


@pytest.mark.slow
def test_a_stopped_server_answers_the_requests_that_it_has_accepted(served):
    process, log, url = served
    questions = {str(number): BODY["questions"]["q"] for number in range(400)}
    address = urlsplit(url).netloc

    def ask(_):
        with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
            try:
                connection.request("POST", "/v1/systemone", json.dumps(BODY | {"questions": questions}))
                reply = connection.getresponse()
                return reply.status, len(json.loads(reply.read())["answers"])
            except (ConnectionError, http.client.HTTPException) as error:
                return type(error)

    def waiting():
        with urlopen(f"{url}/health") as reply:
            return json.loads(reply.read())["waiting"]

    with ThreadPoolExecutor(24) as threads:
        replies = threads.map(ask, range(24))
        accepted = wait_for(lambda: waiting() // 400)
        os.kill(process.pid, signal.SIGTERM)
        results = [*replies]
    answered = [result for result in results if isinstance(result, tuple)]
    assert set(answered) == {(200, 400)}
    assert len(answered) >= accepted
    assert end([process]) == [143]
    assert log.read_text().splitlines()[-1] == "stopped"


@pytest.mark.slow
def test_clients_of_a_killed_server_get_an_error(served):
    process, _, url = served
    questions = {str(number): BODY["questions"]["q"] for number in range(400)}
    address = urlsplit(url).netloc
    sent = threading.Barrier(9)

    def ask(_):
        with closing(http.client.HTTPConnection(address, timeout=120)) as connection:
            connection.request("POST", "/v1/systemone", json.dumps(BODY | {"questions": questions}))
            sent.wait(60)
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                connection.getresponse()

    with ThreadPoolExecutor(8) as threads:
        results = threads.map(ask, range(8))
        sent.wait(60)
        os.kill(process.pid, signal.SIGKILL)
        assert [*results] == [None] * 8
    assert end([process], 60) == [-signal.SIGKILL]


@pytest.mark.slow
def test_a_body_of_100_megabytes_is_refused_by_the_command(served):
    _, _, url = served
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=120)) as connection:
        connection.request("POST", "/v1/systemone", b"x" * 100_000_000)
        reply = connection.getresponse()
        assert (reply.status, "1,048,576 are allowed" in reply.read().decode()) == (413, True)


@pytest.mark.slow
def test_the_client_of_openai_reads_the_answers(served):
    openai = pytest.importorskip("openai")
    asked = [
        {"type": "predicate", "name": "good", "instructions": "It is good."},
        {"type": "choice", "name": "moods"},
        {"type": "score", "instructions": "How good?", "levels": [{"label": "bad"}, {"label": "good"}]},
    ]
    with openai.OpenAI(base_url=f"{served[2]}/v1", api_key="none") as client:
        decision = client.decisions.create(model="moods", input="The food was good.", questions=asked)
    assert [answer.type for answer in decision.answers] == ["predicate", "choice", "score"]
    assert 0 < decision.answers[0].probability < 1
    assert decision.answers[1].choice in ("0", "1", "2")
    assert decision.answers[2].probabilities[1].label == "good"


def test_mistakes_at_the_start_are_one_line(decided, flip_flop, monkeypatch, tmp_path):
    one_line(flip_flop("serve", tmp_path, "--port", "0"), "E-RUN-MISSING")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        one_line(flip_flop("serve", decided, "--port", taken.getsockname()[1]), "E-SERVE", "use", "--port")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    one_line(flip_flop("serve", decided), "E-SERVE", "fastapi", "pip install")
