"""A hostile server: invalid, slow, large and redirected replies, and changed stores of answers."""

import contextlib
import functools
import gzip
import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.served import serving
from tests.tiny import with_chat_template

from flip_flop import ScoringOptions
from flip_flop.scoring import EndpointScorer, load_model
from flip_flop.tasks import load_task
from torture.inputs import mutated, places_of, problem_of
from torture.workplace import Outcome, cache_in, remove

ON = {"chat_template": "on", "concurrency": 4}
# Each API, its kind of server and the options of scoring.
APIS = {
    "echo": ("completions", ScoringOptions(concurrency=4)),
    "generation": ("completions", ScoringOptions(by="generation", concurrency=4)),
    "prompt_logprobs": ("vllm", ScoringOptions(**ON)),
    "grammar": ("llama", ScoringOptions(**ON)),
    "top_logprobs": ("chat", ScoringOptions(**ON)),
}
# A value of these may be changed to another valid one.
FREE = ("text", "content", "id", "object", "created", "model")
# None of these is a log-probability.
WRONG = (True, False, 5, -1e300, 10**400, float("nan"), -float("inf"), "-1", "\ud800", [], {}, [1], {"a": 1})
HUGE, BOMB = b" " * 2**24, gzip.compress(b" " * 2**27)
# A server sends this for a request: a handler of its connection and the right body are given.
Send = Callable[[Any, bytes], object]


def attack_clients(folder: Path, count: int, rng: Random) -> Outcome:
    """Score rows with a server that is hostile from some request on, then again with a good one.

    Each result must be the right scores or one line. Other valid numbers and texts are not tried, as only their
    server can know them.
    """
    outcome = Outcome("hostile replies and stores of served models", count)
    model = load_model("demo", device="cpu")
    rows = load_task(str(folder / "task.yaml")).render("test", limit=2).instances
    with cache_in(folder / "cache"), serving(model.model, with_chat_template(model.tokenizer)) as (server, name):
        _keep_answers(server)

        def scores(api: str) -> np.ndarray:
            server.kind, options = APIS[api]
            return np.exp(EndpointScorer(name, retries=0, seconds=1.0).scores(rows, options).scores)

        expected = {}
        for api in APIS:
            remove(folder / "cache")  # it has the API of the server
            expected[api] = scores(api)
        for number in range(count):
            remove(folder / "cache")
            api, kind = [*APIS][number % len(APIS)], rng.choice([*REPLIES, *STORES])
            what, scored = f"{kind}, {api}", []

            def score(api: str = api, scored: list[bool] = scored) -> None:
                scored.append(bool(np.nanmax(np.abs(scores(api) - expected[api])) < 1e-6))

            if kind in STORES:
                score()
                (file,) = (folder / "cache").rglob("*.sqlite")
                STORES[kind](file, rng)
            else:
                server.sends = _from(len(server.requests) + rng.randrange(8), server, REPLIES[kind](rng))
                if kind not in CHANGES and rng.random() < 0.5:
                    server.gets = _for_models(REPLIES[kind](rng))
            before, problem = len(scored), problem_of(score)
            outcome.count(f"{kind}: {'scored' if len(scored) > before else 'refused'}")
            outcome.expect(problem is None, f"{what}: {problem}")
            server.sends = server.gets = None
            problem = problem_of(score)
            outcome.expect(problem is None, f"{what}, then a good server: {problem}")
            outcome.expect(all(scored), f"{what}: wrong scores")
    return outcome


def _keep_answers(server: Any) -> None:
    """Compute each answer of the server once."""
    server.echoed = functools.cache(server.echoed)
    log_probs_of = functools.cache(lambda ids, compute=server.log_probs_of: compute([*ids]))
    server.log_probs_of = lambda ids: log_probs_of(tuple(ids))
    server.writes = lambda prompt: "Yes." if len(prompt) % 2 else "No"


def _for_models(send: Send) -> Callable[[Any], None]:
    """The same reply for the list of models. The client may close the connection."""

    def gets(handler: Any) -> None:
        handler.close_connection = True
        with contextlib.suppress(OSError):
            send(handler, b"{}")

    return gets


def _from(start: int, server: Any, send: Send) -> Send:
    return lambda handler, content: (send if len(server.requests) > start else type(handler).reply)(handler, content)


def _changed(change: Callable[[Any, Any, Random], object], rng: Random, kinds: tuple[type, ...]) -> Send:
    """Change one value of these types in a reply: the same one in each reply of the same form."""
    seed = rng.random()

    def send(handler: Any, content: bytes) -> None:
        reply, draw = json.loads(content), Random(seed)
        places = [(holder, key) for holder, key in places_of(reply) if isinstance(holder[key], kinds)]
        deep = [(holder, key) for holder, key in places if key not in FREE]
        if deep:
            change(*draw.choice(deep), draw)
        handler.reply(json.dumps(reply).encode())

    return send


def _wrong_value(rng: Random) -> Send:
    """A value of another type, or that no log-probability has."""
    value = rng.choice(WRONG)

    def change(holder: Any, key: Any, draw: Random) -> None:
        if not (isinstance(value, str) and isinstance(holder[key], str)):
            holder[key] = value

    return _changed(change, rng, (object,))


