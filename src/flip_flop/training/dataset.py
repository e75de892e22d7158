"""Encoded instances, their checks, and their order in training."""

import math
from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64
from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError, log
from flip_flop.files import generator
from flip_flop.method import find_method
from flip_flop.metrics import gold_of
from flip_flop.scoring.distributed import num_parts, world_size
from flip_flop.scoring.encode import EncodedInstance, PromptEncoder
from flip_flop.scoring.options import TooLongPolicy
from flip_flop.scoring.too_long import refuse_or_skip
from flip_flop.tasks import (
    RenderedRows,
    instances_digest,
    render_rows,
)
from flip_flop.training.config import F2CConfig

# On CB, the smallest of the paper's datasets, 150 steps of 32 instances are 21 passes over 194 rows.
MANY_PASSES = 25


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
    def gold(self) -> Int64[np.ndarray, " instances"]:
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
    shapes = []
    for (split, rows), dataset in zip(splits.items(), datasets, strict=True):
        if rows is not None and not len(dataset):
            raise InputError("E-DATA-ROWS", f"the {split} split has no rows.", "Give it rows, or None.")
        shapes += [(split, len(row.answers), len(row.answers[0])) for row in dataset.instances[:1]]
    for split, *shape in shapes:
        if shape != list(shapes[0][1:]):
            numbers = " and ".join(f"{split}: {templates} and {labels}" for split, templates, labels in shapes)
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
