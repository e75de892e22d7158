"""A validation split for tasks that have none, and instances without their doubles."""

from collections.abc import Mapping, Sequence

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import derive_seed

MOST_HELD_OUT = 1000


def holdout(
    instances: Sequence[RenderedInstance],
    *,
    seed: int,
    share: float = 0.1,
    size: int | None = None,
    most: int = MOST_HELD_OUT,
    stratify: bool = True,
) -> tuple[list[RenderedInstance], list[RenderedInstance]]:
    """Hold a validation split out of training instances, stratified by label where there are labels.

    Which instances are held out depends on their ids and the seed, not on their order.

    Args:
        instances: The training instances.
        seed: The user's seed.
        share: The share to hold out, at least one instance.
        size: The number to hold out instead of a share.
        most: The most to hold out.
        stratify: Keep the shares of the labels; False does not read them.

    Returns:
        What is left to train on, and the validation split, each in the order given.

    Raises:
        InputError: ``E-DATA-TOO-FEW``: nothing would be left on one of the two sides.

    Example:
        >>> rows = [RenderedInstance(f"train-{i}", ("p",), (("No", "Yes"),), i % 2) for i in range(40)]
        >>> train, validation = holdout(rows, seed=0)
        >>> len(train), len(validation), sum(instance.label for instance in validation)
        (36, 4, 2)
    """
    wanted = min(max(round(len(instances) * share), 1) if size is None else size, most)
    if not 0 < wanted < len(instances):
        message = f"{wanted} of {len(instances)} training instances cannot be held out for validation."
        raise InputError("E-DATA-TOO-FEW", message, "Add training rows, or a validation split of its own.")
    labelled = {instance.id: instance.label if stratify else None for instance in instances}
    held_out = draw_stratified(labelled, wanted, seed)
    train = [instance for instance in instances if instance.id not in held_out]
    return train, [instance for instance in instances if instance.id in held_out]


def draw_stratified(labels: Mapping[str, int | None], wanted: int, seed: int) -> set[str]:
    """Draw instances so that every label has its share.

    Args:
        labels: Each instance's label, by id.
        wanted: How many to draw.
        seed: With the ids it decides what is drawn; the order does not.
    """
    strata: dict[int, list[str]] = {}
    for identity, label in labels.items():
        strata.setdefault(-1 if label is None else label, []).append(identity)
    quotas = _quotas({label: len(members) for label, members in strata.items()}, wanted)
    drawn: set[str] = set()
    for label, members in strata.items():
        by_chance = sorted(members, key=lambda member: derive_seed(seed, "holdout", member))
        drawn.update(by_chance[: quotas[label]])
    return drawn


def _quotas(sizes: dict[int, int], wanted: int) -> dict[int, int]:
    """Shares of ``wanted`` in proportion to the sizes, by largest remainder; ties go to the lowest label."""
    total = sum(sizes.values())
    quotas = {label: wanted * size // total for label, size in sizes.items()}
    by_remainder = sorted(sizes, key=lambda label: (-(wanted * sizes[label] % total), label))
    for label in by_remainder[: wanted - sum(quotas.values())]:
        quotas[label] += 1
    return quotas


def deduplicate(
    instances: Sequence[RenderedInstance], *, against: Sequence[RenderedInstance] = ()
) -> tuple[list[RenderedInstance], int]:
    """Drop instances whose prompts and answers under every template are those of an earlier one.

    Args:
        instances: The instances; the first of several equal ones stays.
        against: Instances of other splits, which are not to come again in this one.

    Returns:
        The instances that stay, and how many were dropped.

    Example:
        >>> rows = [RenderedInstance(name, (name[0],), (("No", "Yes"),), None) for name in ("a1", "b1", "a2")]
        >>> [instance.id for instance in deduplicate(rows)[0]], deduplicate(rows)[1]
        (['a1', 'b1'], 1)
    """
    seen = {(instance.prompts, instance.choices) for instance in against}
    kept = []
    for instance in instances:
        rendered = (instance.prompts, instance.choices)
        if rendered not in seen:
            seen.add(rendered)
            kept.append(instance)
    return kept, len(instances) - len(kept)
