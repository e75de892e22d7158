"""A server of ``POST /v1/systemone`` and ``POST /v1/decisions``, which checks the keys of each request."""

import contextlib
import json
from http.server import BaseHTTPRequestHandler

from tests.served import listening

STATES = {"/v1/systemone": "state", "/v1/decisions": "input"}
KEYS = {
    "noul": {"type", "instructions"},
    "predicate": {"type", "name", "instructions"},
    "choice": {"type", "instructions", "criteria"},
    "listed choice": {"type", "name", "instructions", "choices"},
}


class DecisionServer:
    """Requests and keys that the server has received, and switches for the answers.

    ``decides``: from state, name, instructions and listed options to probabilities, or None for no answer. A
    yes-or-no question has the options no and yes. ``fails``: status, body and headers of the next requests.
    ``changes``: a function of a reply.
    """

    def __init__(self, decides):
        self.decides, self.requests, self.keys, self.fails = decides, [], [], []
        self.changes = lambda reply: reply

    def reply(self, path, body):
        """Status, body and headers."""
        if self.fails:
            return self.fails.pop(0)
        state, asked = body[STATES[path]], body["questions"]
        assert {*body} == {"model", STATES[path], "questions"}
        if path == "/v1/systemone":
            answers = {name: self.named(state, name, question) for name, question in asked.items()}
            answers = {name: answer for name, answer in answers.items() if answer}  # others are missing
        else:
            assert isinstance(state, str)
            answers = [self.listed(state, question) for question in reversed(asked)]
        usage = {"input_tokens": 7, "output_tokens": 1}
        return 200, self.changes({"model": body["model"], "answers": answers, "usage": usage}), {}

    def named(self, state, name, question):
        assert {*question} == KEYS[question["type"]]
        probs = self.decides(state, name, question["instructions"], [*question.get("criteria", ("no", "yes"))])
        if probs is None or question["type"] == "noul":
            return probs and {"noul": probs[1]}
        named = dict(zip(question["criteria"], probs, strict=True))
        confidence = (len(probs) * max(probs) - 1) / (len(probs) - 1)
        return {"choice": max(named, key=named.get), "probabilities": named, "confidence": confidence}

    def listed(self, state, question):
        assert {*question} == KEYS["listed " * ("choices" in question) + question["type"]]
        options = [option["value"] for option in question.get("choices", ({"value": "no"}, {"value": "yes"}))]
        probs = self.decides(state, question["name"], question["instructions"], options)
        if probs is None:
            return {"type": "refusal", "name": question["name"]}
        rows = [{"value": option, "probability": prob} for option, prob in zip(options, probs, strict=True)]
        answer = {"type": question["type"], "name": question["name"]}
        return answer | ({"probabilities": rows} if "choices" in question else {"probability": probs[1]})


@contextlib.contextmanager
def deciding(decides):
    """Start a server on a free port and yield its switches and ``openai:URL#NAME``."""
    found = DecisionServer(decides)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            found.requests.append(body)
            found.keys.append(self.headers["Authorization"])
            status, reply, headers = found.reply(self.path, body)
            self.send_response(status)
            for name, value in {"Content-Type": "application/json", **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(json.dumps(reply).encode())

        def log_message(self, *words):
            pass

    with listening(Handler) as port:
        yield found, f"openai:http://127.0.0.1:{port}/v1#decider"
