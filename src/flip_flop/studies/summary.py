"""What a study has found: audits of the same method, task and templates together, over seeds, beside the base."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from flip_flop.report import Run, load_run, mean_difference, what_differs
from flip_flop.studies.paper import FIGURES, dataset_names, table1
from flip_flop.studies.plan import Cell
from flip_flop.studies.records import read_record
from flip_flop.studies.results import Result

BASE = "base"
METHODS = {"base": "Base", "swarm": "Swarm", "cce": "CCE", "f2c": "F2C"}
KEPT = (*FIGURES, "vote_f1")
LESS_IS_BETTER = frozenset({"f1_std"})
Question = Literal["own", "transfer", "unseen"]


@dataclass(frozen=True)
class Spread:
    """A mean over seeds, and the seeds' sample standard deviation; ``None`` for a single one."""

    mean: float
    std: float | None = None

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of one value per seed.

        Example:
            >>> Spread.of([0.5, 0.75])
            Spread(mean=0.625, std=0.1767766952966369)
        """
        return cls(fmean(values), stdev(values) if len(values) > 1 else None)


@dataclass(frozen=True)
class Entry:
    """What one method has reached on one task, over its seeds.

    Attributes:
        method: ``base`` or what was trained with.
        task: The task audited.
        source: The task trained on; ``None`` for the base.
        question: ``own``, the task that was trained on; ``transfer``, another one; ``unseen``, held-out templates.
        num_templates: How many templates were trained on, where that is what the study asks; 0 for the base.
        held_out: Whether none of the audited templates was trained on.
        seeds: The training seeds, in the order of the values.
        values: Each figure's value per seed; a figure without an answer is not there.
        base: The base's figures on the same instances and templates; empty where it was not audited.
        intervals: 95% intervals of the change from the base, paired over instances.
        f1_per_template: Each audited template's F1, mean over seeds.
        split: The split that was audited.
        num_instances: How many instances of it.
        audited: How many templates were audited.
        collapsed: The seeds whose audit says that one label is nearly everywhere.
    """

    method: str
    task: str
    source: str | None
    question: Question
    values: Mapping[str, tuple[float, ...]]
    base: Mapping[str, float] = field(default_factory=dict)
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    seeds: tuple[int | None, ...] = (None,)
    num_templates: int | None = None
    held_out: bool = False
    f1_per_template: Mapping[str, float] = field(default_factory=dict)
    split: str = ""
    num_instances: int = 0
    audited: int = 0
    collapsed: tuple[int | None, ...] = ()

    def spread(self, figure: str) -> Spread | None:
        """A figure over the seeds."""
        return Spread.of(self.values[figure]) if figure in self.values else None

    def change(self, figure: str) -> float | None:
        """How far a figure's mean is from the base's."""
        if self.method == BASE or figure not in self.values or figure not in self.base:
            return None
        return fmean(self.values[figure]) - self.base[figure]

    def improvement(self, figure: str) -> float | None:
        """The change in the direction that is better: of sigma, how much lower it is."""
        change = self.change(figure)
        return -change if change is not None and figure in LESS_IS_BETTER else change


@dataclass(frozen=True)
class Absent:
    """An audit that the study asks for and that is not there yet; ``num_templates`` is ``None`` for all of them."""

    method: str
    task: str
    source: str | None
    question: Question
    num_templates: int | None
    seed: int | None


@dataclass(frozen=True)
class Summary:
    """A study's entries, in the order of the paper's tables; what it still lacks; and what model it is about."""

    entries: tuple[Entry, ...]
    models: tuple[str, ...]
    is_demo: bool = False
    absent: tuple[Absent, ...] = ()

    def about(self, question: Question) -> list[Entry]:
        """The entries that answer one question."""
        return [entry for entry in self.entries if entry.question == question]

    def lacking(self, question: Question) -> list[Absent]:
        """What is not there yet to answer it."""
        return [each for each in self.absent if each.question == question]

    def tasks(self, question: Question) -> list[str]:
        """The tasks that the question is asked of, answered or not."""
        asked: list[Entry | Absent] = [*self.about(question), *self.lacking(question)]
        return sorted({each.task for each in asked}, key=task_order)

    def methods(self, question: Question) -> list[str]:
        """The methods that it is asked of."""
        asked: list[Entry | Absent] = [*self.about(question), *self.lacking(question)]
        return sorted({each.method for each in asked}, key=method_order)

    def pairs(self, method: str) -> list[tuple[str, str]]:
        """The pairs of a task trained on and another one audited."""
        asked: list[Entry | Absent] = [*self.about("transfer"), *self.lacking("transfer")]
        found = {(each.source, each.task) for each in asked if each.method == method and each.source is not None}
        return sorted(found, key=lambda pair: (task_order(pair[0]), task_order(pair[1])))


@dataclass(frozen=True)
class _Place:
    """Where an audit belongs. Figures are compared within the same task and templates, and never across."""

    method: str
    task: str
    source: str | None
    num_templates: int | None
    held_out: bool
    templates: tuple[str, ...]

    @property
    def bench(self) -> tuple[str, tuple[str, ...]]:
        """What is audited."""
        return self.task, self.templates

    def question(self, unseen: Collection[tuple[str, tuple[str, ...]]]) -> Question:
        """What it answers, given the benches that some training did not see."""
        if self.bench in unseen:
            return "unseen"
        return "own" if self.source in (None, self.task) else "transfer"


def summarise_results(results: Sequence[Result], audits: Sequence[Cell] = ()) -> Summary:
    """Sort a study's audits by what they answer, and put the seeds of each together.

    Audits over templates that some training of the study never saw answer the question of study 3, with the base and
    with trainings on all templates as its two ends.

    Args:
        results: The complete audits.
        audits: All audits of the study's plan, complete or not.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for an audit that cannot be read.
    """
    runs = {result.run: load_run(result.run) for result in results}
    done = {(_place(each, each.task, runs[each.run].template_names), each.seed): each for each in results}
    asked = [(_place(cell, cell.task_name, cell.templates), cell.seed) for cell in audits]
    unseen = {place.bench for place, _ in (*done, *asked) if place.held_out}
    bases = {place.bench: runs[result.run] for (place, _), result in done.items() if place.method == BASE}
    groups: dict[_Place, list[Result]] = {}
    for (place, _), result in done.items():
        groups.setdefault(place, []).append(result)
    entries = [
        _entry(place, sorted(members, key=lambda result: result.seed or 0), bases, runs, place.question(unseen))
        for place, members in groups.items()
    ]
    absent = [
        Absent(place.method, place.task, place.source, place.question(unseen), place.num_templates, seed)
        for place, seed in asked
        if (place, seed) not in done
    ]
    records = [run.record["model"] for run in runs.values()]
    return Summary(
        entries=tuple(sorted(entries, key=_order)),
        models=tuple(dict.fromkeys(str(record.get("name")) for record in records)),
        is_demo=any(record.get("is_demo") is True for record in records),
        absent=tuple(absent),
    )


def _place(cell: Result | Cell, task: str, templates: tuple[str, ...]) -> _Place:
    # The base has seen no template at all: what is held out is held out from a training.
    held_out = cell.held_out and cell.method != BASE
    return _Place(cell.method, task, cell.source, cell.num_templates, held_out, templates)


def paper_entries() -> list[Entry]:
    """Table 1 of the paper as entries, so that it goes through the same tables."""
    return [
        Entry(
            cell.method,
            cell.task,
            None if cell.method == BASE else cell.task,
            "own",
            {figure: (value,) for figure, value in cell.figures.items()},
            base=table1()[BASE, cell.task].figures,
        )
        for cell in table1().values()
    ]


def task_order(task: str) -> tuple[int, str]:
    """Where a task stands: the paper's in its order, all others after them by name."""
    names = list(dataset_names())
    return (names.index(task) if task in names else len(names), task)


