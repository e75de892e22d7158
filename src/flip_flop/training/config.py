"""``F2CConfig``: ``transformers.TrainingArguments`` with the settings of the methods, from Python, YAML and flags."""

import copy
import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.integrations import get_available_reporting_integrations
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.utils import is_liger_kernel_available

from flip_flop.errors import InputError, install_command, nearest
from flip_flop.files import Json
from flip_flop.method import METHODS, PAPER_METHODS, find_method
from flip_flop.metrics import check_prior
from flip_flop.scoring import distributed
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.training.settings import (
    ALIASES,
    MAX_STEPS,
    TrainingSettings,
    as_flag,
    read_value,
    setting_of,
    wrong_value,
)

# The default as to_dict() of the library's settings stores it, which lacks one value.
STORED_ACCELERATOR = vars(AcceleratorConfig()).copy()
STORED_ACCELERATOR.pop("use_configured_state")
# Values of unsupported settings that change nothing.
UNSET: tuple[Any, ...] = (None, False, [], AcceleratorConfig(), STORED_ACCELERATOR)
# Methods that read clean_template.
WITH_CLEAN_TEMPLATE = ("bct", "opct", "ppcl")
# Values of metric_for_best_model that mean select_by. The library's default is "loss".
SELECTED = (None, "loss", "selection")
# Inherited settings that would have no effect or a wrong one, and why.
UNSUPPORTED = {
    "a signal writes a checkpoint": "enable_jit_checkpoint",
    "it compiles the model's forward, which training does not call": (
        "torch_compile torch_compile_backend torch_compile_mode"
    ),
    "compute_metrics reads the scores and labels of all rows": (
        "include_for_metrics batch_eval_metrics prediction_loss_only label_names"
    ),
    "evaluations use the data type of the weights": "bf16_full_eval fp16_full_eval",
    "a resumed run would differ from an uninterrupted one": "save_only_model ignore_data_skip",
    "no loss smooths labels": "label_smoothing_factor",
    "each epoch has a random order": "train_sampling_strategy",
    "its noise would depend on batch_tokens": "neftune_noise_alpha",
    "tokens are not counted": "include_num_input_tokens_seen",
    "the trainer divides the rows": "accelerator_config",
}


