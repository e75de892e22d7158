"""The settings of a training run that are ours, or have another default here. No torch: a wrong one is told at once."""

# ruff: noqa: RUF009 (each default is a dataclass field)

from dataclasses import dataclass, field, fields
from typing import Any, Literal

from flip_flop.errors import InputError, nearest
from flip_flop.method.settings import (
    METHOD_NAMES,
    Aggregation,
    CcSizeBound,
    DivergenceSpace,
    FlipDirection,
    JsdForm,
    Reduction,
    Space,
    SplitSettings,
    SwarmPairs,
    TrainingProtocol,
)
from flip_flop.metrics import check_prior
from flip_flop.metrics.calibration import Calibration
from flip_flop.scoring.options import Backend, ChatTemplate, TooLongPolicy
from flip_flop.training.values import RANGES, check_value

Votes = Literal["online", "frozen", "refreshed"]
VoteCalibration = Literal["none", Calibration]
VotePass = Literal["shared", "separate"]
# agreement is the former name of vote_agreement.
SelectBy = Literal["auto", "macro_f1", "mean_f1", "vote_agreement", "agreement", "last"]
# At most so many optimizer steps, where neither max_steps nor num_train_epochs is given; the release's.
MAX_STEPS = 150


def _setting(default: Any, help_: str) -> Any:
    return field(default=default, metadata={"help": help_})


def _reading(paper: Any, release: Any, help_: str, *, recommended: Any = None) -> Any:
    """A setting that ``protocol`` decides where it is not given; None until then. Ours is by default the paper's."""
    bundles = {"recommended": paper if recommended is None else recommended, "paper": paper, "release": release}
    return field(default=None, metadata={"help": help_, **bundles})


