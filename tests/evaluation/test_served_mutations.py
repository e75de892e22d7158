"""A changed reply of a server is refused, or it has the same scores: it never gives another number."""

import contextlib
import functools
import json
import random

import numpy as np
import pytest

from flip_flop import ScoringOptions
from flip_flop.errors import InputError
from flip_flop.scoring import EndpointScorer
from tests.evaluation.conftest import make_rows, make_task
from tests.served import serving
from tests.tiny import with_chat_template

pytest.importorskip("openai", reason="the package openai is not installed")
# Of each API: the kind of server, its chat template, and the parts of its replies that are changed.
APIS = {
    "echo": ("completions", "off", {"text", "tokens", "token_logprobs", "usage", "logprobs", "choices"}),
    "prompt_logprobs": ("vllm", "on", {"prompt_logprobs", "usage"}),
    "grammar": ("llama", "on", {"content", "usage", "tokens", "prompt", "choices"}),
    "top_logprobs": ("chat", "on", {"content", "usage", "choices"}),
}
WRONG = (None, "x", -1, 7.5, True, [], {}, 10**400, float("nan"), float("-inf"))
# These values are numbers in the reply, so another valid number cannot be known as wrong.
WRONG_LOG_PROBS = (None, "x", 5, True, [], {}, 10**400, float("nan"), float("-inf"), -9999.0)
LISTS = {
    "without the first": lambda given: given[1:],
    "without the last": lambda given: given[:-1],
    "without the middle": lambda given: given[: len(given) // 2] + given[len(given) // 2 + 1 :],
    "empty": lambda given: [],
    "first twice": lambda given: given[:1] + given,
    "last twice": lambda given: given + given[-1:],
    "all twice": lambda given: given + given,
    "with null": lambda given: [*given, None],
    "in a list": lambda given: [given],
    "first two swapped": lambda given: [*given[1::-1], *given[2:]],
    "last two swapped": lambda given: [*given[:-2], *given[:-3:-1]],
    "reversed": lambda given: given[::-1],
}


def places(value, path=()):
    """The paths of the parts of a reply. Of a list, only the first, the second and the last item."""
    yield path
    keys = value if isinstance(value, dict) else sorted({0, 1, len(value) - 1}) if isinstance(value, list) else ()
    for key in keys:
        if isinstance(key, str) or 0 <= key < len(value):
            yield from places(value[key], (*path, key))


def at(reply, path):
    return functools.reduce(lambda value, key: value[key], path, reply)


def put(value):
    return lambda reply, path: at(reply, path[:-1]).__setitem__(path[-1], value)


def changes_of(reply, parts):
    """The name, path and function of each change."""
    for path in places(reply):
        if not parts & {*path}:
            continue
        value = at(reply, path)
        is_log_prob = "token_logprobs" in path or path[-1] == "logprob"
        for wrong in WRONG_LOG_PROBS if is_log_prob else WRONG:
            if repr(wrong) != repr(value):
                yield f"{path} is {str(wrong)[:9]}", path, put(wrong)
        yield f"{path} is missing", path, lambda reply, path: at(reply, path[:-1]).__delitem__(path[-1])
        for name, change in LISTS.items() if isinstance(value, list) and path[-1] != "bytes" else ():
            if not is_log_prob or not ("swapped" in name or "reversed" in name):
                yield (
                    f"{path} {name}",
                    path,
                    lambda reply, path, change=change: put(change(at(reply, path)))(reply, path),
                )
        if isinstance(value, int) and not isinstance(value, bool):
            for step in (-1, 1):
                yield f"{path} {step:+}", path, put(value + step)


class Mutating:
    """Changes all replies that have the path, or one of them."""

    def __init__(self, path, change, which):
        self.path, self.change, self.which, self.seen = path, change, which, 0

    def __call__(self, content):
        reply = json.loads(content)
        try:
            at(reply, self.path)
        except (KeyError, IndexError, TypeError):
            return content
        self.seen += 1
        if self.which in ("all", self.seen):
            self.change(reply, self.path)
        return json.dumps(reply)


@pytest.fixture
def asked(loaded, tmp_path, monkeypatch):
    """A function that scores by an API while a function changes the replies, and the server."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    task = make_task(make_rows(1))
    instances = task.with_templates(["plain", "truth"]).instances("test")
    number = iter(range(10**9))
    with serving(loaded.model, with_chat_template(loaded.tokenizer)) as (server, name):
        server.echoed = functools.cache(server.echoed)
        log_probs_of = functools.cache(lambda ids, plain=server.log_probs_of: plain([*ids]))
        server.log_probs_of = lambda ids: log_probs_of((*ids,))

        def scores(api, changes):
            server.kind, server.changes = APIS[api][0], changes
            scorer = EndpointScorer(name.replace("#tiny", f"#tiny{next(number)}"), retries=0, seconds=20)
            options = ScoringOptions(api=api, chat_template=APIS[api][1], concurrency=1)
            return scorer.scores(instances, options, names=["plain", "truth"])

        yield scores


NUM_CHANGES = 120  # of each API; set it to 10,000 for all


@pytest.mark.slow
@pytest.mark.parametrize("api", APIS)
def test_changed_reply_is_refused_or_has_the_same_scores(asked, api):
    replies, changes, wrong = [], {}, []
    expected = asked(api, lambda content: replies.append(json.loads(content)) or content)
    for reply in replies:
        for name, path, change in changes_of(reply, APIS[api][2]):
            changes.setdefault(name, (path, change))
    assert len(changes) >= NUM_CHANGES
    chosen = random.Random(0).sample(sorted(changes), NUM_CHANGES)
    for number, name in enumerate(chosen):
        path, change = changes[name]
        # An id that every reply gives to the text of another token cannot be known as wrong.
        which = 1 if path[-1] == "id" else ("all", 1, "all", 2, "all", 3)[number % 6]
        with contextlib.suppress(InputError):
            found = asked(api, Mutating(path, change, which))
            same = np.array_equal(found.scores, expected.scores)
            if not same or not (found.token_counts == expected.token_counts).all():
                wrong.append((name, which))
    assert not wrong
