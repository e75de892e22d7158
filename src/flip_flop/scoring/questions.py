"""Questions for a served model, asked in threads."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from flip_flop.errors import InputError
from flip_flop.files import sha256_json
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.generation import label_of

SAME_NATS = 0.1  # how near an answer that is asked again has to be; servers of half precision are no nearer


class UnreachableError(InputError):
    """A failure that may pass: no connection, or a server that is overloaded, slow or failing."""


class Question(NamedTuple):
    """A request for the score of ``answer``, or without one for a generated answer of at most ``max_tokens`` tokens.

    ``choices`` are all answers, ``place`` names instance and template in messages.
    """

    prompt: str
    answer: str | None = None
    max_tokens: int = 1
    in_chat: bool = False
    choices: tuple[str, ...] = ()
    place: str = ""

    @property
    def key(self) -> str:
        """By which its answer is kept."""
        return sha256_json(["2" if self.answer is None else "1", *self[:4]])  # of the first kind, "1" was a line alone

    def means(self, given: dict[str, Any]) -> Any:
        """What was given: a score in nats, or a label's index, None where it is no label."""
        return given["score"] if "score" in given else label_of(given["text"], self.choices)


def require_different(instances: Sequence[RenderedInstance]) -> None:
    """Refuse answers that a text could not be told to be (``E-GENERATION``)."""
    for group in dict.fromkeys(group for each in instances for group in each.choices):
        if [label_of(each, group) for each in group] != list(range(len(group))):
            message = f"As texts, the answers {', '.join(map(repr, group))} cannot be told apart."
            raise InputError("E-GENERATION", message, "Write them in other words.")


def same(one: Any, other: Any) -> bool:
    """Whether two meanings of one question's answers are those of one model."""
    return abs(one - other) <= SAME_NATS if isinstance(one, float) else one == other


def in_threads(
    ask: Callable[[Question], Any], questions: Sequence[Question], number: int, seconds: float
) -> Iterator[tuple[Question, Any]]:
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
