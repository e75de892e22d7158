"""The settings of a training run: ``transformers.TrainingArguments`` and what the methods add to it."""

import copy
import functools
from dataclasses import dataclass, fields
from typing import Any, cast

import torch
from transformers import Trainer, TrainingArguments, get_scheduler
from transformers.integrations import get_available_reporting_integrations
from transformers.utils import is_liger_kernel_available

from flip_flop.errors import InputError
from flip_flop.method import METHODS, find_method
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.training.names import find_names, in_given_spelling
from flip_flop.training.settings import TrainingSettings
from flip_flop.training.values import check_value, convert


@dataclass
class F2CConfig(TrainingSettings, TrainingArguments):
    r"""Settings of :class:`~flip_flop.training.trainer.F2CTrainer`.

    :class:`~flip_flop.training.settings.TrainingSettings` has the settings of the methods, and those with another
    default than in ``TrainingArguments``; every other field is as there. ``method`` is a name of
    :data:`~flip_flop.method.METHODS`, ``module:name``, or a :class:`~flip_flop.method.Method`. A batch is counted in
    *instances*: ``per_device_train_batch_size=8`` is 8 instances under all their templates. ``save_strategy="best"`` is
    refused: the best checkpoint is kept anyway.

    ``protocol`` is a bundle of settings, over which a value that is given wins: ``recommended`` is what does least harm
    on data of one's own (docs/evidence.md); ``paper`` is the paper's text with our decisions, and ``release`` has the
    readings of the authors' release (docs/release.md). The numbers of these two are what the release shares over its
    datasets, and the medians of its weights per dataset.

    Raises:
        InputError: ``E-CONFIG-VALUE`` where a value is out of its range.
    """

    @classmethod
    def of(cls, args: TrainingArguments) -> "F2CConfig":
        """The settings of plain ``TrainingArguments``: those that are not the library's defaults count as given."""
        default = vars(TrainingArguments(output_dir=args.output_dir, use_cpu=args.use_cpu))
        names = [item.name for item in fields(TrainingArguments) if item.init]
        given = {name: value for name in names if (value := getattr(args, name)) != default[name]}
        return cls(**{"output_dir": args.output_dir, "use_cpu": args.use_cpu} | given)

    def __post_init__(self):
        method = find_method(self.method)
        self.method = method.name if METHODS.get(method.name) is method else self.method
        TrainingSettings.__post_init__(self)
        own = self.metric_for_best_model in (None, "loss", "selection")
        self._require("metric_for_best_model", own, "left out: select_by chooses the checkpoint")
        if self.load_best_model_at_end:
            self.metric_for_best_model, self.greater_is_better = "selection", True
        self._require("enable_jit_checkpoint", not self.enable_jit_checkpoint, "false: a signal writes a checkpoint")
        liger = not self.use_liger_kernel or is_liger_kernel_available()
        self._require("use_liger_kernel", liger, "false where liger-kernel is not installed")
        for name in ("torch_compile", "torch_compile_backend", "torch_compile_mode"):
            left_out = "left out: it compiles the model's forward, which training does not call"
            self._require(name, not getattr(self, name), left_out)
        self._require("label_smoothing_factor", not self.label_smoothing_factor, "0: no loss here smooths a label")
        waits = bool(self.dataloader_num_workers) or not self.dataloader_persistent_workers
        self._require("dataloader_persistent_workers", waits, "false where dataloader_num_workers is 0")
        TrainingArguments.__post_init__(self)
        # Checked before the weights are loaded. A machine that only plans a study may lack the optimizer's package.
        plain, kwargs = copy.copy(self), cast(Any, self.lr_scheduler_kwargs)
        plain.optim = "sgd"
        with optimizer_errors():
            Trainer.get_optimizer_cls_and_kwargs(plain)
            get_scheduler(self.lr_scheduler_type, torch.optim.SGD([torch.zeros(1)], self.learning_rate), 0, 1, kwargs)
        if self.load_best_model_at_end and self.save_strategy == "steps":
            # The best state of an evaluation that saves nothing would be lost.
            self._require("save_steps", self.save_steps == self.eval_steps, f"eval_steps, {self.eval_steps}")

    def __getstate__(self) -> dict[str, Any]:
        """Without the token: the library pickles settings into folders, and sends them to the hub."""
        return vars(self) | {"hub_token": None}

    def __copy__(self) -> "F2CConfig":
        copied = object.__new__(type(self))
        vars(copied).update(vars(self))
        return copied

    def to_dict(self) -> dict[str, Any]:
        """The settings as plain values, the method by name."""
        return super().to_dict() | {"method": str(self.method)}


setting_errors = functools.partial(as_input_error, "E-CONFIG-VALUE", kind=Exception)
optimizer_errors = functools.partial(
    setting_errors, "optimizer or schedule", "Correct the settings that begin with optim or lr_scheduler."
)


def make_config(settings: dict[str, Any], source: str = "the settings") -> F2CConfig:
    """An :class:`F2CConfig` from a YAML file's or the command line's values; texts are converted to the field's type.

    A name may be a flag's (``--learning-rate``, ``--lr``), and messages name it as it is given; dashes in a name count
    as underscores. Messages say that the settings come from ``source``.

    Raises:
        InputError: ``E-CONFIG-KEY`` for an unknown field, with the nearest one; ``E-CONFIG-VALUE`` for a bad value.
    """
    known = {item.name: item for item in fields(F2CConfig) if item.init}
    given = find_names(settings, known, source)
    with in_given_spelling(given):
        values = {name: convert(settings[key], known[name].type) for name, key in given.items()}
        for name, value in values.items():
            check_value(name, value, known[name].type)
        with setting_errors(source):
            config = F2CConfig(**values)
            config.get_process_log_level()
    for name in config.report_to:
        if name not in get_available_reporting_integrations():
            message = f"report_to is {name!r}, which is not installed."
            raise InputError("E-CONFIG-VALUE", message, f"pip install {name}.")
    return config
