"""From a task to batches of whole instances, in an order that depends on seed and epoch alone."""

import logging
from collections.abc import Iterator, Sequence, Sized
from dataclasses import dataclass, replace

from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError
from flip_flop.metrics import check_prior
from flip_flop.options import TooLongPolicy
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import generator
from flip_flop.run_record import TaskRecord
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder
from flip_flop.tasks import RenderedRows, Task, deduplicate, draw_stratified, holdout, render_rows
from flip_flop.tasks.task import gold_digest, instances_digest
from flip_flop.too_long import refuse_or_skip
from flip_flop.training.config import F2CConfig
from flip_flop.training.distributed import world_size

log = logging.getLogger("flip_flop")


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled pool, the split that checkpoints are chosen on, and inputs without content for the votes."""

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: TaskRecord
    content_free: Sequence[RenderedInstance] = ()


def load_training_data(
    task: Task, config: F2CConfig, *, limit: int | None = None, eval_limit: int | None = None
) -> TrainingData:
    """Read, render and deduplicate a task's data, under the templates that are not held out.

    Validation are the instances of the task's ``validation`` split; without one, a tenth of ``train`` is held out,
    stratified by labels only where labels choose the checkpoint. Of each split a uniform sample of ``limit`` is taken.
    ``eval_limit`` then keeps so many validation instances, in the shares of the labels where these choose the
    checkpoint: evaluation during training is cheaper, and no longer the paper's.

    Raises:
        InputError: ``E-DATA-TOO-FEW``, or an error of the task's data.
    """
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1")
    task = task.with_templates(task.training_templates.names)
    rendered = task.render("train", limit=limit, seed=seed)
    if config.label_prior is not None:
        check_prior(config.label_prior, len(rendered.instances[0].choices[0]))
    content_free = rendered.content_free() if config.vote_calibration == "contextual" else ()
    if "validation" in task.data:
        validation = list(task.instances("validation", limit=limit, seed=seed))
        train, dropped = deduplicate(rendered.instances, against=validation)
    else:
        train, dropped = deduplicate(rendered.instances)
        train, validation = holdout(train, seed=seed, stratify=by_labels)
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    sampled = {}
    if eval_limit is not None and eval_limit < len(validation):
        labels = {instance.id: instance.label if by_labels else None for instance in validation}
        kept = draw_stratified(labels, eval_limit, seed)
        validation = [instance for instance in validation if instance.id in kept]
        sampled = {"eval_limit": eval_limit}
    if dropped:
        log.info("%d training instances were dropped: they render like another one", dropped)
    if not train:
        raise InputError("E-DATA-TOO-FEW", "No training instance is left.", "Add rows that differ from the others.")
    record = TaskRecord.from_json(replace(rendered, instances=train).record)
    more = {"validation": instances_digest(validation), "validation_gold": gold_digest(validation)}
    extra = {"num_validation": len(validation), "num_dropped": dropped, **sampled}
    return TrainingData(
        train, validation, replace(record, digests={**record.digests, **more}, extra=extra), content_free
    )


class InstanceDataset(Dataset[EncodedInstance]):
    """Instances in tokens, encoded once; those that are longer than the model's context are in ``too_long`` alone.

    A row is a rendered instance, or a mapping ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label"}``;
    ``id`` and ``label`` may be absent.

    Raises:
        InputError: ``E-ROW`` for a row of another shape.
    """

    def __init__(self, rows: RenderedRows, encoder: PromptEncoder):
        rendered = render_rows(rows)
        self.num_rows = len(rendered)
        self.instances, self.too_long = encoder.encode_all(rendered)

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> EncodedInstance:
        return self.instances[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[EncodedInstance]:
        """A micro-batch; the places that :class:`KeyedSampler` leaves free give nothing, so it may be empty."""
        return [self.instances[index] for index in indices if index is not None]


def encode_rows(encoder: PromptEncoder, policy: TooLongPolicy, *groups: RenderedRows | None) -> list[InstanceDataset]:
    """A dataset of each group of rows. What is too long is found in all of them before it is refused or skipped.

    Raises:
        InputError: ``E-TOO-LONG``, also where nothing is left of a group.
    """
    datasets = [InstanceDataset(() if rows is None else rows, encoder) for rows in groups]
    too_long = [each for dataset in datasets for each in dataset.too_long]
    num_rows = sum(dataset.num_rows for dataset in datasets)
    if any(dataset.too_long and not len(dataset) for dataset in datasets):
        policy = "refuse"
    refuse_or_skip(too_long, num_rows, policy)
    return datasets


def collate(instances: Sequence[EncodedInstance]) -> dict[str, list[EncodedInstance]]:
    """A batch keeps its instances whole: ``{"instances": [...]}``. Their tokens are laid out by the back end."""
    return {"instances": list(instances)}


class KeyedSampler(Sampler[int | None]):
    """A random order of the instances that is a function of (seed, epoch), so that a resumed run goes on in it.

    Batches go to the processes in turn. Of the next instances in the order each process gets as many as the others, up
    to ``batch_size``, or one fewer; free places are None. So an epoch is whole batches for all processes: nobody
    repeats an instance to fill one up, and a step's instances are the same however many processes share them.
    ``drop_last`` leaves out the last instances instead, where they do not fill a batch of each process.
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
        """Which instances the first ``count`` draws take, in the order of their index."""
        order = generator(self.seed, "order", 0).permutation(len(self.dataset))[:count]
        return sorted(order.tolist())

    def __iter__(self) -> Iterator[int | None]:
        order = generator(self.seed, "order", self.epoch).permutation(len(self.dataset)).tolist()
        processes = world_size()
        together = processes * self.batch_size
        for start in range(0, len(self), together):
            for process in range(processes):
                share = order[start : start + together][process::processes]
                yield from share
                yield from [None] * (self.batch_size - len(share))

    def __len__(self) -> int:
        together = world_size() * self.batch_size
        batches, rest = divmod(len(self.dataset), together)
        return (batches + (rest > 0 and not self.drop_last)) * together
