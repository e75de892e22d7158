"""The embedded data: short hotel reviews in plain English, made from a seed.

A review is an opener and clauses, ``the <aspect> was [not | very | ...] <word>``, each of a signed strength. The label
is the sign of their sum; reviews whose sum is near zero are not made.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flip_flop.files import generator

SPLIT_SIZES = {"train": 500, "validation": 200, "test": 300}
MIN_STRENGTH = 0.5

_STRENGTHS = {"": 1.0, "very ": 1.6, "really ": 1.6, "fairly ": 0.6, "slightly ": 0.5, "not ": -0.8}
# "slightly clean" is not praise.
_MODIFIERS = {
    1: ("", "", "", "very ", "really ", "fairly ", "not "),
    -1: ("", "", "", "very ", "really ", "fairly ", "slightly ", "not "),
}
# aspect and verb: words of praise, words of complaint
_ASPECTS = {
    "the room was": ("clean bright quiet cosy spacious", "dirty dark noisy cramped cold"),
    "the bathroom was": ("clean bright spacious modern", "dirty dark cramped cold"),
    "the bed was": ("comfortable clean cosy", "uncomfortable dirty hard"),
    "the lobby was": ("bright quiet modern pleasant", "dark noisy shabby cold"),
    "the pool was": ("clean warm quiet pleasant", "dirty cold noisy crowded"),
    "the garden was": ("quiet pleasant beautiful tidy", "noisy shabby dull crowded"),
    "the view was": ("beautiful good pleasant", "dull poor disappointing"),
    "the breakfast was": ("fresh tasty good generous", "stale bland poor cold"),
    "the coffee was": ("fresh tasty good", "stale bland weak"),
    "the dinner was": ("tasty good generous fresh", "bland poor cold disappointing"),
    "the service was": ("friendly quick helpful good", "rude slow careless poor"),
    "the staff were": ("friendly helpful kind polite", "rude slow careless unhelpful"),
    "the towels were": ("clean fresh soft", "dirty rough shabby"),
    "the neighbours were": ("quiet friendly polite", "noisy rude careless"),
    "the receptionist was": ("friendly helpful kind polite", "rude slow careless unhelpful"),
}
_VISITS = {
    ("I", "My husband", "My sister"): (
        "came here for a work trip",
        "spent one night here in March",
        "booked this hotel for two nights",
    ),
    ("We", "My wife and I", "My parents", "Our friends"): (
        "came here for a wedding",
        "stayed here last weekend",
        "booked this hotel for a short holiday",
        "spent three nights here in May",
        "stopped here on the way home",
    ),
}
_REMARKS = (
    "This was our second visit",
    "A friend told us about this hotel",
    "It was a late booking",
    "The drive here took four hours",
    "We had one room for the four of us",
    "I had read many other reviews",
)


@dataclasses.dataclass(frozen=True)
class Clause:
    """One remark about one aspect, such as ``the room was very clean``, and its signed strength."""

    text: str
    strength: float


@dataclasses.dataclass(frozen=True)
class Review:
    """A review's text and its clauses, in their order."""

    text: str
    clauses: tuple[Clause, ...]

    @property
    def strength(self) -> float:
        """The sum of the clauses' signed strengths."""
        return sum(clause.strength for clause in self.clauses)

    @property
    def label(self) -> int:
        """1 where praise outweighs complaint, else 0."""
        return int(self.strength > 0)


def _pick(rng: np.random.Generator, options: Sequence[Any]) -> Any:
    return options[int(rng.integers(len(options)))]


def _clause(rng: np.random.Generator, aspect: str) -> Clause:
    sign = 1 if rng.random() < 0.5 else -1
    word = _pick(rng, _ASPECTS[aspect][0 if sign == 1 else 1].split())
    modifier = _pick(rng, _MODIFIERS[sign])
    return Clause(f"{aspect} {modifier}{word}", sign * _STRENGTHS[modifier])


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _opener(rng: np.random.Generator) -> str:
    kind = rng.random()
    if kind < 0.2:
        return ""
    if kind < 0.4:
        return f"{_pick(rng, _REMARKS)}. "
    guests = _pick(rng, list(_VISITS))
    return f"{_pick(rng, guests)} {_pick(rng, _VISITS[guests])}. "


def _join(rng: np.random.Generator, clauses: tuple[Clause, ...]) -> str:
    """Three clauses as sentences: ``and`` joins remarks of one sign, ``but`` joins praise to complaint."""
    first, second, third = (clause.text for clause in clauses)
    agree = [left.strength * right.strength > 0 for left, right in itertools.pairwise(clauses)]
    link = ["and" if same else _pick(rng, ("but", "but", "though")) for same in agree]
    shape = int(rng.integers(4))
    if shape == 0:
        return f"{_sentence(first)} {_sentence(f'{second}, {link[1]} {third}')}"
    if shape == 1:
        return f"{_sentence(f'{first}, {link[0]} {second}')} {_sentence(third)}"
    if shape == 2 and agree[0]:
        listed = f"{first}, {second}, and {third}" if agree[1] else f"{first} and {second}, but {third}"
        return _sentence(listed)
    turn = "also, " if agree[1] else "however, "
    return f"{_sentence(first)} {_sentence(second)} {_sentence(turn + third)}"


def draw_review(rng: np.random.Generator, num_clauses: int = 3) -> Review:
    """One review with ``num_clauses`` (one or three) remarks, whose label may be weak."""
    aspects = [list(_ASPECTS)[index] for index in rng.choice(len(_ASPECTS), num_clauses, False)]
    clauses = tuple(_clause(rng, aspect) for aspect in aspects)
    body = _join(rng, clauses) if num_clauses == 3 else _sentence(clauses[0].text)
    return Review(_opener(rng) + body, clauses)


def stream_reviews(rng: np.random.Generator, num_clauses: int = 3, minimum: float = MIN_STRENGTH) -> Iterator[Review]:
    """Reviews without end, the strengths' sum of each at least ``minimum`` from zero."""
    while True:
        review = draw_review(rng, num_clauses)
        if abs(review.strength) >= minimum - 1e-9:
            yield review


@functools.lru_cache(maxsize=8)
def _split_reviews(seed: int, num_clauses: int, minimum: float) -> dict[str, list[Review]]:
    """All splits, so that no text is in two of them; exactly half of each split is positive."""
    seen: set[str] = set()
    splits: dict[str, list[Review]] = {}
    for split, size in SPLIT_SIZES.items():
        rng = generator(seed, "demo reviews", split)
        wanted = rng.permutation(np.arange(size) % 2)
        stream = stream_reviews(rng, num_clauses, minimum)
        splits[split] = []
        for label in wanted:
            review = next(one for one in stream if one.label == label and one.text not in seen)
            seen.add(review.text)
            splits[split].append(review)
    return splits


def make_rows(split: str, seed: int = 0, num_clauses: int = 3, minimum: float = MIN_STRENGTH) -> list[dict]:
    """The rows of ``train`` (500), ``validation`` (200) or ``test`` (300), reproducible from the arguments.

    A review has one or three remarks, and the sum of their strengths is at least ``minimum`` from zero. A row has
    ``id``, ``text`` and ``label`` (1 where praise outweighs complaint).
    """
    reviews = _split_reviews(seed, num_clauses, minimum)[split]
    return [
        {"id": f"{split}-{index:03d}", "text": review.text, "label": review.label}
        for index, review in enumerate(reviews)
    ]
