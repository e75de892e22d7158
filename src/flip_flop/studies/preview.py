"""`study plan`: a study's cells with rows, templates and tokens that are counted, and times that were measured."""

import functools
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.scoring import LoadedModel, PromptEncoder, score
from flip_flop.scoring.models import load_tokenizer
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.grid import AuditCell, TrainCell, expand, require_templates
from flip_flop.studies.keys import check_settings, choose, training_config
from flip_flop.studies.opening import model_folder, open_model, open_task
from flip_flop.studies.plan import Setup
from flip_flop.studies.study import Study
from flip_flop.studies.tracker import aligned
from flip_flop.tasks import Task
from flip_flop.tasks.catalog import catalog_entry, catalog_names

# What a catalog's task answers where its rows or templates are not available.
UNAVAILABLE = ("E-DATA-HUB", "E-DATA-FILE", "E-DATA-STORYCLOZE", "E-TPL-FETCH")
# Tokens are counted on so many instances of a split.
SAMPLE = 32
# Passes over an instance that a step of training takes: forward, and a backward of about two.
STEP_PASSES = 3

Cell = TrainCell | AuditCell


@dataclass(frozen=True)
class Size:
    """A cell's rows and templates, and of one instance the tokens and the seconds of a pass; None where unknown."""

    rows: int
    templates: int
    tokens: float | None = None
    seconds: float | None = None
    is_paper: bool = False


