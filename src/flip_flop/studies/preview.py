"""`study plan`: a study's cells with rows, templates and tokens that are counted, and times that were measured."""

import contextlib
import functools
import time
from collections.abc import Iterator

from flip_flop.errors import InputError
from flip_flop.method import BASE, find_method
from flip_flop.prompts import Template, TemplateSet
from flip_flop.run_record import RunRecord
from flip_flop.scoring import LoadedModel, PromptEncoder, score
from flip_flop.scoring.models import load_tokenizer
from flip_flop.studies.folder import StudyFolder
from flip_flop.studies.grid import expand
from flip_flop.studies.keys import (
    check_settings,
    choose,
    make_cells,
    model_folder,
    open_model,
    open_task,
    training_config,
)
from flip_flop.studies.plan import Cell, Setup
from flip_flop.studies.study import Study
from flip_flop.tasks import Task
from flip_flop.tasks.catalog import catalog_entry, catalog_names
from flip_flop.text import align_columns

# What a catalog's task answers where its rows or templates are not available.
UNAVAILABLE = ("E-DATA-HUB", "E-DATA-FILE", "E-DATA-STORYCLOZE", "E-TPL-FETCH")
# Tokens are counted on so many instances of a split.
SAMPLE = 32
# Passes over an instance that a training's step takes: forward, and a backward of about two.
STEP_PASSES = 3


class Preview:
    """The lines of a study's plan; ``timed`` loads the model and times one instance of each split.

    Raises:
        InputError: ``E-STUDY-TEMPLATES``. Errors of a task that is not in the catalog, of a setting, or of the model.
    """

    def __init__(self, study: Study, setup: Setup, folder: StudyFolder, *, timed: bool = False):
        self.study, self.setup, self.folder = study, setup, folder
        check_settings(study)
        self.loaded: LoadedModel | None = open_model(setup, None) if timed else None
        self.tasks = {name: self._open(name) for name in dict.fromkeys(cell.task for cell in expand(study))}
        cells = make_cells(study, self.tasks, lambda cell, task: cell.label)
        self.cells = sorted(cells, key=lambda cell: cell.method != BASE.name)
        self.encoder: PromptEncoder | None = None
        with contextlib.suppress(InputError):
            tokenizer = load_tokenizer(str(model_folder(setup.model) or setup.model), setup.revision)
            self.encoder = PromptEncoder(tokenizer, training_config(study.settings.common).chat_template)

    def lines(self) -> Iterator[str]:
        """A line for each cell, each training followed by its audits; the sums; how it was counted."""
        yield f"{self.study.name}: {self.study.description}".rstrip(": ")
        yield ""
        rows, times = [("", "cell", "rows", "templates", "tokens", "time")], []
        for cell in self.cells:
            split, task = "train" if cell.kind == "train" else self.study.split, self.tasks[cell.task]
            tokens = seconds = None
            if task.data:
                available, tokens, seconds = self._measure(cell.task, cell.templates, split)
            else:
                available = catalog_entry(cell.task).paper[split]
            count, mark = min(available, self.study.limit or available), "" if task.data else "*"
            times.append(self._duration(cell, count, seconds))
            total = "-" if tokens is None else f"{tokens * count / 1e6:,.1f} M"
            templates = str(len(cell.templates))
            rows.append((cell.kind, cell.label, f"{count:,}{mark}", templates, total, _words(times[-1])))
        trainings = sum(cell.kind == "train" for cell in self.cells)
        units = sum(cell.training is None for cell in self.cells)
        counted = f"{units} units: {trainings} trainings, {len(self.cells) - trainings} audits"
        known = [seconds for seconds in times if seconds is not None]
        rows.append(("all", counted, "", "", "", _words(sum(known) if len(known) == len(times) else None)))
        yield from align_columns(rows, num_left=2).splitlines()
        yield ""
        yield from (f"- {note}" for note in self._notes())

    def _open(self, name: str) -> Task:
        """A task; where its rows or templates are not available, one of the paper's by its numbers, without rows."""
        try:
            task = open_task(name, self.setup, self.study.protocol)
            for split in {"train", self.study.split} & set(task.data):
                task.rows(split)
            return task
        except InputError as error:
            if name not in catalog_names() or error.code not in UNAVAILABLE:  # a user's own task is not the paper's
                raise
            subsets = self.study.template_subsets.get(name)
            named = subsets.held_out if subsets and isinstance(subsets.held_out, tuple) else ()
            names = [*map(str, range(catalog_entry(name).paper["templates"] - len(named))), *named]
            return Task(name, TemplateSet(tuple(Template(name, "{{ text }}", "No ||| Yes") for name in names)))

    @functools.cache  # noqa: B019 - a preview is one command's
    def _measure(self, name: str, templates: tuple[str, ...], split: str) -> tuple[int, float | None, float | None]:
        """A split's rows, and of one instance the tokens and the seconds of a pass, where they are known."""
        task = choose(self.tasks[name], templates)
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
        return rows, tokens, seconds

    def _duration(self, cell: Cell, rows: int, seconds: float | None) -> float | None:
        """The seconds of a cell, from those of one instance's pass or of finished runs."""
        if self.loaded is None:
            name = find_method(cell.method).name if cell.kind == "train" else cell.method
            found = self._finished.get((cell.kind, name, cell.task_name, len(cell.templates)))
            return sum(found) / len(found) * rows if found else None
        if seconds is None or cell.kind == "audit":
            return seconds and seconds * rows
        config = training_config(self.study.settings.of(cell.method, cell.task) | {"method": cell.method})
        step = config.per_device_train_batch_size * config.gradient_accumulation_steps
        instances = config.max_steps * step if config.max_steps > 0 else config.num_train_epochs * rows
        return seconds * instances * STEP_PASSES

    @functools.cached_property
    def _finished(self) -> dict[tuple[str, str, str, int], list[float]]:
        """Seconds per row of finished runs of this model, by kind, method, task and number of templates."""
        found: dict[tuple[str, str, str, int], list[float]] = {}
        for path in self.folder.root.glob("*/*/run.json"):
            with contextlib.suppress(InputError):  # what is no run of ours has no time
                record = RunRecord.read(path.parent)
                if record.model.name == self.setup.model and record.seconds is not None:
                    key = (record.kind, str(record.name), record.task.name, len(record.task.templates))
                    found.setdefault(key, []).append(record.seconds / max(record.task.num_instances, 1))
        return found

    def _notes(self) -> Iterator[str]:
        absent = [name for name, task in self.tasks.items() if not task.data]
        if absent:
            yield f"*: the paper's counts, as rows or templates are not available here: {', '.join(absent)}."
        if self.encoder is None:
            yield f"Tokens are not counted: the tokenizer of {self.setup.model} is not available here."
        else:
            yield "Tokens: of one pass over the rows, the distinct ones of each instance, which the packed pass reads;"
            yield f"counted by the model's tokenizer on {SAMPLE} instances of each split."
        yield f"Protocol: {self.study.protocol} (docs/release.md)."
        if self.loaded is not None:
            yield f"Time: one instance of each split, timed; a training step counts as {STEP_PASSES} passes."
        else:
            yield f"Time: of finished runs of this model in {self.folder.root}; or --timed, which loads the model."


def _words(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"
