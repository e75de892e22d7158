"""From a task to batches of whole instances, in an order that depends on seed and epoch alone."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import generator
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder
from flip_flop.tasks import Task, deduplicate, holdout
from flip_flop.training.config import F2CConfig

log = logging.getLogger("flip_flop")


@dataclass(frozen=True)
class TrainingData:
    """The unlabelled pool and the split that checkpoints are chosen on.

    Attributes:
        train: Instances to train on, under the templates that are not held out, without duplicates.
        validation: Instances of the task's ``validation`` split, or a tenth held out of ``train``.
        record: For the run's record.
    """

    train: list[RenderedInstance]
    validation: list[RenderedInstance]
    record: dict[str, Any]


def load_training_data(task: Task, config: F2CConfig, *, limit: int | None = None) -> TrainingData:
    """Read, render, deduplicate and split a task's data.

    Args:
        task: With a ``train`` split, and a ``validation`` split or not.
        config: Its seed, and whether labels choose the checkpoint: only then do they stratify what is held out.
        limit: Take a uniform sample of this size, of each of the two; without a ``validation`` split, a tenth of the
            sample is held out.

    Raises:
        InputError: ``E-DATA-TOO-FEW``, or an error of the task's data.
    """
    seed, by_labels = config.seed, config.select_by in ("auto", "mean_f1")
    task = task.with_templates(task.training_templates.names)
    rendered = task.render("train", limit=limit, seed=seed)
    if "validation" in task.data:
        validation = list(task.instances("validation", limit=limit, seed=seed))
        train, dropped = deduplicate(rendered.instances, against=validation)
    else:
        train, dropped = deduplicate(rendered.instances)
        train, validation = holdout(train, seed=seed, stratify=by_labels)
        log.info("no validation split: %d of the training instances are held out for it", len(validation))
    if dropped:
        log.info("%d training instances were dropped: they render like another one", dropped)
    if not train:
        raise InputError("E-DATA-TOO-FEW", "No training instance is left.", "Add rows that differ from the others.")
    record = replace(rendered, instances=train).record
    return TrainingData(train, validation, record | {"num_validation": len(validation), "num_dropped": dropped})


class InstanceDataset(Dataset[EncodedInstance]):
    """Instances in tokens, encoded once.

    Args:
        rows: Rendered instances, or mappings ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label"}``;
            a ``datasets.Dataset`` of such rows too. ``id`` and ``label`` may be absent.
        encoder: The boundary rule with the model's tokenizer.

    Raises:
        InputError: ``E-ROW`` for a row of another shape.
    """

    def __init__(self, rows: Iterable[RenderedInstance | Mapping[str, Any]], encoder: PromptEncoder):
        rendered = [
            row if isinstance(row, RenderedInstance) else as_rendered(row, number) for number, row in enumerate(rows)
        ]
        shapes = {(len(row.prompts), tuple(len(choices) for choices in row.choices)) for row in rendered}
        if len(shapes) > 1:
            raise InputError(
                "E-ROW",
                f"The rows differ in their numbers of templates and labels: {sorted(shapes)[:3]}.",
                "Give every row the same templates and labels.",
            )
        for number, row in enumerate(rendered):
            counts = {len(choices) for choices in row.choices}
            if len(counts) > 1 or min(counts) < 2:
                raise InputError(
                    "E-ROW",
                    f"Row {number}: the templates offer {sorted(counts)} choices.",
                    "Give every template the same labels, at least two.",
                )
        self.instances = [encoder.encode(row) for row in rendered]

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> EncodedInstance:
        return self.instances[index]


def as_rendered(row: Mapping[str, Any], number: int) -> RenderedInstance:
    """One training row as a :class:`~flip_flop.prompts.RenderedInstance`."""
    prompts, choices = row.get("prompts"), row.get("choices")
    if not prompts or not choices or len(prompts) != len(choices):
        raise InputError(
            "E-ROW",
            f"Row {number}: 'prompts' and 'choices' must be lists with one entry per template.",
            'A row is {"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int or None}.',
        )
    identifier = row.get("id")
    return RenderedInstance(
        id=str(number if identifier is None else identifier),
        prompts=tuple(prompts),
        choices=tuple(tuple(labels) for labels in choices),
        label=row.get("label"),
    )


def collate(instances: Sequence[EncodedInstance]) -> dict[str, list[EncodedInstance]]:
    """A batch keeps its instances whole: ``{"instances": [...]}``. Their tokens are laid out by the back end."""
    return {"instances": list(instances)}


class KeyedSampler(Sampler[int]):
    """A random order of the instances that is a function of (seed, epoch), so that a resumed run goes on in it."""

    def __init__(self, dataset: Sized, seed: int):
        self.dataset = dataset
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer before each epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(generator(self.seed, "order", self.epoch).permutation(len(self.dataset)).tolist())

    def __len__(self) -> int:
        return len(self.dataset)
