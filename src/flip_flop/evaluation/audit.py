"""The audit: how consistently a model answers a task over its templates, and how well."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.evaluation.run_directory import Audit
from flip_flop.metrics import calibrated, check_prior, find_offsets, summarise, uniform_prior, vote_changes
from flip_flop.options import DEFAULT_SCORING, Calibration, ScoringOptions
from flip_flop.provenance import versions
from flip_flop.run_record import AdapterRecord, RunRecord, TaskRecord, this_process
from flip_flop.scoring import ModelGiven, Scorer, ScoreTable, as_scorer
from flip_flop.tasks import Data, RenderedSplit, as_split, log_label_counts
from flip_flop.too_long import ids_of


def audit(
    model: ModelGiven | Scorer,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    name: str | None = None,
    seed: int = 0,
    quiet: bool = False,
    calibrate: Calibration | None = None,
    label_prior: Sequence[float] | None = None,
) -> Audit:
    """Score a split under every template and compute its metrics: ``audit(model, data)``.

    Args:
        model: A hub's name, a folder or ``"demo"``; what :func:`~flip_flop.load_model` gave; a model of transformers or
            PEFT, also in a pair with its tokenizer; a trainer; ``"openai:URL#NAME"``, a served model (its tokenizer
            is for its chat template); or a :class:`~flip_flop.scoring.Scorer` of your own.
        data: A :class:`~flip_flop.Task`, its name or file, which stand for the test split; a rendered split; or rows
            ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``, a ``datasets.Dataset`` of
            them too. Other rows need a task: ``task.with_rows(rows)``. The tokenizer may stand before the data:
            ``audit(model, tokenizer, data)``; a model that has a name needs none.
        scoring: How prompts are put to the model.
        name: The run's name in tables; by default the adapter's method, or ``base``.
        seed: For the bootstrap, and for the templates of a task that draw at random.
        quiet: Show no progress.
        calibrate: Adds, under ``calibrated``, what the metrics are when preferences for a label are taken out
            (docs/calibration.md).
        label_prior: The labels' shares, by default uniform.

    Raises:
        InputError: For anything wrong with the model, the rows, the templates or the model's context.
    """
    started = time.monotonic()
    scorer, split = resolve(model, data, seed=seed)
    scored = score_calibrated(
        scorer, log_label_counts(split), scoring, calibrate, label_prior, label="audit", quiet=quiet
    )
    split, table, offsets = scored.data, scored.table, scored.offsets
    resolution = scorer.resolution(split.instances, table, scoring)
    adapter = scorer.adapter
    num_too_long = {"num_too_long": len(ids_of(table.too_long))}
    record = RunRecord(
        kind="audit",
        flip_flop_version=versions()["flip_flop"],
        name=name or (adapter and adapter.method) or ("adapter" if adapter else "base"),
        task=TaskRecord.from_json(split.record | num_too_long),
        model=scorer.record,
        adapter=adapter,
        scoring={**table.settings, "num_answers": int(table.scores.size)},
        training=_training(adapter),
        seed=seed,
        **this_process(started),
        allowed_changes=scorer.allowed_changes,
    )
    names = tuple(split.task.templates.names)
    summary = partial(
        summarise, gold=split.gold, template_names=names, f1=record.task.f1, seed=seed, resolution=resolution
    )
    metrics = summary(table.scores)
    if offsets is not None:
        after = calibrated(table.scores, offsets)
        metrics["calibrated"] = {
            "method": calibrate,
            "label_prior": list(label_prior or uniform_prior(offsets.shape[1])),
            "offsets": dict(zip(names, offsets.tolist(), strict=True)),
            **vote_changes(table.scores, after),
            **summary(after),
        }
    return Audit(
        record=record,
        metrics=metrics,
        scores=table.scores,
        token_counts=table.token_counts,
        gold=split.gold,
        instance_ids=tuple(instance.id for instance in split.instances),
        template_names=names,
        instances=[scorer.as_read(instance, scoring) for instance in split.instances],
        too_long=table.too_long,
    )


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a split: of its instances but for those that were skipped as too long.

    ``offsets`` ``[templates, labels]`` take preferences for a label out of the scores, where that was asked for.
    """

    data: RenderedSplit
    table: ScoreTable
    offsets: Float[np.ndarray, "templates labels"] | None


def score_calibrated(
    scorer: Scorer,
    data: RenderedSplit,
    scoring: ScoringOptions,
    calibrate: Calibration | None,
    label_prior: Sequence[float] | None,
    *,
    label: str,
    quiet: bool,
) -> Scored:
    """Score what is not too long, and find the offsets where they are asked for."""
    empty = data.content_free() if calibrate == "contextual" else ()  # what cannot be, before the minutes of scoring
    if calibrate == "prior" or label_prior is not None:
        check_prior(label_prior or (), len(data.instances[0].choices[0]))
    if calibrate is not None and scoring.by == "generation":
        raise InputError(
            "E-GENERATION", f"--calibrate {calibrate} moves probabilities, and generated answers have none."
        )
    table = scorer.scores(data.instances, scoring, names=data.task.templates.names, label=label, quiet=quiet)
    if skipped := ids_of(table.too_long):
        data = replace(data, instances=[instance for instance in data.instances if instance.id not in skipped])
    offsets = None
    if calibrate is not None:
        offsets = find_offsets(calibrate, table.scores, label_prior, lambda: scorer.scores(empty, scoring).scores)
    return Scored(data, table, offsets)


def resolve(
    model: ModelGiven | Scorer, data: Sequence[Any], *, seed: int = 0, need_labels: bool | None = None
) -> tuple[Scorer, RenderedSplit]:
    """The model and the rows that a call names: ``(model, data)`` or ``(model, tokenizer, data)``.

    The rows' errors come before a model is loaded.
    """
    if not 1 <= len(data) <= 2:
        raise TypeError(f"Give a model and data, or a model, its tokenizer and data: {len(data)} follow the model.")
    *tokenizer, rows = data
    if tokenizer and not isinstance(tokenizer[0], PreTrainedTokenizerBase):
        kind = type(tokenizer[0]).__name__
        raise TypeError(
            f"Between model and data stands a tokenizer, not a {kind}; options are given by name: scoring=."
        )
    split = as_split(rows, seed=seed, need_labels=need_labels)
    return as_scorer(model, *tokenizer), split


def _training(adapter: AdapterRecord | None) -> Mapping[str, Any] | None:
    """How an adapter was trained, where its run's record stands beside it."""
    run = RunRecord.of_adapter(Path(adapter.path)) if adapter and adapter.path else None
    if run is None:
        return None
    allowed = {"allowed_changes": list(run.allowed_changes)} if run.allowed_changes else {}
    training = {name: value for name, value in (run.training or {}).items() if name != "validation"}
    return {**training, "seconds": run.seconds, "command": run.command, **allowed}
