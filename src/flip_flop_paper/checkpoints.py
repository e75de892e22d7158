"""Tables of training runs: the checkpoint that each selection rule chooses, and the rows and hours of each dataset."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flip_flop.console import MISSING, count, points
from flip_flop.errors import InputError
from flip_flop.metrics import share_drift
from flip_flop.record import RunRecord
from flip_flop_paper import layout
from flip_flop_paper.data.catalog import catalog_entry, catalog_names, row_protocols
from flip_flop_paper.frame import average_seeds, in_setting, methods_of, task_order, task_title, tasks_of
from flip_flop_paper.table import Column, Row, Table, TableCell

# What earlier versions logged as the value of a collapsed checkpoint.
COLLAPSED = -1.0
# The metric of each rule, and the columns of its choice.
RULES = {
    "mean_f1": ("mean_f1_step", "mean_f1_value", "mean_f1_agreement", "mean_f1_drift"),
    "agreement": ("agreement_step", "agreement_mean_f1", "agreement_value", "agreement_drift"),
}
SPLITS = ("train", "validation", "test")
_WHOSE = ("here", *row_protocols())
_HOURS = {"training": "hours", "validation": "hours_validation", "audit": "hours_audit"}
_COLUMNS = ["step", "mean_f1", "agreement", "drift"]
_TITLES = {"mean_f1": "by mean F1 (labels)", "agreement": "by agreement (no labels)"}


def checkpoints_table(frame: pd.DataFrame, choices: pd.DataFrame) -> Table:
    """One row per training run: both choices with both criteria, on the validation split."""
    both = choices[choices["mean_f1_step"].notna() & choices["agreement_step"].notna()]
    scored = choices[choices["num_candidates"] > 0]
    same = (both["mean_f1_step"] == both["agreement_step"]).sum()
    cost = layout.number((both["agreement_mean_f1"] - both["mean_f1_value"]).mean(), points)
    reasons = {
        "No checkpoint was scored on the validation split": len(choices) - len(scored),
        "No checkpoint within max_share_drift": (scored["is_guarded"] & scored["agreement_step"].isna()).sum(),
        "The log does not hold the base's votes, so the guard is unknown": (~scored["is_guarded"]).sum(),
    }
    shown = layout.Selection(frame, frame[:0], average_seeds(frame)[:0])
    notes = shown.notes(
        [],
        "Numbers are of the validation split, percent; a rule takes the first of the best. Without labels that is the "
        "best agreement with the base model's calibrated votes, or in logs of earlier versions the best P_o while "
        "drift is within max_share_drift. Drift: total variation distance of label shares from the base model's "
        "majority votes; the larger one of predictions and majority votes, with calibrated votes only of the latter.",
        len(both)
        and f"Both rules choose the same checkpoint in {same} of {count(len(both), 'training')}; "
        f"choosing without labels moves validation mean F1 by {cost} on average.",
        [f"{reason}: {count(int(number_of), 'training')}." for reason, number_of in reasons.items() if number_of],
    )
    rows = []
    for each in choices.itertuples():
        trained = TableCell(f"{task_title(each.task)}, {each.templates} templates", "name")
        texts = [str(each.seed)]
        for step, *values in ([getattr(each, column) for column in columns] for columns in RULES.values()):
            texts += [MISSING if pd.isna(step) else str(step), *map(layout.number, values)]
        rows.append([shown.method_head(each), trained, *map(TableCell, texts)])
    columns = [Column(heading, is_text=True) for heading in ("method", "trained on", "seed")]
    columns += [Column(text, group=_TITLES[rule]) for rule in RULES for text in ("step", "mean F1", "P_o", "drift")]
    records = choices.drop(columns=["num_candidates", "is_guarded"])
    return Table("selection", "Checkpoints by either rule of selection", columns, rows, notes, records)


def read_choices(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each training run with a complete audit.

    Columns: method, task, seed, templates (their number), selected_by (the rule of the run), max_share_drift and those
    of :data:`RULES`. num_candidates counts the checkpoints. is_guarded tells whether the log has every drift.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for an unreadable training run.
    """
    trained = frame[frame["is_done"] & frame["training"].notna()].drop_duplicates("training")
    rows = [
        {"method": each.method, "task": each.source, "seed": each.seed, "templates": each.k, **choose(each.training)}
        for each in trained.itertuples()
    ]
    methods = methods_of(frame)
    rows.sort(key=lambda row: (methods.index(row["method"]), task_order(row["task"]), row["templates"], row["seed"]))
    steps = dict.fromkeys(["seed", *(columns[0] for columns in RULES.values())], "Int64")
    return pd.DataFrame(rows).astype(steps) if rows else pd.DataFrame()


