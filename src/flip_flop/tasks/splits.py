"""A validation split for tasks that have none, and instances without their duplicates."""

from collections.abc import Mapping, Sequence

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import derive_seed

MAX_VALIDATION = 1000


def holdout(
    instances: Sequence[RenderedInstance], *, seed: int, stratify: bool = True
) -> tuple[list[RenderedInstance], list[RenderedInstance]]:
    """Hold a tenth of training instances out for validation, at least one and at most :data:`MAX_VALIDATION`.

    Which instances are held out depends on their ids and the seed, not on their order. ``stratify`` keeps the shares
    of the labels, where there are labels; False does not read them. Both splits keep the order given.

    Raises:
        InputError: ``E-DATA-TOO-FEW``: one of the two would be empty.

    Example:
        >>> rows = [RenderedInstance(f"train-{i}", ("p",), (("No", "Yes"),), i % 2) for i in range(40)]
        >>> train, validation = holdout(rows, seed=0)
        >>> len(train), len(validation), sum(instance.label for instance in validation)
        (36, 4, 2)
    """
    wanted = min(max(round(len(instances) * 0.1), 1), MAX_VALIDATION)
    if len(instances) <= wanted:
        message = f"{wanted} of {len(instances)} training instances cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Add training rows, or a validation split.")
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    held_out = draw_stratified(labelled, wanted, seed)
    train = [instance for instance in instances if instance.id not in held_out]
    return train, [instance for instance in instances if instance.id in held_out]


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw ``wanted`` ids so that every label has its share, by largest remainder; ties go to the lowest label.

    ``labels`` gives each instance's label, by id. The ids and the seed decide what is drawn; the order does not.
    """
    strata: dict[int, list[str]] = {}
    for identity, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(identity)
    quotas = {label: wanted * len(members) // len(labels) for label, members in strata.items()}
    by_remainder = sorted(strata, key=lambda label: (-(wanted * len(strata[label]) % len(labels)), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    drawn: set[str] = set()
    for label, members in strata.items():
        by_chance = sorted(members, key=lambda member: derive_seed(seed, "holdout", member))
        drawn.update(by_chance[: quotas[label]])
    return drawn


def deduplicate(
    instances: Sequence[RenderedInstance], *, against: Sequence[RenderedInstance] = ()
) -> tuple[list[RenderedInstance], int]:
    """Drop instances whose prompts and answers under every template are those of an earlier one, or of ``against``.

    Returns:
        The instances that stay, and how many were dropped.

    Example:
        >>> rows = [RenderedInstance(name, (name[0],), (("No", "Yes"),), None) for name in ("a1", "b1", "a2")]
        >>> [instance.id for instance in deduplicate(rows)[0]], deduplicate(rows)[1]
        (['a1', 'b1'], 1)
    """
    excluded = {(instance.prompts, instance.choices) for instance in against}
    first: dict[tuple[object, ...], RenderedInstance] = {}
    for instance in instances:
        if (rendered := (instance.prompts, instance.choices)) not in excluded:
            first.setdefault(rendered, instance)
    return list(first.values()), len(instances) - len(first)
