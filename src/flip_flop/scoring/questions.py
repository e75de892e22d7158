"""Questions for a served model: asked in threads, stored, and read as labels or log-probabilities."""

import contextlib
import itertools
import json
import math
import re
import sqlite3
import threading
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from flip_flop.errors import InputError
from flip_flop.files import sha256_json
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.reasoning import after_reasoning

# A word or number that continues behind its first character.
CONTINUED = re.compile(r"[^\W_](?:[^\W_]|['’_‐‑-]\w)|\d[.,:/–]\d")
NO_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR")
# A letter that begins a sentence as a word, such as an article. "A is right" is about option A.
WORD = re.compile(r"[AEIOUYaeiouyАВИКОСУЯавикосуя]\s+(?!(?:is|was|because|since|as)\b)[^\W\d_A-ZА-Я]")
# Between two answers: words, symbols, or only space.
JOINT = re.compile(
    r"\A(?:[\W_]*(?:\b(?:and/or|or|and|nor|oder|und|ou|et|o|y)\b|或者?|和)|[\s*_\"'”’]*[,;/&|、，；／])?[\s*_\"'“‘(\[]*"
)


def label_of(text: str, choices: Sequence[str]) -> int | None:
    """Return the index of the answer that a text begins with as whole words, or None.

    The longest answer counts. A text that joins it to another answer ("Yes or No", "Yes, no doubt") has no label.
    The answer of a reasoning model is that of :func:`~flip_flop.scoring.reasoning.after_reasoning`. As many lines count
    as the answers have. Case, white space and the Unicode form do not count. The article "a" is not the option A. If no
    answer is found, punctuation and symbols around text and answers are removed.

    Example:
        >>> label_of(" Yes, I think.", ["No", "Yes"]), label_of("Notably so", ["No", "Yes"]), label_of("B)", ["A", "B"])
        (1, None, 1)
        >>> label_of("C++.", ["C", "C++"]), label_of("-1", ["1", "-1"]), label_of("1.5", ["1", "2"])
        (1, 1, None)
        >>> label_of("can't", ["can", "cannot"]), label_of("Yes or no", ["No", "Yes"]), label_of("是的", ["是", "否"])
        (None, None, 0)
    """
    num_lines = 1 + max(each.strip().count("\n") for each in choices)
    answer = unicodedata.normalize("NFC", after_reasoning(text)[0])
    written = " ".join(" ".join(answer.split("\n")[:num_lines]).split()).casefold()
    plain = [" ".join(unicodedata.normalize("NFC", each).split()).casefold() for each in choices]
    bare = [_bare(each) for each in plain]
    found, rest = _first(written, plain)
    if found is None:
        found, rest = _first(_bare(written), bare)
    others = {_first(JOINT.sub("", rest, 1), each)[0] for each in (plain, bare)} - {None, found}
    is_word = found is not None and len(bare[found]) == 1 and WORD.match(_bare(answer))
    return None if others or is_word else found


def _first(text: str, answers: Sequence[str]) -> tuple[int | None, str]:
    """The answer at the beginning of a text, and the rest."""
    begun = [each for each in answers if each and text.startswith(each) and not _goes_on(each[-1], text[len(each) :])]
    longest = max(begun, key=len, default="")
    # Equal answers cannot be told apart.
    return (answers.index(longest), text[len(longest) :]) if answers.count(longest) == 1 and longest else (None, "")


def _goes_on(last: str, rest: str) -> bool:
    """Whether a word or number is longer than the answer."""
    has_spaces = not any(unicodedata.name(each, "").startswith(NO_SPACES) for each in last + rest[:1])
    return has_spaces and bool(CONTINUED.match(last + rest[:2]))


def _bare(text: str) -> str:
    def is_around(at: int) -> bool:
        is_sign = text[at] in "+-−" and text[at + 1 : at + 2].isdigit()
        return unicodedata.category(text[at])[0] in "PSZ" and not is_sign

    first = next((at for at in range(len(text)) if not is_around(at)), len(text))
    last = next((at for at in range(len(text) - 1, first - 1, -1) if not is_around(at)), first - 1)
    return text[first : last + 1]


