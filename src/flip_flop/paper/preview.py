"""The cells of a study as lists: ``study plan`` before a run, ``study status`` after one."""

from collections import Counter
from collections.abc import Iterator

from flip_flop.console import align_columns
from flip_flop.errors import InputError
from flip_flop.paper.data.catalog import catalog_names
from flip_flop.paper.digests import make_plan
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.grid import expand
from flip_flop.paper.study import Study
from flip_flop.paper.units import Cell, Plan, Setup

# Errors of a dataset whose rows or templates are not on this machine.
UNAVAILABLE = ("E-DATA-HUB", "E-DATA-FILE", "E-DATA-STORYCLOZE", "E-TPL-FETCH")
STATES = ("done", "failed", "open")


def plan_lines(study: Study, setup: Setup, folder: StudyFolder) -> Iterator[str]:
    """List the cells of a study, and whether each is done. No model is loaded.

    If rows or templates of the paper's datasets are not available, the states are unknown.

    Raises:
        InputError: An error in a task, in its rows or in a setting.
    """
    yield f"{study.name}: {study.description}".rstrip(": ")
    note = ""
    try:
        plan = make_plan(study, setup)
        states = cell_states(plan, folder)
        rows = [(cell.kind, cell.label, str(len(cell.templates)), states[cell]) for cell in plan.cells]
    except InputError as error:
        if error.code not in UNAVAILABLE or not set(study.tasks) <= {*catalog_names()}:
            raise
        note = f"Some rows or templates are not on this machine, so the states are unknown: {error}"
        rows = []
        for each in expand(study):
            trained = each.training or each
            on = f" on {each.task}" if trained.task != each.task else ""
            seed = "" if trained.seed is None else f"-seed{trained.seed}"
            count = next((str(n) for n in (each.templates, trained.templates) if isinstance(n, int)), "")
            rows.append((each.kind, f"{trained.method}-{trained.task}{seed}{on}", count, "-"))
    counts = Counter(kind for kind, *_ in rows)
    yield from align_columns([("", "cell", "templates", "state"), *rows], num_left=2).splitlines()
    yield f"{counts['train']} trainings, {counts['audit']} audits; protocol {study.protocol}"
    if note:
        yield note


def cell_states(plan: Plan, folder: StudyFolder) -> dict[Cell, str]:
    """Return the state of each cell: ``done``, ``failed`` or ``open``."""
    states = {}
    for unit in plan.units:
        failures = folder.failures(unit)
        for cell in unit.cells:
            has_failed = any(line.startswith(f"{cell.kind} {cell.label}: ") for line in failures)
            states[cell] = "done" if folder.is_done(cell) else "failed" if has_failed else "open"
    return states


def status_lines(plan: Plan, folder: StudyFolder) -> Iterator[str]:
    """Count the states by kind and task, and name each failure."""
    states = cell_states(plan, folder)
    counts = Counter((cell.kind, cell.task_name, state) for cell, state in states.items())
    total = Counter(states.values())
    rows: list[tuple[str, ...]] = [("", "task", *STATES)]
    for kind, task in sorted({(cell.kind, cell.task_name) for cell in states}):
        rows.append((kind, task, *(str(counts[kind, task, state]) for state in STATES)))
    rows.append(("all", "", *(str(total[state]) for state in STATES)))
    yield from align_columns(rows, num_left=2).splitlines()
    yield from error_lines(plan, folder)


def error_lines(plan: Plan, folder: StudyFolder) -> Iterator[str]:
    """Return one line for each failed cell, with its log."""
    for unit in plan.units:
        for line in folder.failures(unit):
            yield f"failed: {line} Log: {folder.log(unit)}"
