"""Audits of the answers of other tools."""

import glob
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flip_flop.console import command, count, now, warn_once
from flip_flop.errors import InputError
from flip_flop.evaluation.result import Audit
from flip_flop.foreign.readers import read_file, table
from flip_flop.metrics import Design, Scores, predicted, summarise
from flip_flop.prompts import RenderedInstance
from flip_flop.reading import token_f1
from flip_flop.reading.texts import text_key
from flip_flop.record import ModelRecord, RunRecord, TaskRecord, TemplateRecord
from flip_flop.tasks import as_source
from flip_flop.tasks.readers import READABLE

SUFFIXES = (*READABLE, ".eval")
MAX_LABELS = 20  # or a third of the number of rows; answers to questions with more right answers are open
MAX_NAMED = 5  # rows in an error
NO_PROMPT = "The results hold no prompts."


def load_results(path: Path) -> Audit | None:
    """Read the results of a run: a file, the files of a pattern, or the samples and logs in a folder. None without any.

    Raises:
        InputError: The errors of the files; ``E-DATA-ROWS`` if an answer is missing or is there twice.
    """
    if path.is_dir():
        files = [*path.rglob("samples_*.jsonl"), *path.rglob("*.eval")]
    else:
        files = [Path(name) for name in glob.glob(str(path)) or [str(path)] if path.suffix in SUFFIXES]
    named = path.parent if "*" in path.name else path
    rows = [row for file in sorted(files) for row in read_file(file)]
    return _audit(_wide(rows, str(path)), named.resolve().stem) if rows else None


def from_results(results: Any, labels: Sequence[str] | None, name: str | None) -> Audit:
    """Return the audit of a table; see :meth:`flip_flop.Audit.from_results`."""
    rows = as_source(results, "results").load()
    return _audit(_wide([*table(rows, "answer")], rows.source), name or "results", labels)


def _audit(wide: pd.DataFrame, name: str, labels: Sequence[str] | None = None) -> Audit:
    """Compute the metrics of answers. By default the labels are those with a probability, or the right answers."""
    answers = wide["answer"].to_numpy()
    gold = wide["gold"].to_numpy()[:, 0]
    variants = tuple(wide["answer"].columns)
    judged = wide["right"]
    names = labels or sorted({column[2:-1] for column, _ in wide if column.startswith("p(")} or {*gold} - {""})
    has_few = 1 < len(names) <= max(MAX_LABELS, len(wide) / 3)
    instances: Sequence[RenderedInstance] = ()
    if labels or (has_few and not judged.isin((0, 1)).any(axis=None)):
        answer = None
        data = _labelled(wide, answers, gold, names)
    else:
        answer = {"kind": "text"}
        right = np.where(judged.isin((0, 1)), judged == 1, answers == gold[:, None]) & (answers != "")
        data, instances = _open_answers(wide.index, answers, gold, right)
        names = list(map(str, range(data.num_labels)))
    task = TaskRecord(
        name="results",
        labels=tuple(names),
        digest="",
        split="all",
        f1="macro",  # which of two labels is the positive one is unknown
        templates=tuple(TemplateRecord(name=variant) for variant in variants),
        data={"source": wide.attrs["source"]},
        answer=answer,
    )
    record = RunRecord(
        kind="audit",
        name=name,
        task=task,
        model=ModelRecord(name=wide.attrs["model"]),
        scoring={"by": "results", "num_answers": answers.size},
        command=command(),
        created=now(),
    )
    design = task.design(variants)
    metrics = summarise(data.values, data.gold, variants, answered=data.answered, **design)
    counts = np.zeros(data.values.shape, np.int64)
    data = replace(data, token_counts=counts, design=Design(**design), ids=tuple(wide.index))
    return Audit(record, metrics, data, variants, instances=instances)


