"""Results made up from a seed: run directories as audits and trainings leave them, and frames without any file."""

import json
from pathlib import Path

import numpy as np
import pandas as pd

from flip_flop.studies.frame import KEPT, TEMPLATE_F1
from flip_flop.studies.paper import dataset_names, table1, table2
from flip_flop.studies.results import Result
from tests.report.made_runs import make_scores, write_run

PULLS = {"base": 0.0, "swarm": 0.3, "cce": 0.7, "f2c": 0.8}
MODEL = "Qwen/Qwen2.5-3B-Instruct"


def templates(number: int, first: int = 0) -> list[tuple[str, str, str]]:
    return [(f"t{index:02d}", f"{{{{ text }}}} {index}?", "No ||| Yes") for index in range(first, first + number)]


def make_training(folder: Path, method: str, log: list[dict] | None = None, **settings) -> Path:
    folder.mkdir(parents=True)
    record = {
        "kind": "train",
        "task": {"name": "made", "labels": [], "digest": "", "split": "train", "templates": []},
        "model": {"name": MODEL},
        "training": {"method": method, "max_share_drift": 0.2, "selected_by": "mean_f1"} | settings,
    }
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log or evaluations()))
    return folder


def evaluation(step: int, mean_f1: float, agreement: float, shares=(0.5, 0.5), votes=(0.5, 0.5)) -> dict:
    line = {"step": step, "eval_observed_agreement": agreement, "eval_mean_f1": mean_f1}
    line |= {f"eval_label_share_{label}": share for label, share in enumerate(shares)}
    return line | {f"eval_vote_share_{label}": share for label, share in enumerate(votes)}


def evaluations() -> list[dict]:
    """Agreement is highest at step 9, after a collapse; next at step 6; mean F1 at step 3, and again at step 6."""
    return [
        evaluation(0, 0.60, 0.70, (0.55, 0.45), (0.50, 0.50)),
        {"step": 1, "loss": 0.7},
        evaluation(3, 0.80, 0.75, (0.45, 0.55)),
        evaluation(6, 0.80, 0.85, (0.40, 0.60)),
        evaluation(9, 0.55, 0.99, (0.05, 0.95)),
    ]


class Maker:
    """Writes run directories below a folder, and gives their results."""

    def __init__(self, root: Path, *, num_instances: int = 37, is_demo: bool = False, model: str = MODEL):
        self.root, self.num_instances = root, num_instances
        self.options = {"is_demo": is_demo, "model": model}

    def audit(self, method, task, *, source=None, seed=None, k=10, held_out=False, shown=6, **more) -> Result:
        """``shown``: how many templates are audited, or (how many, the first one's number)."""
        count, first = shown if isinstance(shown, tuple) else (shown, 0)
        pull = more.pop("pull", PULLS[method])
        own = sum(map(ord, task))
        scores, gold = make_scores(own + 1000 * (seed or 0), self.num_instances, count, 2, pull)
        if seed is not None:  # the same instances as the base's, answered otherwise
            _, gold = make_scores(own, self.num_instances, count, 2, pull)
        if more.pop("no_gold", False):
            gold = np.full_like(gold, -1)
        run = self.root / "audits" / f"{method}-{task}-{source}-{seed}-{k}-{count}-{first}"
        options = self.options | {"task": task, "digest": f"{own:064x}"}
        write_run(run, method, scores, gold, templates(count, first), labels=("no", "yes"), **options)
        names = tuple(name for name, _, _ in templates(count, first))
        if method == "base":
            return Result(method, task, "", None, 0, False, names, run, None)
        source = source or task
        training = self.root / "trainings" / f"{method}-{source}-{seed}-{k}"
        if not training.exists():
            make_training(training, method, **more)
        return Result(method, task, source, seed, k, held_out, names, run, training)


def metrics_of(result: Result) -> dict:
    return json.loads((result.run / "metrics.json").read_text())


def study1(maker: Maker, tasks=("rte", "copa", "my_task"), seeds=(0, 1)) -> list[Result]:
    results = [maker.audit("base", task) for task in tasks]
    for method in ("swarm", "cce", "f2c"):
        results += [maker.audit(method, task, seed=seed) for task in tasks for seed in seeds]
    return results


def study2(maker: Maker, tasks=("rte", "copa", "wsc"), sources=("rte", "copa")) -> list[Result]:
    results = [maker.audit("base", task) for task in tasks]
    pairs = [(source, task) for source in sources for task in tasks if task != source]
    return results + [maker.audit("f2c", task, source=source, seed=0) for source, task in pairs]


def study3(maker: Maker, task="rte") -> list[Result]:
    shown = (4, 6)
    return [
        maker.audit("base", task, shown=shown),
        maker.audit("f2c", task, seed=0, k=3, held_out=True, shown=shown, pull=0.4),
        maker.audit("f2c", task, seed=0, k=6, held_out=True, shown=shown, pull=0.6),
        maker.audit("f2c", task, seed=0, shown=shown),
    ]


def made_frame(*audits: dict) -> pd.DataFrame:
    """A frame of audits without files: ``values``, ``base`` and ``f1`` by template, and whatever else they name."""
    rows = []
    for position, audit in enumerate(audits):
        is_base = audit["method"] == "base"
        row = {"setting": "own", "source": "" if is_base else audit["task"], "seed": None if is_base else 0}
        row |= {"k": 0 if is_base else 10, "held_out": False, "template_names": ("t0", "t1"), "is_done": True}
        row |= {"model": MODEL, "is_demo": False, "split": "test", "instances": 100, "collapsed": False}
        row |= {"position": position, "change_low": np.nan, "change_high": np.nan, "training": None} | audit
        values, base, f1 = (row.pop(part, {}) for part in ("values", "base", "f1"))
        rows += [
            row | {"metric": metric, "template": "", "value": values.get(metric), "base": base.get(metric)}
            for metric in KEPT
        ]
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
    """80 pairs whose means and signs by source are those of the paper's Table 2."""
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
