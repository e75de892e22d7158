"""`study plan`: a study's cells with rows, templates and tokens that are counted, and times that were measured."""

import contextlib
import functools
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping

from flip_flop.errors import InputError
from flip_flop.method import BASE, find_method
from flip_flop.options import row_protocol_of
from flip_flop.prompts import Template, TemplateSet
from flip_flop.run_record import RunRecord
from flip_flop.scoring import LoadedModel, PromptEncoder, score
from flip_flop.scoring.models import load_tokenizer
from flip_flop.tasks import Task
from flip_flop.tasks.splits import holdout_size
from flip_flop.text import align_columns, duration
from flip_flop.training import F2CConfig
from flip_flop.training.checks import SAMPLE_SIZE
from flip_flop.training.plan import recorded_settings
from flip_flop_paper.data.catalog import catalog_entry, catalog_names, row_protocols
from flip_flop_paper.folder import StudyFolder
from flip_flop_paper.grid import expand
from flip_flop_paper.keys import (
    check_settings,
    choose,
    make_cells,
    model_folder,
    open_model,
    open_task,
    scoring_settings,
    training_config,
)
from flip_flop_paper.plan import Cell, Setup
from flip_flop_paper.release import with_protocol
from flip_flop_paper.study import Study

# What a catalog's task answers where its rows or templates are not available.
UNAVAILABLE = ("E-DATA-HUB", "E-DATA-FILE", "E-DATA-STORYCLOZE", "E-TPL-FETCH")
# Tokens are counted on so many instances of a split.
SAMPLE = 32
# Passes over an instance that a training's step takes: forward, and a backward of about two.
STEP_PASSES = 3
# The columns of instance passes.
PASSES = ("training", "votes", "validation", "audit")
# What the authors' release evaluates in 150 steps: validation and test, each instance forwarded twice.
RELEASE_EVALUATIONS, RELEASE_FORWARDS = 30, 2
# Settings that are always shown.
SHARED = (
    *("learning_rate", "lr_scheduler_type", "weight_decay", "per_device_train_batch_size"),
    *("eval_strategy", "eval_steps", "select_by"),
)


