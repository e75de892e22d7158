"""The table of the rows and hours of each dataset."""

from collections.abc import Iterable

import pandas as pd

from flip_flop.paper import layout
from flip_flop.paper.data.catalog import catalog_entry, catalog_names, row_protocols
from flip_flop.paper.frame import in_setting, tasks_of
from flip_flop.paper.table import Column, Row, Table, TableCell
from flip_flop.record import RunRecord

SPLITS = ("train", "validation", "test")
_WHOSE = ("here", *row_protocols())
_HOURS = {"training": "hours", "validation": "hours_validation", "audit": "hours_audit"}


def read_sizes(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each of the paper's datasets that was trained on and audited.

    Columns: task, and the rows of each split, such as ``train_here`` or ``train_paper``. ``hours`` is the mean over its
    training runs, ``hours_validation`` their time in evaluations, and ``hours_audit`` the mean over audits.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for an unreadable training run.
    """
    own = in_setting(frame, "own")
    done = own[own["is_done"] & own["training"].notna() & own["task"].isin(catalog_names())]
    rows = []
    for task in tasks_of(done):
        audits = done[done["task"] == task].drop_duplicates("training")
        records = [RunRecord.read(training, "train") for training in audits["training"]]
        data, entry = records[0].task, catalog_entry(task)
        here = (data.num_instances, data.num_validation, int(audits["instances"].iloc[0]))
        sizes = {f"{split}_here": size for split, size in zip(SPLITS, here, strict=True)}
        for name in row_protocols():
            sizes |= {f"{split}_{name}": entry.published(name)[split] for split in SPLITS}
        evaluations = [(record.training or {}).get("evaluation_seconds") for record in records]
        hours = {
            "hours": _mean_hours(record.seconds for record in records),
            "hours_validation": _mean_hours(evaluations),
            "hours_audit": _mean_hours(audits["seconds"].dropna()),
        }
        rows.append({"task": task, **sizes, **hours})
    return pd.DataFrame(rows)


def sizes_table(frame: pd.DataFrame, sizes: pd.DataFrame) -> Table:
    """One row per dataset: its splits here and as published, and hours per training run and audit."""
    columns = [Column("task", is_text=True)]
    columns += [Column(whose, group=split) for split in SPLITS for whose in _WHOSE]
    columns += [Column(name, group="hours") for name in _HOURS]
    rows: list[Row] = []
    for each in sizes.itertuples():
        found = [(whose, getattr(each, f"{split}_{whose}")) for split in SPLITS for whose in _WHOSE]
        cells = [TableCell(layout.number(size, _rows), "" if whose == "here" else "paper") for whose, size in found]
        cells += [TableCell(layout.number(getattr(each, name), _hours)) for name in _HOURS.values()]
        rows.append([layout.task_head(each), *cells])
    notes = layout.select(frame, "own").notes(
        rows,
        "Rows of each split, after deduplication. Hours, means: of a training, of its evaluations in it, of an audit; "
        "of a resumed one since it was resumed.",
        [f"{name}: {protocol.source}." for name, protocol in row_protocols().items()],
        [
            f"Reported there: {' to '.join(map(str, protocol.reported_hours))} hours for {protocol.reported_for}."
            for protocol in row_protocols().values()
            if protocol.reported_hours
        ],
    )
    return Table("sizes", "Rows and hours of each dataset", columns, rows, notes, sizes)


def _mean_hours(seconds: Iterable[float | None]) -> float | None:
    known = [each for each in seconds if each is not None]
    return sum(known) / len(known) / 3600 if known else None


def _rows(size: float, decimals: int) -> str:
    return f"{int(size):,}"


def _hours(hours: float, decimals: int) -> str:
    return f"{hours:.{decimals}f}"
