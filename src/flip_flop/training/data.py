"""From training rows to batches of whole instances, in an order that depends on seed and epoch alone."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from typing import Any

from torch.utils.data import Dataset, Sampler

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import generator
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder


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
