"""The audit: consistency and accuracy of a model across the templates of a task, and an estimate of its cost."""

import copy
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.console import count, duration, today, versions
from flip_flop.errors import InputError, log, unsupported
from flip_flop.evaluation.decision import LOW_MASS, remedy
from flip_flop.evaluation.result import Audit
from flip_flop.files import Json
from flip_flop.metrics import (
    FLIP_RATE,
    CalibrationChoice,
    Design,
    Scores,
    bootstrap_interval,
    calibrated,
    check_calibration,
    count_flips,
    find_offsets,
    offsets_that_change,
    option_places,
    summarise,
    uniform_prior,
    vote_changes,
)
from flip_flop.prompts import RenderedInstance
from flip_flop.reading import Reader
from flip_flop.record import AdapterRecord, RunRecord, TaskRecord, this_process
from flip_flop.scoring import DEFAULT_SCORING, ScoringOptions, ids_of
from flip_flop.scoring.models import ModelGiven
from flip_flop.scoring.packed import packed_tokens
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.scores import CausalLMScorer, as_scorer
from flip_flop.tasks import Data, RenderedSplit, as_split, instances_digest, log_findings, log_label_counts

NUM_TIMED = {True: 16, False: 4}  # instances of a local or served model that an estimate scores
# Generated texts to list per template, and their characters.
NUM_TEXTS = 3
MAX_TEXT = 80


def audit(
    model: ModelGiven | Scorer,
    *data: PreTrainedTokenizerBase | Data,
    scoring: ScoringOptions = DEFAULT_SCORING,
    limit: int | None = None,
    name: str | None = None,
    seed: int = 0,
    quiet: bool = False,
    calibrate: CalibrationChoice = "auto",
    label_prior: Sequence[float] | None = None,
) -> Audit:
    """Score a split under every template and compute its metrics: ``audit(model, data)``.

    From 50 instances on, if batch calibration changes a prediction, the metrics after calibration are added under
    ``calibrated``.

    Args:
        model: A name on the hub, a folder, ``"demo"``, a :class:`~flip_flop.LoadedModel`, a model of transformers or
            PEFT, a pair of model and tokenizer, a trainer, or a custom :class:`~flip_flop.scoring.Scorer`.
            ``"openai:URL#NAME"`` is a served model. Its tokenizer supplies the chat template.
        data: A :class:`~flip_flop.Task`, its name or its file, for the test split; a rendered split; or rows
            ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``, for example a
            ``datasets.Dataset``. Other rows need a task: ``task.with_rows(rows)``. A tokenizer may precede the data:
            ``audit(model, tokenizer, data)``. Models with a name do not need it.
        scoring: The scoring options.
        limit: Score a uniform sample of this many instances, drawn by their ids and ``seed``.
        name: The run's name in tables. The default is the method of the adapter, or ``base``.
        seed: The seed of the bootstrap and of random templates.
        quiet: Show no progress.
        calibrate: The method of calibration (docs/calibration.md), or ``"none"``.
        label_prior: The label frequencies that calibration assumes, by default equal.

    Raises:
        InputError: The model, the rows or the templates are invalid, or prompts exceed the model's context.
    """
    started = time.monotonic()
    if not isinstance(name, str | None):
        raise InputError("E-CONFIG", f"name is {name!r}.", "Give a text.")
    scorer, split = resolve(model, data, limit=limit, seed=seed)
    scoring = replace(scoring, prompt_date=scoring.prompt_date or today())  # all prompts of a run have the same date
    split = log_findings(log_label_counts(split)).distinct
    scored = score_calibrated(scorer, split, scoring, calibrate, label_prior, label="audit", quiet=quiet)
    if skipped := ids_of(scored.too_long):
        split = replace(split, instances=[instance for instance in split.instances if instance.id not in skipped])
    adapter = scorer.adapter
    name = name or (adapter and adapter.method) or ("adapter" if adapter else "base")
    instances = scored.instances or split.instances
    settings = {**scored.settings, "num_answers": int(scored.scores.values.size)}
    record = RunRecord(
        kind="audit",
        flip_flop_version=versions()["flip_flop"],
        name=name,
        task=TaskRecord(**split.record, num_too_long=len(skipped)),
        model=scorer.record,
        adapter=adapter,
        scoring=settings | {"prompts_digest": instances_digest(instances)},
        training=_training(adapter),
        seed=seed,
        **this_process(started),
        allowed_changes=scorer.allowed_changes,
    )
    names = tuple(split.task.templates.names)
    design = record.task.design(names)
    scores = replace(scored.scores, design=Design(**design))
    metrics = _metrics_of(scored, names, design, seed)
    if scoring.by == "generation" or scores.answered:
        metrics["unparsed_per_template"] = frequent_unparsed(instances, scores, names)
    if scoring.by == "generation" and not scores.answered:
        metrics["label_inside_share"] = label_inside_share(instances, split.task.extract)
    result = Audit(record, metrics, scores, names, instances=instances, too_long=scored.too_long)
    if result.low_mass:
        has_chat_template = scorer.is_instruct or bool(scored.settings.get("chat_template"))
        log.warning(
            "W-LABEL-MASS: %s. %s",
            result.low_mass,
            remedy(result, has_chat_template, "use the model's words as labels"),
        )
    return result