class Preview:
    """The lines of a study's plan.

    Args:
        study: The study.
        setup: Its model and where data are.
        folder: Where finished runs are.
        timed: Load the model and time one instance of each task, instead of reading finished runs.

    Raises:
        InputError: ``E-STUDY-TEMPLATES``. Errors of a task that is not in the catalog, of a setting, or of the model.
    """

    def __init__(self, study: Study, setup: Setup, folder: StudyFolder, *, timed: bool = False):
        self.study, self.setup, self.folder, self.grid = study, setup, folder, expand(study)
        check_settings(study, self.grid)
        self.loaded: LoadedModel | None = open_model(setup, None) if timed else None
        self.tasks = {name: self._open(name) for name in self.grid.tasks}
        chat = training_config(study.settings.of("base", "")).chat_template
        try:
            name = str(model_folder(setup.model) or setup.model)
            self.encoder: PromptEncoder | None = PromptEncoder(load_tokenizer(name, setup.revision), chat)
        except InputError:
            self.encoder = None
        self._measure = functools.lru_cache(maxsize=None)(self._measure_split)

    def lines(self) -> Iterator[str]:
        """A line for each cell, each training followed by its audits; the sums; how it was counted."""
        yield f"{self.study.name}: {self.study.description}".rstrip(": ")
        yield ""
        cells: list[Cell] = [cell for cell in self.grid.audits if cell.training is None]
        num_units = len(cells) + len(self.grid.trainings)
        for training in self.grid.trainings:
            cells += [training, *(cell for cell in self.grid.audits if cell.training == training)]
        sizes = {cell: self._size(cell) for cell in cells}
        times = self._finished_times() if self.loaded is None else {}
        rows = [("", "cell", "rows", "templates", "tokens", "time")]
        seconds: dict[Cell, float | None] = {cell: self._seconds(cell, sizes[cell], times) for cell in cells}
        for cell in cells:
            size, kind = sizes[cell], "train" if isinstance(cell, TrainCell) else "audit"
            counts = (f"{size.rows:,}{'*' if size.is_paper else ''}", str(size.templates))
            tokens = None if size.tokens is None else size.tokens * size.rows
            rows.append((kind, self._label(cell), *counts, _millions(tokens), _duration(seconds[cell])))
        known = [value for value in seconds.values() if value is not None]
        total = sum(known) if len(known) == len(cells) else None
        summary = f"{num_units} units: {len(self.grid.trainings)} trainings, {len(self.grid.audits)} audits"
        rows.append(("all", summary, "", "", "", _duration(total)))
        yield from aligned(rows)
        yield ""
        yield from (f"- {note}" for note in self._notes(len(known) < len(cells)))

    def _open(self, name: str) -> Task | None:
        try:
            task = open_task(name, self.setup)
            for split in ("train", self.study.split):
                if split in task.data:
                    task.rows(split)
            return task
        except InputError as error:
            if name not in catalog_names() or error.code not in UNAVAILABLE:  # a user's own task is not the paper's
                raise
            return None

    def _size(self, cell: Cell) -> Size:
        task, split = self.tasks[cell.task], "train" if isinstance(cell, TrainCell) else self.study.split
        if task is not None:
            return self._measure(cell.task, cell.templates(task), split)
        paper, wanted = catalog_entry(cell.task).paper, cell.first if isinstance(cell, TrainCell) else cell.held_out
        require_templates(wanted, paper["templates"], cell.task)
        templates = len(wanted) if isinstance(wanted, tuple) else wanted or paper["templates"]
        return Size(min(paper[split], self.study.limit or paper[split]), templates, is_paper=True)

    def _measure_split(self, name: str, templates: tuple[str, ...], split: str) -> Size:
        task = self.tasks[name]
        assert task is not None
        task = choose(task, templates)
        rows = len(task.rows(split))
        sample = task.instances(split, limit=min(SAMPLE, rows))
        tokens = seconds = None
        if self.encoder is not None:
            tokens = sum(len(self.encoder.encode(instance).trie) for instance in sample) / len(sample)
        if self.loaded is not None:
            for _ in range(2):  # the first pass is slower
                started = time.monotonic()
                score(self.loaded, sample[:1], label="timed", quiet=True)
                seconds = time.monotonic() - started
        return Size(min(rows, self.study.limit or rows), len(templates), tokens, seconds)

    def _seconds(self, cell: Cell, size: Size, finished: dict[tuple[str, ...], list[float]]) -> float | None:
        if self.loaded is None:
            kind, task = "train" if isinstance(cell, TrainCell) else "audit", self.tasks[cell.task]
            found = finished.get((kind, cell.method, task.name if task else cell.task, str(size.templates)))
            return sum(found) / len(found) * size.rows if found else None
        if size.seconds is None or isinstance(cell, AuditCell):
            return None if size.seconds is None else size.seconds * size.rows
        config = training_config(self.study.settings.of(cell.method, cell.task) | {"method": cell.method})
        step = config.per_device_train_batch_size * config.gradient_accumulation_steps
        instances = config.max_steps * step if config.max_steps > 0 else config.num_train_epochs * size.rows
        return size.seconds * instances * STEP_PASSES

    def _finished_times(self) -> dict[tuple[str, ...], list[float]]:
        """Seconds per row of finished runs of this model, by kind, method, task and number of templates."""
        found: dict[tuple[str, ...], list[float]] = {}
        for path in self.folder.root.glob("*/*/run.json"):
            record = json.loads(path.read_text(encoding="utf-8"))
            if record["model"]["name"] == self.setup.model:
                task = record["task"]
                key = (record["kind"], record["name"], task["name"], str(len(task["templates"])))
                found.setdefault(key, []).append(record["seconds"] / max(task["num_instances"], 1))
        return found

    def _label(self, cell: Cell) -> str:
        trained = cell if isinstance(cell, TrainCell) else cell.training
        label = f"{cell.method} on {_short(cell.task)}"
        if trained is not None:
            label += f", trained on {_short(trained.task)}" if trained.task != cell.task else ""
            label += f", seed {trained.seed}"
            label += f", first {trained.first} templates" if trained.first is not None else ""
        if isinstance(cell, AuditCell) and isinstance(cell.held_out, int):
            label += f", last {cell.held_out} templates"
        return label

    def _notes(self, lacks_time: bool) -> Iterator[str]:
        absent = [name for name, task in self.tasks.items() if task is None]
        if absent:
            yield f"*: the paper's counts, as rows or templates are not available here: {', '.join(absent)}."
        if self.encoder is None:
            yield f"Tokens are not counted: the tokenizer of {self.setup.model} is not available here."
        else:
            yield (
                f"Tokens are those of one pass over the rows: distinct tokens of an instance (what the packed pass "
                f"reads), counted by the model's tokenizer on {SAMPLE} instances of each split."
            )
        if self.loaded is not None:
            yield f"Time: one instance of each split, timed; a training step counts as {STEP_PASSES} passes."
        elif lacks_time:
            yield f"Time: of finished runs of this model in {self.folder.root}; or --timed, which loads the model."
        else:
            yield f"Time: seconds a row of finished runs of this model in {self.folder.root}."


def _short(task: str) -> str:
    return Path(task).stem if "/" in task else task


def _millions(tokens: float | None) -> str:
    return "-" if tokens is None else f"{tokens / 1e6:,.1f} M"


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