@dataclass
class TrainingSettings:
    """The fields of :class:`~flip_flop.training.config.F2CConfig` that are not inherited as they are, checked alike.

    Raises:
        InputError: ``E-CONFIG-VALUE`` where a value is out of its range.
    """

    output_dir: str | None = _setting("f2c", "Folder of the checkpoints.")
    learning_rate: float = _reading(1e-5, 1e-5, "Peak learning rate of AdamW.", recommended=3e-4)
    lr_scheduler_type: Any = _setting("cosine", "Learning rate schedule after the warm-up.")
    warmup_steps: float = _reading(0.0, 0.0, "Warm-up steps, or below 1 their share of all steps.", recommended=0.1)
    weight_decay: float = _setting(0.01, "AdamW's weight decay.")
    per_device_train_batch_size: int = _setting(32, "Instances per micro-batch and device.")
    max_steps: int = _setting(-1, f"Optimizer steps at most; {MAX_STEPS} where num_train_epochs is not given either.")
    num_train_epochs: float = _setting(-1.0, "Passes over the training instances, where max_steps is not given.")
    eval_strategy: str = _setting("steps", "When to score the validation split.")
    eval_steps: float | None = _setting(
        None, "Steps between two evaluations; by default 5, recommended a twelfth of all."
    )
    save_strategy: str = _setting("auto", "When to write a checkpoint: with each evaluation, or no, steps or epoch.")
    save_steps: float = _setting(-1, "Steps between two checkpoints; by default eval_steps.")
    eval_on_start: bool = _setting(True, "Score the validation split before the first step.")
    load_best_model_at_end: bool = _setting(True, "Keep the checkpoint that select_by prefers.")
    save_total_limit: int | None = _setting(2, "Checkpoints to keep, the best one included.")
    logging_steps: float = _setting(10, "Optimizer steps between two log lines.")
    logging_first_step: bool = _setting(True, "A log line for the first step too.")
    report_to: Any = _setting("none", "trackio, wandb, tensorboard, ..., or none.")
    remove_unused_columns: bool = _setting(False, "Instances are no model inputs; keep False.")
    seed: int = _setting(42, "Of the training.")
    ddp_timeout: int = _setting(7200, "On GPUs: seconds that a process waits for the others.")
    dataloader_pin_memory: bool = _setting(False, "Batches hold no tensors to pin.")

    method: Any = _setting("f2c", f"{', '.join(METHOD_NAMES)}, or MODULE:NAME of a Method of your own.")
    protocol: TrainingProtocol = _setting(
        "recommended", "Whose settings: ours, the paper's text, or the authors' release."
    )
    cce_weight: float = _setting(1.0, "lambda_CCE, Eq. 6.")
    jsd_weight: float = _reading(0.05, 0.05, "beta_jsd, Eq. 8.", recommended=1.0)
    unanimous_margin: float = _setting(1.4, "tau_unanimous in nats, Algorithm 1 line 6.")
    max_cc_size: int = _setting(3, "k_max >= 2, Algorithm 1 line 10.")
    cc_size_bound: CcSizeBound = _reading(
        "templates", "group", "Algorithm 1 line 10: k is below the number of templates, or of majority voters."
    )
    flip_weight_min: float = _reading(0.01, 0.01, "f_min, Algorithm 1 line 18.", recommended=0.1)
    flip_weight_max: float = _reading(0.1, 0.1, "f_max, Algorithm 1 line 18.", recommended=1.0)
    flip_temperature: float = _setting(2.0, "t > 0, Algorithm 1 line 18.")
    divergence_space: DivergenceSpace = _reading(
        "vocab", "vocab", "Divergences over the vocabulary, over the labels, or over both.", recommended="labels"
    )
    vocab_weight: float = _setting(1.0, "A factor of the divergences over the vocabulary.")
    labels_weight: float = _setting(1.0, "A factor of the divergences over the labels.")
    cce_space: DivergenceSpace = _reading(
        "vocab",
        "vocab",
        "Cross-entropy over the answer's tokens (vocab), over the labels, or both.",
        recommended="both",
    )
    cce_reduction: Reduction = _setting("mean", "Mean or sum over the answer's tokens.")
    answer_aggregation: Aggregation = _reading(
        "mean_log_prob", "per_position", "How distributions of several answer tokens become one, or are paired."
    )
    jsd: JsdForm = _reading("mean", "symmetric", "Eq. 8: the mean of KL(q||m), or half of KL(q||m) + KL(m||q).")
    flip_direction: FlipDirection = _reading("forward", "reverse", "Eq. 9: KL(q_s||mixture), or KL(mixture||q_s).")
    detach_cc_mixture: bool = _setting(True, "The flip term's target carries no gradient.")
    divide_by_labels: bool = _reading(False, True, "The terms of f2c and cce are divided by the number of labels.")
    votes: Votes = _reading(
        "online",
        "online",
        "Whose votes: the model's in training, the base's taken once, or the base's refreshed every refresh_steps.",
        recommended="frozen",
    )
    refresh_steps: int = _setting(50, "votes refreshed: optimizer steps between two passes that take them again.")
    vote_calibration: VoteCalibration = _reading(
        "none", "none", "Correct the label bias of each template in the pseudo-labels.", recommended="batch"
    )
    label_prior: list[float] | None = _setting(None, "vote_calibration: the labels' true shares; by default uniform.")
    vote_pass: VotePass = _reading(
        "shared", "separate", "votes online: from the loss's own pass, or from a separate one without dropout."
    )
    swarm_pairs: SwarmPairs = _reading(
        "derangement", "mixture", "One random teacher per template, all, or the mixture of all as a target."
    )
    swarm_space: Space = _reading(
        "labels", "vocab", "swarm_pairs mixture: over the labels, or over the vocabulary for every label's answer."
    )
    early_stopping_patience: int = _reading(
        0, 5, "Evaluations without a lower unsupervised loss on validation before training stops; 0: it does not."
    )
    early_stopping_start: int = _setting(20, "The step after which evaluations count for early stopping.")
    select_by: SelectBy = _setting(
        "auto",
        "Best checkpoint by macro_f1, mean_f1 (the paper), vote_agreement with the base (no labels), or the last one. "
        "auto: macro_f1 (mean_f1 if stop_on_collapse is false), or without labels vote_agreement.",
    )
    max_share_drift: float = _setting(
        0.2,
        "Collapse threshold: maximum total variation distance from the base model's label distribution.",
    )
    stop_on_collapse: bool = _reading(
        False, False, "Stop after two collapsed evaluations in a row (max_share_drift).", recommended=True
    )
    chat_template: ChatTemplate = _setting("auto", "auto, on or off.")
    backend: Backend = _setting("packed", "packed, where the model allows it, or padded (see audit --help).")
    batch_tokens: int = _setting(4096, "Tokens of one forward; an instance is never divided.")
    too_long: TooLongPolicy = _setting("refuse", "Refuse rows longer than the model's context, or skip them.")
    lora_r: int = _setting(16, "LoRA rank (the paper's).")
    lora_alpha: int = _setting(32, "LoRA scaling (the paper's).")
    lora_dropout: float = _setting(0.05, "LoRA dropout (the paper's).")
    model_init_kwargs: dict[str, Any] | None = _setting(
        None, "In Python, of a model given by name: revision, dtype, device, quantization_config."
    )

    def __post_init__(self) -> None:
        check_value("protocol", self.protocol, TrainingProtocol)
        if self.votes == "online" and self.vote_calibration is None:
            self.vote_calibration = "none"  # a step sees too few rows to calibrate
        for item in fields(self):
            if self.protocol in item.metadata and getattr(self, item.name) is None:
                setattr(self, item.name, item.metadata[self.protocol])
            check_value(item.name, getattr(self, item.name), item.type)
        self._check_ranges()
        self._check_calibration()
        self._resolve_schedule()

    def _check_ranges(self) -> None:
        if isinstance(self.method, str) and ":" not in self.method and self.method not in METHOD_NAMES:
            hint = f"{nearest(self.method, METHOD_NAMES)} Or give a Method of your own as MODULE:NAME."
            raise InputError("E-CONFIG-VALUE", f"method is {self.method!r}.", hint)
        try:
            _ = self.split_settings
        except ValueError as error:
            raise InputError("E-CONFIG-VALUE", str(error)) from error
        for range_, (holds, names) in RANGES.items():
            for name in names:
                value = getattr(self, name, None)  # the library's own are not of these settings
                self._require(name, value is None or holds(value), range_)
        self._require("save_strategy", self.save_strategy != "best", "no, steps or epoch")

    def _check_calibration(self) -> None:
        calibrates = self.vote_calibration != "none"
        self._require(
            "votes", not calibrates or self.votes != "online", "frozen or refreshed where they are calibrated"
        )
        if self.label_prior is not None:
            self.label_prior = list(check_prior(self.label_prior))
            self._require("vote_calibration", calibrates, "batch, contextual or prior where a label_prior is given")
        elif self.vote_calibration == "prior":
            self._require("label_prior", False, "one share per label, that sum to 1, for vote_calibration prior")

    def _resolve_schedule(self) -> None:
        """What was not given of how long to train, when to evaluate and when to save."""
        if self.num_train_epochs < 0:
            self.num_train_epochs = 3.0  # the library's, and not read: the steps decide
            self.max_steps = self.max_steps if self.max_steps > 0 else MAX_STEPS
        if self.eval_steps is None and self.eval_strategy == "steps":
            self.eval_steps = 5
            if self.protocol == "recommended":
                # A part of all steps, whose number is not known yet, is rounded up by the library.
                self.eval_steps = max(self.max_steps // 12, 1) if self.max_steps > 0 else 1 / 13
        every = self.eval_steps if self.eval_steps is not None and self.eval_strategy == "steps" else 500
        if self.save_strategy == "auto":
            self.save_strategy = self.eval_strategy
            if self.eval_strategy == "no":
                self.save_strategy, every = "steps", 5
        if self.save_steps < 0:
            self.save_steps = every
        if self.eval_strategy == "no":
            self.eval_on_start, self.early_stopping_patience = False, 0
        if self.select_by == "last" or self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.load_best_model_at_end:
            hint = f"{self.eval_strategy}, as eval_strategy is, or with select_by: last"
            self._require("save_strategy", self.save_strategy == self.eval_strategy, hint)

    @property
    def split_settings(self) -> SplitSettings:
        """The settings of Algorithm 1."""
        return SplitSettings(**{item.name: getattr(self, item.name) for item in fields(SplitSettings)})

    def _require(self, name: str, holds: bool, range_: str) -> None:
        if not holds:
            raise InputError("E-CONFIG-VALUE", f"{name} is {getattr(self, name)!r}.", f"It must be {range_}.")
