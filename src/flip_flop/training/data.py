"""Training data: rows of a task, encoded instances, their order, and their pseudo-labels from the base model."""

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor
from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError, log, require_whole
from flip_flop.files import generator, read_arrays, sha256_json, write_arrays
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.metrics import (
    METRICS,
    Scores,
    answers_by_position,
    batch_offsets,
    calibrated,
    check_prior,
    label_shares,
    majority_vote,
    share_drift,
    vote_changes,
)
from flip_flop.prompts import Chat, RenderedInstance, templates_differ_in_answer_words, unsupported
from flip_flop.record import TaskRecord
from flip_flop.scoring.distributed import num_parts, world_size
from flip_flop.scoring.encode import EncodedInstance, PromptEncoder
from flip_flop.scoring.options import TooLongPolicy
from flip_flop.scoring.too_long import refuse_or_skip
from flip_flop.tasks import (
    FileSource,
    HubSource,
    RenderedRows,
    RenderedSplit,
    Task,
    as_task,
    deduplicate,
    draw_stratified,
    holdout,
    instances_digest,
    labelled_file,
    log_findings,
    log_label_counts,
    render_rows,
)
from flip_flop.training.config import F2CConfig

VOTES = "votes.npz"
# Instances of a sample: enough to estimate shares to within a few points.
SAMPLE_SIZE = 200
# On CB, the smallest of the paper's datasets, 150 steps of 32 instances are 21 passes over 194 rows.
MANY_PASSES = 25


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled training rows, the validation split, and inputs without content for contextual calibration."""

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: TaskRecord
    task: Task
    content_free: Sequence[RenderedInstance] = ()

    @property
    def digest(self) -> str:
        """SHA-256 of the prompts, answers and gold labels of both splits."""
        rows = [*self.train, *self.validation]
        return sha256_json([instances_digest(rows), [row.label for row in rows], len(self.train)])


def load_training_data(
    task: Task,
    config: F2CConfig,
    *,
    limit: int | None = None,
    eval_limit: int | None = None,
    few_labels: str | os.PathLike[str] | None = None,
) -> TrainingData:
    """Read, render and deduplicate a task's data, under the templates that are not held out.

    The validation rows are the task's ``validation`` split. Without one, a tenth of ``train`` is held out, stratified
    by labels if labels select the checkpoint.

    Args:
        task: The task.
        config: The settings of the training.
        limit: Size of a uniform sample of each split.
        eval_limit: Number of validation instances to keep, in the label frequencies if labels select the checkpoint.
            Evaluation during training is then cheaper, and differs from the paper.
        few_labels: A file with labelled rows of ``train``. Training instances have these labels only. None of these
            rows is held out, and the rows that are have no label.

    Raises:
        InputError: ``E-DATA-ROWS``, also for a labelled row that is not in ``train``, or an error
            of the task's data; ``E-OPEN-ANSWER`` for contextual calibration.
    """
    if eval_limit is not None:
        eval_limit = require_whole("eval_limit", eval_limit, 1)
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1", "macro_f1")
    task = task.with_templates(task.training_templates.names)
    for split in ("train", "validation"):
        source = task.data.get(split)
        if isinstance(source, FileSource | HubSource) and source == task.data.get("test"):
            log.warning(
                "W-TRAINING: the splits %s and test have the same rows, so an audit of test does not show how the "
                "trained model answers new rows. Name another file, or leave out all but one of them.",
                split,
            )
    rendered = log_label_counts(log_findings(task.render("train", limit=limit, seed=seed)))
    if config.label_prior is not None:
        check_prior(config.label_prior, len(rendered.instances[0].choices[0]))
    if task.answer and config.vote_calibration == "contextual":
        raise unsupported("Contextual calibration")
    content_free = rendered.content_free() if config.vote_calibration == "contextual" else ()
    few = None if few_labels is None else labelled_file(task, few_labels)
    instances = rendered.instances if few is None else _with_few_labels(rendered.instances, few, limit)
    if "validation" in task.data:
        validation = list(log_label_counts(task.render("validation", limit=limit, seed=seed)).instances)
        train, dropped = deduplicate(instances, against=validation)
    else:
        every, dropped = deduplicate(instances)
        free = [row for row in every if few is None or row.label is None]
        _, validation = holdout(free, seed=seed, stratify=by_labels)
        held_out = {row.id for row in validation}
        train = [row for row in every if row.id not in held_out]
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    sampled = {}
    if eval_limit is not None and eval_limit < len(validation):
        labels = {instance.id: instance.label if by_labels else None for instance in validation}
        drawn = draw_stratified(labels, eval_limit, seed)
        validation = [instance for instance in validation if instance.id in drawn]
        sampled = {"eval_limit": eval_limit}
    if dropped:
        log.info("%d training instances were dropped: they render like another row", dropped)
    if not train:
        raise InputError(
            "E-DATA-ROWS",
            "The training split is empty after deduplication.",
            "Add rows that differ from the others.",
        )
    if few is not None:
        log.info(
            "%d training instances are labelled, by %d rows of %s. Other labels of the training split are not used.",
            sum(row.label is not None for row in train),
            len(few.instances),
            few.rows.source.rstrip(","),
        )
    record = TaskRecord(**replace(rendered, instances=train).record)
    counts: dict[str, Any] = {"num_validation": len(validation), "num_dropped": dropped, **sampled}
    return TrainingData(train, validation, replace(record, **counts), task, content_free)


def rows_for_task(
    task: TrainingData | Task | str | os.PathLike[str], config: F2CConfig, train: Any = None, validation: Any = None
) -> tuple[TrainingData, Any]:
    """Return a task's training data, with other rows for its ``train`` and ``validation`` if given.

    Also return the evaluation rows, by name if ``validation`` is a dict. Its first rows select the checkpoint.
    """
    if isinstance(task, TrainingData):
        if train is not None or validation is not None:
            hint = "Leave out train_dataset and eval_dataset, or give the task itself."
            raise InputError("E-CONFIG", "the task is training data, which has its rows.", hint)
        return task, task.validation
    task = as_task(task)
    by_name = dict(validation) if isinstance(validation, Mapping) else {}
    first = next(iter(by_name), None)
    new_rows = {"train": train, "validation": validation if first is None else by_name[first]}
    given = {split: rows for split, rows in new_rows.items() if rows is not None}
    data = load_training_data(replace(task, data={**task.data, **given}), config)
    if first is None:
        return data, data.validation
    others = {name: render_for(data.task, rows) for name, rows in by_name.items() if name != first}
    return data, {first: data.validation, **others}


def render_for(task: Task, rows: Any) -> Sequence[RenderedInstance]:
    """Render rows of the task's fields. Rows with their prompts stay as they are."""
    first = next(iter(rows), None) if isinstance(rows, Sequence) else None
    if isinstance(first, RenderedInstance) or (isinstance(first, Mapping) and {"prompts", "choices"} <= first.keys()):
        return render_rows(rows)
    return task.with_rows(rows).render("test", need_labels=False).instances