def choose(training: Path) -> dict[str, Any]:
    """Return the choice of both rules among the checkpoints of one training run: the first of the best.

    ``mean_f1`` is the paper's rule, and needs labels. ``agreement`` compares ``vote_agreement``. In logs of earlier
    versions it compares P_o among checkpoints with a label drift of at most ``max_share_drift``. The rule of the run
    itself skips checkpoints that the run rejected.
    """
    settings = RunRecord.read(training, "train").training or {}
    is_calibrated = settings.get("vote_calibration", "none") != "none"
    checkpoints = read_checkpoints(training / "log.jsonl", is_calibrated=is_calibrated)
    limit = float(settings.get("max_share_drift", 0.0))
    found: dict[str, Any] = {"selected_by": str(settings.get("selected_by", "")), "max_share_drift": limit}
    for rule, columns in RULES.items():
        allowed, value = checkpoints, rule
        if rule == "agreement" and checkpoints["vote_agreement"].notna().any():
            value = "vote_agreement"
        elif rule == "agreement":
            allowed = checkpoints[checkpoints["drift"] <= limit]
        if rule == found["selected_by"]:
            allowed = allowed[allowed["selection"] != COLLAPSED]
        known = allowed.dropna(subset=[value])
        best = known.loc[known[value].idxmax(), _COLUMNS].tolist() if len(known) else [None] * 4
        found |= dict(zip(columns, best, strict=True))
    return found | {"num_candidates": len(checkpoints), "is_guarded": bool(checkpoints["drift"].notna().all())}


def read_checkpoints(log: Path, *, is_calibrated: bool = False) -> pd.DataFrame:
    """The evaluated checkpoints, in order: step, mean_f1, agreement, drift, vote_agreement, selection.

    ``drift`` is the larger one of two: the label drift of predictions from the base model's raw majority votes, and the
    logged drift of the majority votes. If ``is_calibrated``, it is the logged one. NaN if the log has none of them.
    """
    try:
        lines = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.strip()]
    except FileNotFoundError as error:
        hint = "Run the study again."
        raise InputError("E-RUN-MISSING", f"{log.parent} has no {log.name}.", hint) from error
    except (OSError, ValueError) as error:
        hint = "Remove its folder and run the study again."
        raise InputError("E-RUN-BROKEN", f"{log} is not the log of a training run.", hint) from error
    evaluations = {
        int(line["step"]): line
        for line in lines
        if isinstance(line, dict) and "eval_observed_agreement" in line and "step" in line
    }
    base = _shares(evaluations.pop(0, {}), "eval_vote_share_")
    rows = []
    for step, line in sorted(evaluations.items()):
        shares = _shares(line, "eval_label_share_")
        drifts = [line["eval_vote_drift"]] if "eval_vote_drift" in line else []
        if 0 < len(base) == len(shares) and not (is_calibrated and drifts):
            drifts.append(share_drift(base, shares))
        values = (line.get(f"eval_{name}") for name in ("mean_f1", "observed_agreement"))
        rows.append(
            (step, *values, max(drifts, default=None), *map(line.get, ("eval_vote_agreement", "eval_selection")))
        )
    return pd.DataFrame(rows, columns=[*_COLUMNS, "vote_agreement", "selection"], dtype=float)


def _shares(line: Mapping[str, Any], prefix: str) -> np.ndarray:
    found = {int(key.removeprefix(prefix)): value for key, value in line.items() if key.startswith(prefix)}
    return np.array([found[label] for label in sorted(found)], dtype=np.float64)


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
