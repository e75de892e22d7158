"""What a study will cost: tokens counted or assumed, operations counted, time at a stated rate. No model is loaded."""

import json
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.studies.grid import AuditCell, Grid, TrainCell, expand
from flip_flop.studies.keys import check_settings, training_config
from flip_flop.studies.plan import Openers, Setup
from flip_flop.studies.sizes import (
    CHARACTERS_PER_TOKEN,
    CHAT_TOKENS,
    CountTokens,
    Sizes,
    count_characters,
    sizes_at_hand,
    sizes_of_paper,
)
from flip_flop.studies.study import Study
from flip_flop.tasks import Task
from flip_flop.tasks.catalog import catalog_names

# 45 % of the 312 TFLOP/s of an A100 in bfloat16.
TFLOPS = 140.0
# Operations per parameter and token: a forward; a forward and the backward to inputs and adapter.
FORWARD, TRAINING = 2.0, 4.0
# What a catalog's task answers where its rows or templates are not here.
NOT_AT_HAND = ("E-DATA-HUB", "E-DATA-FILE", "E-DATA-STORYCLOZE", "E-TPL-FETCH")


@dataclass(frozen=True)
class CellCost:
    """One line of the plan."""

    kind: str
    label: str
    rows: int
    templates: int
    tokens: float
    operations_per_parameter: float
    at_hand: bool


@dataclass(frozen=True)
class Estimate:
    """A study's cost.

    Attributes:
        cells: Trainings, then audits.
        sizes: By task.
        parameters: The model's; None where neither its files nor its name tell.
        assumptions: In sentences.
    """

    cells: tuple[CellCost, ...]
    sizes: Mapping[str, Sizes]
    parameters: float | None
    assumptions: tuple[str, ...]

    def seconds(self, cell: CellCost, tflops: float) -> float | None:
        """The time of a cell at this rate, in seconds."""
        return None if self.parameters is None else cell.operations_per_parameter * self.parameters / (tflops * 1e12)


def estimate(study: Study, setup: Setup, openers: Openers, tflops: float = TFLOPS) -> Estimate:
    """Estimate a study from its grid, its rows or the paper's table, and the model's name or files.

    Raises:
        InputError: ``E-STUDY-TEMPLATES``. Errors of a task that is not in the catalog, or of a setting.
    """
    grid = expand(study)
    check_settings(study, grid)
    folder = openers.model_folder(setup.model)
    count, chat_tokens, how = _counter(setup, folder)
    sizes, absent = {}, []
    for task in grid.tasks:
        try:
            opened = openers.task(task, setup)
            sizes[task] = sizes_at_hand(opened, study.split, study.limit, count, chat_tokens)
        except InputError as error:
            # A user's own task is not in the paper's table.
            if task not in catalog_names() or error.code not in NOT_AT_HAND:
                raise
            sizes[task] = sizes_of_paper(task, study.limit, chat_tokens > 0)
            absent.append(task)
            _check_counts(grid, task, sizes[task].templates)
        else:
            _check_names(grid, task, opened)
    costs = [_training_cost(study, cell, sizes[cell.task]) for cell in grid.trainings]
    costs += [_audit_cost(cell, sizes[cell.task]) for cell in grid.audits]
    parameters, source = _parameters(setup.model, folder)
    assumptions = tuple(_assumptions(absent, len(sizes), how, chat_tokens, parameters, source, tflops))
    return Estimate(tuple(costs), sizes, parameters, assumptions)


def _check_names(grid: Grid, reference: str, task: Task) -> None:
    """Choose the templates of every cell as the run will, for its mistakes' sake."""
    for training in (cell for cell in grid.trainings if cell.task == reference):
        training.templates.names(task)
    for audit in (cell for cell in grid.audits if cell.task == reference):
        audit.names(task)


def _check_counts(grid: Grid, reference: str, has: int) -> None:
    """The same as far as a task's number of templates tells."""
    cells: tuple[TrainCell | AuditCell, ...] = (*grid.trainings, *grid.audits)
    for chosen in (cell.templates for cell in cells if cell.task == reference):
        chosen.require(has, reference)


def _training_cost(study: Study, cell: TrainCell, sizes: Sizes) -> CellCost:
    """The votes before the first step, the epochs, and the validation split before the first and after each epoch."""
    config = training_config(study.settings.of(cell.method, cell.task) | {"method": cell.method})
    templates = min(cell.templates.first or sizes.templates, sizes.templates)
    per_instance = sizes.tokens * templates / sizes.templates
    epochs = config.num_train_epochs
    if config.max_steps > 0:
        batch = config.per_device_train_batch_size * config.gradient_accumulation_steps
        epochs = config.max_steps * batch / max(sizes.train, 1)
    trained = per_instance * sizes.train * epochs
    scored = per_instance * (sizes.train + sizes.validation * (epochs + 1))
    per_token = TRAINING + (FORWARD if config.gradient_checkpointing or config.vote_pass == "separate" else 0)
    label = f"{cell.method} on {_short(cell.task)}, seed {cell.seed}"
    if cell.templates.first is not None:
        label += f", first {templates} templates"
    operations = per_token * trained + FORWARD * scored
    return CellCost("train", label, sizes.train, templates, trained + scored, operations, sizes.at_hand)


