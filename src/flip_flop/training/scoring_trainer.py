"""What a trainer does beside training: evaluate and predict by scoring whole instances."""

import math
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from peft import PeftModel
from torch import Tensor
from transformers import EvalPrediction, Trainer
from transformers.trainer_utils import PredictionOutput

from flip_flop.errors import InputError, nearest
from flip_flop.metrics import Average, Scores
from flip_flop.scoring import distributed
from flip_flop.scoring.answers import AnswerStates
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.scores import join_scores, score_instances
from flip_flop.tasks import RenderedRows, template_name
from flip_flop.training.batches import InstanceDataset, encode_rows
from flip_flop.training.checkpoint_choice import CheckpointCriterion, evaluation_metrics
from flip_flop.training.config import F2CConfig, setting_errors
from flip_flop.training.votes import BaseVotes, StandingVotes


class ScoringTrainer(Trainer):
    """The part of :class:`~flip_flop.training.trainer.F2CTrainer` that asks the model and does not change it."""

    args: F2CConfig
    adapted: PeftModel
    encoder: PromptEncoder
    backend: Any
    eval_instances: InstanceDataset | None
    eval_by_name: Mapping[str, InstanceDataset]
    criterion: CheckpointCriterion
    votes: StandingVotes | None
    base: BaseVotes
    template_names: Sequence[str] | None = None  # for evaluation: a row has neither names nor an F1 kind
    f1: Average = "auto"
    evaluation_seconds: float = 0.0  # of this process, so far

    def create_accelerator_and_postprocess(self) -> None:
        """The library's, its refusals in one line (``E-CONFIG-VALUE``): it is given settings and nothing else."""
        with setting_errors("accelerate"):
            super().create_accelerator_and_postprocess()

    @abstractmethod
    def unsupervised_losses(
        self, encoded: Sequence[EncodedInstance], states: AnswerStates, votes: Tensor
    ) -> list[float]:
        """The method's loss of each instance, by these votes."""

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score instances and report agreement, F1, own-label mass, and what the checkpoint is chosen by.

        ``eval_dataset`` are rows, a dict of rows by name, or the name of one that the trainer has.
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

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Scores ``[instances, templates, labels]`` in nats, label indices (-1 where there is none), and metrics."""
        dataset = self._encoded(test_dataset)
        table = self.score(dataset.instances, "predict")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self._metrics(table, dataset).items()}
        return PredictionOutput(table.scores, dataset.gold, metrics)

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Create the repository of ``push_to_hub``, before anything is trained.

        Raises:
            InputError: ``E-CONFIG-VALUE`` where the hub cannot be reached, or refuses.
        """
        hint = "Log in with `hf auth login`, or leave push_to_hub out and send OUT/adapter later."
        with setting_errors("push_to_hub", hint):
            super().init_hf_repo(token, private)

    def _encoded(self, rows: RenderedRows | str) -> InstanceDataset:
        if isinstance(rows, str):
            if rows not in self.eval_by_name:
                raise InputError("E-ROW", f"There is no eval_dataset {rows!r}.", nearest(rows, self.eval_by_name))
            return self.eval_by_name[rows]
        (dataset,) = encode_rows(self.encoder, self.args.too_long, ("validation", rows), quiet=self.args.disable_tqdm)
        return dataset

    def _metrics_on(self, dataset: InstanceDataset) -> dict[str, float]:
        return self._metrics(self.score(dataset.instances, "validation"), dataset)

    def _evaluate_own(self) -> dict[str, float]:
        dataset = self.eval_instances
        assert dataset is not None, "there is nothing to evaluate"
        losses: list[float] = []
        table = self.score(dataset.instances, "validation", losses if self.args.early_stopping_patience else None)
        metrics = self._metrics(table, dataset)
        named = {
            name: metrics if each is dataset else self._metrics_on(each) for name, each in self.eval_by_name.items()
        }
        if losses:
            metrics = metrics | {"loss": math.fsum(losses) / len(losses)}
        judged = self.criterion.judge(table.scores, self.base.validation.batch_calibrated, dataset.gold, self.f1)
        return metrics | judged | _joined(named)

    def _metrics(self, table: Scores, dataset: InstanceDataset) -> dict[str, float]:
        names = self.template_names or [template_name(number) for number in range(table.scores.shape[1])]
        metrics = evaluation_metrics(table, dataset.gold, names, self.f1)
        if self.compute_metrics is not None:
            metrics |= self.compute_metrics(EvalPrediction(predictions=table.scores, label_ids=dataset.gold))
        return metrics

    def score_base(self, instances: Sequence[EncodedInstance], label: str) -> np.ndarray:
        """Compute the scores of the model without its adapter."""
        with self.adapted.disable_adapter():
            return self.scores(instances, label)

    def scores(self, instances: Sequence[EncodedInstance], label: str) -> np.ndarray:
        """Compute the model's scores ``[instances, templates, labels]``, in nats."""
        return self.score(instances, label).scores

    def score(self, instances: Sequence[EncodedInstance], label: str, losses: list[float] | None = None) -> Scores:
        """Score instances; ``label`` names the progress shown.

        ``losses`` gets the method's loss of each, from the same pass and without labels.
        """
        mine = distributed.shard(instances) or instances[:1]  # also with more processes than instances, all take part
        standing = self.base.validation if losses is not None and self.votes is not None else None

        def score_part() -> tuple[Scores, list[float]]:
            own: list[float] = []

            def note_losses(encoded: Sequence[EncodedInstance], states: AnswerStates, scores: Tensor) -> None:
                votes = standing.of(encoded) if standing else scores
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
        if losses is not None:  # those of processes beyond the instances are another's, as in join_scores
            losses.extend(loss for _, own in parts[: len(instances)] for loss in own)
        return join_scores([table for table, _ in parts], len(instances))


def _joined(named: Mapping[str, dict[str, float]]) -> dict[str, float]:
    return {f"{name}_{key}": value for name, metrics in named.items() for key, value in metrics.items()}