def _with_few_labels(
    train: Sequence[RenderedInstance], few: RenderedSplit, limit: int | None
) -> list[RenderedInstance]:
    """Label the training instances that render like a few labelled rows, and no others."""
    known = {instance.texts for instance in train}
    labelled: dict[Any, Any] = {}  # the row and the label of each instance
    for row, instance in zip(few.rows.rows, few.instances, strict=True):
        place = few.rows.location(row)
        if instance.texts not in known:
            hint = "Label rows of the split train; rows of the split test cannot be used."
            raise InputError(
                "E-DATA-ROWS",
                f"{place} is not a row of the training data.",
                hint if limit is None else f"Leave --limit out. {hint}",
            )
        first, label = labelled.setdefault(instance.texts, (row, instance.label))
        if label != instance.label:
            raise InputError(
                "E-DATA-ROWS",
                f"{place} repeats {few.rows.unit} {first.number} with another label.",
                "Remove one of the two.",
            )
    return [replace(instance, label=labelled.get(instance.texts, (None, None))[1]) for instance in train]


class InstanceDataset(Dataset[EncodedInstance]):
    """Encoded instances. Those longer than the model's context are listed in ``too_long`` and left out.

    A row is a rendered instance or a mapping ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label"}``
    with optional ``id`` and ``label``.

    Raises:
        InputError: ``E-DATA-ROWS`` for a row of another shape.
    """

    def __init__(self, rows: RenderedRows, encoder: PromptEncoder, split: str = "", *, quiet: bool = True):
        rendered = render_rows(rows)
        self.num_rows = len(rendered)
        self.instances, too_long, read = encoder.encode_all(rendered, label=f"encoding {split}", quiet=quiet)
        self.digest = instances_digest(read)
        self.chat = read[0].chat if read else Chat()
        self.too_long = [replace(prompt, split=split) for prompt in too_long]

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def gold(self) -> Int64[np.ndarray, " instances"]:
        """Label indices, -1 for rows without a label."""
        return np.array(
            [-1 if instance.label is None else instance.label for instance in self.instances], dtype=np.int64
        )

    def __getitem__(self, index: int) -> EncodedInstance:
        return self.instances[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[EncodedInstance]:
        """Return a micro-batch without the padding of :class:`KeyedSampler`; it may be empty."""
        return [self.instances[index] for index in indices if index is not None]


def encode_rows(
    encoder: PromptEncoder,
    policy: TooLongPolicy,
    *splits: tuple[str, RenderedRows | None],
    names: Sequence[str] = (),
    quiet: bool = True,
) -> list[InstanceDataset]:
    """Encode splits, given by name and rows; refuse or skip the long rows of all of them together.

    ``names`` are those of the templates, for messages.

    Raises:
        InputError: ``E-TOO-LONG``, also if a split would be empty.
    """
    datasets = [InstanceDataset(() if rows is None else rows, encoder, split, quiet=quiet) for split, rows in splits]
    too_long = [prompt for dataset in datasets for prompt in dataset.too_long]
    if any(dataset.too_long and not len(dataset) for dataset in datasets):
        policy = "refuse"
    refuse_or_skip(too_long, sum(dataset.num_rows for dataset in datasets), policy, names)
    return datasets


def require_same_shape(datasets: Sequence[InstanceDataset], splits: Mapping[str, Any]) -> None:
    """Refuse splits without rows, and with other numbers of templates and labels than the first (``E-DATA-ROWS``)."""
    shapes = []
    for (split, rows), dataset in zip(splits.items(), datasets, strict=True):
        if rows is not None and not len(dataset):
            raise InputError("E-DATA-ROWS", f"the {split} split has no rows.", "Give it rows, or None.")
        shapes += [(split, len(row.answers), len(row.answers[0])) for row in dataset.instances[:1]]
    for split, *shape in shapes:
        if shape != list(shapes[0][1:]):
            numbers = " and ".join(f"{split}: {templates} and {labels}" for split, templates, labels in shapes)
            hint = "Render all splits with the same templates and labels."
            raise InputError("E-DATA-ROWS", f"the splits differ in their templates and labels: {numbers}.", hint)


def require_data(instances: Sequence[EncodedInstance], args: F2CConfig) -> None:
    """Refuse one template, a clean template that does not exist, and rows without the gold labels of a method.

    Raises:
        InputError: ``E-NO-CONSENSUS``, ``E-CONFIG`` or ``E-NO-GOLD``.
    """
    method, num_templates = find_method(args.method), len(instances[0].answers) if instances else 2
    if num_templates < 2:
        raise InputError("E-NO-CONSENSUS", "Training needs at least two templates.")
    if instances and args.clean_template >= num_templates:
        raise InputError(
            "E-CONFIG",
            f"clean_template is {args.clean_template}, but there are {num_templates} templates.",
            f"Use 0 to {num_templates - 1}.",
        )
    # A right answer that no template has written is an empty choice, without tokens.
    golds = [instance.answers[0][instance.label].tokens for instance in instances if instance.label is not None]
    if args.uses_labels and not any(golds):
        reader = method.name if method.uses_labels else "supervised_weight"
        fault = "no generated answer is right" if golds else f"none of the {len(instances)} training instances has one"
        raise InputError("E-NO-GOLD", f"{reader} uses gold labels, but {fault}.")


def collate(batch: Sequence[EncodedInstance]) -> dict[str, list[EncodedInstance]]:
    """Keep instances whole: they differ in the length of their prompts."""
    return {"instances": list(batch)}


def instances_per_step(config: F2CConfig) -> int:
    """Instances of an optimizer step, over all processes."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps * num_parts()


class KeyedSampler(Sampler[int | None]):
    """A random order of the instances as a function of seed and epoch, so that a resumed run continues in it.

    The processes take turns: each gets up to ``batch_size`` of the next instances, and no process gets two more than
    another. Free places are None. So no instance is repeated to fill a batch, and the instances of a step do not
    depend on the number of processes. ``drop_last`` omits the last instances if they do not fill all batches.
    """

    def __init__(self, dataset: Sized, seed: int, batch_size: int = 1, *, drop_last: bool = False):
        self.dataset = dataset
        self.seed = seed
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def first(self, count: int) -> list[int]:
        """Return the indices of the first ``count`` draws in ascending order."""
        order = generator(self.seed, "order", 0).permutation(len(self.dataset))[:count]
        return sorted(order.tolist())

    def __iter__(self) -> Iterator[int | None]:
        order = generator(self.seed, "order", self.epoch).permutation(len(self.dataset)).tolist()
        parts = num_parts()
        together = parts * self.batch_size
        for start in range(0, len(self) // world_size() * parts, together):
            for process in range(world_size()):
                share = order[start : start + together][process % parts :: parts]
                yield from share
                yield from [None] * (self.batch_size - len(share))

    def __len__(self) -> int:
        batches, rest = divmod(len(self.dataset), num_parts() * self.batch_size)
        return (batches + (rest > 0 and not self.drop_last)) * world_size() * self.batch_size


def log_passes(num_instances: int, config: F2CConfig) -> None:
    """Log the number of passes over the instances, and warn if it is unusual."""
    step = instances_per_step(config)
    if config.max_steps > 0:
        in_a_pass = math.ceil(num_instances / step)  # steps; the last may have fewer instances
        is_whole = config.max_steps >= in_a_pass
        passes = config.max_steps / in_a_pass if is_whole else config.max_steps * step / num_instances
        counted = f"{config.max_steps} steps of {step} instances"
        all_seen = f"--max-steps {in_a_pass}"
    else:
        passes, counted, all_seen = config.num_train_epochs, f"steps of {step} instances", "--num-train-epochs 1"
    log.info("at most %.3g passes over %d training instances, in %s", passes, num_instances, counted)
    if passes < 1:
        log.warning(
            "W-TRAINING: %d of the %d training instances are never seen. To use all of them, set %s.",
            round(num_instances * (1 - passes)),
            num_instances,
            all_seen,
        )
    elif passes > MANY_PASSES:
        log.warning(
            "W-TRAINING: every training instance is seen %.0f times, more than on any of the paper's datasets. "
            "Lower --max-steps or set --num-train-epochs.",
            passes,
        )


def warn_of_templates(instances: Sequence[RenderedInstance], config: F2CConfig) -> None:
    """Warn if a divergence over the vocabulary mixes the templates' answer words, or if two templates can tie."""
    method = find_method(config.method)
    mixes = method.mixes_answer_vocabularies
    if mixes and mixes(config) and templates_differ_in_answer_words(instances[:SAMPLE_SIZE]):
        log.warning(
            "W-TRAINING: templates use different answer words, so a vocabulary-level divergence mixes them. "
            "Use --divergence-space labels (swarm: --swarm-space labels), or watch own_label_mass."
        )
    if instances and len(instances[0].prompts) == 2:
        effect = "these instances get no loss" if method.needs_consensus else "both count equally"
        log.warning("W-TRAINING: two templates cannot break a tie: if they disagree, %s. Add a third template.", effect)


def draw_sample(instances: Sequence[EncodedInstance], seed: int) -> list[EncodedInstance]:
    """Draw a seeded sample of the instances, in their order."""
    drawn = generator(seed, "survey").permutation(len(instances))[:SAMPLE_SIZE]
    return [instances[number] for number in sorted(drawn)]


def votes_of(
    row: EncodedInstance, scores: Float[Tensor, "templates labels"]
) -> tuple[Float[Tensor, "templates present"], Int[Tensor, " templates"] | None, int | None]:
    """Return an instance's scores, generated predictions and gold label among the labels that it has.

    Without open answers it has all labels, and its scores predict. A gold label that it lacks is -1.
    """
    if not row.votes:
        return scores, None, row.label
    has_label = scores.isfinite().any(dim=0)
    places = [*torch.where(has_label, has_label.cumsum(0) - 1, -1).tolist(), -1]  # the last for a vote of -1
    label = None if row.label is None else places[row.label]
    return scores[:, has_label], torch.tensor([places[vote] for vote in row.votes]), label


# ---- votes of the base model ----


@dataclass(frozen=True, eq=False)
class VoteTable:
    """Scores that vote, by instance id. The scores include the ``offsets`` of a calibration."""

    ids: tuple[str, ...]
    scores: Float[np.ndarray, "instances templates labels"]
    offsets: Float[np.ndarray, "templates labels"] | None = None

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {identifier: row for row, identifier in enumerate(self.ids)}

    def scores_for(self, instances: Sequence[EncodedInstance]) -> Float[Tensor, "instances templates labels"]:
        """Return the scores of these instances."""
        return torch.from_numpy(self.scores[[self._rows[instance.id] for instance in instances]])

    @cached_property
    def shares(self) -> Float[np.ndarray, " labels"]:
        """Label frequencies of the majority votes."""
        return label_shares(majority_vote(self.scores)[:, None], self.scores.shape[-1])

    @cached_property
    def uncalibrated(self) -> "VoteTable":
        """The scores without calibration."""
        return self if self.offsets is None else VoteTable(self.ids, self.scores - self.offsets)

    @property
    def is_open(self) -> bool:
        """Whether the labels are open answers, which no offset calibrates. Each instance lacks some of them."""
        return bool(np.isinf(self.scores).any())

    @cached_property
    def batch_calibrated(self) -> "VoteTable":
        """These scores if they are calibrated or of open answers, otherwise with batch calibration."""
        is_final = self.offsets is not None or self.is_open
        return self if is_final else self.with_offsets(batch_offsets(self.scores))

    def with_offsets(self, offsets: Float[np.ndarray, "templates labels"] | None) -> "VoteTable":
        """Calibrate raw scores with these offsets, if any."""
        return self if offsets is None else VoteTable(self.ids, calibrated(self.scores, offsets), offsets)

    def drift(self, shares: Float[np.ndarray, " labels"]) -> float:
        """Compute the total variation distance of label frequencies from those of these votes.

        For calibrated votes it is the distance from the nearest point on the segment between the raw and the
        calibrated frequencies, because training moves the model along it.
        """
        start, end = self.uncalibrated.shares, self.shares
        return min(share_drift(shares, start + part * (end - start)) for part in np.linspace(0.0, 1.0, 101))

    @property
    def digest(self) -> str:
        """SHA-256 of ids and scores."""
        return sha256_json([self.ids, self.scores.tolist()])

    def write(self, path: Path, prompts: str) -> None:
        """Write ``ids``, ``scores``, ``offsets`` and the digest of the ``prompts`` and their answers as arrays."""
        more = {} if self.offsets is None else {"offsets": self.offsets}
        write_arrays(path, ids=np.array(self.ids), scores=self.scores, prompts=np.array(prompts), **more)

    @classmethod
    def read(cls, path: Path, ids: Sequence[str], prompts: str) -> "VoteTable | None":
        """Read a table of these instances; ``None`` if the file is damaged, or has other instances or answers."""
        try:
            arrays = read_arrays(path)
            table = cls(tuple(map(str, arrays["ids"].tolist())), arrays["scores"], arrays.get("offsets"))
            is_same = table.ids == tuple(ids) and str(arrays["prompts"]) == prompts
        except (OSError, ValueError, KeyError):
            return None
        return table if is_same else None


def check_frozen_votes(instances: Sequence[EncodedInstance], config: F2CConfig, *, has_content_free: bool) -> None:
    """Refuse training instances of which the base model's votes cannot be stored or calibrated.

    Raises:
        InputError: ``E-DATA-ROWS`` for two rows with one id, ``E-CALIBRATION`` if inputs without content are missing.
    """
    identifier, count = Counter(instance.id for instance in instances).most_common(1)[0] if instances else ("", 0)
    if count > 1:
        raise InputError(
            "E-DATA-ROWS",
            f"Two rows have the id {identifier!r}, but frozen votes are stored by id.",
            "Give each row its own id.",
        )
    if config.vote_calibration == "contextual" and not has_content_free:
        raise InputError(
            "E-CALIBRATION",
            "vote_calibration is contextual, but inputs without content are missing.",
            "Train on a Task, give F2CTrainer content_free, or use batch or prior.",
        )


def initial_vote_stats(
    votes: VoteTable, config: F2CConfig, design: Mapping[str, Any], voters: Sequence[EncodedInstance]
) -> dict[str, Any]:
    """Compute and log shares of the first votes: of a consensus, of each case, and of each label.

    Without labels, a label bias that all templates share cannot be distinguished from class imbalance, so the user sees
    the label frequencies. For calibrated votes, the effect of the calibration is included. ``design`` has the wordings
    and orders of the templates.

    Raises:
        InputError: ``E-POSITION`` if the answers depend on the order of the options, and labels do not train;
            ``E-NO-CONSENSUS`` if no instance has a consensus and the method needs it.
    """
    flips, unlabelled = METRICS["order_flips"], np.full(len(votes.ids), -1)
    raw, final = (Scores(table.scores, unlabelled, **design) for table in (votes.uncalibrated, votes))
    if not config.uses_labels and answers_by_position(flips.interval(raw), flips.interval(final)):
        rate = flips.value(raw) or 0.0
        raise InputError(
            "E-POSITION",
            f"the model answers by position, not by content: the order of the options changes {100 * rate:.1f} % of "
            "its answers.",
            "Use a stronger model, or a method with labels, such as supervised.",
        )
    scores = [votes_of(row, table)[:2] for row, table in zip(voters, torch.from_numpy(votes.scores), strict=True)]
    num_with_consensus = sum(bool(find_consensus(*row).exists) for row in scores)
    if num_with_consensus == 0 and find_method(config.method).needs_consensus:
        hint = "Run an audit first: look for reversed answer choices, or use a stronger model."
        raise InputError("E-NO-CONSENSUS", f"none of the {len(scores)} instances has a strict majority.", hint)
    cases = [split_templates(table, config, written).case for table, written in scores]
    consensus_share = num_with_consensus / len(scores)
    case_shares = [cases.count(case) / len(cases) for case in (1, 2, 3)]
    shares = [] if votes.is_open else votes.shares.tolist()
    log.info(
        "first votes over %d instances: consensus on %.0f %%, unanimous and confident on %.0f %%%s",
        len(scores),
        100 * consensus_share,
        100 * case_shares[1],
        ", labels " * bool(shares) + " / ".join(f"{100 * share:.0f} %" for share in shares),
    )
    if case_shares[1] == 1.0:
        log.warning("W-TRAINING: every instance is unanimous and confident, so training has almost no effect.")
    if max(shares, default=0.0) > 0.9:
        log.warning(
            "W-COLLAPSE: one label has %.0f %% of the votes. If the data are not that imbalanced, training amplifies "
            "the bias.",
            100 * max(shares),
        )
    calibration = None if votes.offsets is None else vote_changes(votes.uncalibrated.scores, votes.scores)
    if calibration is not None:
        log.info(
            "%s calibration changes %.0f %% of these votes; label drift %.2f",
            config.vote_calibration,
            100 * calibration["votes_changed"],
            calibration["vote_share_drift"],
        )
    return {
        "num_instances": len(scores),
        "consensus_share": consensus_share,
        "case_shares": case_shares,
        "vote_label_shares": shares,
        "calibration": calibration,
    }
