"""What a run's record says of a training: its settings, how it went, and what it changed on the validation split.

A ``trainer`` here is an :class:`~flip_flop.training.trainer.F2CTrainer`, whose module imports this one.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor

from flip_flop.console import versions
from flip_flop.metrics import METRICS, Scores
from flip_flop.record import RunRecord, TaskRecord, TemplateRecord
from flip_flop.scoring.distributed import world_size
from flip_flop.tasks import template_name
from flip_flop.training.checkpoint_choice import base_value
from flip_flop.training.checks import has_dropout
from flip_flop.training.plan import recorded_settings

# What the model card has of a run before and after.
SHOWN = ("observed_agreement", "mean_f1", "f1_std", "vote_f1")


def training_record(trainer: Any, change: dict[str, Any] | None, survey: Any = None) -> dict[str, Any]:
    """The ``training`` of ``run.json``: settings, steps, what chose the checkpoint, first votes, ``validation``."""
    best = trainer.state.best_model_checkpoint
    states = trainer.optimizer.state.values() if trainer.optimizer is not None else ()
    return recorded_settings(trainer.args) | {
        "num_processes": world_size(),
        "dropout_depends_on_processes": world_size() > 1 and has_dropout(trainer.adapted),
        "steps": trainer.state.global_step,
        "collapsed_at_step": trainer.collapsed_at,
        "stopped_early": trainer.state.global_step < trainer.state.max_steps,
        "adapter_dtype": _dtypes(value for value in trainer.adapted.parameters() if value.requires_grad),
        "optimizer_dtype": _dtypes(
            value
            for state in states
            for value in state.values()
            if isinstance(value, Tensor) and value.dim() > 0  # a step count has no axis
        ),
        "selected_by": trainer.criterion.by,
        "selected_checkpoint": None if best is None else Path(best).name,
        "selected_value": trainer.state.best_metric,
        "base_value": base_value(trainer.state.log_history),
        "survey": survey,
        "votes_digest": trainer.votes.first.digest if trainer.votes and trainer.votes.first else None,
        "validation": change,
        "evaluation_seconds": round(trainer.evaluation_seconds, 2),  # part of the run's seconds
    }


def change_on_validation(trainer: Any) -> dict[str, Any] | None:
    """Metrics of the base and of the trained state on the validation split; None where nothing is evaluated.

    By name: ``before`` and ``after``, fractions, and ``interval``, the paired 95% interval of their difference. All
    processes take part in the scoring.
    """
    dataset = trainer.eval_instances
    if dataset is None or trainer.args.eval_strategy == "no":
        return None
    before = Scores(trainer.base.validation.uncalibrated.scores, dataset.gold, trainer.f1)
    after = Scores(trainer.scores(dataset.instances, "validation"), dataset.gold, trainer.f1)
    found: dict[str, Any] = {"num_instances": len(dataset)}
    for name in SHOWN:
        metric = METRICS[name]
        interval = metric.change_interval(before, after)
        values = {"before": metric.value(before), "after": metric.value(after)}
        found[name] = values | {"interval": None if interval is None else list(interval)}
    return found


def describe(trainer: Any, change: dict[str, Any] | None) -> RunRecord:
    """A record of what a trainer knows by itself: its rows have no task, and their templates no texts."""
    instances = trainer.train_instances.instances
    num_templates, num_labels = (len(instances[0].answers), len(instances[0].answers[0])) if instances else (0, 0)
    names = trainer.template_names or [template_name(number) for number in range(num_templates)]
    return RunRecord(
        kind="train",
        flip_flop_version=versions()["flip_flop"],
        name=trainer.method.name,
        task=TaskRecord(
            name="rows",
            labels=tuple(range(num_labels)),
            digest="",
            split="train",
            num_instances=len(instances),
            has_gold=any(each.label is not None for each in instances),
            f1=trainer.f1,
            templates=tuple(TemplateRecord(name=name) for name in names),
        ),
        model=trainer.loaded.record,
        scoring={"chat_template": trainer.encoder.uses_chat_template},
        training=training_record(trainer, change),
        seed=trainer.args.seed,
        versions=versions(),
    )


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))
