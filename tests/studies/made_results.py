"""Random results: a study folder with training runs and audits, and frames without files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from flip_flop.files import sha256_text, write_json
from flip_flop.method import BASE, METHODS
from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.folder import StudyFolder
from flip_flop.paper.frame import KEPT, TEMPLATE_F1, make_frame
from flip_flop.paper.plan import Cell, Plan, Setup
from flip_flop.paper.published import dataset_names, table1, table2
from flip_flop.paper.study import Study
from tests.report.made_runs import make_scores, write_run

PULLS = {"base": 0.0, "swarm": 0.3, "cce": 0.7, "f2c": 0.8}
MODEL = "Qwen/Qwen2.5-3B-Instruct"


class Maker:
    """A study's folder and plan, which grow by an audit, with its training run, at each call."""

    def __init__(self, root: Path, *, num_instances: int = 37, is_demo: bool = False):
        self.folder, self.num_instances, self.is_demo = StudyFolder(root), num_instances, is_demo
        self.cells: dict[str, Cell] = {}

    @property
    def plan(self) -> Plan:
        study = Study(name="made", tasks=("rte",), description="Made rows, nothing else.")
        return Plan(study, Setup(MODEL), {}, tuple(self.cells.values()))

    def frame(self) -> pd.DataFrame:
        return make_frame(self.folder, self.plan)

    def audit(self, method, task, *, source=None, seed=None, k=10, held_out=False, shown=None, **more) -> None:
        """``shown``: how many templates are audited, and the first one's number. None: as many as in the paper."""
        shown = shown or (num_templates(task), 0)
        source, training = None if method == "base" else source or task, None
        if source:
            training = self._cell("train", method, source, source, seed, held_out, _names(k, 0), None)
            record = {"kind": "train", "task": {"name": "made", "labels": [], "split": "train", "templates": []}}
            record |= {"model": {"name": MODEL}, "training": {"method": method}}
            write_json(
                self.folder.run(training) / "run.json", record | {"adapter": {"digest": "9e" * 32}}
            )  # the audits'
            self.folder.finish(training)
        cell = self._cell("audit", method, task, source, seed, held_out, _names(*shown), training)
        if more.get("is_done", True):
            own, pull = sum(map(ord, task)), more.get("pull", PULLS.get(method, 0.5))
            scores, _ = make_scores(own + 1000 * (seed or 0), self.num_instances, shown[0], 2, pull)
            gold = make_scores(own, self.num_instances, shown[0], 2, pull)[1]  # the same instances for every seed
            gold = np.full_like(gold, -1) if more.get("no_gold") else gold
            options = {"task": task, "digest": f"{own:064x}", "model": MODEL, "is_demo": self.is_demo}
            templates = [(name, f"{{{{ text }}}} {name}?", "No ||| Yes") for name in _names(*shown)]
            options |= {"labels": ("no", "yes"), "method": method if training else None}
            write_run(self.folder.run(cell), method, scores, gold, templates, **options)
            self.folder.finish(cell, training)

    def _cell(self, kind, method, task, source, seed, held_out, names, training) -> Cell:
        key = sha256_text(repr((kind, method, task, source, seed, names, training and training.key)))
        where = (method, task, task, source, None if source is None else seed, held_out, names)
        label, trained = f"{method}-{task}".replace(":", "_"), training.key if training else None
        return self.cells.setdefault(key, Cell(key, kind, label, *where, trained, {}))

    def lose(self, **which) -> None:
        """Remove the records of audits with these attributes."""
        for cell in self._audits(**which):
            (self.folder.run(cell) / "run.json").unlink()

    def metrics(self, **which) -> list[dict]:
        """Of each audit of these attributes."""
        return [json.loads((self.folder.run(cell) / "metrics.json").read_text()) for cell in self._audits(**which)]

    def runs(self, **which) -> list[Path]:
        return [self.folder.run(cell) for cell in self._audits(**which)]

    def _audits(self, **which) -> list[Cell]:
        return [cell for cell in self.plan.audits if all(getattr(cell, name) == value for name, value in which.items())]


