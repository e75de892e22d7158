"""The metrics, one table: what each is called, which direction is better, and how it is computed."""

from dataclasses import dataclass

import numpy as np

from flip_flop.metrics.agreement import AGREEMENT, FLEISS_KAPPA, NO_CONSENSUS
from flip_flop.metrics.bootstrap import Statistic, bootstrap_interval, paired_bootstrap_interval
from flip_flop.metrics.data import EvalData
from flip_flop.metrics.f1 import ACCURACY, MEAN_F1, f1_per_template
from flip_flop.metrics.sensitivity import POSIX


@dataclass(frozen=True)
class Metric:
    """A number about one run. Its entry in :data:`METRICS` puts it into ``metrics.json``, reports and ``--fail-under``.

    Attributes:
        name: Its key in ``metrics.json``.
        title: Its name in tables of plain text.
        statistic: From :class:`~flip_flop.metrics.EvalData` to the number, or to None or NaN where it has no
            value. The intervals resample a :class:`~flip_flop.metrics.SumStatistic` in one matrix product;
            they call any other function once for each resample.
        label: Its name in the HTML report; by default the title.
        meaning: A sentence for the report.
        higher_is_better: The direction of improvement.
        needs_gold: Whether it is of the instances with a gold label only, and has no value without any.
        in_percent: Whether it is a fraction, which tables print in percent.
        decimals: Digits after the point in tables of studies.
        has_interval: Whether resampling tells its uncertainty. It adds noise to each template's F1 and so to their
            spread: around a spread of 0.01 the percentile interval misses, in simulations with 300 instances
            and 8 templates, the very value that it is drawn around half of the time.
    """

    name: str
    title: str
    statistic: Statistic
    label: str = ""
    meaning: str = ""
    higher_is_better: bool = True
    needs_gold: bool = False
    in_percent: bool = True
    decimals: int = 2
    has_interval: bool = True

    def value(self, data: EvalData) -> float | None:
        """The number; None where there is none."""
        data = self._judged(data)
        found = self.statistic(data) if len(data) else None
        return None if found is None or np.isnan(found) else float(found)

    def interval(self, data: EvalData, *, seed: int = 0) -> tuple[float, float] | None:
        """Its 95% bootstrap interval over instances."""
        if not self.has_interval or self.value(data) is None:
            return None
        return bootstrap_interval(self.statistic, self._judged(data), seed=seed)

    def change_interval(self, before: EvalData, *after: EvalData) -> tuple[float, float] | None:
        """The paired 95% interval of its mean over the runs ``after`` less its value ``before``."""
        if not self.has_interval or any(self.value(data) is None for data in (before, *after)):
            return None
        return paired_bootstrap_interval(
            self.statistic, [self._judged(before)], *([self._judged(data)] for data in after)
        )

    def _judged(self, data: EvalData) -> EvalData:
        return data.labelled if self.needs_gold else data


def _f1(data: EvalData) -> np.ndarray:
    f1 = f1_per_template(data.predictions, data.gold, num_labels=data.num_labels, average=data.average)
    assert f1 is not None, "a metric that needs gold sees labelled instances only"
    return f1


METRICS = {
    metric.name: metric
    for metric in (
        Metric(
            "observed_agreement",
            "P_o",
            AGREEMENT,
            label="Agreement Pₒ",
            meaning="How likely two templates give an instance the same label.",
        ),
        Metric(
            "mean_f1",
            "mean F1",
            MEAN_F1,
            label="Mean F1",
            meaning="F1 of a single template, averaged over templates.",
            needs_gold=True,
        ),
        Metric(
            "f1_std",
            "sigma_F1",
            lambda data: float(_f1(data).std(ddof=0)) if data.scores.shape[1] > 1 else None,
            label="σ of F1",
            meaning="The population standard deviation of F1 over templates.",
            higher_is_better=False,
            needs_gold=True,
            has_interval=False,
        ),
        Metric(
            "macro_f1",
            "macro F1",
            MEAN_F1.of(lambda data: data.macro),
            label="Macro-F1",
            meaning="F1 averaged over all labels, then over templates.",
            needs_gold=True,
        ),
        Metric(
            "accuracy",
            "accuracy",
            ACCURACY,
            label="Accuracy",
            meaning="The share of right answers, averaged over templates.",
            needs_gold=True,
        ),
        Metric(
            "vote_f1",
            "vote F1",
            MEAN_F1.of(lambda data: data.voted),
            label="Vote F1",
            meaning="F1 of the majority vote of the templates.",
            needs_gold=True,
        ),
        Metric(
            "vote_accuracy",
            "vote accuracy",
            ACCURACY.of(lambda data: data.voted),
            label="Vote accuracy",
            meaning="Accuracy of the majority vote of the templates.",
            needs_gold=True,
        ),
        Metric(
            "no_consensus_share",
            "no consensus",
            NO_CONSENSUS,
            label="No majority",
            meaning="The share of instances on which no label has more than half of the templates.",
            higher_is_better=False,
        ),
        Metric(
            "fleiss_kappa",
            "kappa",
            FLEISS_KAPPA,
            label="Fleiss' κ",
            meaning="Agreement beyond chance: 0 is what answers in these label shares reach by chance, 100 is full "
            "agreement. It has no value where all answers are one label.",
        ),
        Metric(
            "posix",
            "POSIX",
            POSIX,
            label="POSIX",
            meaning="How much the log-probability of an answer changes when another template asks, in nats.",
            higher_is_better=False,
            in_percent=False,
        ),
        Metric(
            "f1_spread",
            "F1 spread",
            lambda data: float(np.ptp(_f1(data))) if data.scores.shape[1] > 1 else None,
            label="F1 spread",
            meaning="F1 of the best template less that of the worst.",
            higher_is_better=False,
            needs_gold=True,
            has_interval=False,
        ),
        Metric(
            "ensemble_f1",
            "ensemble F1",
            MEAN_F1.of(lambda data: data.ensembled),
            label="Ensemble F1",
            meaning="F1 of the label with the largest mean probability over templates.",
            needs_gold=True,
        ),
    )
}
