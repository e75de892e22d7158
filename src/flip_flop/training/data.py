"""Training data: the rows of a task for training and for the selection of a checkpoint, encoded, and their order."""

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, Sampler

from flip_flop.arrays import InstanceLabels
from flip_flop.console import count
from flip_flop.errors import InputError, log, require_whole, unsupported
from flip_flop.files import StrPath, generator, sha256_json
from flip_flop.method import find_method
from flip_flop.metrics import check_prior, gold_of
from flip_flop.prompts import RenderedInstance
from flip_flop.record import TaskRecord
from flip_flop.scoring.distributed import world_size
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

# On CB, the smallest of the paper's datasets, 150 steps of 32 instances are 21 passes over 194 rows.
MANY_PASSES = 25


@dataclass(frozen=True)
class TrainingData:
    """The training rows, the validation split, and inputs without content for contextual calibration."""

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
    few_labels: StrPath | None = None,
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
    seed = config.seed
    by_labels = config.select_by == "auto" or config.select_by.endswith("f1")
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
    if few is None:
        instances = rendered.instances
    else:
        instances = _with_few_labels(rendered.instances, few, limit)
    if "validation" in task.data:
        validation = list(log_label_counts(task.render("validation", limit=limit, seed=seed)).instances)
        train, dropped = deduplicate(instances, against=validation)
    else:
        every, dropped = deduplicate(instances)
        free = [row for row in every if few is None or row.label is None]
        validation = holdout(free, seed=seed, stratify=by_labels)
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
    counts = {"num_validation": len(validation), "num_dropped": dropped, **sampled}
    record = TaskRecord(**replace(rendered, instances=train).record | counts)
    return TrainingData(train, validation, record, task, content_free)


def as_training_data(task: TrainingData | Task | StrPath, config: F2CConfig, **rows: Any) -> TrainingData:
    """Return a task's training data, with other ``rows`` for its ``train`` and ``validation`` if they are not None."""
    if not isinstance(config, F2CConfig):
        raise InputError("E-CONFIG", f"the settings are a {type(config).__name__}.", "Give F2CConfig(...).")
    new_rows = {split: value for split, value in rows.items() if value is not None}
    if not isinstance(task, TrainingData):
        task = as_task(task)
        return load_training_data(replace(task, data={**task.data, **new_rows}), config)
    if new_rows:
        raise InputError(
            "E-CONFIG",
            "the task is training data, which has its rows.",
            "Leave out train_dataset and eval_dataset, or give the task itself.",
        )
    return task


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
            raise InputError(
                "E-DATA-ROWS",
                f"{place} is not a row of the training data.",
                f"{'' if limit is None else 'Leave --limit out. '}Label rows of the split train; rows of the split "
                "test cannot be used.",
            )
        first, label = labelled.setdefault(instance.texts, (row, instance.label))
        if label != instance.label:
            raise InputError(
                "E-DATA-ROWS",
                f"{place} repeats {few.rows.unit} {first.number} with another label.",
                "Remove one of the two.",
            )
    return [replace(instance, label=labelled.get(instance.texts, (None, None))[1]) for instance in train]


# ---- encoded instances ----


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
        self.delimiter = encoder.delimiter_of(read[0].chat, read[0].prompts[0]) if read else ""
        self.too_long = [replace(prompt, split=split) for prompt in too_long]

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def gold(self) -> InstanceLabels:
        """Label indices, -1 for rows without a label."""
        return gold_of(self.instances)

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
    shapes = {}
    for (split, rows), dataset in zip(splits.items(), datasets, strict=True):
        if rows is not None and not len(dataset):
            raise InputError("E-DATA-ROWS", f"the {split} split has no rows.", "Give it rows, or None.")
        for row in dataset.instances[:1]:
            shapes[split] = f"{len(row.answers)} and {len(row.answers[0])}"
    if len(set(shapes.values())) > 1:
        numbers = " and ".join(f"{split}: {shape}" for split, shape in shapes.items())
        raise InputError(
            "E-DATA-ROWS",
            f"the splits differ in their templates and labels: {numbers}.",
            "Render all splits with the same templates and labels.",
        )


def require_data(instances: Sequence[EncodedInstance], args: F2CConfig) -> None:
    """Refuse one template, a clean template that does not exist, and rows without the gold labels of a method.

    Raises:
        InputError: ``E-NO-CONSENSUS``, ``E-CONFIG`` or ``E-NO-GOLD``.
    """
    method = find_method(args.method)
    num_templates = len(instances[0].answers) if instances else 2
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
        if golds:
            fault = "no generated answer is right"
        else:
            fault = f"none of the {len(instances)} training instances has one"
        raise InputError(
            "E-NO-GOLD", f"{method.name if method.uses_labels else 'supervised_weight'} uses gold labels, but {fault}."
        )


def collate(batch: Sequence[EncodedInstance]) -> dict[str, list[EncodedInstance]]:
    """Keep instances whole: they differ in the length of their prompts."""
    return {"instances": list(batch)}


def instances_per_step(config: F2CConfig) -> int:
    """Instances of an optimizer step, over all processes."""
    return config.per_device_train_batch_size * config.gradient_accumulation_steps * world_size()


@dataclass(eq=False)
class KeyedSampler(Sampler[int | None]):
    """A random order of the instances as a function of seed and epoch, so that a resumed run continues in it.

    The processes take turns: each gets up to ``batch_size`` of the next instances, and no process gets two more than
    another. Free places are None. So no instance is repeated to fill a batch, and the instances of a step do not
    depend on the number of processes. ``drop_last`` omits the last instances if they do not fill all batches.
    """

    dataset: Sized
    seed: int
    batch_size: int = 1
    drop_last: bool = False
    epoch: int = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def first(self, count: int) -> list[int]:
        """Return the indices of the first ``count`` draws in ascending order."""
        order = generator(self.seed, "order", 0).permutation(len(self.dataset))[:count]
        return sorted(order.tolist())

    def __iter__(self) -> Iterator[int | None]:
        order = generator(self.seed, "order", self.epoch).permutation(len(self.dataset)).tolist()
        together = world_size() * self.batch_size
        for start in range(0, len(self), together):
            for process in range(world_size()):
                share = order[start : start + together][process :: world_size()]
                yield from share
                yield from [None] * (self.batch_size - len(share))

    def __len__(self) -> int:
        together = world_size() * self.batch_size
        batches, rest = divmod(len(self.dataset), together)
        return (batches + (rest > 0 and not self.drop_last)) * together


def log_passes(num_instances: int, config: F2CConfig) -> None:
    """Log the number of passes over the instances, and warn if it is unusual."""
    step = instances_per_step(config)
    in_a_pass = math.ceil(num_instances / step)  # steps; the last may have fewer instances
    has_steps = config.max_steps > 0
    steps = config.max_steps if has_steps else math.ceil(config.num_train_epochs * in_a_pass)
    passes = steps / in_a_pass if steps >= in_a_pass else steps * step / num_instances
    log.info(
        "at most %.3g passes over %d training instances, in %s of %s",
        passes,
        num_instances,
        count(steps, "step"),
        count(step, "instance"),
    )
    if passes < 1:
        log.warning(
            "W-TRAINING: %d of the %d training instances are never seen. To use all of them, set %s.",
            num_instances - steps * step,
            num_instances,
            f"--max-steps {in_a_pass}" if has_steps else "--num-train-epochs 1",
        )
    elif passes > MANY_PASSES:
        log.warning(
            "W-TRAINING: every training instance is seen %.0f times, more than on any of the paper's datasets. "
            "Lower --max-steps or set --num-train-epochs.",
            passes,
        )
