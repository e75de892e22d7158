"""Which checkpoint each rule would have chosen, from a training's log alone, and what the label-free one costs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flip_flop.console import MISSING, count, points
from flip_flop.errors import InputError
from flip_flop.metrics import share_drift
from flip_flop.record import RunRecord
from flip_flop_paper.frame import average_seeds, methods_of, task_order, task_title
from flip_flop_paper.tables import layout
from flip_flop_paper.tables.table import Column, Table, TableCell

# What earlier versions logged as the value of a collapsed checkpoint.
COLLAPSED = -1.0
# Each rule's metric, and the columns of what it takes.
RULES = {
    "mean_f1": ("mean_f1_step", "mean_f1_value", "mean_f1_agreement", "mean_f1_drift"),
    "agreement": ("agreement_step", "agreement_mean_f1", "agreement_value", "agreement_drift"),
}
_COLUMNS = ["step", "mean_f1", "agreement", "drift"]
_TITLES = {"mean_f1": "by mean F1 (labels)", "agreement": "by agreement (no labels)"}


def checkpoints_table(frame: pd.DataFrame, choices: pd.DataFrame) -> Table:
    """One row per training: both choices with both criteria, on the validation split."""
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
    """A row for each training behind a study's complete audits.

    Columns: method, task, seed, templates (how many were trained on), selected_by (the rule that it followed),
    max_share_drift, those of :data:`RULES`, num_candidates, is_guarded (the log holds what the guard needs).

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a training that cannot be read.
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
    """What both rules take among the checkpoints of one training: the first of the best, as training does.

    ``mean_f1`` is the paper's rule, and needs labels. ``agreement`` is by ``vote_agreement``; in logs of earlier
    versions, by P_o among checkpoints whose label shares are within ``max_share_drift`` of the base's majority votes.
    What the training itself refused is not taken by the rule that it followed.
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
        hint = "Run the study again: it trains what is missing."
        raise InputError("E-RUN-MISSING", f"{log.parent} has no {log.name}.", hint) from error
    except (OSError, ValueError) as error:
        hint = "Remove its folder and run the study again."
        raise InputError("E-RUN-BROKEN", f"{log} is not the log of a training.", hint) from error
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
