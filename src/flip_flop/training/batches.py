"""From rendered rows to batches of whole instances, in an order that depends on seed and epoch alone."""

from collections.abc import Iterator, Sequence, Sized
from dataclasses import replace

import numpy as np
from jaxtyping import Int64
from torch.utils.data import Dataset, Sampler

from flip_flop.console import track
from flip_flop.files import generator
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.distributed import world_size
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.options import TooLongPolicy
from flip_flop.scoring.too_long import refuse_or_skip
from flip_flop.tasks import RenderedRows, render_rows


class InstanceDataset(Dataset[EncodedInstance]):
    """Instances in tokens, encoded once; those that are longer than the model's context are in ``too_long`` alone.

    A row is a rendered instance, or a mapping ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label"}``;
    ``id`` and ``label`` may be absent.

    Raises:
        InputError: ``E-ROW`` for a row of another shape.
    """

    def __init__(self, rows: RenderedRows, encoder: PromptEncoder, split: str = "", *, quiet: bool = True):
        rendered = render_rows(rows)
        self.num_rows = len(rendered)
        encoded, too_long = encoder.encode_all(rendered)
        self.instances: list[EncodedInstance] = []
        with track(f"encoding {split}", len(encoded), "instances", quiet=quiet) as advance:
            for instance in encoded:
                self.instances.append(instance)
                advance(1)
        self.too_long = [replace(each, split=split) for each in too_long]

    def __len__(self) -> int:
        return len(self.instances)

    @property
    def gold(self) -> Int64[np.ndarray, " instances"]:
        """Label indices, -1 where there is none."""
        return np.array([-1 if each.label is None else each.label for each in self.instances], dtype=np.int64)

    def __getitem__(self, index: int) -> EncodedInstance:
        return self.instances[index]

    def __getitems__(self, indices: Sequence[int | None]) -> list[EncodedInstance]:
        """A micro-batch; the places that :class:`KeyedSampler` leaves free give nothing, so it may be empty."""
        return [self.instances[index] for index in indices if index is not None]


def encode_rows(
    encoder: PromptEncoder, policy: TooLongPolicy, *splits: tuple[str, RenderedRows | None], quiet: bool | None = True
) -> list[InstanceDataset]:
    """A dataset of each split, given by its name and rows.

    What is too long is found in all of them before it is refused or skipped.

    Raises:
        InputError: ``E-TOO-LONG``, also where nothing is left of a split.
    """
    datasets = [
        InstanceDataset(() if rows is None else rows, encoder, split, quiet=bool(quiet)) for split, rows in splits
    ]
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
