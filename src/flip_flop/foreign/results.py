"""Audits of the answers of other tools."""

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flip_flop.console import command, count, now, warn_once
from flip_flop.errors import InputError
from flip_flop.evaluation.result import Audit
from flip_flop.files import Json
from flip_flop.foreign.readers import read_file, table
from flip_flop.metrics import Design, Scores, predicted, summarise
from flip_flop.prompts import RenderedInstance
from flip_flop.reading.texts import text_key, token_f1
from flip_flop.record import ModelRecord, RunRecord, TaskRecord, TemplateRecord
from flip_flop.tasks import as_source
from flip_flop.tasks.readers import READABLE

SUFFIXES = (*READABLE, ".eval")
MAX_LABELS = 20  # or a third of the number of rows; answers to questions with more right answers are open
MAX_NAMED = 5  # rows in an error
KEY_BITS = 2**63 - 1
NO_PROMPT = "The results hold no prompts."


def load_results(path: Path) -> Audit | None:
    """Read the results of a run: a file, the files of a pattern, or the samples and logs in a folder. None without any.

    Raises:
        InputError: The errors of the files; ``E-DATA-ROWS`` if an answer is missing or is there twice.
    """
    if path.is_dir():
        files = [*path.rglob("samples_*.jsonl"), *path.rglob("*.eval")]
    else:
        found = map(Path, glob.glob(str(path)) or [str(path)])
        files = [file for file in found if file.suffix in SUFFIXES]
    named = path.parent if "*" in path.name else path
    rows = [row for file in sorted(files) for row in read_file(file)]
    if rows:
        return _audit(rows, str(path), named.resolve().stem)
    return None


def from_results(results: Any, labels: Sequence[str] | None, name: str | None) -> Audit:
    """Return the audit of a table; see :meth:`flip_flop.Audit.from_results`."""
    rows = as_source(results, "results").load()
    return _audit([*table(rows, "answer")], rows.source, name or "results", labels)


def _audit(rows: Sequence[Json], source: str, name: str, labels: Sequence[str] | None = None) -> Audit:
    """Compute the metrics of answers. By default the labels are those with a probability, or the right answers."""
    frame = _by_row(rows, source)
    variants = tuple(frame["variant"].unique())
    lines = frame.iloc[:: len(variants)]  # one of each row
    gold = lines["gold"].to_numpy()
    texts = np.column_stack([frame["answer"].to_numpy().reshape(-1, len(variants)), gold])
    is_judged = frame["right"].isin((0, 1))
    with_probs = {column[2:-1] for column in frame if column.startswith("p(")}
    names = labels or sorted(with_probs or {*gold} - {""})
    has_few = 1 < len(names) <= max(MAX_LABELS, len(gold) / 3)
    is_open = not labels and (is_judged.any() or not has_few)
    answered = {}
    instances: Sequence[RenderedInstance] = ()
    if is_open:
        names = list(map(str, range(len(variants) + 1)))
        is_right = frame["right"].where(is_judged, frame["answer"] == frame["gold"])
        numbers, instances = _numbered(texts, lines["id"])
        answered = _answered(texts, is_right.to_numpy(bool))
    else:
        numbers = _labelled(texts, names, source)
    values = np.where(numbers[:, :-1, None] == np.arange(len(names)), 0.0, -np.inf).astype(np.float32)
    if with_probs.issuperset(names):
        values = _log_probs(frame, names, values)
    task = TaskRecord(
        name="results",
        labels=tuple(names),
        digest="",
        split="all",
        f1="macro",  # which of two labels is the positive one is unknown
        templates=tuple(TemplateRecord(name=variant) for variant in variants),
        data={"source": source},
        answer={"kind": "text"} if is_open else None,
    )
    record = RunRecord(
        kind="audit",
        name=name,
        task=task,
        model=ModelRecord(name=", ".join(sorted({*frame["model"]}))),
        scoring={"by": "results", "num_answers": len(frame)},
        command=command(),
        created=now(),
    )
    golds = numbers[:, -1]
    counts = np.zeros(values.shape, np.int64)
    data = Scores(values, golds, counts, tuple(lines["id"]), Design("macro"), answered)
    metrics = summarise(values, golds, variants, answered=answered, average="macro")
    return Audit(record, metrics, data, variants, instances=instances)


