"""One trainer for all methods."""

import contextlib
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftConfig, PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback

from flip_flop.errors import InputError
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.metrics import Average
from flip_flop.randomness import derive_seed
from flip_flop.scoring.answers import AnswerStates, answer_states, pack, training_row_tokens
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.causal_lm import evaluation_mode, not_finite, unwrap
from flip_flop.scoring.scorer import ScoreTable, score_instances
from flip_flop.scoring.support import choose_backend
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder
from flip_flop.training import distributed
from flip_flop.training.adapter import load_trained, with_adapter
from flip_flop.training.batches import KeyedSampler, Rows, collate, encode_rows
from flip_flop.training.callbacks import Checkpoints, StopEarly
from flip_flop.training.checkpoint_choice import CheckpointCriterion, evaluation_metrics
from flip_flop.training.checks import draw_sample, log_passes, require_dtype, require_one_device_each
from flip_flop.training.collapse import StopOnCollapse
from flip_flop.training.config import F2CConfig
from flip_flop.training.instance import TrainingInstance
from flip_flop.training.statistics import StepStatistics, mean_loss
from flip_flop.training.votes import BaseVotes, StandingVotes


class F2CTrainer(Trainer):
    """Trains a causal LM to give one answer whichever template asks, without a label.

    A row is one instance, ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``: the
    method needs all its templates at once. Labels are read for the metrics of evaluation and logs, never for a loss.

    Args:
        model: A hub name, a folder, a causal LM, or a ``PeftModel``.
        args: The settings, of which a copy is kept; by default :class:`F2CConfig` with the folder ``<model>-F2C``.
        data_collator: Takes encoded instances; the default keeps them whole.
        train_dataset: Rows; a ``datasets.Dataset`` of them too.
        eval_dataset: Rows to choose the checkpoint by. Without them the last one is kept.
        processing_class: The tokenizer; needed where the model is not given by name.
        content_free: Rows without content under the same templates, for ``vote_calibration: contextual``.
        peft_config: The adapter; by default the paper's LoRA on all attention and MLP projections.

    Raises:
        InputError: For rows of another shape, one template only, a prompt longer than the model's context.
    """

    args: F2CConfig

    def __init__(
        self,
        model: str | PreTrainedModel | PeftModel,
        args: F2CConfig | None = None,
        data_collator: Callable[[Sequence[EncodedInstance]], dict[str, Any]] | None = None,
        train_dataset: Rows | None = None,
        eval_dataset: Rows | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        peft_config: PeftConfig | None = None,
        content_free: Rows = (),
    ):
        causal_lm, processing_class, name = load_trained(model, processing_class)
        args = args or F2CConfig(output_dir=f"{name.rstrip('/').split('/')[-1]}-F2C")
        require_one_device_each(args)
        require_dtype(args, unwrap(causal_lm).dtype)
        args = copy.copy(args)
        self.checkpoints = Checkpoints(args.save_total_limit, with_state=not args.save_only_model)
        args.save_total_limit, args.save_only_model = None, True
        if eval_dataset is None:
            args.eval_strategy, args.eval_on_start, args.load_best_model_at_end = "no", False, False
        self.encoder = PromptEncoder.of(causal_lm, processing_class, args.chat_template)
        self.train_instances, evaluated_on = encode_rows(
            self.encoder, args.too_long, train=train_dataset, validation=eval_dataset
        )
        self.eval_instances = None if eval_dataset is None else evaluated_on
        if len(self.train_instances) and len(self.train_instances[0].answers) < 2:
            message = "Training needs at least two templates: one has nothing to agree with."
            raise InputError("E-TOO-FEW-TEMPLATES", message)
        self._sampler = KeyedSampler(self.train_instances, args.seed, drop_last=args.dataloader_drop_last)
        (empty,) = encode_rows(self.encoder, "refuse", content_free=content_free)
        self.votes = None if args.votes == "online" else self._standing_votes(args, empty.instances)
        self.template_names: Sequence[str] | None = None  # for evaluation: a row has neither names nor an F1 kind
        self.f1: Average = "auto"
        self.statistics = StepStatistics()
        self.stop_early = StopEarly(args.early_stopping_patience, args.early_stopping_start)
        self.method = find_method(args.method)
        evaluated = [] if self.eval_instances is None else self.eval_instances.instances
        gold = None if self.eval_instances is None else [instance.label for instance in evaluated]
        self.criterion = CheckpointCriterion.of(args, gold)
        self.adapted = with_adapter(causal_lm, args, peft_config)
        sample = draw_sample(self.train_instances.instances, args.seed)
        self.base = BaseVotes(sample, evaluated, self.votes, self._score_base)
        self.stop_on_collapse = StopOnCollapse(args, lambda: self.base.first)
        super().__init__(
            model=self.adapted,
            args=args,
            data_collator=data_collator or collate,
            train_dataset=self.train_instances,
            eval_dataset=self.eval_instances,
            processing_class=processing_class,
            # The votes before the checkpoints: a manifest covers what is written before it.
            callbacks=[
                *([self.votes] if self.votes else []),
                *(self.checkpoints, self.stop_early, self.stop_on_collapse),
                *(callbacks or []),
            ],
            optimizers=optimizers,
        )
        # Only now the model is on its device, which decides how long a row should be.
        self.backend = choose_backend(self.adapted, [*self.train_instances.instances, *evaluated], args.backend)
        self._row_tokens = training_row_tokens(self.adapted, args.batch_tokens)
        self.model_accepts_loss_kwargs = True  # the loss is already divided by the window's number of instances

    # ---- the loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Float[Tensor, ""]:
        """The mean loss over all instances of the optimizer step, skipped ones included (Eq. 7)."""
        assert not return_outputs, "there are no outputs to return: evaluation scores instances by itself"
        encoded: list[EncodedInstance] = inputs["instances"]
        states = self._answer_states(model, encoded)
        scores = self._scores(model, states, encoded)
        votes = scores if self.votes is None else self.votes.of(encoded).to(scores.device)
        instances = self._instances(model, encoded, states, votes, epoch=self._sampler.epoch)
        losses = [self._loss_terms(instance) for instance in instances]
        self.statistics.add(encoded, instances, scores, losses)
        zero = torch.zeros((), device=states.hidden.device)
        total = torch.stack([sum(terms.values(), zero) for terms in losses]).sum()
        total = total / (num_items_in_batch or len(instances))
        # Where no instance has a consensus there is nothing to differentiate: every gradient stays as it is.
        return total if total.requires_grad else total.requires_grad_()

    def _instances(
        self, model: nn.Module, encoded: Sequence[EncodedInstance], states: AnswerStates, scores: Tensor, *, epoch: int
    ) -> list[TrainingInstance]:
        """What the method reads of each instance of a forward pass, by the votes of these scores."""
        consensus, keys = find_consensus(scores), (self.args.seed, epoch)
        return [
            TrainingInstance(
                id=each.id,
                consensus=consensus[number],
                split=split_templates(scores[number], self.args.split_settings),
                token_counts=states.token_counts[number],
                states=states.of(number),
                model=model,
                keys=keys,
            )
            for number, each in enumerate(encoded)
        ]

    def _loss_terms(self, instance: TrainingInstance) -> dict[str, Tensor]:
        if self.method.needs_consensus and not instance.consensus.exists:
            return {}
        assert self.method.loss is not None
        return self.method.loss(instance, self.args)

    @torch.no_grad()
    def _scores(
        self, model: nn.Module, states: AnswerStates, encoded: Sequence[EncodedInstance]
    ) -> Float[Tensor, "instances templates labels"]:
        """The model's scores, by which templates vote online: of the loss's own pass, or of one without dropout."""
        if self.args.vote_pass == "separate" and self.votes is None:
            with evaluation_mode(model):
                scores = self._answer_states(model, encoded).scores(model)
        else:
            scores = states.scores(model)
        for instance, finite in zip(encoded, scores.isfinite().all(dim=-1).all(dim=-1).tolist(), strict=True):
            if not finite:
                raise not_finite(f"Step {self.state.global_step + 1}: the scores of instance {instance.id!r}")
        return scores

    def _standing_votes(self, args: F2CConfig, content_free: Sequence[EncodedInstance]) -> StandingVotes:
        """Votes on the instances that will be seen: not on all of many, of which a short run sees a part."""
        step = args.per_device_train_batch_size * args.gradient_accumulation_steps * distributed.world_size()
        count = args.max_steps * step if args.max_steps > 0 else len(self.train_instances)
        seen = [self.train_instances[index] for index in self._sampler.first(count)]
        return StandingVotes(seen, args, self._vote_scores, self._score_base, content_free)

    def _answer_states(self, model: nn.Module, encoded: Sequence[EncodedInstance]) -> AnswerStates:
        return answer_states(model, encoded, backend=self.backend, batch_tokens=self.args.batch_tokens)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as ``transformers.Trainer`` does, after a line on how often each instance is seen."""
        self.checkpoints.resumed = resume_from_checkpoint
        if distributed.rank() == 0 and len(self.train_instances):
            log_passes(len(self.train_instances), self.args)
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        return output._replace(training_loss=output.metrics["train_loss"])

    # ---- determinism: every draw is a function of seed, purpose, epoch and instances ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward by rows; dropout is drawn for (seed, step, instances of the row), also on resume."""
        instances: list[EncodedInstance] = inputs["instances"]
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        losses = []
        for numbers in pack([len(instance.trie) for instance in instances], self._row_tokens):
            row = [instances[number] for number in sorted(numbers)]
            # Open over the backward too, which with gradient checkpointing runs layers again.
            attention = packed_attention(self.adapted) if self.backend == "packed" else contextlib.nullcontext()
            with attention, torch.random.fork_rng(devices=devices):
                ids = [instance.id for instance in row]
                torch.manual_seed(derive_seed(self.args.seed, "dropout", self.state.global_step, *ids))
                losses.append(super().training_step(self.adapted, {"instances": row}, num_items_in_batch))
        if self.accelerator.sync_gradients:
            distributed.sum_gradients(self.adapted.parameters())
        # transformers logs the mean over the processes, and the step's loss is the sum.
        return sum(losses, torch.zeros((), device=self.args.device)) * distributed.world_size()

    def _get_train_sampler(self, train_dataset: Any = None) -> KeyedSampler:
        self._sampler.batch_size = self._train_batch_size
        return self._sampler  # a private method: the library has no public hook for the order of the data

    @property
    def is_over(self) -> bool:
        """Whether there is nothing left to train: all steps are done, or the training has stopped by itself."""
        stopped = self.stop_early.is_due(self.state) or self.stop_on_collapse.is_due(self.state)
        return stopped or self.state.global_step >= self.state.max_steps

    @property
    def collapsed_at(self) -> int | None:
        """The optimizer step at which the votes were seen to have run away from the base's."""
        return self.stop_on_collapse.step(self.state)

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list, int]:
        """The micro-batches of an optimizer step, and how many instances they have over all processes."""
        if self.is_over:
            self.control.should_training_stop = True  # resumed from its last checkpoint
            return [], 0
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        return batches, distributed.all_reduce_sum(sum(len(batch["instances"]) for batch in batches), device)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not estimated: the library's estimate reads ``input_ids``, and a batch here holds instances."""
        return 0

    # ---- evaluation and checkpoints ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score instances and report agreement, F1, own-label mass, and what the checkpoint is chosen by."""
        dataset = self.eval_instances
        if eval_dataset is not None:
            (dataset,) = encode_rows(self.encoder, self.args.too_long, validation=eval_dataset)
        assert dataset is not None, "there is nothing to evaluate"
        losses: list[float] = []
        table = self._score(dataset.instances, losses if self.args.early_stopping_patience else None)
        gold = np.array([-1 if instance.label is None else instance.label for instance in dataset.instances])
        names = self.template_names or [f"template_{number + 1}" for number in range(table.scores.shape[1])]
        metrics = evaluation_metrics(table, gold, names, self.f1)
        if losses:
            metrics["loss"] = math.fsum(losses) / len(losses)
        if eval_dataset is None:
            metrics |= self.criterion.judge(metrics, table.scores, self.base.validation, gold)
        prefixed = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(prefixed)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, prefixed)
        return prefixed

    def _score_base(self, instances: Sequence[EncodedInstance]) -> np.ndarray:
        with self.adapted.disable_adapter():
            return self._vote_scores(instances)

    def _vote_scores(self, instances: Sequence[EncodedInstance]) -> np.ndarray:
        return self._score(instances).scores

    def _score(self, instances: Sequence[EncodedInstance], losses: list[float] | None = None) -> ScoreTable:
        """Score instances. ``losses`` gets the method's loss of each, from the same pass and without labels."""
        mine = distributed.shard(instances) or instances[:1]  # also with more processes than instances, all take part
        own: list[float] = []
        standing = self.base.validation if losses is not None and self.votes is not None else None

        def note_losses(encoded: Sequence[EncodedInstance], states: AnswerStates, scores: Tensor) -> None:
            votes = standing.of(encoded).to(scores.device) if standing else scores
            # Of epoch 0 each time: evaluations are compared with each other, and so have the same teachers.
            read = self._instances(self.adapted, encoded, states, votes, epoch=0)
            own.extend(float(sum(self._loss_terms(each).values())) for each in read)

        table = score_instances(
            self.adapted,
            mine,
            backend=self.backend,
            batch_tokens=self.args.batch_tokens,
            quiet=True,
            visit=None if losses is None else note_losses,
        )
        if losses is not None:  # those of processes beyond the instances are another's, as in gather_table
            losses.extend(loss for part in distributed.all_gather(own)[: len(instances)] for loss in part)
        return distributed.gather_table(table, len(instances))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the terms, case shares and vote statistics of the steps since the last log line."""
        if "loss" in logs:
            statistics = StepStatistics.merged(distributed.all_gather(self.statistics))
            counts = statistics.vote_counts(len(self.train_instances[0].answers[0]))
            logs = logs | statistics.means() | self.stop_on_collapse.line(counts)
            self.statistics = StepStatistics()
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self.state.log_history)  # the library's leaves out what came before a resume
        super().log(logs, start_time)
