"""From rendered rows to batches of whole instances, in an order that depends on seed and epoch alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from typing import Any

from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError
from flip_flop.options import TooLongPolicy
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import generator
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder
from flip_flop.too_long import refuse_or_skip
from flip_flop.training.distributed import world_size

Rows = Iterable[RenderedInstance | Mapping[str, Any]]


class InstanceDataset(Dataset[EncodedInstance]):
    """Instances in tokens, encoded once; those that are longer than the model's context are in ``too_long`` alone.

    A row is a rendered instance, or a mapping ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label"}``;
    ``id`` and ``label`` may be absent.

    Raises:
        InputError: ``E-ROW`` for a row of another shape.
    """

    def __init__(self, rows: Rows, encoder: PromptEncoder, split: str = ""):
        rendered = [as_rendered(row, number) for number, row in enumerate(rows)]
        shapes = sorted({tuple(len(choices) for choices in row.choices) for row in rendered})
        if len(shapes) > 1:
            message = f"The rows differ in their numbers of choices under each template: {shapes[:3]}."
            raise InputError("E-ROW", message, "Give every row the same templates and labels.")
        if shapes and (len(set(shapes[0])) > 1 or min(shapes[0]) < 2):
            message = f"The templates of a row offer {shapes[0]} choices."
            raise InputError("E-ROW", message, "Give every template the same labels, at least two.")
        self.num_rows = len(rendered)
        self.instances, too_long = encoder.encode_all(rendered)
        self.too_long = [replace(each, split=split) for each in too_long]

    def __len__(self) -> int:
        return len(self.instances)

    def __getitem__(self, index: int) -> EncodedInstance:
        return self.instances[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[EncodedInstance]:
        """A micro-batch; the places that :class:`KeyedSampler` leaves free give nothing, so it may be empty."""
        return [self.instances[index] for index in indices if index is not None]


def encode_rows(encoder: PromptEncoder, policy: TooLongPolicy, **splits: Rows | None) -> list[InstanceDataset]:
    """A dataset of each split's rows. What is too long is found in all of them before it is refused or skipped.

    Raises:
        InputError: ``E-TOO-LONG``, also where nothing is left of a split.
    """
    datasets = [InstanceDataset(() if rows is None else rows, encoder, split) for split, rows in splits.items()]
    too_long = [each for dataset in datasets for each in dataset.too_long]
    num_rows = sum(dataset.num_rows for dataset in datasets)
    if any(dataset.too_long and not len(dataset) for dataset in datasets):
        policy = "refuse"
    refuse_or_skip(too_long, num_rows, policy)
    return datasets


def as_rendered(row: RenderedInstance | Mapping[str, Any], number: int) -> RenderedInstance:
    """One training row as a :class:`~flip_flop.prompts.RenderedInstance`."""
    if isinstance(row, RenderedInstance):
        return row
    prompts, choices = row.get("prompts"), row.get("choices")
    if not prompts or not choices or len(prompts) != len(choices):
        message = f"Row {number}: 'prompts' and 'choices' must be lists with one entry per template."
        hint = 'A row is {"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int or None}.'
        raise InputError("E-ROW", message, hint)
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