def _metrics_of(scored: Scored, names: Sequence[str], design: Mapping[str, Any], seed: int) -> Json:
    """Return the metrics of scores: raw and calibrated, the label mass, and the lengths of prompts."""
    data = scored.scores
    metrics = summarise(data.values, data.gold, names, answered=data.answered, seed=seed, **design)
    if data.token_counts is not None and data.token_counts.all():
        mass = data.own_label_mass.mean(axis=0)
        low = np.flatnonzero(mass < LOW_MASS).tolist()
        tokens = scored.preferred_tokens
        preferred = {names[template]: list(tokens[template]) for template in low if tokens}
        metrics |= {
            "own_label_mass_per_template": dict(zip(names, mass.tolist(), strict=True)),
            "preferred_tokens_per_template": preferred,
        }
    if scored.prompt_tokens is not None:
        lengths = scored.prompt_tokens.mean(axis=0).tolist()
        metrics["prompt_tokens_per_template"] = dict(zip(names, lengths, strict=True))
    if scored.calibration is not None:
        offsets = scored.calibration["offsets"]
        after = calibrated(data.values, offsets)
        metrics["calibrated"] = {
            **scored.calibration,
            "offsets": dict(zip(names, offsets.tolist(), strict=True)),
            **vote_changes(data.values, after),
            **summarise(after, data.gold, names, seed=seed, **design),
        }
    return metrics


def ask_again(
    scorer: Scorer, split: RenderedSplit, run: Audit, scoring: ScoringOptions, *, quiet: bool = False
) -> Audit:
    """Ask a served model the same questions again. ``repeat_flips`` in the metrics is the flip rate of its answers."""
    asked = copy.copy(scorer)
    with tempfile.TemporaryDirectory() as folder:
        asked.store = Path(folder) / "answers"  # instead of the stored answers
        instances = split.distinct.instances
        again = asked.checked_scores(instances, scoring, names=run.template_names, label="again", quiet=quiet)
    return with_flips(run, again.scores, "repeat_flips")


def with_flips(run: Audit, other: Scores, name: str) -> Audit:
    """Return the audit with the flip rate ``name`` in its metrics: between its answers and others to its prompts."""
    flips = count_flips(run.data.answer_keys, other.answer_keys)
    num_pairs = int(flips[:, 1].sum())
    rate = FLIP_RATE(flips) if num_pairs else None
    interval = list(bootstrap_interval(FLIP_RATE, flips)) if num_pairs else None
    changed = {
        name: rate,
        "intervals": {**run.metrics["intervals"], name: interval},
        "flip_pairs": {**run.metrics["flip_pairs"], name: num_pairs},
    }
    return replace(run, metrics=run.metrics | changed)


def score_calibrated(
    scorer: Scorer,
    data: RenderedSplit,
    scoring: ScoringOptions,
    calibrate: CalibrationChoice,
    label_prior: Sequence[float] | None,
    *,
    label: str,
    quiet: bool,
) -> Scored:
    """Score a split and compute the offsets of its calibration. Inputs are checked before scoring, which takes long."""
    if data.task.answer and (label_prior is not None or calibrate not in ("auto", "none")):
        raise unsupported("Calibration")
    num_labels = len(data.instances[0].choices[0])
    label_prior = check_calibration(calibrate, label_prior, num_labels)
    if label_prior is not None and calibrate == "auto":
        calibrate = "batch"
    empty = data.content_free() if calibrate == "contextual" else ()
    names = data.task.templates.names
    places = option_places(calibrate, data.task.templates.templates, num_labels)
    no_probabilities = InputError(
        "E-ENDPOINT",
        f"--calibrate {calibrate} needs probabilities of all labels. Generated answers have none.",
        "Remove one of the two options.",
    )
    if calibrate not in ("auto", "none") and scoring.by == "generation":
        raise no_probabilities
    scored = scorer.checked_scores(data.instances, scoring, names=names, label=label, quiet=quiet)
    scores = scored.scores.values
    if scorer.is_instruct and not scored.settings.get("chat_template") and scoring.chat_template != "off":
        log.warning(
            "W-CHAT: %s is an instruct model, asked without its chat template. Use --chat-template on, or for a served "
            "model its --tokenizer.",
            scorer.record.name,
        )
    if calibrate == "none" or scored.scores.answered:
        return scored
    if calibrate != "auto" and scored.scores.is_generated:
        raise no_probabilities
    if calibrate == "auto":
        calibrate = "batch"
        offsets = offsets_that_change(scores)
    else:
        offsets = find_offsets(
            calibrate,
            scores,
            label_prior,
            lambda: scorer.checked_scores(empty, scoring, names=names).scores.values,
            places,
        )
    if offsets is None:
        return scored
    prior = list(label_prior or uniform_prior(num_labels))
    return replace(scored, calibration={"method": calibrate, "label_prior": prior, "offsets": offsets})


