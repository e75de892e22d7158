"""The settings that the authors' release has for each dataset and model, as settings of a study's training runs."""

import csv
import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flip_flop.method import BASE
from flip_flop.paper.study import Study

TABLE = Path(__file__).parent / "paper" / "release_settings.csv"


@functools.cache
def release_settings(model: str) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Fields of ``F2CConfig`` by (method, task).

    The release ran Qwen2.5-3B-Instruct and Llama-3.2-3B-Instruct. Only WiC's settings differ. A model with "llama" in
    its name uses those of Llama, every other model those of Qwen.

    Example:
        >>> release_settings("meta-llama/Llama-3.2-3B-Instruct")["f2c", "wic"]["unanimous_margin"]
        0.65
        >>> release_settings("Qwen/Qwen2.5-3B-Instruct")["cce", "rte"]
        {'cce_weight': 0.1}
    """
    family = "llama" if "llama" in Path(model).name.lower() else "qwen"
    found: dict[tuple[str, str], dict[str, Any]] = {}
    with TABLE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            task, of_family, alone = row.pop("task"), row.pop("model"), float(row.pop("cce_alone"))
            if of_family in ("", family):
                found["cce", task] = {"cce_weight": alone}
                found["f2c", task] = {name: float(value) for name, value in row.items()}
                found["f2c", task]["max_cc_size"] = int(row["max_cc_size"])
    return found


def with_protocol(study: Study, model: str) -> Study:
    """The study with its protocol, and the protocol's settings per dataset, below all other settings."""
    table = release_settings(model) if study.protocol == "release" else {}
    layer = {
        method: {
            task: {"protocol": study.protocol} | dict(table.get((study.trained(method), task), {}))
            for task in study.tasks
        }
        for method in study.methods
        if method != BASE.name
    }
    return replace(study, settings=replace(study.settings, protocol=layer))