def _audit_cost(cell: AuditCell, sizes: Sizes) -> CellCost:
    held_out = cell.templates.held_out
    templates = sizes.templates
    if held_out is not None:
        templates = held_out if isinstance(held_out, int) else len(held_out)
    tokens = sizes.tokens * templates / sizes.templates * sizes.test
    label = f"{cell.method} on {_short(cell.task)}"
    if cell.training is not None:
        trained = cell.training
        label += f", trained on {_short(trained.task)}" if trained.task != cell.task else ""
        label += f", seed {trained.seed}"
        label += f", first {trained.templates.first} templates" if trained.templates.first is not None else ""
    if held_out is not None:
        label += f", last {templates} templates" if isinstance(held_out, int) else f", {templates} templates"
    return CellCost("audit", label, sizes.test, templates, tokens, FORWARD * tokens, sizes.at_hand)


def _short(task: str) -> str:
    return Path(task).stem if "/" in task else task


def _counter(setup: Setup, folder: Path | None) -> tuple[CountTokens, int, str]:
    """How tokens are counted, what a chat template adds, and both in words."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(folder or setup.model), revision=setup.revision, local_files_only=True, trust_remote_code=False
        )
    except Exception:  # the library raises many kinds where it is not there
        has_chat = re.search(r"instruct|chat|-it\b", setup.model, re.IGNORECASE) is not None
        how = f"by characters, {CHARACTERS_PER_TOKEN:g} to a token, as the tokenizer is not here"
        return count_characters, CHAT_TOKENS if has_chat else 0, how

    def count(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False)["input_ids"])

    chat_tokens = 0
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": ""}], tokenize=False, add_generation_prompt=True
        )
        chat_tokens = count(str(text))
    return count, chat_tokens, "by the model's tokenizer"


def _parameters(model: str, folder: Path | None) -> tuple[float | None, str]:
    """The number of parameters, and where it is from."""
    if folder is not None:
        total = sum(_tensor_sizes(path) for path in folder.glob("*.safetensors"))
        return (float(total), "its weight files' headers") if total else (None, "")
    found = re.findall(
        r"(?<![A-Za-z0-9.])(\d+(?:\.\d+)?)([bm])(?![A-Za-z0-9])", model.rpartition("/")[2], re.IGNORECASE
    )
    if not found:
        return None, ""
    number, unit = found[0]
    return float(number) * (1e9 if unit.lower() == "b" else 1e6), "its name"


def _tensor_sizes(path: Path) -> int:
    """Numbers in a safetensors file, by its header alone."""
    with path.open("rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    total = 0
    for name, entry in header.items():
        size = 1
        for length in entry["shape"] if name != "__metadata__" else [0]:
            size *= length
        total += size
    return total


def _assumptions(
    absent: list[str], num_tasks: int, how: str, chat_tokens: int, parameters: float | None, source: str, tflops: float
) -> Iterator[str]:
    if len(absent) < num_tasks:
        yield f"Rows at hand are counted; their tokens are counted {how}, on a sample of each task."
    if absent:
        names = ", ".join(_short(task) for task in absent)
        yield f"Rows or templates not at hand (*): sizes of the paper's table and assumed lengths of texts: {names}."
    yield f"A chat template adds {chat_tokens} tokens to a prompt." if chat_tokens else "No chat template is counted."
    if parameters is None:
        yield "The number of parameters is neither in the model's files nor in its name: there is no time."
        return
    yield f"The model has {parameters:,.0f} parameters, by {source}."
    yield (
        f"Time: {FORWARD:g} operations per parameter and token of a forward, {TRAINING:g} with the backward to the "
        f"adapter, at {tflops:g} TFLOP/s (--tflops; 140 is 45 % of an A100's peak), on one device; attention, the "
        "loading of the model and padding are left out."
    )


def estimate_lines(study: Study, found: Estimate, tflops: float) -> Iterator[str]:
    """The plan for people: a line per cell, the sums, what was assumed."""
    rows = [("", "cell", "rows", "templates", "tokens", "time")]
    for cell in found.cells:
        mark = "" if cell.at_hand else "*"
        numbers = (f"{cell.rows:,}{mark}", str(cell.templates), _millions(cell.tokens))
        rows.append((cell.kind, cell.label, *numbers, _time(found.seconds(cell, tflops))))
    for kind in ("train", "audit"):
        chosen = [cell for cell in found.cells if cell.kind == kind]
        times = [found.seconds(cell, tflops) for cell in chosen]
        total = None if None in times else sum(time for time in times if time is not None)
        words = f"{len(chosen)} {'training' if kind == 'train' else 'audit'}{'' if len(chosen) == 1 else 's'}"
        rows.append(("all", words, "", "", _millions(sum(cell.tokens for cell in chosen)), _time(total)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    yield f"{study.name}: {study.description}".rstrip(": ")
    yield ""
    for row in rows:
        cells = [
            word.ljust(width) if column < 2 else word.rjust(width)
            for column, (word, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
    yield ""
    yield from (f"- {line}" for line in found.assumptions)


def _millions(tokens: float) -> str:
    return f"{tokens / 1e6:,.1f} M"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.1f} s"