@dataclass
class F2CConfig(TrainingSettings, TrainingArguments):
    r"""Settings of :class:`~flip_flop.training.trainer.F2CTrainer`.

    :class:`~flip_flop.training.settings.TrainingSettings` lists the settings of the methods and the changed defaults.
    Every other field is inherited from ``TrainingArguments``. ``method`` is a name of
    :data:`~flip_flop.method.METHODS`, ``module:name``, or a :class:`~flip_flop.method.Method`. Batch sizes count
    *instances*: ``per_device_train_batch_size=8`` is 8 instances under all their templates. ``save_strategy="best"`` is
    refused, because the best checkpoint is always stored.

    ``protocol`` selects a bundle of defaults: ``recommended`` was chosen for robustness on new data
    (docs/evidence.md), ``paper`` follows the paper's text with our decisions, and ``release`` follows the authors'
    code (docs/release.md). The numbers of the last two are those that the release shares over its datasets, and the
    medians of its weights per dataset. With ``release``, the methods ``swarm``, ``cce`` and ``f2c`` become
    ``swarm_release``, ``cce_release`` and ``f2c_release``. ``dataclasses.replace`` keeps the values of the former
    protocol.

    Raises:
        InputError: ``E-CONFIG`` if a value has the wrong type or range.
    """

    # JSON on the command line.
    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "model_init_kwargs"]  # noqa: RUF012 - as in the library

    @property
    def uses_labels(self) -> bool:
        """Whether the loss reads gold labels."""
        return find_method(self.method).uses_labels or self.supervised_weight > 0

    @classmethod
    def of(cls, args: TrainingArguments) -> "F2CConfig":
        """Take over those settings of plain ``TrainingArguments`` that differ from the library's defaults."""
        default = vars(TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu))
        names = [item.name for item in fields(TrainingArguments) if item.init]
        changed = {name: value for name in names if (value := getattr(args, name)) != default[name]}
        return cls(**{"output_dir": args.output_dir, "use_cpu": args.use_cpu} | changed)

    def __post_init__(self) -> None:
        method = find_method(self.method)
        self.method = method.name if METHODS.get(method.name) is method else self.method
        self._check_values()
        self._resolve_protocol()
        self._check_calibration()
        self._require("save_strategy", self.save_strategy != "best", "no, steps or epoch")
        self._resolve_schedule()
        self._check_supported()
        # Otherwise accelerate counts one process on a machine without a GPU, and all processes train on the same rows.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        TrainingArguments.__post_init__(self)
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")  # set by accelerate's launcher
        if precision != "no" and not (self.fp16 or self.bf16):
            raise InputError(
                "E-CONFIG",
                f"accelerate's mixed precision is {precision}, which is not a setting of this run.",
                "Use `accelerate launch --mixed_precision no`; --dtype bfloat16 sets the data type of the weights.",
            )
        self._require("model_init_kwargs", isinstance(self.model_init_kwargs or {}, dict), "an object of settings")
        for name in self.report_to:
            if name not in get_available_reporting_integrations():
                raise InputError(
                    "E-CONFIG", f"report_to is {name!r}, which is not installed.", f"{install_command(name)}."
                )

    def _check_values(self) -> None:
        """Convert and check each value, but for missing ones that ``protocol`` decides."""
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None or "paper" not in item.metadata:
                setattr(self, item.name, read_value(item, value))

    def _resolve_protocol(self) -> None:
        """Fill in the settings that ``protocol`` decides, and select the method of the authors' release."""
        if self.protocol == "release" and self.method in PAPER_METHODS:
            self.method = f"{self.method}_release"
        if self.votes == "online" and self.vote_calibration is None:
            self.vote_calibration = "none"  # a step has too few rows to calibrate
        for item in fields(TrainingSettings):
            if self.protocol in item.metadata and getattr(self, item.name) is None:
                setattr(self, item.name, item.metadata[self.protocol])

    def _check_calibration(self) -> None:
        method = find_method(self.method)
        calibrates = self.vote_calibration != "none"
        self._require(
            "votes",
            self.votes == "frozen" or not method.needs_frozen_votes,
            f"frozen for method {method.name}, which imitates the base model",
        )
        self._require(
            "supervised_weight",
            not (self.supervised_weight and method.uses_labels),
            f"0 for method {method.name}, which reads all gold labels",
        )
        self._require(
            "variants_per_step",
            self.variants_per_step is None or method.name not in WITH_CLEAN_TEMPLATE,
            f"left out for method {method.name}, which needs the clean template",
        )
        self._require("votes", not calibrates or self.votes == "frozen", "frozen if they are calibrated")
        if self.label_prior is not None:
            self.label_prior = list(check_prior(self.label_prior))
            self._require(
                "vote_calibration",
                self.vote_calibration not in ("none", "position"),
                "batch, contextual or prior with label_prior",
            )
        self._require(
            "label_prior",
            self.vote_calibration != "prior" or self.label_prior is not None,
            "one share per label, with sum 1, for vote_calibration prior",
        )

    def _resolve_schedule(self) -> None:
        """Fill in the number of steps, and the steps of evaluations and checkpoints."""
        if self.num_train_epochs < 0:
            self.num_train_epochs = 3.0  # the library's default, which max_steps overrides
            self.max_steps = self.max_steps if self.max_steps > 0 else MAX_STEPS[self.protocol]
        if self.eval_steps is None and self.eval_strategy == "steps":
            self.eval_steps = 5
            if self.protocol == "recommended":
                # The library rounds a share of all steps up; their number is not known yet.
                self.eval_steps = 1 / 13
                if self.max_steps > 0:
                    self.eval_steps = max(self.max_steps // 12, min(self.max_steps, 4))
        if self.eval_steps is not None and self.eval_strategy == "steps":
            every = self.eval_steps
        else:
            every = 500
        if self.save_strategy == "auto":
            self.save_strategy = self.eval_strategy
            if self.eval_strategy == "no":
                self.save_strategy = "steps"
                every = 5
        if self.save_steps < 0:
            self.save_steps = every
        if self.eval_strategy == "no":
            self.eval_on_start = False
            self.early_stopping_patience = 0
        if self.select_by == "last" or self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.load_best_model_at_end:
            # The best state of an evaluation without a checkpoint would be lost.
            if self.save_strategy == "steps" and self.save_steps != self.eval_steps:
                raise InputError(
                    "E-CONFIG", f"save_steps is {self.save_steps:g}.", f"It must be eval_steps, {self.eval_steps:g}."
                )
            self._require(
                "save_strategy",
                self.save_strategy == self.eval_strategy,
                f"{self.eval_strategy}, as eval_strategy is, or with select_by: last",
            )

    def _check_supported(self) -> None:
        """Refuse weights of the flip term in the wrong order, and features that have no effect or break a training."""
        self._require(
            "flip_weight_min",
            self.flip_weight_min <= self.flip_weight_max,
            f"at most flip_weight_max, {self.flip_weight_max}",
        )
        if self.load_best_model_at_end and self.metric_for_best_model in SELECTED:
            self.metric_for_best_model = "selection"
            self.greater_is_better = True
        self._require(
            "lr_scheduler_type",
            self.lr_scheduler_type not in ("reduce_lr_on_plateau", "greedy"),
            "a function of the step, such as cosine, linear or constant",
        )
        self._require(
            "use_liger_kernel",
            not self.use_liger_kernel or is_liger_kernel_available(),
            "false if liger-kernel is not installed",
        )
        for reason, settings in UNSUPPORTED.items():
            for name in settings.split():
                is_unset = getattr(self, name, None) in (*UNSET, getattr(F2CConfig, name, None))
                self._require(name, is_unset, f"left out: {reason}")

    def check_metric(self, *, has_metrics: bool) -> None:
        """Refuse another ``metric_for_best_model`` than ours, unless the trainer has ``compute_metrics``."""
        self._require(
            "metric_for_best_model",
            has_metrics or self.metric_for_best_model in SELECTED,
            "left out, or a key of compute_metrics in Python: select_by chooses the checkpoint",
        )

    def prepared(self, dtype: str, *, evaluates: bool) -> "F2CConfig":
        """Return a copy for a training of weights of this data type, with or without evaluations.

        Raises:
            InputError: ``E-DISTRIBUTED`` for several devices in one process; ``E-CONFIG`` for a mixed precision, which
                would have no effect.
        """
        args = copy.copy(self)
        dtype = dtype.removeprefix("torch.")
        if args.n_gpu > 1:
            raise InputError(
                "E-DISTRIBUTED",
                f"{args.n_gpu} GPUs are visible to one process.",
                "Start a process per GPU with `accelerate launch` or `torchrun`, or set CUDA_VISIBLE_DEVICES to one.",
            )
        if args.world_size != distributed.world_size():
            raise InputError(
                "E-DISTRIBUTED",
                f"{distributed.world_size()} processes are joined, but the settings were made for {args.world_size}.",
                "Make the F2CConfig first, in each process of the launcher, with use_cpu=True if it trains on a CPU.",
            )
        if args.fsdp or args.deepspeed or args.parallelism_config:
            raise InputError(
                "E-DISTRIBUTED",
                "fsdp, deepspeed and parallelism_config are not supported: each device holds the whole model.",
                "Leave them out; LoRA's optimizer state is small.",
            )
        if args.fp16 or (args.bf16 and dtype != "bfloat16"):
            raise InputError(
                "E-CONFIG",
                f"{'fp16' if args.fp16 else 'bf16'} has no effect: the model's weights are {dtype}.",
                "Load the model with --dtype bfloat16 and leave the setting out. The adapter stays in float32.",
            )
        if not evaluates:
            args.eval_strategy = "no"
            args.eval_on_start = False
            args.load_best_model_at_end = False
        return args

    def _require(self, name: str, holds: bool, range_: str) -> None:
        if not holds:
            raise wrong_value(name, getattr(self, name), range_)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out: the library pickles settings into folders and sends them to the hub."""
        return vars(self) | {"hub_token": None}

    def __copy__(self) -> "F2CConfig":
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def to_dict(self) -> Json:
        """Return the settings as plain values, the method by name."""
        return super().to_dict() | {"method": str(self.method)}


setting_errors = functools.partial(as_input_error, "E-CONFIG", kind=Exception)


def make_config(
    settings: Mapping[str, Any], source: str = "the settings", other_flags: Sequence[str] = ()
) -> F2CConfig:
    """Make an :class:`F2CConfig` from values of a YAML file or the command line.

    Args:
        settings: Values by name. A name may be a flag (``--learning-rate``, ``--lr``); dashes count as underscores.
        source: Origin of the settings, for messages.
        other_flags: More flags of the command, as candidates for the correction of a typo.

    Raises:
        InputError: ``E-CONFIG`` for an unknown field, with the nearest one, and for a bad value.
    """
    names = [item.name for item in fields(F2CConfig) if item.init]
    keys = {}
    for key in map(str, settings):
        name = setting_of(key)
        if name not in names:
            if key.startswith("--"):
                candidates = [*map(as_flag, names), *ALIASES, *other_flags]
            else:
                candidates = names
            raise InputError("E-CONFIG", f"Unknown setting {key!r} in {source}.", nearest(key, candidates))
        keys[name] = key
    try:
        with setting_errors(source):
            config = F2CConfig(**{name: settings[key] for name, key in keys.items()})
            config.get_process_log_level()
            config.check_metric(has_metrics=False)
    except InputError as error:
        name = error.message.split(" ", 1)[0]
        as_typed = keys.get(name, name) + error.message.removeprefix(name)
        raise InputError(error.code, as_typed, error.hint) from error
    return config