def _other_length(rng: Random) -> Send:
    """A list with elements removed or repeated; of the most probable tokens, a server may send any number."""
    number = rng.choice((-9, -3, -2, -1, 1, 2, 3))

    def change(holder: Any, key: Any, draw: Random) -> None:
        shown, start = holder[key], draw.randrange(len(holder[key]) + 1)
        if number < 0 and key != "top_logprobs":
            del shown[max(0, start + number) : max(0, start + number) - number]
        elif number > 0:
            shown[start:start] = shown[max(0, start - number) : start]

    return _changed(change, rng, (list,))


def _missing(rng: Random) -> Send:
    """A reply without one of its keys."""

    def change(holder: Any, key: Any, draw: Random) -> None:
        if isinstance(holder, dict):
            del holder[key]

    return _changed(change, rng, (object,))


def _other_usage(rng: Random) -> Send:
    name, number = rng.choice(("prompt_tokens", "completion_tokens")), rng.choice((-9, -1, 1, 2, 9, None, "1", 1.5))

    def send(handler: Any, content: bytes) -> None:
        reply = json.loads(content)
        if usage := reply.get("usage"):
            usage[name] = usage[name] + number if isinstance(number, int) else number
        handler.reply(json.dumps(reply).encode())

    return send


def _garbage(rng: Random) -> Send:
    """Bytes or nesting that no completion has, with any status."""
    body = rng.choice((b"", b"\xff" * 9, b"<html>", b"[" * 99_999, b'{"choices":' * 9_999, b"null", b"[]", b"{}", b"7"))
    status = rng.choice((200, 200, 204, 206, 300, 304, 400, 401, 404, 418, 429, 451, 500, 503, 599))
    return lambda handler, content: handler.reply(body, status)


def _cut(rng: Random) -> Send:
    """A reply that ends too soon."""
    share = rng.random()
    return lambda handler, content: handler.reply(
        content[: int(share * len(content))], headers={"Content-Length": 10**6}
    )


def _slow(rng: Random) -> Send:
    """A byte at a time, in the headers or the body, for longer than a request may take."""
    first = rng.choice((b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"))

    def send(handler: Any, content: bytes) -> None:
        handler.wfile.write(first)
        for letter in (first or b"HTTP/1.1 200 OK\r\nX-Long: ") + b" " * 400:
            handler.wfile.write(bytes([letter]))
            time.sleep(0.05)

    return send


def _large(rng: Random) -> Send:
    bodies: list[tuple[bytes, dict[str, object]]] = [
        (HUGE, {}),
        (HUGE, {"Content-Length": 10**12}),
        (b"%x\r\n" % len(HUGE) + HUGE, {"Transfer-Encoding": "chunked", "Content-Length": 0}),
        (BOMB, {"Content-Encoding": "gzip"}),
        (BOMB[:99], {"Content-Encoding": "gzip"}),
        (b"{}", {"Content-Encoding": rng.choice(("br", "zstd", "deflate", "gzip, gzip", "x"))}),
    ]
    body, headers = rng.choice(bodies)
    status = rng.choice((200, 200, 400))
    return lambda handler, content: handler.reply(body, status, headers)


def _redirect(rng: Random) -> Send:
    target = rng.choice(("file:///etc/passwd", "http://127.0.0.2:9/v1/completions", "/v1/completions", "", "//", "x:"))
    status = rng.choice((301, 302, 303, 307, 308))
    return lambda handler, content: handler.reply(b"", status, {"Location": target})


def _headers(rng: Random) -> Send:
    """Headers that are too many, too long or of another encoding."""
    name, value = rng.choice(
        (("X-A", "a" * 2**20), ("X-A", "é"), ("Content-Type", "a/b; charset=x"), ("Content-Type", ""))
    )
    return lambda handler, content: handler.reply(content, headers={name: value})


def _changed_row(file: Path, rng: Random) -> None:
    """Rows of the store that are swapped, repeated, or of another type."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as store:
        rows = store.execute("SELECT key, answer FROM answers ORDER BY key").fetchall()
        for key, answer in rng.sample(rows, rng.randrange(1, len(rows))):
            digest, _, text = answer.partition(" ")
            values = (
                rng.choice(rows)[1],
                text,
                None,
                7,
                "",
                b"\xff",
                "[]",
                "null",
                "{}",
                digest,
                f"{digest} null",
                answer * 2,
            )
            value: object = rng.choice((*values, mutated(answer.encode(), rng).decode("utf-8", "replace")))
            store.execute("UPDATE answers SET answer = ? WHERE key = ?", (value, key))


def _changed_table(file: Path, rng: Random) -> None:
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as store:
        store.execute("DROP TABLE answers")
        table = rng.choice(("(key TEXT PRIMARY KEY)", "(key, answer, digest)", "(a, b)", "(key INT, answer INT)"))
        store.execute(f"CREATE TABLE answers {table}")


def _changed_file(file: Path, rng: Random) -> None:
    content = bytearray(file.read_bytes())
    if rng.random() < 0.3:
        content = bytearray(mutated(bytes(content), rng))
    for _ in range(rng.choice((1, 9, 99))):
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)


CHANGES: dict[str, Callable[[Random], Send]] = {
    "value": _wrong_value,
    "length": _other_length,
    "missing": _missing,
    "usage": _other_usage,
}
REPLIES: dict[str, Callable[[Random], Send]] = {
    **CHANGES,
    "garbage": _garbage,
    "cut": _cut,
    "slow": _slow,
    "large": _large,
    "redirect": _redirect,
    "headers": _headers,
}
STORES: dict[str, Callable[[Path, Random], None]] = {
    "row": _changed_row,
    "table": _changed_table,
    "file": _changed_file,
}
