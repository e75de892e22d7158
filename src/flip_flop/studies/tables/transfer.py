"""Table 2: what training on one task does to the others."""

from collections.abc import Mapping, Sequence
from typing import Any

from flip_flop.studies import paper
from flip_flop.studies.averages import Transfer, transfers
from flip_flop.studies.paper import FIGURES, PaperTransfer
from flip_flop.studies.summary import Entry, Spread, Summary, method_title, task_title
from flip_flop.studies.tables import notes
from flip_flop.studies.tables.changes import change_cells, change_headings
from flip_flop.studies.tables.methods import DECIMALS, TITLES
from flip_flop.studies.tables.table import Cell, Column, Mark, Row, Table, count_missing, mark_extremes
from flip_flop.text import MISSING, count, points


def transfer_table(summary: Summary, method: str) -> Table:
    """One row for all pairs and one for each source, in the paper's layout, with its numbers beside.

    Args:
        summary: The study's entries.
        method: What was trained with.
    """
    entries, pairs = pair_entries(summary, method), summary.pairs(method)
    rows_of = {transfer.source: transfer for transfer in transfers(list(entries.values()))}
    sources = list(dict.fromkeys(source for source, _ in pairs))
    with_paper = method == "f2c" and any(source in paper.table2() for source in sources)
    marks = {figure: _marks(rows_of, sources, figure) for figure in FIGURES}
    rows: list[Row] = []
    for source in [None, *sources]:
        found, printed = rows_of.get(source), paper.table2().get(source or "all")
        number = found.num_pairs if found else 0
        title = f"All ({count(number, 'pair')})" if source is None else task_title(source)
        cells = [Cell(title, is_name=source is not None)]
        for figure in FIGURES:
            cells += _cells(found, figure, marks[figure].get(source))
            cells += _paper_cells(printed, figure) if with_paper else []
        rows.append(Row(tuple(cells), rule=len(rows) == 1))
    columns = [Column("trained on", is_text=True)]
    headings = ("Δ", "P/N", "paper Δ", "paper P/N") if with_paper else ("Δ", "P/N")
    for figure in FIGURES:
        columns += [Column(heading, group=TITLES[figure]) for heading in headings]
    lines = [
        *notes.about(summary, list(entries.values())),
        *notes.deviation(list(entries.values())),
        "Mean change on the targets in points, as an improvement: for sigma_F1, how much lower it is. "
        "P/N: targets better and worse than the base; an unchanged one is neither. Best source: bold.",
        *(notes.paper(notes.BESIDE, list(entries.values())) if with_paper else []),
        *(["Its rows: means over 10 targets each, and over all of its 80 pairs."] if with_paper else []),
        *notes.missing(summary, "transfer", count_missing(rows)),
    ]
    title = f"Transfer to other tasks under {method_title(method)}"
    title += " (the paper's Table 2)" if method == "f2c" else ""
    name = _file_name("table2_transfer", method)
    return Table(name, title, tuple(columns), tuple(rows), tuple(lines), _records(rows_of, with_paper))


def pairs_table(summary: Summary, method: str) -> Table:
    """Every pair with its changes and their intervals."""
    entries, pairs = pair_entries(summary, method), summary.pairs(method)
    rows: list[Row] = []
    records: list[dict[str, Any]] = []
    for place in pairs:
        source, target = place
        entry = entries.get(place)
        cells = [cell for figure in FIGURES for cell in change_cells(entry, None, figure, with_paper=False)]
        is_first = not rows or pairs[len(rows) - 1][0] != source
        head = Cell(task_title(source) if is_first else "", is_name=True)
        rows.append(Row((head, Cell(task_title(target), is_name=True), *cells), rule=bool(rows) and is_first))
        records += [_pair_record(method, source, target, entry, figure) for figure in FIGURES]
    columns = [Column("trained on", is_text=True), Column("evaluated on", is_text=True)]
    for figure in FIGURES:
        columns += [Column(heading, group=TITLES[figure]) for heading in change_headings(figure, with_paper=False)]
    in_paper = method == "f2c" and any(source in paper.table2() for source, _ in pairs)
    lines = [
        *notes.about(summary, list(entries.values())),
        "Points against the base; lower sigma_F1 is better.",
        notes.INTERVAL,
        *(["The paper gives its pairs only as pictures, its heat maps."] if in_paper else []),
        *notes.missing(summary, "transfer", count_missing(rows)),
    ]
    name, title = _file_name("table2_pairs", method), f"Transfer by pair under {method_title(method)}"
    return Table(name, title, tuple(columns), tuple(rows), tuple(lines), tuple(records))


def pair_entries(summary: Summary, method: str) -> dict[tuple[str, str], Entry]:
    """A method's entries by source and target."""
    found = [entry for entry in summary.about("transfer") if entry.method == method and entry.source]
    return {(str(entry.source), entry.task): entry for entry in found}


def _file_name(name: str, method: str) -> str:
    """The paper's Table 2 is F2C's: another method's table has its name in the file's."""
    return name if method == "f2c" else f"{name}_{method}"


def _marks(rows_of: Mapping[str | None, Transfer], sources: Sequence[str], figure: str) -> dict[str | None, Mark]:
    values = [rows_of[source].improvements.get(figure) if source in rows_of else None for source in sources]
    means = [None if value is None else value.mean for value in values]
    found = mark_extremes(means, less_is_better=False, decimals=DECIMALS)
    return {source: mark for source, mark in zip(sources, found, strict=True) if mark == "best"}


def _cells(found: Transfer | None, figure: str, mark: Mark | None) -> list[Cell]:
    if found is None or figure not in found.improvements:
        return [Cell(MISSING), Cell(MISSING)]
    return [Cell(_words(found.improvements[figure]), mark), Cell(found.balances[figure].words())]


def _paper_cells(printed: PaperTransfer | None, figure: str) -> list[Cell]:
    counts = f"{printed.better[figure]}/{printed.worse[figure]}" if printed else MISSING
    words = points(printed.improvements[figure], 3) if printed else MISSING
    return [Cell(words, is_paper=True), Cell(counts, is_paper=True)]


def _words(spread: Spread) -> str:
    return points(spread.mean, DECIMALS) + ("" if spread.std is None else f" ± {100 * spread.std:.{DECIMALS}f}")


def _records(rows_of: Mapping[str | None, Transfer], with_paper: bool) -> tuple[dict[str, Any], ...]:
    records = []
    for source, found in rows_of.items():
        for figure, spread in found.improvements.items():
            printed = paper.table2().get(source or "all") if with_paper else None
            records.append(
                {
                    "source": source or "all",
                    "figure": figure,
                    "pairs": found.num_pairs,
                    "improvement": spread.mean,
                    "std_over_seeds": spread.std,
                    "better": found.balances[figure].better,
                    "worse": found.balances[figure].worse,
                    "paper_improvement": printed and printed.improvements[figure],
                    "paper_better": printed and printed.better[figure],
                    "paper_worse": printed and printed.worse[figure],
                }
            )
    return tuple(records)


def _pair_record(method: str, source: str, target: str, entry: Entry | None, figure: str) -> dict[str, Any]:
    spread = entry.spread(figure) if entry else None
    interval = entry.intervals.get(figure) if entry else None
    return {
        "method": method,
        "source": source,
        "target": target,
        "figure": figure,
        "mean": spread and spread.mean,
        "std_over_seeds": spread and spread.std,
        "change": entry.change(figure) if entry else None,
        "change_low": interval and interval[0],
        "change_high": interval and interval[1],
    }
