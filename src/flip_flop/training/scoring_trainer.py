"""Evaluation and prediction of a trainer: whole instances are scored under all their templates."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from peft import PeftModel
from torch import Tensor
from transformers import EvalPrediction, Trainer
from transformers.trainer_utils import PredictionOutput

from flip_flop.errors import InputError, nearest
from flip_flop.hub import hub_answers, unreachable
from flip_flop.metrics import METRICS, Average, Scores, label_shares, majority_vote, summarise
from flip_flop.record import TaskRecord
from flip_flop.scoring import distributed
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.causal_lm import require_finite
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.packed import AnswerStates
from flip_flop.scoring.scores import join_scores, score_instances
from flip_flop.tasks import RenderedRows, template_name
from flip_flop.training.config import F2CConfig, setting_errors
from flip_flop.training.data import InstanceDataset, encode_rows
from flip_flop.training.selection import CheckpointCriterion
from flip_flop.training.votes import FrozenVotes, VoteTable


def evaluation_metrics(table: Scores, gold: np.ndarray, names: Sequence[str], f1: Average = "auto") -> dict[str, float]:
    """Compute the metrics of one evaluation, flat and without those that have no value.

    The evaluation before the first step has the label frequencies of the base model's votes, so that other selection
    criteria can be computed from the log.
    """
    summary = summarise(table.scores, gold, names, f1=f1, intervals=False)
    metrics = {name: summary[name] for name in METRICS if summary[name] is not None}
    metrics |= {f"label_share_{label}": share for label, share in enumerate(summary["label_shares"])}
    vote_shares = label_shares(majority_vote(table.scores)[:, None], table.scores.shape[-1])
    metrics |= {f"vote_share_{label}": float(share) for label, share in enumerate(vote_shares)}
    mass = table.own_label_mass.mean(axis=0)
    metrics |= {"own_label_mass": float(mass.mean()), "own_label_mass_min": float(mass.min())}
    return metrics | {f"own_label_mass/{name}": float(value) for name, value in zip(names, mass, strict=True)}


class ScoringTrainer(Trainer):
    """The part of :class:`~flip_flop.training.trainer.F2CTrainer` that scores instances and changes no weights."""

    args: F2CConfig
    adapted: PeftModel
    encoder: PromptEncoder
    backend: Any
    eval_instances: InstanceDataset | None
    eval_by_name: Mapping[str, InstanceDataset]
    criterion: CheckpointCriterion
    votes: FrozenVotes | None  # None: online
    sample: Sequence[EncodedInstance]  # of the training instances
    task_record: TaskRecord | None = None  # rows have no task, and no template names
    template_names: Sequence[str] | None = None
    f1: Average = "auto"
    evaluation_seconds: float = 0.0

    def create_accelerator_and_postprocess(self) -> None:
        """Report an invalid setting as ``E-CONFIG-VALUE``."""
        with setting_errors("accelerate"):
            super().create_accelerator_and_postprocess()

    @abstractmethod
    def unsupervised_losses(
        self, encoded: Sequence[EncodedInstance], states: AnswerStates, votes: Tensor
    ) -> list[float]:
        """The method's loss of each instance, with these votes."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score instances; return agreement, F1, own-label mass and the value that selects the checkpoint.

        ``eval_dataset``: rows, a dict of rows by name, or the name of one of the trainer's.
        """
        started = time.monotonic()
        if eval_dataset is None:
            found = self._evaluate_own()
        elif isinstance(eval_dataset, Mapping):
            each = {name: self._metrics_on(self._encoded(rows)) for name, rows in eval_dataset.items()}
            found = _joined(each)
        else:
            found = self._metrics_on(self._encoded(eval_dataset))
        prefixed = {f"{metric_key_prefix}_{name}": value for name, value in found.items()}
        self.log(prefixed)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, prefixed)
        self.evaluation_seconds += time.monotonic() - started
        return prefixed

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate each step once. The start of a resumed run, and the end of an epoch, can ask again."""
        known = {entry["step"]: entry for entry in self.state.log_history if "eval_collapsed" in entry}
        step, is_start = self.state.global_step, kwargs.get("skip_scheduler")
        if step in known or (step and is_start):
            return known.get(step, {})
        return super()._evaluate(*args, **kwargs)  # overrides a private method: the library has no public hook

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return scores ``[instances, templates, labels]`` in nats, label indices (-1: no label) and metrics."""
        dataset = self._encoded(test_dataset)
        table = self.score(dataset.instances, "predict")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self._metrics(table, dataset).items()}
        return PredictionOutput(table.scores, dataset.gold, metrics)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository of ``push_to_hub`` before the training.

        Raises:
            InputError: ``E-CONFIG-VALUE`` if the hub is unreachable or refuses.
        """
        remedy = "Log in with `hf auth login`" if hub_answers() else f"Connect to the hub ({unreachable()})"
        hint = f"{remedy}, or save the adapter and send its folder later with `hf upload`."
        with setting_errors("push_to_hub", hint):
            super().init_hf_repo(token, private)

    def _encoded(self, rows: RenderedRows | str) -> InstanceDataset:
        if isinstance(rows, str):
            if rows not in self.eval_by_name:
                raise InputError("E-ROW", f"There is no eval_dataset {rows!r}.", nearest(rows, self.eval_by_name))
            return self.eval_by_name[rows]
        (dataset,) = encode_rows(self.encoder, self.args.too_long, ("validation", rows))
        return dataset

    def _metrics_on(self, dataset: InstanceDataset) -> dict[str, float]:
        return self._metrics(self.score(dataset.instances, "validation"), dataset)

    def _evaluate_own(self) -> dict[str, float]:
        dataset = self.eval_instances
        assert dataset is not None, "no evaluation rows"
        losses: list[float] = []
        table = self.score(dataset.instances, "validation", losses if self.args.early_stopping_patience else None)
        metrics = self._metrics(table, dataset)
        named = {
            name: metrics if each is dataset else self._metrics_on(each) for name, each in self.eval_by_name.items()
        }
        if losses:
            metrics = metrics | {"loss": math.fsum(losses) / len(losses)}
        judged = self.criterion.judge(table.scores, self.validation_votes.batch_calibrated, dataset.gold, self.f1)
        return metrics | judged | _joined(named)

    def _metrics(self, table: Scores, dataset: InstanceDataset) -> dict[str, float]:
        names = self.template_names or [template_name(number) for number in range(table.scores.shape[1])]
        metrics = evaluation_metrics(table, dataset.gold, names, self.f1)
        if self.compute_metrics is not None:
            metrics |= self.compute_metrics(EvalPrediction(predictions=table.scores, label_ids=dataset.gold))
        return metrics

    @cached_property
    def first_votes(self) -> VoteTable:
        """The base model's votes on the training instances: all that the run will see if frozen, else a sample."""
        return self.votes.table if self.votes else self._base_votes(self.sample)

    @cached_property
    def validation_votes(self) -> VoteTable:
        """The base model's votes on the validation split, calibrated like the training votes."""
        assert self.eval_instances is not None, "no evaluation rows"
        found = self._base_votes(self.eval_instances.instances)
        return found.with_offsets(self.votes.table.offsets) if self.votes else found

    def _base_votes(self, instances: Sequence[EncodedInstance]) -> VoteTable:
        return VoteTable(tuple(each.id for each in instances), self.score_base(instances, "base votes"))

    def score_base(self, instances: Sequence[EncodedInstance], label: str) -> np.ndarray:
        """Compute the scores of the model without its adapter."""
        with self.adapted.disable_adapter():
            return self.scores(instances, label)

    def scores(self, instances: Sequence[EncodedInstance], label: str) -> np.ndarray:
        """Compute the model's scores ``[instances, templates, labels]``, in nats."""
        return self.score(instances, label).scores

    def score(self, instances: Sequence[EncodedInstance], label: str, losses: list[float] | None = None) -> Scores:
        """Score instances; ``label`` names the progress bar.

        The unsupervised loss of each instance, from the same pass, is appended to ``losses``.
        """
        mine = distributed.shard(instances) or instances[:1]  # all processes take part
        frozen = self.validation_votes if losses is not None and self.votes is not None else None

        def score_part() -> tuple[Scores, list[float]]:
            own: list[float] = []

            def note_losses(encoded: Sequence[EncodedInstance], states: AnswerStates, scores: Tensor) -> None:
                scores = require_finite(scores.cpu(), [instance.id for instance in encoded])
                votes = frozen.scores_for(encoded) if frozen else scores
                own.extend(self.unsupervised_losses(encoded, states, votes))

            table = score_instances(
                self.adapted,
                mine,
                backend=self.backend,
                batch_tokens=self.args.batch_tokens,
                label=label,
                quiet=bool(self.args.disable_tqdm),
                visit=None if losses is None else note_losses,
            )
            return table, own

        parts = distributed.all_results(score_part)
        if losses is not None:  # idle processes repeat another's instances
            losses.extend(loss for _, own in parts[: len(instances)] for loss in own)
        return join_scores([table for table, _ in parts], instances)


def _joined(named: Mapping[str, dict[str, float]]) -> dict[str, float]:
    return {f"{name}_{key}": value for name, metrics in named.items() for key, value in metrics.items()}
