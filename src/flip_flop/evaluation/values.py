"""The values of an audit: its record, metrics and scores."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
from jaxtyping import Int

from flip_flop.arrays import InstanceLabels, LabelScores, Predictions
from flip_flop.console import Interval
from flip_flop.errors import look_up
from flip_flop.files import Json
from flip_flop.metrics import (
    ALIASES,
    BETWEEN_RUNS,
    METRICS,
    AxisKey,
    AxisRow,
    Scores,
    TemplateRanking,
    axis_rows,
    calibrated,
    forms_of,
    rank_templates,
)
from flip_flop.prompts import RenderedInstance
from flip_flop.record import RunRecord
from flip_flop.scoring.too_long import TooLong

Form = TypeVar("Form", bound="AuditValues")


@dataclass(frozen=True, eq=False, repr=False)
class AuditValues:
    """The values of an audit; their attributes are those of :class:`~flip_flop.Audit`."""

    record: RunRecord
    metrics: Json
    data: Scores
    template_names: tuple[str, ...]
    path: Path = Path()
    too_long_file: bytes = b""
    instances: Iterable[RenderedInstance] = ()
    too_long: tuple[TooLong, ...] = ()

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.record.name or self.path.name

    @property
    def place(self) -> str:
        """Its name in errors: the run directory, or the name of an audit in memory."""
        return str(self.path) if self.folder else self.name

    @property
    def folder(self) -> str:
        """The name of the run directory; empty for an audit in memory."""
        return self.path.resolve().name if self.path.name else ""

    @property
    def scores(self) -> LabelScores:
        """Mean log-probability of each answer's tokens, in nats."""
        return self.data.values

    @property
    def token_counts(self) -> Int[np.ndarray, "instances templates labels"]:
        """The number of tokens of each answer."""
        assert self.data.token_counts is not None
        return self.data.token_counts

    @property
    def gold(self) -> InstanceLabels:
        """Label indices, -1 without a gold label."""
        return self.data.gold

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """The ids of the instances."""
        return self.data.ids

    @property
    def predictions(self) -> Predictions:
        """The label with the highest score; ties go to the lowest index."""
        return self.data.predictions

    @property
    def label_names(self) -> tuple[str, ...]:
        """The labels' names, in the order of the scores."""
        return self.record.task.label_names or tuple(map(str, self.record.task.labels))

    @cached_property
    def answer_words(self) -> Sequence[Sequence[str]]:
        """The open answers of each instance, in the order of its labels."""
        if self.data.answered:
            return [instance.choices[0] for instance in self.instances]
        return ()

    def label_name(self, label: int, row: int = 0) -> str:
        """A label's name, or the open answer to an instance. -1 is an answer that is none of the labels."""
        if label < 0:
            return "unreadable" if self.data.answered else "no label"
        if row < len(self.answer_words):
            return self.answer_words[row][label]
        return self.label_names[label]

    @property
    def has_gold(self) -> bool:
        """Whether accuracy could be computed."""
        return self.value("accuracy") is not None

    @property
    def is_collapsed(self) -> bool:
        """Whether one label dominates the predictions, or every template is constant."""
        return bool(self.metrics.get("collapsed"))

    @property
    def constant_templates(self) -> dict[str, str]:
        """The label of each template that predicts it for every instance."""
        first = dict(zip(self.template_names, self.predictions[0].tolist(), strict=True))
        return {name: self.label_name(first[name]) for name in self.metrics["constant_templates"]}

    @property
    def method(self) -> str | None:
        """The training method of the adapter such as ``f2c``, or ``None`` for a base model."""
        method = (self.record.training or {}).get("method")
        if method is None and self.record.adapter:
            return self.record.adapter.method
        return method

    @property
    def uses_labels(self) -> bool:
        """Whether the loss of the adapter's training read gold labels."""
        return bool(self.record.adapter and self.record.adapter.uses_labels)

    def value(self, metric: str) -> float | None:
        """Return a number of ``metrics.json``, or ``None`` for a metric without a value.

        Raises:
            InputError: ``E-CONFIG`` for an unknown name.
        """
        known = dict.fromkeys((*METRICS, *BETWEEN_RUNS)) | self.metrics
        return look_up(ALIASES.get(metric, metric), known, "E-CONFIG", "there is no metric")

    def interval(self, metric: str) -> Interval | None:
        """Return the 95% interval of a metric, or ``None``."""
        self.value(metric)  # refuses an unknown name
        ends = (self.metrics.get("intervals") or {}).get(ALIASES.get(metric, metric))
        return (float(ends[0]), float(ends[1])) if ends else None

    def num_pairs(self, metric: str) -> int:
        """The number of pairs of answers of a flip rate, in which both could be read. 0 for other metrics."""
        return int((self.metrics.get("flip_pairs") or {}).get(metric, 0))

    @property
    def f1_range(self) -> Interval | None:
        """F1 of the worst template and of the best."""
        values = list((self.metrics.get("f1_per_template") or {}).values())
        return (min(values), max(values)) if values else None

    @cached_property
    def calibrated(self: Form) -> Form | None:
        """The same instances with calibrated scores; None if the audit has no calibration."""
        metrics = self.metrics.get("calibrated")
        if metrics is None:
            return None
        offsets = np.array([metrics["offsets"][name] for name in self.template_names])
        record = replace(self.record, name=f"{self.name} (calibrated)")
        data = replace(self.data, values=calibrated(self.scores, offsets))
        return replace(self, record=record, metrics=metrics, data=data)

    @property
    def views(self: Form) -> list[Form]:
        """This audit, and the one with calibrated scores if there is one."""
        return [self] if self.calibrated is None else [self, self.calibrated]

    @cached_property
    def forms(self) -> dict[str, Scores]:
        """The answers in each form that the table of axes compares."""
        if self.calibrated is None:
            return forms_of(self.data)
        return forms_of(self.data, self.calibrated.data, self.calibrated.metrics.get("label_prior"))

    @cached_property
    def axis_rows(self) -> dict[AxisKey, AxisRow]:
        """The table of axes, what changes the answer, by axis, wording and form, with those of BETWEEN_RUNS."""
        tokens = self.metrics.get("prompt_tokens_per_template") or {}
        rows = axis_rows(self.forms, [*tokens.values()], seed=self.record.seed or 0)
        for metric, axis in BETWEEN_RUNS.items():
            if ends := self.interval(metric):
                flips = (self.num_pairs(metric), self.value(metric) or 0.0, *ends)
                rows[axis, None, "raw"] = AxisRow(len(self.template_names), *flips)
        return rows

    @cached_property
    def template_ranking(self) -> TemplateRanking:
        """The templates, best first: by macro-F1 from 50 gold labels on, else by agreement with the calibrated vote."""
        data = self.data.by_f1("macro")
        return rank_templates(data, self.calibrated.data if self.calibrated else None)
