"""One trainer for all methods: losses and steps, evaluations, and the model card."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from peft import PeftConfig, PeftModel
from torch import Tensor, nn
from transformers import EvalPrediction, PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer import TRAINING_ARGS_NAME
from transformers.trainer_utils import PredictionOutput, denumpify_detensorize
from transformers.utils.quantization_config import QuantizationConfigMixin

from flip_flop.console import versions
from flip_flop.errors import InputError, log, look_up, unsupported
from flip_flop.files import Json, StrPath, write_text
from flip_flop.hub import why_unreachable
from flip_flop.lazy import from_wing
from flip_flop.method import find_method
from flip_flop.method.algorithm import find_consensus, split_templates
from flip_flop.method.losses import Loss, Terms
from flip_flop.method.others import few_label_terms
from flip_flop.metrics import METRICS, Design, Scores, is_collapsed, option_places
from flip_flop.prompts import RenderedInstance
from flip_flop.record import AdapterRecord, RunRecord, TaskRecord, TemplateRecord
from flip_flop.scoring import distributed
from flip_flop.scoring.adapters import chat_of_training
from flip_flop.scoring.causal_lm import evaluation_mode, one_at_a_time, require_finite, unwrap
from flip_flop.scoring.encode import EncodedInstance, PromptEncoder
from flip_flop.scoring.models import LoadedModel, ModelGiven
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.packed import (
    AnswerStates,
    answer_states,
    pack,
    packed_attention,
    packing_order,
    training_row_tokens,
)
from flip_flop.scoring.scorer import Scored
from flip_flop.scoring.scores import check_backend, choose_backend
from flip_flop.scoring.too_long import TooLong, count_instances
from flip_flop.tasks import RenderedRows, Task, template_name
from flip_flop.training.adapter import (
    check_optimizer,
    has_dropout,
    load_trained,
    prepare_model,
    sharded_state,
    weights_digest,
)
from flip_flop.training.card import CARD, model_card
from flip_flop.training.checkpoints import Checkpoints, recorded_settings
from flip_flop.training.config import SELECTED, F2CConfig, setting_errors
from flip_flop.training.data import (
    InstanceDataset,
    KeyedSampler,
    TrainingData,
    as_training_data,
    collate,
    encode_rows,
    instances_per_step,
    log_passes,
    render_for,
    require_data,
    require_same_shape,
)
from flip_flop.training.selection import (
    CheckpointCriterion,
    StopEarly,
    StopOnCollapse,
    evaluation_metrics,
    selected_evaluation,
)
from flip_flop.training.step import StepStatistics, TrainingInstance, by_rows, drawn_for, loss_terms, mean_loss
from flip_flop.training.votes import (
    ModelScores,
    VoteTable,
    check_frozen_votes,
    draw_sample,
    draw_templates,
    votes_of,
)

# Metrics before and after training.
SHOWN = ("observed_agreement", "mean_f1", "f1_std", "vote_f1")
SHOWN_OPEN = ("observed_agreement", "accuracy", "vote_accuracy", "unmapped_share", "answer_length")
OPEN_ROWS = 32  # validation rows of which open answers are generated


class F2CTrainer(Trainer):
    """Trains a causal LM to give the same answer under every template.

    A row is one instance, ``{"id", "prompts": [str] * V, "choices": [[str] * L] * V, "label": int | None}``, because
    the methods need all its templates at once. Labels are for metrics, and for the loss of methods that use them.

    Args:
        model: A hub name, a folder, a causal LM, a ``PeftModel``, or a result of :func:`~flip_flop.load_model`.
        args: The settings, which are copied; by default :class:`F2CConfig` with the folder ``<model>-F2C``. Of plain
            ``TrainingArguments``, those that differ from the library's defaults.
        data_collator: Takes encoded instances; the default keeps them whole.
        train_dataset: Rows, or a ``datasets.Dataset`` of them. With a ``task``, rows of its fields.
        eval_dataset: Rows that select the checkpoint; without them the last one is used. A dict of rows by name logs
            ``eval_NAME_...`` for each, and its first rows select the checkpoint.
        processing_class: The tokenizer; by default loaded by the model's name.
        compute_metrics: Further metrics of an evaluation, from an ``EvalPrediction`` of scores ``[instances, templates,
            labels]`` and label indices, -1 for rows without a label.
        callbacks: As in ``Trainer``.
        optimizers: As in ``Trainer``, for the parameters of a model that has its adapter.
        quantization_config: For a model given by name, as is ``F2CConfig.model_init_kwargs``.
        content_free: Rows without content under the same templates, for ``vote_calibration: contextual``.
        peft_config: The adapter; by default the paper's LoRA on all attention and MLP projections.
        task: The templates and rows as a task, its name or its file, or as :class:`TrainingData`.

    Raises:
        InputError: For rows of another shape, a single template, a prompt that is too long, or missing gold labels.
    """

    args: F2CConfig
    task_record = TaskRecord(name="rows", labels=(), digest="", split="train", templates=())  # without a task
    open_validation: Sequence[RenderedInstance] = ()  # rows that ask for open answers
    unanswered: Sequence[TooLong] = ()  # their prompts that leave no room for an answer
    evaluation_seconds: float = 0.0
    _task: Task | None = None  # which renders rows
    _has_gradient: bool = False  # in this step, of an instance with a loss
    step_loss: float | Tensor = 0.0  # of this process, in this step so far
    _has_learned: bool | None = None  # whether a step had a gradient and a learning rate, after the first one

    def __init__(  # noqa: PLR0913  those of transformers' trainer
        self,
        model: ModelGiven,
        args: TrainingArguments | None = None,
        data_collator: Callable[[Sequence[EncodedInstance]], dict[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        compute_metrics: Callable[[EvalPrediction], dict[str, float]] | None = None,
        callbacks: list[TrainerCallback] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        quantization_config: QuantizationConfigMixin | None = None,
        peft_config: PeftConfig | None = None,
        content_free: RenderedRows = (),
        task: TrainingData | Task | StrPath | None = None,
    ):
        is_default = args is None
        if args is None:
            args = F2CConfig()
        elif not isinstance(args, F2CConfig):
            args = F2CConfig.of(args)
        args.check_metric(has_metrics=compute_metrics is not None)
        if task is not None:
            data, eval_dataset = self._read_task(task, args, train_dataset, eval_dataset)
            train_dataset = data.train
            content_free = data.content_free
            self.task_record = data.record
        self.loaded = load_trained(model, processing_class, args, quantization_config)
        if is_default:
            args = F2CConfig(output_dir=f"{self.loaded.record.name.rstrip('/').split('/')[-1]}-F2C")
        args = args.prepared(str(unwrap(self.loaded.model).dtype), evaluates=eval_dataset is not None)
        self._encode(args, train_dataset, eval_dataset)
        self.adapted = prepare_model(self.loaded.model, args, peft_config)
        check_optimizer(optimizers[0], self.adapted)
        with self.adapted.disable_adapter():  # before training, because a row may be too long
            self.base_answers = self.validation_answers(args, "base") if self.open_validation else None
        too_long = self.base_answers.too_long if self.base_answers else ()
        self.unanswered = [*self.unanswered, *(replace(prompt, split="validation") for prompt in too_long)]
        self._describe_rows()
        self._prepare_votes(args, content_free)
        checkpoints = Checkpoints(args.save_total_limit)
        args.save_total_limit = None  # Checkpoints deletes the old ones
        # The library saves no optimizer of a sharded model, but an adapter's is the same in all processes.
        self.is_sharded = distributed.sharding_of(self.adapted) is not None
        args.save_only_model = self.is_sharded
        super().__init__(
            model=self.adapted,
            args=args,
            data_collator=data_collator or collate,
            train_dataset=self.train_instances,
            eval_dataset=self.eval_instances,
            processing_class=self.loaded.tokenizer,
            compute_metrics=compute_metrics,
            callbacks=[checkpoints, self.stop_early, self.stop_on_collapse, *(callbacks or [])],
            optimizers=optimizers,
        )
        self.args.save_only_model = False
        # The model's device, which the library has just chosen, decides the length of a row.
        datasets = (*self.datasets, *self.eval_by_name.values(), self.content_free)
        instances = [instance for dataset in datasets for instance in dataset.instances]
        self.backend = choose_backend(self.adapted, instances, args.backend)
        if self.is_sharded and self.backend == "padded":
            raise InputError(
                "E-DISTRIBUTED",
                "--shard fsdp trains with the packed back end only, which this model or the length of its rows lacks.",
                "Use one device or another model.",
            )
        starts_at_zero = peft_config is None and not isinstance(self.loaded.model, PeftModel)  # the default LoRA
        places = option_places(args.vote_calibration, self.task_record.templates, len(self.task_record.labels))
        self.model_scores = ModelScores(
            self.adapted,
            args,
            self.backend,
            voters=self.voters,
            validation=[] if self.eval_instances is None else self.eval_instances.instances,
            content_free=self.content_free.instances,
            places=places,
            base_weights=weights_digest(self.adapted) if starts_at_zero else "base",
        )
        self._answer_states = partial(answer_states, backend=self.backend, batch_tokens=args.batch_tokens)
        self._row_tokens = training_row_tokens(self.adapted, args.batch_tokens)
        self.model_accepts_loss_kwargs = True  # compute_loss divides by the number of instances itself

    def _read_task(self, task: Any, args: F2CConfig, train: Any, evaluation: Any) -> tuple[TrainingData, Any]:
        """Return the task's training data, with other rows if given, and the rows of evaluations, maybe by name."""
        by_name = dict(evaluation) if isinstance(evaluation, Mapping) else {}
        first = next(iter(by_name), None)
        data = as_training_data(task, args, train=train, validation=evaluation if first is None else by_name.pop(first))
        self._task = data.task
        if data.record.answer:  # measured once, at the end, because answers have to be generated
            if first is not None:
                raise unsupported("A dict of evaluation sets")
            self.open_validation = data.validation[:OPEN_ROWS]
            return data, None
        others = {name: render_for(data.task, rows) for name, rows in by_name.items()}
        return data, data.validation if first is None else {first: data.validation, **others}

    def _encode(self, args: F2CConfig, train_dataset: Any, eval_dataset: Any) -> None:
        """Encode the rows of all splits."""
        self.encoder = PromptEncoder.of(
            self.loaded.model, self.loaded.tokenizer, args.chat_template, args.prompt_date or ""
        )
        if isinstance(eval_dataset, Mapping):
            by_name = eval_dataset
        else:
            by_name = {"validation": eval_dataset}
        rows_of = {"train": train_dataset, **by_name}
        splits = [(split, self._with_answers(args, split, rows)) for split, rows in rows_of.items()]
        encoded = encode_rows(
            self.encoder, args.too_long, *splits, names=self.template_names, quiet=bool(args.disable_tqdm)
        )
        require_same_shape(encoded, rows_of)
        self.train_instances, *evaluated = encoded
        self.eval_instances = None if eval_dataset is None else evaluated[0]
        self.eval_by_name = dict(zip(by_name, evaluated, strict=True)) if by_name is eval_dataset else {}
        require_data(self.train_instances.instances, args)

    def _with_answers(self, args: F2CConfig, split: str, rows: Any) -> Any:
        """Add the base model's answers to rows that ask for open answers. Their votes are not calibrated.

        Raises:
            InputError: ``E-OPEN-ANSWER`` if votes are online, ``E-CONFIG`` for samples without open answers.
        """
        first = next(iter(rows), None) if isinstance(rows, Sequence) else None
        if not isinstance(first, RenderedInstance) or not first.is_open:
            if args.num_samples and split == "train":
                raise InputError(
                    "E-CONFIG",
                    f"num_samples is {args.num_samples}, but the task has answer choices.",
                    "Leave num_samples out: it is for open answers.",
                )
            return rows
        if args.votes != "frozen":
            raise InputError(
                "E-OPEN-ANSWER",
                "votes are online, but answers are generated once, by the base model.",
                "Use --votes frozen.",
            )
        args.vote_calibration = "none"

        def answer() -> tuple[tuple[TooLong, ...], list[RenderedInstance]]:
            answered = self._generate(self.loaded, args, rows, f"answers, {split}", args.num_samples)
            return answered.too_long, from_wing("as_choices")(answered, args.seed, args.num_samples)

        # An answer may take longer to read than its time limit in some of the processes only.
        too_long, answers = distributed.all_results(answer)[0]
        self.unanswered = [*self.unanswered, *(replace(prompt, split=split) for prompt in too_long)]
        return answers

    def _generate(
        self,
        loaded: LoadedModel,
        args: F2CConfig,
        rows: Sequence[RenderedInstance],
        label: str,
        num_samples: int = 0,
    ) -> Scored:
        answered: Scored = from_wing("generate")(
            loaded,
            rows,
            ScoringOptions(
                chat_template=args.chat_template,
                batch_tokens=args.batch_tokens,
                too_long=args.too_long,
                prompt_date=args.prompt_date,
            ),
            names=self.template_names,
            label=label,
            quiet=bool(args.disable_tqdm),
            sampling=(num_samples, args.seed),
            shared=True,
        )
        return answered

    def validation_answers(self, args: F2CConfig, name: str) -> Scored:
        """Return the model's open answers to a few validation rows."""
        adapted = replace(self.loaded, model=self.adapted, store=None)
        return self._generate(adapted, args, self.open_validation, f"answers, {name}")

    @property
    def datasets(self) -> list[InstanceDataset]:
        """The training split, and the validation split if there is one."""
        return [self.train_instances, *([] if self.eval_instances is None else [self.eval_instances])]

    @property
    def too_long(self) -> list[TooLong]:
        """The prompts of skipped rows that exceed the model's context."""
        return [*self.unanswered, *(prompt for dataset in self.datasets for prompt in dataset.too_long)]

    @property
    def template_names(self) -> list[str]:
        """The names of the templates, which rows without a task lack until they are encoded."""
        return [template.name for template in self.task_record.templates]

    @property
    def adapter_record(self) -> AdapterRecord:
        """The adapter with its method and the chat settings of its prompts, which an audit of this trainer repeats."""
        how = chat_of_training(self.task_record, self.encoder.uses_chat_template)
        return AdapterRecord(method=self.method.name, uses_labels=self.args.uses_labels or None, **how)

    def _describe_rows(self) -> None:
        """Add the number of rows that are not too long to the record of the task; describe rows without one."""
        described = next((dataset.instances for dataset in self.datasets if len(dataset)), None)
        if self._task is None and described is not None:
            self.task_record = replace(
                self.task_record,
                labels=tuple(range(len(described[0].answers[0]))),
                has_gold=any(instance.label is not None for instance in described),
                templates=tuple(TemplateRecord(name=template_name(at)) for at, _ in enumerate(described[0].answers)),
            )
        self.task_record = replace(
            self.task_record,
            num_instances=len(self.train_instances),
            num_validation=sum(map(len, self.datasets[1:])),
            num_too_long=count_instances(self.too_long),
        )

    def _prepare_votes(self, args: F2CConfig, content_free: RenderedRows) -> None:
        """Choose the instances of the first votes: those that the run will see if votes are frozen, or a sample."""
        self.method, self.statistics = find_method(args.method), StepStatistics()
        self.sample = self.voters = draw_sample(self.train_instances.instances, args.seed)
        self._sampler = KeyedSampler(
            self.train_instances,
            args.seed if args.data_seed is None else args.data_seed,
            drop_last=args.dataloader_drop_last,
        )
        (self.content_free,) = encode_rows(self.encoder, "refuse", ("content_free", content_free))
        self.is_frozen = args.votes == "frozen"
        if self.is_frozen:
            if args.max_steps > 0:
                count = args.max_steps * instances_per_step(args)
            else:
                count = len(self.train_instances)
            self.voters = [self.train_instances[index] for index in self._sampler.first(count)]
            check_frozen_votes(self.voters, args, has_content_free=len(self.content_free) > 0)
        self.criterion = CheckpointCriterion.of(
            args, None if self.eval_instances is None else [row.label for row in self.eval_instances.instances]
        )
        self.stop_early = StopEarly(args.early_stopping_patience, args.early_stopping_start)
        self.stop_on_collapse = StopOnCollapse(args, lambda: self._comparable_votes)

    def init_hf_repo(self, *arguments: Any, **keywords: Any) -> None:
        """Create the repository of ``push_to_hub`` before the training. The arguments depend on transformers' version.

        Raises:
            InputError: ``E-CONFIG`` if the hub is unreachable or refuses.
        """
        reason = why_unreachable()
        remedy = f"Connect to the hub ({reason})" if reason else "Log in with `hf auth login`"
        with setting_errors(
            "push_to_hub", f"{remedy}, or save the adapter and send its folder later with `hf upload`."
        ):
            super().init_hf_repo(*arguments, **keywords)

    # ---- the loss ----

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: int | Tensor | None = None,
    ) -> Loss:
        """These instances' share of the mean loss of the optimizer step, which counts skipped instances (Eq. 7)."""
        assert not return_outputs, "evaluation does not call compute_loss"
        encoded: list[EncodedInstance] = inputs["instances"]
        states = self._answer_states(model, encoded)
        scores = self._scores(model, states, encoded)
        votes = self.model_scores.first_votes.scores_for(encoded) if self.is_frozen else scores
        read = self._instances(encoded, states, votes, epoch=self._sampler.epoch)
        instances, labels = zip(*read, strict=True)
        losses = [self._loss_terms(instance, _known(label)) for instance, label in read]
        self.statistics.add(instances, labels, scores, states.token_counts, losses, uses_labels=self.args.uses_labels)
        total = _sums(losses, states).sum() / (num_items_in_batch or len(losses))
        total = total * inputs.get("weight", 1.0)
        # Without a consensus no term has a gradient. All processes of a sharded model compute the backward.
        self._has_gradient |= total.requires_grad and inputs.get("weight", 1.0) > 0
        if not total.requires_grad and self.is_sharded:
            total = total + 0.0 * states.logits[:1].sum()
        if total.requires_grad:
            return total
        return total.requires_grad_()

    def _instances(
        self, encoded: Sequence[EncodedInstance], states: AnswerStates, votes: Tensor, *, epoch: int
    ) -> list[tuple[TrainingInstance, int | None]]:
        """Return the instances of a forward pass as the method reads them, with the gold labels of :func:`votes_of`."""
        instances = []
        for number, row in enumerate(encoded):
            scores, written, label = votes_of(row, votes[number])
            consensus = find_consensus(scores, written)
            templates = row.drawn or range(len(row.answers))
            if self.is_frozen and row.drawn:  # all templates have voted
                scores = scores[list(templates)]
                consensus = consensus.under(templates)
            instance = TrainingInstance(
                id=row.id,
                consensus=consensus,
                split=split_templates(scores, self.args, consensus),
                vote_scores=scores,
                gold=_known(label) if self.method.uses_labels else None,
                states=states.of(number),
                keys=(self.args.seed, epoch),
                templates=templates,
            )
            instances.append((instance, label))
        return instances

    def _loss_terms(self, instance: TrainingInstance, gold: int | None = None) -> Terms:
        terms = loss_terms(self.method, instance, self.args)
        few = few_label_terms(instance, gold, self.args)
        if same := [name for name in terms if name in few]:
            raise InputError(
                "E-CONFIG", f"method {self.method.name} has a term {same[0]!r}, as supervised_weight has.", "Rename it."
            )
        return terms | few

    @torch.no_grad()
    def _scores(
        self, model: nn.Module, states: AnswerStates, encoded: Sequence[EncodedInstance]
    ) -> Float[Tensor, "instances templates labels"]:
        """Scores of the loss's own pass, or of one without dropout, on the CPU. Only this waits for the device."""
        if self.args.vote_pass == "separate" and not self.is_frozen:
            with evaluation_mode(model):
                states = self._answer_states(model, encoded)
        ids = [instance.id for instance in encoded]
        step = self.state.global_step + 1
        return require_finite(states.scores().cpu(), states.token_counts, ids, f"Step {step}: the scores")

    @one_at_a_time()
    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as ``transformers.Trainer`` does; first log the number of passes over the instances."""
        if not len(self.train_instances):
            raise InputError("E-DATA-ROWS", "the trainer has no training rows.", "Give train_dataset.")
        if self.is_frozen:
            _ = self.model_scores.first_votes  # before the first step, on all processes
        if distributed.rank() == 0:
            log_passes(len(self.train_instances), self.args)
        check_backend(self.adapted, self.train_instances.instances, self.backend)
        output = super().train(resume_from_checkpoint, *args, **kwargs)
        if self._has_learned is False:
            log.warning(
                "W-TRAINING: the adapter has not changed: no step had a learning rate above 0 and a gradient. "
                "The first step of a warm-up has the learning rate 0 (--warmup-steps)."
            )
        return output._replace(training_loss=output.metrics["train_loss"])

    # ---- determinism ----

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward by rows. Dropout is a function of (seed, step, instances of the row)."""
        instances = [self._drawn(instance) for instance in inputs["instances"]]
        keys = (self.args.seed, "dropout", self.state.global_step)
        step = super().training_step

        def compute(row: list[EncodedInstance], weight: float = 1.0) -> tuple[Tensor, StepStatistics]:
            self.statistics = StepStatistics()
            # The backward is inside too, because gradient checkpointing runs layers again.
            attention: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if self.backend == "packed":
                attention = packed_attention(self.adapted)
            drawn = drawn_for(self.args.device, *keys, *(instance.id for instance in row))
            with attention, drawn, distributed.shared_pass(self.adapted):
                return step(self.adapted, {"instances": row, "weight": weight}, num_items_in_batch), self.statistics

        def run(row: list[EncodedInstance]) -> tuple[Tensor, StepStatistics]:
            distributed.announce_pass(self.adapted)
            return compute(row)

        before = self.statistics
        parameters = [*self.adapted.parameters()]
        order = packing_order(instances, self.backend)
        rows_of = partial(pack, self.adapted, [instances[number] for number in order])
        try:
            with distributed.in_step(self.adapted, lambda: compute([self._spare_row], weight=0.0)):
                results, self._row_tokens = by_rows(run, rows_of, self._row_tokens, parameters)
        except InputError:
            before.read()  # an earlier term that is not finite would be the cause
            raise
        self.statistics = StepStatistics([before, *(statistics for _, statistics in results)])
        if self.accelerator.sync_gradients:
            if self.is_sharded and not distributed.any_rank(self._has_gradient, self.args.device):
                self.adapted.zero_grad(set_to_none=True)  # as in one process, where the optimizer skips such a step
            groups = self.optimizer.param_groups if self.optimizer else ()
            learns = self._has_gradient and any(group["lr"] > 0 for group in groups)
            self._has_learned = self._has_learned or learns
            self._has_gradient = False
            distributed.sum_gradients(parameters)
        # transformers logs the mean over the processes, but the step's loss is the sum.
        loss = sum((loss for loss, _ in results), torch.zeros((), device=self.args.device)) * distributed.world_size()
        self.step_loss += loss.detach()
        return loss

    def _drawn(self, instance: EncodedInstance) -> EncodedInstance:
        """Return the instance under the templates of this epoch."""
        num_templates = len(instance.answers)
        count = self.args.variants_per_step
        if count is None or count >= num_templates:
            return instance
        return instance.under(draw_templates(instance.id, num_templates, count, self.args.seed, self._sampler.epoch))

    @cached_property
    def _comparable_votes(self) -> VoteTable:
        """The first votes on as many templates as a step has, whose label frequencies its votes should have."""
        return self.model_scores.first_votes.batch_calibrated.drawn(self.args.variants_per_step, self.args.seed)

    def _sync_replicated_trainable_parameters(self, model: nn.Module) -> None:
        """Do nothing: the adapter is the same in all processes, and its gradients are summed once a step."""

    @cached_property
    def _spare_row(self) -> EncodedInstance:
        return self._drawn(min(self.voters, key=lambda instance: len(instance.trie)))

    def _get_train_sampler(self, train_dataset: Any = None) -> KeyedSampler:
        self._sampler.batch_size = self._train_batch_size
        return self._sampler  # overrides a private method: the library has no public hook for the order

    @property
    def is_over(self) -> bool:
        """Whether the training has finished or stopped early."""
        return (
            self.state.global_step >= self.state.max_steps
            or self.stop_early.is_due(self.state)
            or self.stop_on_collapse.is_due(self.state)
        )

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: torch.device) -> tuple[list, int]:
        """Return the micro-batches of an optimizer step, and their instances over all processes."""
        if self.is_over:
            self.control.should_training_stop = True  # resumed from its last checkpoint
            return [], 0
        # On resume in several processes, accelerate does not set the epoch of the sampler.
        self._sampler.set_epoch(int((self.state.epoch or 0.0) + 1e-6))
        self.step_loss = 0.0
        batches, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        count = sum(distributed.all_gather(sum(len(batch["instances"]) for batch in batches)))
        return batches, count

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Return 0: the library's estimate needs ``input_ids``, which a batch of instances lacks."""
        return 0

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Add the terms, case shares and vote statistics of the steps since the last log line."""
        if "loss" in logs:
            statistics = StepStatistics(distributed.all_gather(self.statistics.read()))
            logs = logs | statistics.means()
            if not self.train_instances[0].votes:  # otherwise each instance has its labels, the answers to it
                counts = statistics.vote_counts(len(self.train_instances[0].answers[0]))
                logs = logs | self.stop_on_collapse.line(counts, self.state.log_history)
            self.statistics = StepStatistics()
        if "train_loss" in logs:
            self.statistics.read()  # of the steps since the last line
            logs["train_loss"] = mean_loss(self.state.log_history)  # the library omits the steps before a resume
        super().log(logs, start_time)

    # ---- evaluation ----

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: list[str] | None = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Score instances; return agreement, F1, own-label mass and the value that selects the checkpoint.

        ``eval_dataset``: rows, a dict of rows by name, or the name of one of the trainer's.
        """
        started = time.monotonic()
        if eval_dataset is None:
            metrics = self._evaluate_own()
        elif isinstance(eval_dataset, Mapping):
            metrics = _joined({name: self._metrics(self._encoded(rows)) for name, rows in eval_dataset.items()})
        else:
            metrics = self._metrics(self._encoded(eval_dataset))
        prefixed = {f"{metric_key_prefix}_{name}": value for name, value in metrics.items()}
        self.log(prefixed)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, prefixed)
        self.evaluation_seconds += time.monotonic() - started
        return prefixed

    def _evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate each step once. The start of a resumed run, and the end of an epoch, can ask again."""
        known = {entry["step"]: entry for entry in self.state.log_history if "eval_collapsed" in entry}
        step = self.state.global_step
        is_start = kwargs.get("skip_scheduler")
        if step in known or (step and is_start):
            return known.get(step, {})
        return super()._evaluate(*args, **kwargs)  # overrides a private method: the library has no public hook

    def predict(
        self, test_dataset: Any, ignore_keys: list[str] | None = None, metric_key_prefix: str = "test"
    ) -> PredictionOutput:
        """Return scores ``[instances, templates, labels]`` in nats, label indices (-1: no label) and metrics."""
        dataset = self._encoded(test_dataset)
        table = self.model_scores.score(dataset.instances, "predict")
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self._metrics(dataset, table).items()}
        return PredictionOutput(table.values, dataset.gold, metrics)

    def _encoded(self, rows: Any) -> InstanceDataset:
        if isinstance(rows, str):
            return look_up(rows, self.eval_by_name, "E-DATA-ROWS", "There is no eval_dataset")
        rows = rows if self._task is None else render_for(self._task, rows)
        (dataset,) = encode_rows(self.encoder, self.args.too_long, ("validation", rows), names=self.template_names)
        return dataset

    def _evaluate_own(self) -> dict[str, float]:
        dataset = self.eval_instances
        if dataset is None:
            raise InputError("E-DATA-ROWS", "the trainer has no evaluation rows.", "Give eval_dataset.")
        loss = {"loss": self._validation_loss()} if self.args.early_stopping_patience else {}
        table = self.model_scores.score_validation()
        metrics = self._metrics(dataset, table)
        named = {name: metrics if rows is dataset else self._metrics(rows) for name, rows in self.eval_by_name.items()}
        base = self.model_scores.validation_votes.batch_calibrated
        judged = self.criterion.judge(table.values, base, dataset.gold, self.task_record.f1)
        return metrics | loss | judged | _joined(named)

    def _validation_loss(self) -> float:
        """Score the validation split, and return the method's mean loss. Only methods that use labels read them."""
        losses = []
        frozen = self.model_scores.validation_votes if self.is_frozen else None

        def note_losses(encoded: Sequence[EncodedInstance], states: AnswerStates, scores: Tensor) -> None:
            scores = require_finite(scores.cpu(), states.token_counts, [instance.id for instance in encoded])
            # Always epoch 0, so that all evaluations have the same random teachers.
            instances = self._instances(encoded, states, frozen.scores_for(encoded) if frozen else scores, epoch=0)
            losses.extend(_sums([self._loss_terms(instance) for instance, _ in instances], states).tolist())

        num_rows = len(self.model_scores.score_validation(note_losses))
        parts = distributed.all_gather(losses)
        # Processes without a part repeat the first instance.
        return math.fsum(loss for part in parts[:num_rows] for loss in part) / num_rows

    def _metrics(self, dataset: InstanceDataset, table: Scores | None = None) -> dict[str, float]:
        if table is None:
            table = self.model_scores.score(dataset.instances, "validation")
        # Without rows the trainer does not know its templates.
        names = self.template_names or [*map(template_name, range(table.values.shape[1]))]
        metrics = evaluation_metrics(table, dataset.gold, names, self.task_record.f1)
        if self.compute_metrics is not None:
            scores = table.values.copy()  # which it may change
            more = denumpify_detensorize(self.compute_metrics(EvalPrediction(scores, dataset.gold)))
            wrong = [more]
            if isinstance(more, Mapping):
                wrong = [value for value in more.values() if not isinstance(value, int | float | str | None)]
            if wrong:
                raise InputError(
                    "E-CONFIG",
                    f"compute_metrics returned a {type(wrong[0]).__name__}.",
                    "Return a dict of numbers by name.",
                )
            metrics |= more
        return metrics

    # ---- the record and the model card ----

    def change_on_validation(self) -> Json | None:
        """Compare the base and the trained model on the validation split; ``None`` without evaluations.

        By name: ``before`` and ``after``, fractions, and ``interval``, the paired 95% interval of their difference. All
        processes take part in the scoring. Open answers are generated for a few rows.
        """
        dataset = self.eval_instances
        more = Json()
        if self.base_answers is not None:
            before = self.base_answers.scores
            after = self.validation_answers(self.args, "trained").scores
            more["collapsed"] = bool((after.answers < 0).all()) or is_collapsed(after.answers, after.num_answers)
            keys = after.answer_keys[:, :, None]
            is_known = (keys == before.answer_keys[:, None, :]) & (keys >= 0)
            more["base_answer_share"] = float(is_known.any(axis=2).mean())
        elif dataset is None or self.args.eval_strategy == "no":
            return None
        else:
            design = Design(self.task_record.f1)
            after = self.model_scores.score_validation()
            base = self.model_scores.validation_votes.uncalibrated.scores
            before, after = (Scores(scores, dataset.gold, design=design) for scores in (base, after.values))
        changes = {
            name: {
                "before": METRICS[name].value(before),
                "after": METRICS[name].value(after),
                "interval": METRICS[name].change_interval(before, after),
            }
            for name in (SHOWN_OPEN if self.open_validation else SHOWN)
        }
        return {"num_instances": len(after)} | more | changes

    def describe(self, change: Json | None, survey: Any = None) -> RunRecord:
        """Return the record of the training, which may have rows without a task."""
        validation = self.eval_instances
        scoring = {
            "delimiter": self.train_instances.delimiter,
            "chat_template": self.encoder.uses_chat_template,
            "prompts_digest": self.train_instances.digest,
            "validation_prompts_digest": None if validation is None else validation.digest,
            "backend": self.backend,
        }
        return RunRecord(
            kind="train",
            name=self.method.name,
            task=self.task_record,
            model=self.loaded.record,
            scoring=scoring,
            training=self._training_record(change, survey),
            seed=self.args.seed,
            versions=versions(),
        )

    def _training_record(self, change: Json | None, survey: Any = None) -> Json:
        """Return the ``training`` of ``run.json``: settings, steps, selection, first votes, and ``validation``."""
        world_size = distributed.world_size()
        votes_digest = None
        if self.is_frozen:
            votes_digest = self.model_scores.first_votes.digest
        trained = (value for value in self.adapted.parameters() if value.requires_grad)
        facts = {
            "uses_labels": self.args.uses_labels,
            "num_processes": world_size,
            "dropout_depends_on_processes": world_size > 1 and has_dropout(self.adapted),
            "steps": self.state.global_step,
            "collapsed_at_step": self.stop_on_collapse.step(self.state),
            "stopped_early": self.state.global_step < self.state.max_steps,
            "adapter_dtype": _dtypes(trained),
            "optimizer_dtype": _dtypes(self._optimizer_tensors()),
        }
        results = {
            "survey": survey,
            "votes_digest": votes_digest,
            "validation": change,
            "evaluation_seconds": round(self.evaluation_seconds, 2),  # part of the run's seconds
        }
        return recorded_settings(self.args) | facts | self._selection_record() | results

    def _selection_record(self) -> Json:
        """Return which checkpoint was selected, and its value and the base's by the criterion."""
        best = self.state.best_model_checkpoint
        selected_by = self.args.metric_for_best_model
        evaluation = {}
        if selected_by in SELECTED:
            evaluation = selected_evaluation(self.state)
            selected_by = self.criterion.by if self.args.load_best_model_at_end else "last"
        return {
            "selected_by": selected_by,
            "selected_checkpoint": None if best is None else Path(best).name,
            "selected_value": evaluation.get("eval_selection", self.state.best_metric),
            "base_value": evaluation.get("eval_base_selection"),
        }

    def _optimizer_tensors(self) -> Iterator[Tensor]:
        """Yield the optimizer's states of weights, without step counts."""
        if self.optimizer is not None:
            for state in self.optimizer.state.values():
                for value in state.values():
                    if isinstance(value, Tensor) and value.dim() > 0:
                        yield value

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the adapter with the model card. A checkpoint keeps PEFT's card."""
        super().save_model(output_dir, _internal_call=True)
        folder = Path(output_dir or self.args.output_dir or "")
        if distributed.rank() == 0:
            (folder / TRAINING_ARGS_NAME).unlink(missing_ok=True)  # an unused pickle
        if not _internal_call:
            self._write_card(folder, self.describe(self.change_on_validation()))
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Model save")

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, sharded_state(self.adapted) if state_dict is None else state_dict)

    def create_model_card(
        self, language: Any = None, license: Any = None, tags: Any = None, model_name: str | None = None, *args: Any,
        **metadata: Any,
    ) -> None:  # fmt: skip
        """Write the model card ``README.md`` into ``output_dir``; ``metadata``: further keys of the hub's cards."""
        # Scoring needs all processes, but maybe one of them calls this.
        change = self.change_on_validation() if distributed.world_size() == 1 else None
        metadata |= {"language": language, "license": license, "tags": tags, "model_name": model_name}
        self._write_card(Path(self.args.output_dir or ""), self.describe(change), **metadata)

    def _write_card(self, folder: Path, record: RunRecord, **metadata: Any) -> None:
        if distributed.rank() == 0:
            write_text(folder / CARD, model_card(record, **metadata))


def _sums(losses: Sequence[Terms], states: AnswerStates) -> Float[Tensor, " instances"]:
    zero = torch.zeros((), device=states.logits.device)  # the loss of an instance without terms
    return torch.stack([sum(terms.values(), zero) for terms in losses])


def _known(label: int | None) -> int | None:
    """Return a gold label that losses can read: no template has written an answer with the label -1."""
    return None if label == -1 else label


def _joined(named: Mapping[str, dict[str, float]]) -> dict[str, float]:
    return {f"{name}_{key}": value for name, metrics in named.items() for key, value in metrics.items()}


def _dtypes(tensors: Iterable[Tensor]) -> str:
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))
