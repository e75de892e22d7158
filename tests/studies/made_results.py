"""Results made up from a seed: run directories as audits and trainings leave them, and entries without any file."""

import json
from pathlib import Path

import numpy as np

from flip_flop.studies.paper import FIGURES, dataset_names, table1, table2
from flip_flop.studies.results import Result
from flip_flop.studies.summary import Entry, Summary
from tests.report.made_runs import make_scores, write_run

PULLS = {"base": 0.0, "swarm": 0.3, "cce": 0.7, "f2c": 0.8}
MODEL = "Qwen/Qwen2.5-3B-Instruct"


def templates(number: int, first: int = 0) -> list[tuple[str, str, str]]:
    return [(f"t{index:02d}", f"{{{{ text }}}} {index}?", "No ||| Yes") for index in range(first, first + number)]


def make_training(folder: Path, method: str, num_templates: int, log: list[dict] | None = None, **settings) -> Path:
    folder.mkdir(parents=True)
    record = {
        "kind": "train",
        "task": {"templates": [{"name": name} for name, _, _ in templates(num_templates)]},
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

    def audit(self, method, task, *, source=None, seed=None, num_templates=None, held_out=False, shown=None, **more):
        """``shown``: how many templates are audited, or (how many, the first one's number)."""
        count, first = shown if isinstance(shown, tuple) else (shown or 6, 0)
        pull = more.pop("pull", PULLS[method])
        place = sum(map(ord, task)) + 1000 * (seed or 0)
        scores, gold = make_scores(place, self.num_instances, count, 2, pull)
        if seed is not None:  # the same instances as the base's, answered otherwise
            _, gold = make_scores(sum(map(ord, task)), self.num_instances, count, 2, pull)
        if more.pop("no_gold", False):
            gold = np.full_like(gold, -1)
        name = f"{method}-{task}-{source}-{seed}-{num_templates}-{count}-{first}"
        run = self.root / "audits" / name
        labels, digest = ("no", "yes"), f"{sum(map(ord, task)):064x}"
        options = self.options | {"task": task, "digest": digest}
        write_run(run, method, scores, gold, templates(count, first), labels=labels, **options)
        training = None
        if method != "base":
            source = source or task
            training = self.root / "trainings" / f"{method}-{source}-{seed}-{num_templates}"
            if not training.exists():
                make_training(training, method, num_templates or 10, **more)
        metrics = json.loads((run / "metrics.json").read_text())
        return Result("made", method, task, source, seed, num_templates, held_out, run, training, metrics)


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
        maker.audit("f2c", task, seed=0, num_templates=3, held_out=True, shown=shown, pull=0.4),
        maker.audit("f2c", task, seed=0, num_templates=6, held_out=True, shown=shown, pull=0.6),
        maker.audit("f2c", task, seed=0, shown=shown),
    ]


def transfer_grid() -> Summary:
    """A grid of 80 pairs whose means and signs by source are those of the paper's Table 2."""
    entries = []
    for source, row in table2().items():
        targets = [task for task in dataset_names() if task != source]
        if source == "all":
            continue
        for number, target in enumerate(targets):
            base = table1()["base", target].figures
            values = {}
            for figure in FIGURES:
                better, worse = row.better[figure], row.worse[figure]
                loss = 0.001
                gain = (len(targets) * row.improvements[figure] + worse * loss) / better
                improvement = gain if number < better else -loss
                values[figure] = (base[figure] + (-improvement if figure == "f1_std" else improvement),)
            entries.append(Entry("f2c", target, source, "transfer", values, base=base, seeds=(0,)))
    return Summary(tuple(entries), (MODEL,))