def _by_row(rows: Sequence[Json], source: str) -> pd.DataFrame:
    """Return the answers by row, then by variant (``E-DATA-ROWS``)."""
    frame = pd.DataFrame([{"gold": "", "right": None, "model": "", **row} for row in rows])
    num_answers = pd.crosstab([frame["id"], frame["gold"]], frame["variant"])
    faulty = num_answers.index[(num_answers != 1).any(axis=1)].unique("id")
    if len(faulty):
        named = ", ".join(faulty[:MAX_NAMED])
        words = f"{source}: {count(len(faulty), 'id')} without one answer per variant and one right answer: {named}."
        raise InputError("E-DATA-ROWS", words, "Remove these rows, or complete them; an answer may be empty.")
    return frame.sort_values(["id", "variant"])


def _labelled(texts: np.ndarray, labels: Sequence[str], source: str) -> np.ndarray:
    """Return the labels of the answers and right answers by number; -1 is none of them (``E-LABEL``, ``W-RESULTS``)."""
    names = f"none of the labels {', '.join(labels)}"
    numbers = pd.Index(labels).get_indexer(texts.ravel()).reshape(texts.shape)
    is_unknown = (numbers < 0) & (texts != "")
    for gold in texts[is_unknown[:, -1], -1]:
        raise InputError("E-LABEL", f"{source}: the right answer {gold!r} is {names}.")
    others = texts[is_unknown]
    if len(others):
        words = f"{count(len(others), 'answer')}, such as {others[0]!r}, are {names}"
        warn_once(f"W-RESULTS: {source}: {words}, and count as unreadable.")
    return numbers


def _log_probs(frame: pd.DataFrame, labels: Sequence[str], certain: np.ndarray) -> np.ndarray:
    """Return the log-probabilities of the labels, or ``certain`` if they contradict an answer (``W-RESULTS``)."""
    columns = frame[[f"p({label})" for label in labels]]
    given = columns.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64).reshape(certain.shape)
    answers = predicted(certain)
    probs = np.where(answers[:, :, None] < 0, 0.0, given)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(probs).astype(np.float32)
    is_misfit = np.isnan(values).any(axis=2) | (predicted(values) != answers)
    for misfit in frame["id"][is_misfit.ravel()]:
        warn_once(f"W-RESULTS: no probabilities are used: an answer to {misfit!r} is not the most probable label.")
        return certain
    return values


def _numbered(texts: np.ndarray, ids: Sequence[str]) -> tuple[np.ndarray, list[RenderedInstance]]:
    """Number the different answers to each row in the order of the variants, then the right one. -1 is unread."""
    size = texts.shape[1]
    prompts = (NO_PROMPT,) * (size - 1)
    numbers = []
    instances = []
    for name, of_row in zip(ids, texts, strict=True):
        numbered, words = pd.factorize(np.where(of_row == "", None, of_row))
        padded = (*words, *[""] * (size - len(words)))
        numbers.append(numbered)
        instances.append(RenderedInstance(name, prompts, (padded,) * len(prompts), None))
    return np.array(numbers), instances


def _answered(texts: np.ndarray, is_right: np.ndarray) -> dict[str, np.ndarray]:
    """Return what :class:`~flip_flop.metrics.Scores` holds of open answers."""
    answers = texts[:, :-1]
    keys = pd.util.hash_array(answers.ravel()).astype(np.int64) & KEY_BITS  # the same in all runs
    is_read = answers != ""
    return {
        "key": np.where(is_read, keys.reshape(answers.shape), -1),
        "exact": is_right.reshape(answers.shape) & is_read,
        "token_f1": np.vectorize(_token_f1)(answers, texts[:, -1:]),
        "length": np.vectorize(len)(answers),
    }


def _token_f1(answer: str, gold: str) -> float:
    return token_f1(text_key(answer), text_key(gold) or "?")
