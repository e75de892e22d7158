"""Whether numbers that need no labels predict the gain of a training run.

A run gains if one trained template has a higher test accuracy than one template of the base, calibrated or raw. The
numbers are logged in the first evaluations, with their changes since step 0. For the runs of one group, a task or a
method, the rule is the number and the threshold that best separate all other runs.
"""

from itertools import product
from pathlib import Path

import pandas as pd
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from evidence.run import SETTINGS
from flip_flop.files import read_json

NUMBERS = ("eval_observed_agreement", "eval_vote_drift", "eval_own_label_mass")


def read_runs(results: Path) -> pd.DataFrame:
    """Return the runs with the default number of steps, on their own tasks: task, method, gains and numbers."""
    rows = []
    for file in sorted(set(results.glob("*/*/*.json")) - set(results.glob("*/*/*_from_*.json"))):
        result, base = read_json(file), file.with_name("base-0.json")
        if not base.exists() or (result["training"] or {}).get("max_steps") != SETTINGS["max_steps"]:
            continue
        after, audit = result["audits"]["trained"]["raw"]["metrics"]["accuracy"], read_json(base)["audits"]["trained"]
        row = {
            "task": f"{result['model']} {result['task']}",
            "method": result["training"]["method"],
            **{view: after - audit[view]["metrics"]["accuracy"] for view in ("calibrated", "raw")},
        }
        for name, step in product(NUMBERS, (0, 4, 8)):
            course = dict(result["training"]["log"][name])
            row |= {f"{name} {step}": course[step], f"{name} 0 to {step}": course[step] - course[0]}
        rows.append(row)
    return pd.DataFrame(rows)


def hit_rate(runs: pd.DataFrame, view: str, group: str, last_step: int) -> float:
    """Return the share of runs whose gain over a view of the base the rule from the other groups predicts."""
    numbers = runs[[name for name in runs.filter(like="eval_") if int(name.split()[-1]) <= last_step]]
    rule, gained = DecisionTreeClassifier(max_depth=1, class_weight="balanced", random_state=0), runs[view] > 0
    return float((cross_val_predict(rule, numbers, gained, groups=runs[group], cv=LeaveOneGroupOut()) == gained).mean())