def _names(number: int, first: int) -> tuple[str, ...]:
    return tuple(f"t{index:02d}" for index in range(first, first + number))


def num_templates(task: str) -> int:
    return catalog_entry(task).paper["templates"] if task in dataset_names() else 6


def study1(maker: Maker, tasks=("rte", "copa", "my_task"), seeds=(0, 1), methods=("swarm", "cce", "f2c")) -> Maker:
    for task in tasks:
        maker.audit("base", task)
        for method in methods:
            for seed in seeds:
                maker.audit(method, task, seed=seed)
    return maker


def study2(maker: Maker, tasks=("rte", "copa", "wsc"), sources=("rte", "copa")) -> Maker:
    for task in tasks:
        maker.audit("base", task)
        for source in sources:
            if source != task:
                maker.audit("f2c", task, source=source, seed=0)
    return maker


def study3(maker: Maker, task="rte") -> Maker:
    maker.audit("base", task, shown=(4, 6))
    for k, pull in ((3, 0.4), (6, 0.6), (10, 0.8)):
        maker.audit("f2c", task, seed=0, k=k, held_out=k < 10, shown=(4, 6), pull=pull)
    return maker


def made_frame(*audits: dict) -> pd.DataFrame:
    """A frame of audits without files, from ``values``, ``base``, ``f1`` by template, and other columns."""
    rows = []
    for position, audit in enumerate(audits):
        is_base = audit["method"] == "base"
        row = {"setting": "own", "source": "" if is_base else audit["task"], "seed": None if is_base else 0}
        names = _names(num_templates(audit["task"]), 0)
        row |= {"k": 0 if is_base else 10, "held_out": False, "template_names": names, "is_done": True}
        row |= {"model": MODEL, "is_demo": False, "split": "test", "instances": 100, "collapsed": False}
        method = {"base": BASE, **METHODS}.get(audit["method"])
        row |= {"method_title": method.title if method else audit["method"]}
        row |= {"method_colour": method.colour if method else "#cc79a7"}
        row |= {"position": position, "change_low": np.nan, "change_high": np.nan, "training": None} | audit
        values, base, f1 = (row.pop(part, {}) for part in ("values", "base", "f1"))
        own = {metric: {"value": values.get(metric), "base": base.get(metric)} for metric in KEPT}
        rows += [row | {"metric": metric, "template": ""} | found for metric, found in own.items()]
        rows += [row | {"metric": TEMPLATE_F1, "template": name, "value": value} for name, value in f1.items()]
    return pd.DataFrame(rows).astype({"seed": "Int64", "value": float, "base": float})


def paper_values(method: str, task: str) -> dict[str, float]:
    found = table1()[(table1()["method"] == method) & (table1()["task"] == task)]
    return dict(zip(found["metric"], found["paper"], strict=True))


def paper_audits(**more) -> list[dict]:
    """Table 1 of the paper as audits, so that it goes through the same tables."""
    found = []
    for method in PULLS:
        for task in dataset_names():
            base = {} if method == "base" else paper_values("base", task)
            found.append({"method": method, "task": task, "values": paper_values(method, task), "base": base} | more)
    return found


def transfer_audits() -> list[dict]:
    """80 pairs with the means and signs of the paper's Table 2."""
    audits = []
    for source, rows in table2().groupby("source", sort=False):
        targets = [task for task in dataset_names() if task != source]
        for number, target in enumerate(targets if source != "all" else []):
            base = paper_values("base", target)
            values = {}
            for row in rows.itertuples():
                loss = 0.001
                gain = (len(targets) * row.paper_improvement + row.paper_worse * loss) / row.paper_better
                improvement = gain if number < row.paper_better else -loss
                values[row.metric] = base[row.metric] + improvement * (-1 if row.metric == "f1_std" else 1)
            audit = {"method": "f2c", "task": target, "source": source, "setting": "transfer"}
            audits.append(audit | {"values": values, "base": base})
    return audits
