"""The lines below every table: what model, how many seeds, instances and templates, and what is not there."""

from collections.abc import Sequence

from flip_flop.studies.paper import dataset_names
from flip_flop.studies.summary import BASE, Absent, Entry, Question, Summary, method_title, task_title
from flip_flop.tasks.catalog import catalog_entry
from flip_flop.text import count

DEMO = (
    "The model is the embedded one, a toy: its figures show that the program works. "
    "They say nothing about the paper's claim."
)
INTERVAL = "95% CI: paired bootstrap over instances; it says nothing about another training seed."
BESIDE = "In the columns named paper"
MAX_NAMED = 12


def about(summary: Summary, entries: Sequence[Entry]) -> list[str]:
    """Model, seeds, sizes; and that a toy is a toy."""
    seeds = sorted({seed for entry in entries for seed in entry.seeds if seed is not None})
    seed_words = f"; {count(len(seeds), 'training seed')} ({', '.join(map(str, seeds))})" if seeds else ""
    lines = [f"Model: {', '.join(summary.models)}{seed_words}."]
    sizes = {entry.task: f"{entry.num_instances:,} x {entry.audited}" for entry in entries if entry.num_instances}
    if sizes:
        words = ", ".join(f"{task_title(task)} {size}" for task, size in sizes.items())
        splits = sorted({entry.split for entry in entries if entry.num_instances})
        lines.append(f"Instances x templates, split {' and '.join(splits)}: {words}.")
    fewer = [entry for entry in entries if entry.method != BASE and len(entry.seeds) < len(seeds)]
    if fewer:
        words = _listed([f"{name_of(entry)} ({len(entry.seeds)})" for entry in fewer])
        lines.append(f"Over fewer seeds than the others: {words}.")
    collapsed = [entry for entry in entries if entry.collapsed]
    if collapsed:
        lines.append(f"Collapsed, one label nearly everywhere: {_listed([name_of(entry) for entry in collapsed])}.")
    return [*lines, DEMO] if summary.is_demo else lines


def paper(where: str, entries: Sequence[Entry]) -> list[str]:
    """Whose the second number is, and which tasks were audited on other instances than the paper's.

    Args:
        where: Where it stands, such as ``"Below each number"``.
        entries: What it is compared with.
    """
    lines = [f"{where}, in grey or in brackets: the paper's own, of Qwen2.5-3B-Instruct on its test splits."]
    sizes = {entry.task: (entry.num_instances, entry.split) for entry in entries if entry.num_instances}
    other = []
    for task, (found, split) in sizes.items():
        printed = catalog_entry(task).paper["test"] if task in dataset_names() else None
        if printed is not None and (found, split) != (printed, "test"):
            other.append(f"{task_title(task)} {found:,} of {split} (the paper: {printed:,} of test)")
    return [*lines, f"Not the paper's instances: {', '.join(other)}."] if other else lines


def deviation(entries: Sequence[Entry]) -> list[str]:
    """What ± means, where some method has several seeds."""
    several = any(len(entry.seeds) > 1 for entry in entries)
    return ["±: sample standard deviation over training seeds."] if several else []


def missing(summary: Summary, question: Question, cells: int) -> list[str]:
    """How many cells are a dash, which tasks have no labels, and which audits are not there yet."""
    lacking = summary.lacking(question) + (_bases_lacking(summary) if question == "transfer" else [])
    lines = []
    if cells:
        lines.append(f"{count(cells, 'cell')} without a figure (a dash).")
    unlabelled = dict.fromkeys(e.task for e in summary.about(question) if e.values and "mean_f1" not in e.values)
    if unlabelled:
        lines.append(f"Without labels, hence without F1: {', '.join(map(task_title, unlabelled))}.")
    if lacking:
        names = _listed([_absent_name(each) for each in lacking])
        lines.append(f"{count(len(lacking), 'audit')} of this table not done yet: {names}.")
    return lines


def _bases_lacking(summary: Summary) -> list[Absent]:
    return [each for each in summary.lacking("own") if each.method == BASE]


def _absent_name(each: Absent) -> str:
    trained = f" trained on {task_title(each.source)}" if each.question == "transfer" and each.source else ""
    kept = f" ({each.num_templates} templates)" if each.num_templates else ""
    seed = "" if each.seed is None else f", seed {each.seed}"
    return f"{method_title(each.method)}{trained} on {task_title(each.task)}{kept}{seed}"


def name_of(entry: Entry) -> str:
    """An entry in words."""
    return _absent_name(Absent(entry.method, entry.task, entry.source, entry.question, entry.num_templates, seed=None))


def _listed(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return "; ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
