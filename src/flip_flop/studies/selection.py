"""What each rule of selection would have chosen among a training's checkpoints, from its log alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from flip_flop.metrics import share_drift
from flip_flop.studies.records import read_log, read_record
from flip_flop.studies.results import Result

Criterion = Literal["mean_f1", "agreement"]


@dataclass(frozen=True)
class Candidate:
    """One checkpoint on the validation split.

    Attributes:
        step: The optimizer step.
        mean_f1: ``None`` without labels.
        agreement: Observed agreement; ``None`` for one template.
        drift: How far its label shares are from the base's majority votes; ``None`` where the base was not scored.
    """

    step: int
    mean_f1: float | None
    agreement: float | None
    drift: float | None


@dataclass(frozen=True)
class Choice:
    """One training's checkpoints, and what each rule prefers: the first of the best, as training does.

    Attributes:
        method: What was trained with.
        task: On what.
        seed: Of the training.
        num_templates: How many templates were trained on.
        candidates: The checkpoints.
        max_share_drift: The guard of ``select_by: agreement``.
        selected_by: The rule that the training followed.
    """

    method: str
    task: str
    seed: int | None
    num_templates: int
    candidates: tuple[Candidate, ...]
    max_share_drift: float
    selected_by: str

    def by_mean_f1(self) -> Candidate | None:
        """The paper's choice: the highest mean F1."""
        return _first_best(self.candidates, [candidate.mean_f1 for candidate in self.candidates])

    def by_agreement(self) -> Candidate | None:
        """The label-free choice: the highest agreement of those whose label shares are near the base's votes.

        ``None`` where none is, or where the log does not say.
        """
        safe = [each for each in self.candidates if each.drift is not None and each.drift <= self.max_share_drift]
        return _first_best(safe, [candidate.agreement for candidate in safe])

    @property
    def is_guarded(self) -> bool:
        """Whether the log holds what the guard needs."""
        return all(candidate.drift is not None for candidate in self.candidates)


def read_choices(results: Sequence[Result]) -> list[Choice]:
    """The choices of all trainings behind some results, each training once.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a training that cannot be read.
    """
    trainings: dict[Path, Result] = {}
    for result in results:
        if result.training is not None:
            trainings.setdefault(result.training, result)
    return [_choice(training, result) for training, result in trainings.items()]


def _choice(training: Path, result: Result) -> Choice:
    record, log = read_record(training), read_log(training)
    settings = record.get("training") or {}
    evaluations = {int(line["step"]): line for line in log if "eval_observed_agreement" in line and "step" in line}
    base = evaluations.pop(0, None)
    shares = None if base is None else _series(base, "eval_vote_share_")
    return Choice(
        method=result.method,
        task=result.source or result.task,
        seed=result.seed,
        num_templates=len(record["task"]["templates"]),
        candidates=tuple(_candidate(step, line, shares) for step, line in sorted(evaluations.items())),
        max_share_drift=float(settings.get("max_share_drift", 0.0)),
        selected_by=str(settings.get("selected_by", "")),
    )


def _candidate(step: int, line: Mapping[str, Any], base_shares: np.ndarray | None) -> Candidate:
    shares = _series(line, "eval_label_share_")
    drift = None
    if base_shares is not None and shares is not None and len(shares) == len(base_shares):
        drift = share_drift(base_shares, shares)
    return Candidate(step, line.get("eval_mean_f1"), line.get("eval_observed_agreement"), drift)


def _series(line: Mapping[str, Any], prefix: str) -> np.ndarray | None:
    found = {int(key.removeprefix(prefix)): value for key, value in line.items() if key.startswith(prefix)}
    return np.array([found[label] for label in sorted(found)], dtype=np.float64) if found else None


def _first_best(candidates: Sequence[Candidate], values: Sequence[float | None]) -> Candidate | None:
    best: tuple[float, Candidate] | None = None
    for candidate, value in zip(candidates, values, strict=True):
        if value is not None and (best is None or value > best[0]):
            best = value, candidate
    return best[1] if best else None