def task_title(task: str) -> str:
    """A task's name in tables: the paper's where it is one of its datasets."""
    return dataset_names().get(task, task)


def method_title(method: str) -> str:
    """A method's name in tables."""
    return METHODS.get(method, method)


def method_order(method: str) -> tuple[int, str]:
    """Where a method stands."""
    names = list(METHODS)
    return (names.index(method) if method in names else len(names), method)


def _entry(
    place: _Place, members: Sequence[Result], bases: Mapping[Any, Run], runs: Mapping[Path, Run], question: Question
) -> Entry:
    found = [runs[member.run] for member in members]
    base = bases.get(place.bench)
    if base is not None and any(what_differs(base, run) for run in found):
        base = None
    differences = {}
    if base is not None and place.method != BASE:
        differences = {figure: mean_difference(figure, base, found) for figure in KEPT}
    values = {figure: tuple(run.metrics[figure] for run in found) for figure in KEPT}
    f1 = [run.metrics["f1_per_template"] for run in found if run.has_gold]
    return Entry(
        method=place.method,
        task=place.task,
        source=place.source,
        question=question,
        values={figure: each for figure, each in values.items() if None not in each},
        base={figure: base.metrics[figure] for figure in KEPT if base.metrics[figure] is not None} if base else {},
        intervals={figure: each.interval for figure, each in differences.items() if each and each.interval},
        seeds=tuple(member.seed for member in members),
        num_templates=_num_trained_on(place, members[0]) if question == "unseen" else None,
        held_out=place.held_out,
        f1_per_template={name: fmean(each[name] for each in f1) for name in place.templates} if f1 else {},
        split=str(found[0].record["task"]["split"]),
        num_instances=len(found[0].scores),
        audited=len(place.templates),
        collapsed=tuple(m.seed for m, run in zip(members, found, strict=True) if run.metrics.get("collapsed")),
    )


def _num_trained_on(place: _Place, result: Result) -> int | None:
    if place.method == BASE:
        return 0
    if place.num_templates is not None or result.training is None:
        return place.num_templates
    return len(read_record(result.training)["task"]["templates"])


def _order(entry: Entry) -> Any:
    source = (-1, "") if entry.source is None else task_order(entry.source)
    return method_order(entry.method), source, task_order(entry.task), entry.audited, entry.num_templates or 0
