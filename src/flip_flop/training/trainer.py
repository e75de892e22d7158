"""One trainer for Flip-Flop Consistency, consensus cross-entropy and swarm distillation."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from peft import PeftConfig, PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer, TrainerCallback

from flip_flop.errors import InputError
from flip_flop.method import find_consensus
from flip_flop.metrics import Average
from flip_flop.prompts import RenderedInstance
from flip_flop.randomness import derive_seed
from flip_flop.scoring.answers import AnswerStates, answer_states
from flip_flop.scoring.attention import packed_attention
from flip_flop.scoring.causal_lm import evaluation_mode, unwrap
from flip_flop.scoring.models import load_model
from flip_flop.scoring.rows import pack, training_row_tokens
from flip_flop.scoring.scorer import ScoreTable, score_instances
from flip_flop.scoring.support import choose_backend
from flip_flop.scoring.tokens import EncodedInstance, PromptEncoder
from flip_flop.training import distributed
from flip_flop.training.adapter import with_adapter
from flip_flop.training.checkpoints import fault, rotate, seal
from flip_flop.training.config import F2CConfig
from flip_flop.training.data import InstanceDataset, KeyedSampler, collate
from flip_flop.training.objectives import Batch, batch_losses, split_by_votes
from flip_flop.training.requirements import require_dtype, require_one_device_each, require_two_templates
from flip_flop.training.selection import Selection, evaluation_metrics
from flip_flop.training.statistics import StepStatistics

Rows = Iterable[RenderedInstance | Mapping[str, Any]]


class F2CTrainer(Trainer):
    """Trains a causal LM to give one answer whichever template asks, without a label.

    A row is one instance, ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``: the
    method needs all its templates at once. Labels are read for the metrics of evaluation and logs, never for a loss.

    Args:
        model: A hub name, a folder, a causal LM, or a ``PeftModel``.
        args: The settings; by default :class:`F2CConfig` with the folder ``<model>-F2C``.
        data_collator: Takes encoded instances; the default keeps them whole.
        train_dataset: Rows; a ``datasets.Dataset`` of them too.
        eval_dataset: Rows to choose the checkpoint by. Without them the last one stays.
        processing_class: The tokenizer.
        callbacks: As for ``Trainer``.
        optimizers: As for ``Trainer``.
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
    ):
        if args is None:
            name = model if isinstance(model, str) else unwrap(model).config._name_or_path
            args = F2CConfig(output_dir=f"{name.rstrip('/').split('/')[-1]}-F2C")
        causal_lm: nn.Module
        if isinstance(model, str):
            loaded = load_model(model)
            causal_lm, processing_class = loaded.model, processing_class or loaded.tokenizer
        else:
            causal_lm = model
        if processing_class is None:
            raise ValueError("A model that is not given by name needs its tokenizer: pass processing_class.")
        require_one_device_each(args)
        require_dtype(args, unwrap(causal_lm).dtype)
        if eval_dataset is None:
            args.eval_strategy, args.eval_on_start, args.load_best_model_at_end = "no", False, False
        self.encoder = PromptEncoder.of(causal_lm, processing_class, args.chat_template)
        self.train_instances = InstanceDataset(() if train_dataset is None else train_dataset, self.encoder)
        self.eval_instances = None if eval_dataset is None else InstanceDataset(eval_dataset, self.encoder)
        require_two_templates(self.train_instances)
        self._sampler = KeyedSampler(self.train_instances, args.seed)
        # For evaluation: a row has neither names nor an F1 kind.
        self.template_names: Sequence[str] | None = None
        self.f1: Average = "auto"
        self.statistics = StepStatistics()
        self.selection = Selection.of(args, eval_dataset)
        self.adapted = with_adapter(causal_lm, args, peft_config)
        super().__init__(
            model=self.adapted,
            args=args,
            data_collator=data_collator or collate,
            train_dataset=self.train_instances,
            eval_dataset=self.eval_instances,
            processing_class=processing_class,
            callbacks=callbacks,
            optimizers=optimizers,
        )
        # The model is on its device now, which decides how long a row should be.
        everything = [*self.train_instances.instances, *(self.eval_instances.instances if self.eval_instances else ())]
        self.backend = choose_backend(self.adapted, everything, args.backend)
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
        """The mean loss over all instances of the optimizer step, skipped ones included (Eq. 7).

        One pass with gradient; votes and Algorithm 1 from its scores, detached (or from a separate pass); the
        method's loss for each instance.
        """
        assert not return_outputs, "there are no outputs to return: evaluation scores instances by itself"
        instances: list[EncodedInstance] = inputs["instances"]
        votes = self._separate_votes(model, instances) if self.args.vote_pass == "separate" else None
        states = self._states(model, instances)
        scores = self._shared_votes(model, states) if votes is None else votes
        self._check_finite(scores, instances)
        splits = split_by_votes(scores, self.args)
        consensus = find_consensus(scores)
        ids = [instance.id for instance in instances]
        batch = Batch(model, states, consensus, splits, ids, self._sampler.epoch)
        losses = batch_losses(batch, self.args)
        self.statistics.add(instances, consensus, splits, scores, states.token_counts, losses)
        total = torch.stack([loss for loss, _ in losses]).sum() / (num_items_in_batch or len(instances))
        # Where no instance has a consensus there is nothing to derive: leave every gradient as it is.
        return total if total.requires_grad else total.requires_grad_()

    @torch.no_grad()
    def _shared_votes(self, model: nn.Module, states: AnswerStates) -> Float[Tensor, "instances templates labels"]:
        return states.scores(model)

    @torch.no_grad()
    def _separate_votes(
        self, model: nn.Module, instances: Sequence[EncodedInstance]
    ) -> Float[Tensor, "instances templates labels"]:
        with evaluation_mode(model):
            return self._states(model, instances).scores(model)

    def _states(self, model: nn.Module, instances: Sequence[EncodedInstance]) -> AnswerStates:
        return answer_states(model, instances, backend=self.backend, batch_tokens=self.args.batch_tokens)

    def _check_finite(
        self, scores: Float[Tensor, "instances templates labels"], instances: list[EncodedInstance]
    ) -> None:
        finite = scores.isfinite().all(dim=-1).all(dim=-1)
        if not bool(finite.all()):
            instance = instances[int((~finite).nonzero()[0])]
            raise InputError(
                "E-NONFINITE",
                f"Step {self.state.global_step + 1}: the scores of instance {instance.id!r} are not finite.",
                "Lower --learning-rate, or use bfloat16 or float32 instead of float16.",
            )

    # ---- determinism: every draw is a function of seed, purpose, epoch and instances ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """A micro-batch, row by row: forward and backward of a row, then the next one.

        Dropout is drawn for (seed, step, instances of the row): a resumed run draws the same.
        """
        instances: list[EncodedInstance] = inputs["instances"]
        devices = [self.args.device] if self.args.device.type == "cuda" else []
        losses = []
        for numbers in pack([len(instance.trie) for instance in instances], self._row_tokens):
            row = [instances[number] for number in sorted(numbers)]
            ids = [instance.id for instance in row]
            with self._attention(self.adapted), torch.random.fork_rng(devices=devices):
                torch.manual_seed(derive_seed(self.args.seed, "dropout", self.state.global_step, *ids))
                losses.append(super().training_step(self.adapted, {"instances": row}, num_items_in_batch))
        if self.accelerator.sync_gradients:
            distributed.sum_gradients(self.adapted.parameters())
        # transformers logs the mean over the processes, and the step's loss is the sum.
        return torch.stack(losses).sum() * distributed.world()

    def _attention(self, model: nn.Module) -> contextlib.AbstractContextManager[None]:
        """Open over forward and backward: with gradient checkpointing the backward runs layers anew."""
        return packed_attention(model) if self.backend == "packed" else contextlib.nullcontext()

    def _get_train_sampler(self, train_dataset: Any = None) -> KeyedSampler:
        return self._sampler

    def _get_num_items_in_batch(self, batch_samples: list, device: torch.device) -> int:
        return distributed.total(sum(len(batch["instances"]) for batch in batch_samples), device)

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Not estimated: the library's estimate reads ``input_ids``, and a batch here holds instances."""
        return 0

    # ---- evaluation and checkpoints ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score instances and report agreement, F1, own-label mass, and what the checkpoint is chosen by."""
        dataset = self.eval_instances if eval_dataset is None else InstanceDataset(eval_dataset, self.encoder)
        assert dataset is not None, "there is nothing to evaluate"
        table = self._score(dataset.instances)
        gold = np.array([-1 if instance.label is None else instance.label for instance in dataset.instances])
        names = self.template_names or [f"template_{number + 1}" for number in range(table.scores.shape[1])]
        metrics = evaluation_metrics(table, gold, names, self.f1)
        if self.selection.by != "last":
            metrics["selection"] = self.selection.value(metrics, table, self.base_scores)
        prefixed = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(prefixed)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, prefixed)
        return prefixed

    def base_scores(self) -> np.ndarray:
        """Scores of the validation split by the model without its adapter."""
        assert self.eval_instances is not None, "a checkpoint is chosen on a validation split"
        with self.adapted.disable_adapter():
            return self._score(self.eval_instances.instances).scores

    def _score(self, instances: Sequence[EncodedInstance]) -> ScoreTable:
        mine = distributed.share(instances) or instances[:1]  # more processes than instances: all have to take part
        table = score_instances(
            self.adapted, mine, backend=self.backend, batch_tokens=self.args.batch_tokens, quiet=True
        )
        return distributed.gather_table(table, len(instances))

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the terms, case shares and vote statistics of the steps since the last log line."""
        if "loss" in logs:
            logs = logs | distributed.gather_statistics(self.statistics).flush()
        super().log(logs, start_time)

    def _init_training_state(self, *arguments: Any, **keywords: Any) -> Any:
        """On resume, find the best checkpoint by its step: its path is noted as it was typed, from wherever."""
        result = super()._init_training_state(*arguments, **keywords)
        if self.state.best_global_step and self.args.load_best_model_at_end:
            best = Path(self.args.output_dir or "") / f"checkpoint-{self.state.best_global_step}"
            if fault(best) is not None:
                raise InputError(
                    "E-RESUME-BEST",
                    f"The best checkpoint so far, {best}, cannot be used: {fault(best)}.",
                    "Restore it, or train again into another --out.",
                )
            self.state.best_model_checkpoint = str(best)
        return result

    def _determine_best_metric(self, *arguments: Any, **keywords: Any) -> bool:
        """Whether ``save_strategy: best`` saves: also where a run is stopped, which has to go on from there."""
        return super()._determine_best_metric(*arguments, **keywords) or self.control.should_training_stop

    def _finalize_training(self, *arguments: Any, **keywords: Any) -> Any:
        """At a limit of one the library would delete the checkpoint that a stopped run goes on from."""
        with self._without_save_limit():
            return super()._finalize_training(*arguments, **keywords)

    @contextlib.contextmanager
    def _without_save_limit(self) -> Iterator[int | None]:
        """Old checkpoints are deleted by :func:`rotate` alone; yields the limit."""
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            yield keep
        finally:
            self.args.save_total_limit = keep

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with self._without_save_limit() as keep:
            super()._save_checkpoint(model, trial)
        folder = Path(self._get_output_dir(trial))
        distributed.wait_for_all()  # each process has written its own random state
        if distributed.rank() == 0:
            seal(folder / f"checkpoint-{self.state.global_step}")
            rotate(folder, keep, self.state.best_model_checkpoint)
        distributed.wait_for_all()