def _wide(rows: Sequence[dict[str, Any]], source: str) -> pd.DataFrame:
    """Return a line per row of the data, and for each column of the results a column per variant (``E-DATA-ROWS``)."""
    frame = pd.DataFrame([{"gold": "", "right": None, "model": "", **row} for row in rows])
    num_answers = pd.crosstab(frame["id"], frame["variant"])
    is_faulty = (num_answers != 1).any(axis=1) | (frame.groupby("id")["gold"].nunique() > 1)
    if is_faulty.any():
        named = ", ".join(is_faulty.index[is_faulty][:MAX_NAMED])
        words = (
            f"{source}: {count(is_faulty.sum(), 'id')} without one answer per variant and one right answer: {named}."
        )
        raise InputError("E-DATA-ROWS", words, "Remove these rows, or complete them; an answer may be empty.")
    wide = frame.pivot(index="id", columns="variant")
    wide.attrs.update(source=source, model=", ".join(sorted({*frame["model"]})))
    return wide


def _labelled(wide: pd.DataFrame, answers: np.ndarray, gold: np.ndarray, labels: Sequence[str]) -> Scores:
    """Return the log-probabilities of the labels. Without probabilities, the answer has 0 (``W-RESULTS``).

    Raises:
        InputError: ``E-LABEL`` for a right answer that is none of the labels.
    """
    names = f"none of the labels {', '.join(labels)}"
    if unknown := {*gold} - {"", *labels}:
        raise InputError("E-LABEL", f"{wide.attrs['source']}: the right answer {min(unknown)!r} is {names}.")
    given = answers[:, :, None] == np.array(labels, dtype=object)
    certain = np.where(given, 0.0, -np.inf).astype(np.float32)
    is_read = given.any(axis=2)
    others = answers[~is_read & (answers != "")]
    if len(others):
        words = f"{count(len(others), 'answer')}, such as {others[0]!r}, are {names}"
        warn_once(f"W-RESULTS: {wide.attrs['source']}: {words}, and count as unreadable.")
    known = {*wide.columns.get_level_values(0)}
    columns = [f"p({label})" for label in labels]
    if known.issuperset(columns):
        probs = np.stack([_numbers(wide[column]) for column in columns], axis=2)
    elif "probability" in known and len(labels) == 2:
        probability = _numbers(wide["probability"])[:, :, None]
        probs = np.where(given, probability, 1 - probability)
    else:
        probs = given * 1.0
    is_known = is_read & (probs >= 0).all(axis=2)
    with np.errstate(all="ignore"):
        values = np.where(is_known[:, :, None], np.log(probs), -np.inf).astype(np.float32)
    misfits = wide.index[(predicted(values) != predicted(certain)).any(axis=1)]
    if len(misfits):
        warn_once(f"W-RESULTS: no probabilities are used: an answer to {misfits[0]!r} is not the most probable label.")
        values = certain
    return Scores(values, pd.Categorical(gold, labels).codes.astype(np.int64))


def _numbers(cells: pd.DataFrame) -> np.ndarray:
    return cells.apply(pd.to_numeric, errors="coerce").to_numpy(np.float64)


def _open_answers(
    ids: Sequence[str], answers: np.ndarray, gold: np.ndarray, right: np.ndarray
) -> tuple[Scores, list[RenderedInstance]]:
    """Number the different answers to each row, in the order of the variants."""
    size = answers.shape[1]
    is_read = answers != ""
    labels = np.full(answers.shape, -1)
    golds = np.full(len(gold), -1)
    f1 = np.zeros(answers.shape)
    instances = []
    for row, name in enumerate(ids):
        labels[row], found = pd.factorize(np.where(is_read[row], answers[row], None))
        words = [*found, *[""] * (size + 1 - len(found))]
        if right[row].any():
            golds[row] = labels[row, right[row].argmax()]
        elif gold[row]:
            golds[row] = size
            words[size] = gold[row]
        reference = text_key(gold[row]) or "?"
        f1[row] = [token_f1(text_key(text), reference) for text in answers[row]]
        instances.append(RenderedInstance(name, (NO_PROMPT,) * size, (tuple(words),) * size, None))
    # The same keys in all runs.
    keys = (pd.util.hash_array(answers.ravel()) // 2).astype(np.int64).reshape(answers.shape)
    answered = {
        "key": np.where(is_read, keys, -1),
        "exact": right,
        "token_f1": f1,
        "length": np.vectorize(len)(answers),
    }
    values = np.where(labels[:, :, None] == np.arange(size + 1), 0.0, -np.inf).astype(np.float32)
    return Scores(values, golds, answered=answered), instances
