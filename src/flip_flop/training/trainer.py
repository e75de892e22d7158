"""One trainer for all methods."""

import contextlib
import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft import PeftConfig
from torch import Tensor, nn
from transformers import EvalPrediction, PreTrainedTokenizerBase, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.utils.quantization_config import QuantizationConfigMixin

from flip_flop.errors import InputError
from flip_flop.files import write_text
from flip_flop.method import find_consensus, find_method, split_templates
from flip_flop.record import RunRecord
from flip_flop.scoring import distributed
from flip_flop.scoring.answers import AnswerStates, answer_states, training_row_tokens
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.boundary import EncodedInstance
from flip_flop.scoring.causal_lm import evaluation_mode, require_finite, unwrap
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.scorer import ModelGiven
from flip_flop.scoring.support import choose_backend
from flip_flop.tasks import RenderedRows
from flip_flop.training.adapter import checkpoint_activations, load_trained, with_adapter
from flip_flop.training.batches import KeyedSampler, collate, encode_rows
from flip_flop.training.callbacks import Checkpoints, StopEarly
from flip_flop.training.checkpoint_choice import CheckpointCriterion
from flip_flop.training.checks import draw_sample, log_passes, require_dtype, require_one_device_each
from flip_flop.training.collapse import StopOnCollapse
from flip_flop.training.config import F2CConfig
from flip_flop.training.instance import TrainingInstance
from flip_flop.training.model_card import CARD, model_card
from flip_flop.training.record import change_on_validation, describe
from flip_flop.training.rows import by_rows, drawn_for
from flip_flop.training.scoring_trainer import ScoringTrainer
from flip_flop.training.statistics import StepStatistics, mean_loss
from flip_flop.training.votes import BaseVotes, StandingVotes


