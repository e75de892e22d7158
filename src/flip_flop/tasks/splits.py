"""Validation splits, samples and duplicates of rendered instances.

Splits depend on the ids of the rows and the seed. They do not depend on the order of the rows or on the machine.
"""

from collections.abc import Iterable, Mapping, Sequence

from flip_flop.errors import InputError
from flip_flop.files import derive_seed
from flip_flop.prompts import RenderedInstance

MAX_VALIDATION = 1000


def holdout_size(num_instances: int) -> int:
    """A tenth, at least one and at most :data:`MAX_VALIDATION`."""
    return min(max(round(num_instances * 0.1), 1), MAX_VALIDATION)


def holdout(
    instances: Sequence[RenderedInstance], *, seed: int, stratify: bool = True
) -> tuple[list[RenderedInstance], list[RenderedInstance]]:
    """Hold out a tenth of the training instances for validation, at least one and at most :data:`MAX_VALIDATION`.

    ``stratify`` keeps the shares of the labels, and draws from the labelled instances if there are enough of them.
    False does not read labels. Both splits keep the order given.

    Raises:
        InputError: ``E-DATA-ROWS``: one of the two would be empty.
    """
    wanted = holdout_size(len(instances))
    if len(instances) <= wanted:
        raise InputError(
            "E-DATA-ROWS",
            f"{wanted} of {len(instances)} training instances cannot be held out for validation.",
            "Add training rows, or a validation split.",
        )
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    known = {name: label for name, label in labelled.items() if label is not None}
    held_out = draw_stratified(known if len(known) >= wanted else labelled, wanted, seed)
    train = [instance for instance in instances if instance.id not in held_out]
    return train, [instance for instance in instances if instance.id in held_out]


def sample_ids(ids: Iterable[str], limit: int, seed: int) -> set[str]:
    """Draw a uniform sample of the ids. A larger sample includes a smaller one.

    Raises:
        InputError: ``E-TASK-KEY`` if the limit is below one.
    """
    if limit < 1:
        raise InputError("E-TASK-KEY", f"the limit is {limit}.", "Take at least one instance.")
    return {*sorted(ids, key=lambda identity: derive_seed(seed, "limit", identity))[:limit]}


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw ``wanted`` of the ids of ``labels`` so that every label has its share, by largest remainder."""
    strata: dict[int, list[str]] = {}
    for identity, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(identity)
    quotas = label_quotas({label: len(members) for label, members in strata.items()}, wanted)
    return {
        member
        for label, members in strata.items()
        for member in sorted(members, key=lambda identity: derive_seed(seed, "holdout", identity))[: quotas[label]]
    }


def label_quotas(counts: Mapping[int, int], wanted: int) -> dict[int, int]:
    """How many of each label are among ``wanted``, by largest remainder; the smaller label wins a tie.

    Example:
        >>> label_quotas({2: 5, 0: 3, 1: 2}, 4)
        {2: 2, 0: 1, 1: 1}
    """
    total = sum(counts.values())
    quotas = {label: wanted * count // total for label, count in counts.items()}
    by_remainder = sorted(counts, key=lambda label: (-(wanted * counts[label] % total), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    return quotas


def deduplicate(
    instances: Sequence[RenderedInstance], *, against: Sequence[RenderedInstance] = ()
) -> tuple[list[RenderedInstance], int]:
    """The instances that render like no earlier one and like none of ``against``, and how many were dropped."""
    excluded = {(instance.prompts, instance.choices) for instance in against}
    first: dict[tuple[object, ...], RenderedInstance] = {}
    for instance in instances:
        if (rendered := (instance.prompts, instance.choices)) not in excluded:
            first.setdefault(rendered, instance)
    return list(first.values()), len(instances) - len(first)