def frequent_unparsed(
    instances: Sequence[RenderedInstance], data: Scores, names: Sequence[str]
) -> dict[str, list[tuple[str, int]]]:
    """Return the most frequent generated texts that match no label, per template, with their numbers."""
    texts: dict[str, Counter[str]] = {name: Counter() for name in names}
    for row, predicted in zip(instances, data.predictions.tolist(), strict=True):
        for name, text, label in zip(names, row.written, predicted, strict=True):
            if label < 0:
                texts[name][" ".join(text.split())[:MAX_TEXT]] += 1
    return {name: counter.most_common(NUM_TEXTS) for name, counter in texts.items()}


def label_inside_share(instances: Sequence[RenderedInstance], extract: str | None) -> float:
    """Return the share of generated answers whose label is inside the text, not at its beginning."""
    is_inside = [
        Reader("label", extract, choices).read(text).how == "inside"
        for row in instances
        for text, choices in zip(row.written, row.choices, strict=True)
    ]
    return float(np.mean(is_inside))


def resolve(
    model: ModelGiven | Scorer,
    data: Sequence[Any],
    *,
    limit: int | None = None,
    seed: int = 0,
    need_labels: bool | None = None,
) -> tuple[Scorer, RenderedSplit]:
    """Return the scorer and the rows of ``(model, data)`` or ``(model, tokenizer, data)``.

    The rows are checked before the model is loaded.
    """
    if not 1 <= len(data) <= 2:
        raise TypeError(f"Give a model and data, or a model, its tokenizer and data: {len(data)} follow the model.")
    *tokenizer, rows = data
    if tokenizer and not isinstance(tokenizer[0], PreTrainedTokenizerBase):
        kind = type(tokenizer[0]).__name__
        raise TypeError(
            f"The second of three arguments is a tokenizer, not a {kind}. Pass options by name, such as scoring=."
        )
    split = as_split(rows, limit=limit, seed=seed, need_labels=need_labels)
    return as_scorer(model, *tokenizer), split


def _training(adapter: AdapterRecord | None) -> Mapping[str, Any] | None:
    """Return the training settings of an adapter, if its run's record is known."""
    run = RunRecord.of_adapter(adapter.folder) if adapter and adapter.path else None
    if run is None:
        return None
    allowed = {"allowed_changes": list(run.allowed_changes)} if run.allowed_changes else {}
    training = {name: value for name, value in (run.training or {}).items() if name != "validation"}
    return {**training, "seconds": run.seconds, "command": run.command, **allowed}


def estimate(scorer: Scorer, split: RenderedSplit, options: ScoringOptions) -> str:
    """Score a few instances and return lines about the cost of all. The run directory and the store stay unchanged.

    A served model answers the requests of the sample. Answers that are stored already are counted too.

    Raises:
        InputError: As :meth:`~flip_flop.scoring.Scorer.scores`.
    """
    instances = split.distinct.instances
    is_local = isinstance(scorer, CausalLMScorer)
    sample = instances[:: max(1, len(instances) // NUM_TIMED[is_local])][: NUM_TIMED[is_local]]
    names = split.task.templates.names
    if isinstance(scorer, CausalLMScorer):
        scorer.loaded = replace(scorer.loaded, store=None)
    with tempfile.TemporaryDirectory() as folder:
        # The first instance finds the API of a server or warms up a local model.
        for name, timed in (("first", sample[:1]), ("timed", sample)):
            scorer.store = Path(folder) / name
            started = time.perf_counter()
            scored = scorer.checked_scores(timed, options, names=names)
            seconds = time.perf_counter() - started
    lines = [f"dry run: {count(len(instances), 'instance')}, {count(len(names), 'template')}; nothing is written"]
    if isinstance(scorer, CausalLMScorer):
        encoded, too_long, _ = scorer.loaded.encoder(options.chat_template).encode_all(instances)
        answers = [answer for instance in encoded for group in instance.answers for answer in group]
        naive = sum(len(answer.context) + len(answer.tokens) for answer in answers)
        longest = max(len(replace(instance).trie) for instance in encoded)
        part = [instance for instance in encoded if instance.id in scored.scores.ids]
        total = packed_tokens(scorer.loaded.model, encoded, options.batch_tokens)
        factor = total / packed_tokens(scorer.loaded.model, part, options.batch_tokens)
        lines += [
            f"tokens: {naive:,} naive, {total:,} packed, at most {longest:,} an instance",
            f"prompts too long: {len(too_long):,}",
        ]
    else:
        settings = scored.settings
        factor = _length(instances) / _length(sample)
        asked = settings["num_asked"] * len(instances) // len(sample)
        read, written = (round(settings[f"tokens_{kind}"] * factor) for kind in ("read", "written"))
        lines.append(f"requests: {asked:,} by {settings['api']}; tokens: {read:,} in, {written:,} out")
    lines.append(f"time: {duration(seconds * factor)}, estimated from {count(len(sample), 'instance')}")
    return "\n".join(lines)


def _length(instances: Sequence[RenderedInstance]) -> int:
    return sum(len(prompt) for instance in instances for prompt in instance.prompts)
