"""A hostile server: invalid, slow, large and redirected replies, and changed stores of answers."""

import contextlib
import functools
import gzip
import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from tests.served import serving

from flip_flop import ScoringOptions
from flip_flop.scoring import EndpointScorer, load_model
from flip_flop.tasks import load_task
from torture.inputs import mutated, problem_of
from torture.workplace import Outcome, remove

OPTIONS = ScoringOptions(concurrency=4), ScoringOptions(by="generation", concurrency=4)
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
    with _cache(folder / "cache"), serving(model.model, model.tokenizer) as (server, name):
        server.echoed = functools.cache(server.echoed)
        server.writes = lambda prompt: "Yes." if len(prompt) % 2 else "No"
        expected = [EndpointScorer(name).scores(rows, each).scores for each in OPTIONS]
        for _ in range(count):
            remove(folder / "cache")
            at, kind = rng.randrange(2), rng.choice([*REPLIES, *STORES])
            what, scored = f"{kind}, by {OPTIONS[at].by}", []

            def score(at: int = at, scored: list[bool] = scored) -> None:
                found = EndpointScorer(name, retries=0, seconds=1.0).scores(rows, OPTIONS[at]).scores
                scored.append(bool(np.abs(np.exp(found) - np.exp(expected[at])).max() < 1e-6))

            if kind in STORES:
                score()
                (file,) = (folder / "cache").rglob("*.sqlite")
                STORES[kind](file, rng)
            else:
                server.sends = _from(len(server.requests) + rng.randrange(8), server, REPLIES[kind](rng))
            before, problem = len(scored), problem_of(score)
            outcome.count(f"{kind}: {'scored' if len(scored) > before else 'refused'}")
            outcome.expect(problem is None, f"{what}: {problem}")
            server.sends = None
            problem = problem_of(score)
            outcome.expect(problem is None, f"{what}, then a good server: {problem}")
            outcome.expect(all(scored), f"{what}: wrong scores")
    return outcome


@contextlib.contextmanager
def _cache(folder: Path) -> Iterator[None]:
    former = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("XDG_CACHE_HOME")
        if former is not None:
            os.environ["XDG_CACHE_HOME"] = former


def _from(start: int, server: Any, send: Send) -> Send:
    return lambda handler, content: (send if len(server.requests) > start else type(handler).reply)(handler, content)


def _changed(change: Callable[[Any], object]) -> Send:
    def send(handler: Any, content: bytes) -> None:
        reply = json.loads(content)
        change(reply)
        handler.reply(json.dumps(reply).encode())

    return send


def _wrong_value(rng: Random) -> Send:
    """A value of another type, or that no log-probability has."""
    value, seed = rng.choice(WRONG), rng.random()

    def change(reply: Any) -> None:
        draw = Random(seed)
        holders = [reply, reply["usage"], reply["choices"][0], *[reply["choices"][0].get("logprobs") or {}] * 5]
        holder = draw.choice(holders)
        lists = [each for each in holder.values() if isinstance(each, list)]
        if lists and draw.random() < 0.7:
            holder = draw.choice(lists)
        if holder and not (isinstance(value, str) and isinstance(holder, dict) and "text" in holder):
            holder[draw.choice([*(holder if isinstance(holder, dict) else range(len(holder)))])] = value

    return _changed(change)


def _other_length(rng: Random) -> Send:
    """Lists of tokens and log-probabilities with elements removed or repeated."""
    names = rng.choice([["tokens"], ["token_logprobs"], ["tokens", "token_logprobs"]])
    number, at = rng.choice((-9, -3, -2, -1, 1, 2, 3)), rng.random()

    def change(reply: Any) -> None:
        shown = reply["choices"][0].get("logprobs") or {}
        for name in names:
            start = int(at * (len(shown.get(name, [])) + 1))
            if name in shown and number < 0:
                del shown[name][max(0, start + number) : max(0, start + number) - number]
            elif name in shown:
                shown[name][start:start] = shown[name][max(0, start - number) : start]

    return _changed(change)


def _other_usage(rng: Random) -> Send:
    name, number = rng.choice(("prompt_tokens", "completion_tokens")), rng.choice((-9, -1, 1, 2, 9, None, "1", 1.5))

    def change(reply: Any) -> None:
        usage = reply["usage"]
        usage[name] = usage[name] + number if isinstance(number, int) else number

    return _changed(change)


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
    """A byte at a time, in the headers or the body."""
    first = rng.choice((b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\n"))

    def send(handler: Any, content: bytes) -> None:
        handler.wfile.write(first)
        for letter in (first or b"HTTP/1.1 200 OK\r\nX-Long: ") + b" " * 40:
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


REPLIES: dict[str, Callable[[Random], Send]] = {
    "value": _wrong_value,
    "length": _other_length,
    "usage": _other_usage,
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