class AnswerStore:
    """Answers by the digest of their question, in an SQLite file.

    A row has the digest of key and answer before the answer. Rows without the right digest are ignored and later
    replaced. Older versions wrote no digest, so their rows are replaced too.
    """

    def __init__(self, path: Path):
        self.path = path
        with self._in_one_line():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=60.0, isolation_level=None)  # several processes may share it
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID")

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def found(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the stored answers by key."""
        with self._in_one_line():
            rows = (self._file.execute("SELECT key, answer FROM answers WHERE key = ?", (key,)) for key in keys)
            split = ((key, *str(stored).partition(" ")) for row in rows for key, stored in row)
            return {key: json.loads(answer) for key, digest, _, answer in split if digest == sha256_json([key, answer])}

    def put(self, key: str, answer: Any) -> None:
        """Store an answer on disk."""
        text = json.dumps(answer)
        with self._in_one_line():
            row = (key, f"{sha256_json([key, text])} {text}")
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", row)

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            message = f"cannot use {self.path}, which stores a served model's answers: {error}."
            raise InputError("E-ENDPOINT-STORE", message) from error


SAME_NATS = 0.1  # tolerance of a repeated score, for servers in half precision


class MissingError(Exception):
    """A reply lacks what its API returns. Another API may have it."""


class UnreachableError(InputError):
    """A failure that may pass: no connection, or a server that is overloaded, slow or failing."""


class UnsupportedError(InputError):
    """A reply of a server that lacks an endpoint or an option. Another API may have an answer."""


class Question(NamedTuple):
    """A request for the score of ``answer``, or without one for a generated answer of at most ``max_tokens`` tokens.

    ``in_chat``: the server applies its chat template to the prompt. ``choices`` are all answers. ``place`` names
    instance and template in messages. ``api`` is a key of :data:`~flip_flop.scoring.apis.APIS`.
    """

    prompt: str
    answer: str | None = None
    max_tokens: int = 1
    in_chat: bool = False
    choices: tuple[str, ...] = ()
    place: str = ""
    api: str = "echo"

    @property
    def key(self) -> str:
        """The key of the stored answer."""
        return sha256_json([{"generation": "2"}.get(self.api, f"{self.api} 2"), *self[:4]])

    def means(self, given: dict[str, Any]) -> Any:
        """Return scores in nats, or a label index, or None if the text does not match a label.

        Raises:
            InputError: ``E-ENDPOINT-LABELS`` as :func:`first_token_scores`.
        """
        if "top" in given:
            return first_token_scores(given["top"], self.choices, self.place)
        return [given["score"]] if "score" in given else label_of(given["text"], self.choices)


def require_different(instances: Sequence[RenderedInstance]) -> None:
    """Refuse answers that a generated text cannot distinguish (``E-GENERATION``)."""
    for group in dict.fromkeys(group for each in instances for group in each.choices):
        if [label_of(each, group) for each in group] != list(range(len(group))):
            message = f"Generated texts cannot distinguish the answers {', '.join(map(repr, group))}."
            raise InputError("E-GENERATION", message, "Use other words.")


HINT_LABELS = "Use answers that begin differently, or --by generation."


def require_different_beginnings(instances: Sequence[RenderedInstance], names: Sequence[str]) -> None:
    """Refuse answers whose first words begin alike (``E-ENDPOINT-LABELS``)."""
    for at, group in dict.fromkeys(pair for each in instances for pair in enumerate(each.choices)):
        words = sorted((*unicodedata.normalize("NFC", choice).split(), "")[0] for choice in group)
        if any(after.startswith(word) for word, after in itertools.pairwise(words)):
            message = (
                f"Template {names[at] if names else at + 1!r}: the answers {', '.join(map(repr, group))} begin alike."
            )
            raise InputError("E-ENDPOINT-LABELS", message, HINT_LABELS)


def first_token_scores(top: Sequence[tuple[str, float]], choices: Sequence[str], place: str) -> list[float]:
    """Return the log-probability of each answer's first token, from the most probable tokens.

    The first token of an answer is the longest token that begins this answer and no other. An answer without such a
    token gets an upper bound: the probability of an unlisted token, or of a token that begins several answers. Without
    any token that begins an answer, all scores are ``-inf``.

    Raises:
        InputError: ``E-ENDPOINT-LABELS`` if a token that begins several answers is the most probable.

    Example:
        >>> first_token_scores([("Yes", -0.1), ("Y", -4.0), ("Maybe", -5.0)], ["No", "Yes"], "")
        [-5.0, -0.1]
    """
    texts = [(unicodedata.normalize("NFC", token.strip()), log_prob) for token, log_prob in top if token.strip()]
    listed = sorted((len(text), log_prob, text) for text, log_prob in texts)
    named = [unicodedata.normalize("NFC", each) for each in choices]
    begun = [([at for at, each in enumerate(named) if each.startswith(text)], each) for *_, each, text in listed]
    own = {at: log_prob for (at, *others), log_prob in filter(lambda each: each[0], begun) if not others}
    shared = [(places, log_prob) for places, log_prob in begun if len(places) > 1]
    if not own and not shared:
        return [-math.inf] * len(choices)
    if max((each for _, each in shared), default=-math.inf) >= max(own.values(), default=-math.inf):
        message = f"{place}: the first token does not identify one of {', '.join(map(repr, choices))}."
        raise InputError("E-ENDPOINT-LABELS", message, HINT_LABELS)
    rest = max(1.0 - sum(math.exp(each) for _, each in top), 1e-9)
    bound = min(math.log(rest), *(each for _, each in top))
    bounds = [max(bound, *(each for places, each in shared if at in places), bound) for at in range(len(choices))]
    return [own.get(at, bounds[at]) for at in range(len(choices))]


def same(one: Any, other: Any) -> bool:
    """Return whether two answers to a question have the same meaning."""
    return np.allclose(one, other, rtol=0, atol=SAME_NATS) if isinstance(one, list) else one == other


def in_threads(
    ask: Callable[[Any], Any], questions: Sequence[Any], number: int, seconds: float
) -> Iterator[tuple[Any, Any]]:
    """Yield questions with their answers or exceptions, in the order of arrival.

    An exception stops the threads. If no answer arrives for ``seconds``, the last item is an
    ``UnreachableError``. The threads are daemons. They may outlive the iterator.
    """
    is_over, done = threading.Event(), SimpleQueue[tuple[Question, Any]]()
    numbers = itertools.count()  # next() is atomic, so no two threads get the same number

    def work() -> None:
        while not is_over.is_set() and (at := next(numbers)) < len(questions):
            try:
                answer = ask(questions[at])
            except BaseException as error:
                answer = error
                is_over.set()
            done.put((questions[at], answer))

    for _ in range(min(number, len(questions))):
        threading.Thread(target=work, name="asking", daemon=True).start()
    try:
        for _ in questions:
            yield done.get(timeout=seconds)
    except Empty:
        yield questions[0], UnreachableError("E-ENDPOINT-ANSWER", f"The server sent no reply in {seconds:g} seconds.")
    finally:
        is_over.set()
