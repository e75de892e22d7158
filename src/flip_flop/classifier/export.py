"""Exports of classifiers: the file with its adapter, or with merged weights that give the same answers."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from flip_flop.classifier.load import LoadedClassifier, load_scorer
from flip_flop.classifier.read import ADAPTER, read_classifier
from flip_flop.errors import InputError
from flip_flop.evaluation.result import METRICS_FILE
from flip_flop.evaluation.run_directory import load_run
from flip_flop.files import new_folder
from flip_flop.metrics import AveragedAxis, Scores, label_probs
from flip_flop.record import CLASSIFIER_FILE, RELATIVE, Classifier
from flip_flop.scoring.adapters import changes_embeddings
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.scoring.models import load_model, silent_library
from flip_flop.scoring.scorer import Scorer
from flip_flop.scoring.scores import CausalLMScorer
from flip_flop.tasks import RenderedSplit, Rows
from flip_flop.tasks.readers import stream_rows

MODEL = "model"  # the folder of merged weights
# Of the parity check.
NUM_ROWS = 200
MAX_CHANGED = 0.005
UNMERGED = "Use the adapter with its base, without --merge."


def export(
    path: Path,
    out: Path,
    *,
    merge: bool = False,
    templates: Sequence[str] = (),
    average: AveragedAxis | None = None,
    certify: float | None = None,
    rows: Path | None = None,
) -> str:
    """Write the classifier of a run and its adapter into a folder, whole or not at all.

    Args:
        path: The folder of an audit, a training run or an adapter.
        out: The folder.
        merge: Write base and adapter as merged weights into ``out/model``, and compare the answers.
        templates: Use these templates of an audit instead of the decided ones.
        average: Average over the orders of their options.
        certify: Stop the passes of the average early; the share of the answers that must not change.
        rows: A file of rows for the comparison; by default up to 200 instances of the audit.

    Returns:
        The result of the comparison in words.

    Raises:
        InputError: As :func:`~flip_flop.classifier.read.read_classifier`; ``E-MERGE`` if the weights cannot be merged,
            if there are no rows, or if more than 0.5 % of the answers change.
    """
    classifier = read_classifier(path, templates, average, certify)
    adapter = classifier.adapter
    if merge and adapter is None:
        raise InputError("E-MERGE", f"{path} has no adapter to merge.", "Remove --merge.")
    if merge and classifier.model.quantization:
        raise InputError("E-MERGE", "the base is quantized, and merging rounds its weights again.", UNMERGED)
    with new_folder(out) as folder:
        if merge:
            return _merge_and_compare(classifier, folder, path, rows)
        if adapter is not None:
            shutil.copytree(adapter.folder, folder / ADAPTER, ignore=shutil.ignore_patterns(CLASSIFIER_FILE))
            classifier = replace(classifier, adapter=replace(adapter, path=ADAPTER))
        classifier.write(folder)
    return ""


def _merge_and_compare(classifier: Classifier, folder: Path, path: Path, rows: Path | None) -> str:
    """Write the merged weights and their classifier, and return the figures of the comparison."""
    base = LoadedClassifier(classifier, lambda: load_scorer(classifier))
    if rows is None:
        split = _rows_of_audit(base, path)
    else:
        split = base.render(Rows(str(rows), "row", tuple(islice(stream_rows(rows), NUM_ROWS)), {}))
    before = base.scored(split.instances).scores
    _merge(base.scorer, folder / MODEL)
    after = CausalLMScorer(load_model(folder / MODEL, dtype=classifier.model.dtype or "auto"))
    merged = replace(classifier, adapter=None, model=replace(after.record, name=f"{RELATIVE}{MODEL}"))
    merged.write(folder)
    other = LoadedClassifier(merged, lambda: after)
    other.scoring = base.scoring
    return _compare(before, other.scored(split.instances).scores)


def _rows_of_audit(base: LoadedClassifier, path: Path) -> RenderedSplit:
    """Return rows of an audit under the templates of a classifier, whose prompts are in their chat template."""
    if not (path / METRICS_FILE).is_file() or base.task.answer:
        raise InputError("E-MERGE", f"{path} has no rows to compare answers.", "Give --rows FILE.")
    run = load_run(path)
    columns = [run.template_names.index(name) for name in base.task.templates.names]
    instances = [instance.under(columns) for instance in islice(run.instances, NUM_ROWS)]
    base.scoring = replace(base.scoring, chat_template="off")
    return RenderedSplit(base.task, "audit", Rows(str(path), "row", (), {}), instances)


def _merge(scorer: Scorer, folder: Path) -> None:
    """Write merged weights and the tokenizer."""
    assert isinstance(scorer, CausalLMScorer)
    model: Any = scorer.loaded.model
    if model.config.tie_word_embeddings and changes_embeddings(model):
        raise InputError("E-MERGE", "the adapter changes embeddings that are tied to the output layer.", UNMERGED)
    with silent_library(), as_input_error("E-MERGE", "PEFT cannot merge this adapter", UNMERGED, Exception):
        model.merge_and_unload(safe_merge=True).save_pretrained(folder)
    scorer.loaded.tokenizer.save_pretrained(folder)


def _compare(before: Scores, after: Scores) -> str:
    """Return the most changed answers under a template, and the largest difference of a probability (``E-MERGE``)."""
    most = (before.answer_keys != after.answer_keys).sum(axis=0).max()
    figures = f"{most} of {len(before)} answers differ"
    if not before.answered:
        largest = np.abs(label_probs(before.values) - label_probs(after.values)).max()
        figures += f"; a probability differs by at most {largest:.2g}"
    if most > MAX_CHANGED * len(before):
        raise InputError("E-MERGE", f"merged weights give other answers: {figures}.", UNMERGED)
    return figures