class F2CTrainer(ScoringTrainer):
    """Trains a causal LM to give one answer whichever template asks, without a label.

    A row is one instance, ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``: the
    method needs all its templates at once. Labels are read for the metrics of evaluation and logs, never for a loss.

    Args:
        model: A hub name, a folder, a causal LM, or a ``PeftModel``; what :func:`~flip_flop.load_model` gave.
        args: The settings, of which a copy is kept; by default :class:`F2CConfig` with the folder ``<model>-F2C``. Of
            plain ``TrainingArguments``, those that are not the library's defaults.
        data_collator: Takes encoded instances; the default keeps them whole.
        train_dataset: Rows; a ``datasets.Dataset`` of them too.
        eval_dataset: Rows to choose the checkpoint by; without them the last one is kept. A dict of them by name is
            evaluated whole, ``eval_NAME_...`` in the log; the first in it chooses the checkpoint.
        processing_class: The tokenizer; by default the one of the name that the model was loaded by.
        compute_metrics: More metrics of an evaluation: from an ``EvalPrediction`` of scores ``[instances, templates,
            labels]`` and label indices, -1 where there is none.
        quantization_config: For a model that is given by name, as is ``F2CConfig.model_init_kwargs``.
        content_free: Rows without content under the same templates, for ``vote_calibration: contextual``.
        peft_config: The adapter; by default the paper's LoRA on all attention and MLP projections.

    Raises:
        InputError: For rows of another shape, one template only, a prompt longer than the model's context.
    """

    record: RunRecord | None = None  # of the run that this trainer is part of

    def __init__(
        self,
        model: ModelGiven,
        args: TrainingArguments | None = None,
        data_collator: Callable[[Sequence[EncodedInstance]], dict[str, Any]] | None = None,
        train_dataset: RenderedRows | None = None,
        eval_dataset: RenderedRows | Mapping[str, RenderedRows] | None = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: QuantizationConfigMixin | None = None,
        peft_config: PeftConfig | None = None,
        content_free: RenderedRows = (),
    ):
        given = args if args is None or isinstance(args, F2CConfig) else F2CConfig.of(args)
        self.loaded = load_trained(model, processing_class, given, quantization_config)
        causal_lm, processing_class = self.loaded.model, self.loaded.tokenizer
        args = given or F2CConfig(output_dir=f"{self.loaded.record.name.rstrip('/').split('/')[-1]}-F2C")
        require_one_device_each(args)
        require_dtype(args, unwrap(causal_lm).dtype)
        args = copy.copy(args)
        self.checkpoints = Checkpoints(args.save_total_limit, with_state=not args.save_only_model)
        args.save_total_limit, args.save_only_model = None, True
        if eval_dataset is None:
            args.eval_strategy, args.eval_on_start, args.load_best_model_at_end = "no", False, False
        self.encoder = PromptEncoder.of(causal_lm, processing_class, args.chat_template)
        by_name = eval_dataset if isinstance(eval_dataset, Mapping) else {"validation": eval_dataset}
        splits = ("train", train_dataset), *by_name.items()
        self.train_instances, *evaluated_on = encode_rows(self.encoder, args.too_long, *splits, quiet=args.disable_tqdm)
        self.eval_instances = None if eval_dataset is None else evaluated_on[0]
        self.eval_by_name = dict(zip(by_name, evaluated_on, strict=True)) if by_name is eval_dataset else {}
        if len(self.train_instances) and len(self.train_instances[0].answers) < 2:
            message = "Training needs at least two templates: one has nothing to agree with."
            raise InputError("E-TOO-FEW-TEMPLATES", message)
        self._sampler = KeyedSampler(self.train_instances, args.seed, drop_last=args.dataloader_drop_last)
        (empty,) = encode_rows(self.encoder, "refuse", ("content_free", content_free))
        self.votes = None if args.votes == "online" else self._standing_votes(args, empty.instances)
        self.statistics = StepStatistics()
        self.stop_early = StopEarly(args.early_stopping_patience, args.early_stopping_start)
        self.method = find_method(args.method)
        evaluated = [] if self.eval_instances is None else self.eval_instances.instances
        gold = None if self.eval_instances is None else [instance.label for instance in evaluated]
        self.criterion = CheckpointCriterion.of(args, gold)
        self.adapted = with_adapter(causal_lm, args, peft_config)
        if args.gradient_checkpointing:
            checkpoint_activations(self.adapted, args.gradient_checkpointing_kwargs)
        sample = draw_sample(self.train_instances.instances, args.seed)
        self.base = BaseVotes(sample, evaluated, self.votes, self.score_base)
        self.stop_on_collapse = StopOnCollapse(args, lambda: self.base.first.batch_calibrated)
        super().__init__(
            model=self.adapted,
            args=args,
            data_collator=data_collator or collate,
            train_dataset=self.train_instances,
            eval_dataset=self.eval_instances,
            processing_class=processing_class,
            compute_metrics=compute_metrics,
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
        votes = scores if self.votes is None else self.votes.of(encoded)
        instances = self._instances(model, encoded, states, votes, epoch=self._sampler.epoch)
        losses = [self._loss_terms(instance) for instance in instances]
        self.statistics.add(encoded, instances, scores, states.token_counts, losses)
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
        """The model's scores, of the loss's own pass or of one without dropout, on the CPU: a row waits here alone."""
        if self.args.vote_pass == "separate" and self.votes is None:
            with evaluation_mode(model):
                scores = self._answer_states(model, encoded).scores(model)
        else:
            scores = states.scores(model)
        ids = [instance.id for instance in encoded]
        return require_finite(scores.cpu(), ids, f"Step {self.state.global_step + 1}: the scores")

    def _standing_votes(self, args: F2CConfig, content_free: Sequence[EncodedInstance]) -> StandingVotes:
        """Votes on the instances that will be seen: not on all of many, of which a short run sees a part."""
        step = args.per_device_train_batch_size * args.gradient_accumulation_steps * distributed.world_size()
        count = args.max_steps * step if args.max_steps > 0 else len(self.train_instances)
        seen = [self.train_instances[index] for index in self._sampler.first(count)]
        return StandingVotes(seen, args, self.scores, self.score_base, content_free)

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
        keys, step = (self.args.seed, "dropout", self.state.global_step), super().training_step

        def run(numbers: list[int]) -> tuple[Tensor, StepStatistics]:
            row, self.statistics = [instances[number] for number in numbers], StepStatistics()
            # Open over the backward too, which with gradient checkpointing runs layers again.
            attention = packed_attention(self.adapted) if self.backend == "packed" else contextlib.nullcontext()
            with attention, drawn_for(self.args.device, *keys, *(instance.id for instance in row)):
                return step(self.adapted, {"instances": row}, num_items_in_batch), self.statistics

        before, sizes, trained = self.statistics, [len(each.trie) for each in instances], [*self.adapted.parameters()]
        found, self._row_tokens = by_rows(run, sizes, self._row_tokens, trained)
        self.statistics = StepStatistics.merged([before, *(noted for _, noted in found)])
        if self.accelerator.sync_gradients:
            distributed.sum_gradients(trained)
        # transformers logs the mean over the processes, and the step's loss is the sum.
        return sum((loss for loss, _ in found), torch.zeros((), device=self.args.device)) * distributed.world_size()

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
        """The optimizer step at which a collapse was found."""
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

    def unsupervised_losses(
        self, encoded: Sequence[EncodedInstance], states: AnswerStates, votes: Tensor
    ) -> list[float]:
        """The method's loss of each instance of an evaluation, without labels."""
        # Of epoch 0 each time: evaluations are compared with each other, and so have the same teachers.
        read = self._instances(self.adapted, encoded, states, votes, epoch=0)
        zero = torch.zeros((), device=states.hidden.device)
        return torch.stack([sum(self._loss_terms(each).values(), zero) for each in read]).tolist()

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the terms, case shares and vote statistics of the steps since the last log line."""
        if "loss" in logs:
            statistics = StepStatistics.merged(distributed.all_gather(self.statistics.read()))
            counts = statistics.vote_counts(len(self.train_instances[0].answers[0]))
            logs = logs | statistics.means() | self.stop_on_collapse.line(counts)
            self.statistics = StepStatistics()
        if "train_loss" in logs:
            logs["train_loss"] = mean_loss(self.state.log_history)  # the library's leaves out what came before a resume
        super().log(logs, start_time)

    # ---- the model card ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter, with the model card in place of PEFT's; in a checkpoint PEFT's stays."""
        super().save_model(output_dir, _internal_call=True)
        folder = Path(output_dir or self.args.output_dir or "")
        if distributed.rank() == 0:
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # a pickle that nothing reads
        if not _internal_call:
            self._write_card(folder, describe(self, change_on_validation(self)))
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Model save")

    def create_model_card(
        self, language: Any = None, license: Any = None, tags: Any = None, model_name: str | None = None, *args: Any,
        **metadata: Any,
    ) -> None:  # fmt: skip
        """Write ``README.md`` into ``output_dir``: what was trained, on what, how, and what it changed.

        ``metadata`` are more keys of the hub's model cards.
        """
        if self.is_world_process_zero():
            change = change_on_validation(self) if distributed.world_size() == 1 else None  # the others are not here
            given = {"language": language, "license": license, "tags": tags, "model_name": model_name} | metadata
            self._write_card(Path(self.args.output_dir or ""), self.record or describe(self, change), **given)

    def _write_card(self, folder: Path, record: RunRecord, **metadata: Any) -> None:
        if distributed.rank() == 0:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / CARD, model_card(record, **metadata))
