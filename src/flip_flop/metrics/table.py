"""The metrics, one table: what each is called, which direction is better, and how it is computed."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number about one run.

    Attributes:
        name: Its key in ``metrics.json``.
        title: Its name in tables.
        higher_is_better: The direction of improvement.
        needs_gold: Whether it has no value without gold labels.
        decimals: Digits after the point, of percent, in tables of studies.
    """

    name: str
    title: str
    higher_is_better: bool = True
    needs_gold: bool = False
    decimals: int = 2


METRICS = {
    metric.name: metric
    for metric in (
        Metric("observed_agreement", "P_o"),
        Metric("mean_f1", "mean F1", needs_gold=True),
        Metric("f1_std", "sigma_F1", higher_is_better=False, needs_gold=True),
        Metric("macro_f1", "macro F1", needs_gold=True),
        Metric("accuracy", "accuracy", needs_gold=True),
        Metric("vote_f1", "vote F1", needs_gold=True),
        Metric("vote_accuracy", "vote accuracy", needs_gold=True),
        Metric("no_consensus_share", "no consensus", higher_is_better=False),
    )
}