class Preview:
    """The lines of a study's plan; ``timed`` loads the model and times one instance of each split.

    Raises:
        InputError: ``E-STUDY-TEMPLATES``. Errors of a task that is not in the catalog, of a setting, or of the model.
    """

    def __init__(self, study: Study, setup: Setup, folder: StudyFolder, *, timed: bool = False):
        study = with_protocol(study, setup.model)
        self.study, self.setup, self.folder = study, setup, folder
        check_settings(study)
        self.loaded: LoadedModel | None = open_model(setup, None) if timed else None
        self.tasks = {name: self._open(name) for name in dict.fromkeys(cell.task for cell in expand(study))}
        cells = make_cells(study, self.tasks, lambda cell, task: cell.label)
        self.cells = sorted(cells, key=lambda cell: cell.method != BASE.name)
        self.encoder: PromptEncoder | None = None
        with contextlib.suppress(InputError):
            tokenizer = load_tokenizer(str(model_folder(setup.model) or setup.model), setup.revision)
            self.encoder = PromptEncoder(tokenizer, scoring_settings(study)["chat_template"])

    def lines(self) -> Iterator[str]:
        """A line for each cell, each training followed by its audits; the sums; how it was counted."""
        yield f"{self.study.name}: {self.study.description}".rstrip(": ")
        yield ""
        rows, times = [["", "cell", "templates", *PASSES, "tokens", "time"]], []
        total = Counter[str]()
        for cell in self.cells:
            passes, split = self._passes(cell), "train" if cell.kind == "train" else self.study.split
            tokens, seconds = self._measure(cell.task, cell.templates, split)
            times.append(self._duration(cell, passes, seconds))
            total.update(passes)
            mark = "" if self.tasks[cell.task].data else "*"
            counts = [f"{passes[name]:,}{mark}" if name in passes else "" for name in PASSES]
            words = "-" if tokens is None else f"{tokens * sum(passes.values()) / 1e6:,.1f} M"
            rows.append([cell.kind, cell.label, str(len(cell.templates)), *counts, words, _duration_words(times[-1])])
        trainings = sum(cell.kind == "train" for cell in self.cells)
        units = sum(cell.training is None for cell in self.cells)
        counted = f"{units} units: {trainings} trainings, {len(self.cells) - trainings} audits"
        known = [seconds for seconds in times if seconds is not None]
        seconds = sum(known) if len(known) == len(times) else None
        rows.append(["all", counted, "", *(f"{total[name]:,}" for name in PASSES), "", _duration_words(seconds)])
        yield from align_columns(rows, num_left=2).splitlines()
        yield ""
        yield from (f"- {note}" for note in self._notes())
        yield from self._settings()

    def _passes(self, cell: Cell) -> dict[str, int]:
        """How many times an instance goes through the model under all its templates, at most, by what for."""
        if cell.kind == "audit":
            return {"audit": self._rows(cell.task, self.study.split)}
        config, rows = self._config(cell), self._rows(cell.task, "train")
        step = config.per_device_train_batch_size * config.gradient_accumulation_steps
        per_pass = math.ceil(rows / step)  # of which the last may have fewer instances
        steps = config.max_steps if config.max_steps > 0 else math.ceil(config.num_train_epochs * per_pass)
        training = steps // per_pass * rows + min(rows, steps % per_pass * step)
        evaluations = math.ceil(training / rows) if config.eval_strategy == "epoch" else 0
        if config.eval_strategy == "steps":
            every = config.eval_steps or 1
            evaluations = math.ceil(steps / (every if every >= 1 else every * steps))  # below 1, a share of the steps
        evaluations += config.eval_on_start
        evaluations += evaluations > 0  # of the base, for its votes
        if config.votes == "online":
            votes = min(rows, SAMPLE_SIZE) + (training if config.vote_pass == "separate" else 0)
        else:
            refreshes = max(0, steps - 1) // config.refresh_steps if config.votes == "refreshed" else 0
            votes = (1 + refreshes) * (min(rows, training) if config.max_steps > 0 else rows)
        return {"training": training, "votes": votes, "validation": evaluations * self._rows(cell.task, "validation")}

    def _rows(self, name: str, split: str) -> int:
        """The rows of a split; without a validation split, those that a training holds out."""
        task = self.tasks[name]
        if not task.data:
            available = catalog_entry(name).published(row_protocol_of(self.study.protocol))[split]
        elif split in task.data:
            available = len(task.rows(split))
        else:
            available = holdout_size(len(task.rows("train")))
        available = min(available, self.study.limit or available)
        return min(available, (split == "validation" and self.study.eval_limit) or available)

    def _config(self, cell: Cell) -> F2CConfig:
        return training_config(self.study.training_settings(cell.method, cell.task))

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
    def _measure(self, name: str, templates: tuple[str, ...], split: str) -> tuple[float | None, float | None]:
        """Of one instance's pass the tokens and the seconds, where they are known."""
        task, tokens, seconds = choose(self.tasks[name], templates), None, None
        sample = task.instances(split, limit=min(SAMPLE, len(task.rows(split)))) if task.data else []
        if sample and self.encoder is not None:
            fitting, _ = self.encoder.encode_all(sample)
            tokens = sum(len(instance.trie) for instance in fitting) / max(len(fitting), 1)
        if sample and self.loaded is not None:
            for _ in range(2):  # the first pass is slower
                started = time.monotonic()
                score(self.loaded, sample[:1], label="timed", quiet=True)
                seconds = time.monotonic() - started
        return tokens, seconds

    def _duration(self, cell: Cell, passes: Mapping[str, int], seconds: float | None) -> float | None:
        """The seconds of a cell, from those of one instance's pass or of finished runs."""
        if self.loaded is not None:
            training = (STEP_PASSES - 1) * passes.get("training", 0)
            return None if seconds is None else seconds * (sum(passes.values()) + training)
        name = find_method(self.study.trained(cell.method)).name if cell.kind == "train" else cell.method
        found = self._finished.get((cell.kind, name, cell.task_name, len(cell.templates)))
        rows = self._rows(cell.task, "train" if cell.kind == "train" else self.study.split)
        return sum(found) / len(found) * rows if found else None

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
            yield f"*: published counts, as rows or templates are not available here: {', '.join(absent)}."
        yield (
            f"{', '.join(PASSES)}: passes of an instance, under all templates, through the model, at most. "
            "Each evaluation of a training scores the whole validation split, or eval_limit of it, and the base is "
            "scored on it once; label shares that drift ask for more evaluations. Votes: the base's before the first "
            "step, and later ones that have a pass of their own."
        )
        if self.encoder is None:
            yield f"Tokens are not counted: the tokenizer of {self.setup.model} is not available here."
        else:
            yield (
                "Tokens: of all passes, the distinct ones of each instance, which the packed pass reads; counted by "
                f"the model's tokenizer on {SAMPLE} instances of each split, for validation on those of training."
            )
        if self.loaded is not None:
            yield f"Time: one instance of each split, timed; a training's pass counts as {STEP_PASSES}."
        else:
            yield f"Time: of finished runs of this model in {self.folder.root}; or --timed, which loads the model."
        yield f"Protocol: {self.study.protocol} (docs/release.md)."
        if self.study.protocol == "release" and set(self.tasks) <= set(catalog_names()):
            yield self._as_released()

    def _as_released(self) -> str:
        """The passes of evaluation, beside those of the authors' release."""
        trainings = [cell for cell in self.cells if cell.kind == "train"]
        own = sum(passes.get(name, 0) for passes in map(self._passes, self.cells) for name in ("validation", "audit"))
        rows = sum(self._rows(cell.task, split) for cell in trainings for split in ("validation", "test"))
        theirs, reported = RELEASE_EVALUATIONS * RELEASE_FORWARDS * rows, row_protocols()["release"]
        hours = " to ".join(map(str, reported.reported_hours or ()))
        return (
            f"Evaluation: {own:,} passes, validation and audits. By the same count the release takes {theirs:,}: "
            f"{RELEASE_EVALUATIONS} evaluations of validation and test, two forwards each. Its authors report "
            f"{hours} hours for {reported.reported_for}."
        )

    def _settings(self) -> Iterator[str]:
        """The settings that all trainings share, and those that a dataset or a method has of its own."""
        trainings = {(cell.method, cell.task): cell for cell in self.cells if cell.kind == "train"}
        given = {place: self.study.settings.of(*place) for place in trainings}
        names = list(dict.fromkeys(name for settings in given.values() for name in settings))
        own = [name for name in names if len({str(settings.get(name)) for settings in given.values()}) > 1]
        for cell in list(trainings.values())[:1]:
            config = self._config(cell)
            length = "max_steps" if config.max_steps > 0 else "num_train_epochs"
            found = {name: value for name, value in recorded_settings(config).items() if name not in own}
            shown = {name: found.get(name) for name in (*SHARED, length, *names) if found.get(name) is not None}
            words = [f"{name} {value}" for name, value in shown.items()]
            yield f"- All trainings: {', '.join(words)}."
        rows = [
            [method, task, *(str(settings.get(name, "")) for name in own)]
            for (method, task), settings in given.items()
            if any(name in settings for name in own)
        ]
        if rows:
            yield ""
            yield from align_columns([["method", "task", *own], *rows], num_left=2).splitlines()


def _duration_words(seconds: float | None) -> str:
    return "-" if seconds is None else duration(seconds)
