"""Settings: from YAML and flags, by the field's type; what is out of range is refused by name."""

from dataclasses import fields
from datetime import date

import pytest
from transformers import TrainingArguments

from flip_flop.errors import InputError
from flip_flop.method import METHODS
from flip_flop.method.settings import METHOD_NAMES
from flip_flop.training import F2CConfig, make_config
from flip_flop.training.names import check_settings, inherited_names
from flip_flop.training.settings import TrainingSettings


def test_text_from_a_flag_or_yaml_becomes_the_fields_type():
    texts = {"learning-rate": "3e-4", "num_train_epochs": "2", "max_cc_size": "3", "detach_cc_mixture": "false"}
    config = make_config(texts | {"jsd_weight": 1, "seed": 7})
    assert (config.learning_rate, config.num_train_epochs, config.max_cc_size) == (3e-4, 2, 3)
    assert (config.detach_cc_mixture, config.jsd_weight, config.seed) == (False, 1.0, 7)


def test_an_unknown_key_is_named_with_the_nearest_one():
    with pytest.raises(InputError, match=r"E-CONFIG-KEY: Unknown setting 'lerning_rate'.*'learning_rate'"):
        make_config({"lerning_rate": 1})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "f3c"}, "method is 'f3c'. Did you mean 'f2c'?"),
        ({"optim_args": "beta"}, "optimizer or schedule: .* begin with optim"),
        ({"optim": "galore_adamw", "optim_args": "beta"}, "optimizer or schedule: .* begin with optim"),
        ({"lr_scheduler_kwargs": {"waves": 3}}, "optimizer or schedule: .*'waves'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "optimizer or schedule: .*min_lr"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": "low"}}, "lr_scheduler"),
        ({"save_strategy": "best"}, "save_strategy is 'best'. It must be no, steps or epoch"),
        ({"max_cc_size": 1}, "max_cc_size is 1. It must be at least 2"),
        ({"flip_temperature": 0}, "flip_temperature is 0.*above 0"),
        ({"flip_weight_min": 0.5, "flip_weight_max": 0.1}, "flip_weight_min is 0.5"),
        ({"cce_weight": "nan"}, "cce_weight is nan"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'. It must be a number"),
        ({"lora_dropout": 1.5}, "lora_dropout is 1.5"),
        ({"num_train_epochs": None}, "num_train_epochs has no value. It must be a number"),
        ({"max_steps": [3]}, r"max_steps is \[3\]. It must be a whole number"),
        ({"max_cc_size": 2.5}, "max_cc_size is 2.5. It must be a whole number"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        ({"num_train_epochs": "nan"}, "num_train_epochs is nan. It must be a number"),
        ({"num_train_epochs": 0}, "num_train_epochs is 0.0. It must be above 0, or -1"),
        ({"max_steps": -3}, "max_steps is -3. It must be above 0, or -1"),
        ({"max_grad_norm": "nan"}, "max_grad_norm is nan"),
        ({"weight_decay": "inf"}, "weight_decay is inf"),
        ({"adam_beta1": 2}, "adam_beta1 is 2.0. It must be at least 0 and below 1"),
        ({"eval_steps": -5}, "eval_steps is -5"),
        ({"seed": -1}, "seed is -1. It must be at least 0"),
        ({"seed": "9" * 23}, "seed is 9+. It must be a whole number, below"),
        ({"seed": date(2020, 1, 1)}, "seed is .*2020.*. It must be a whole number"),
        ({"lora_r": True}, "lora_r is True. It must be a whole number"),
        ({"learning_rate": True}, "learning_rate is True. It must be a number"),
        ({"run_name": ["a"]}, r"run_name is \['a'\]. It must be text"),
        ({"accelerator_config": 1}, "accelerator_config is 1. It must be text"),
        ({"accelerator_config": "none.json"}, "No such file"),
        ({"log_level": "loud"}, "loud"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint is True. It must be false: a signal"),
        (
            {"eval_strategy": "steps", "eval_steps": 50, "save_strategy": "steps", "save_steps": 500},
            r"save_steps is 500\. It must be eval_steps, 50",
        ),
        (
            {"save_strategy": "no"},
            "save_strategy is 'no'. It must be steps, as eval_strategy is, or with select_by: last",
        ),
        ({"lr_scheduler_type": "wavy"}, "lr_scheduler_type|wavy"),
    ],
)
def test_a_value_out_of_range_is_refused(changes, words):
    with pytest.raises(InputError, match=f"E-CONFIG-VALUE: .*{words}") as caught:
        make_config(changes)
    assert "\n" not in str(caught.value)


def test_a_tracker_that_is_not_installed_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr("flip_flop.training.config.get_available_reporting_integrations", lambda: ["trackio"])
    assert make_config({"report_to": "trackio"}).report_to == ["trackio"]
    with pytest.raises(InputError, match=r"E-CONFIG-VALUE: report_to is 'wandb', .* pip install wandb"):
        make_config({"report_to": "wandb"})


def test_every_own_field_has_help():
    assert all(item.metadata["help"] for item in fields(TrainingSettings))


def test_the_methods_names_that_are_known_without_torch_are_those_of_the_table():
    assert tuple(METHODS) == METHOD_NAMES


def test_the_inherited_names_that_are_read_without_an_import_are_those_of_the_library():
    assert inherited_names() == {item.name for item in fields(TrainingArguments) if item.init}
    assert inherited_names() < {item.name for item in fields(F2CConfig)}


@pytest.mark.parametrize("check", [check_settings, make_config])
def test_a_flag_is_named_as_it_was_typed_and_may_be_short(check):
    found = check({"learning_rate": 1.0, "--lr": "3e-4", "--epochs": "2", "--batch-size": "8"})
    assert (found.learning_rate, found.num_train_epochs, found.per_device_train_batch_size) == (3e-4, 2, 8)
    for given, words in (
        ({"--lr": "fast"}, "--lr is 'fast'. It must be a number"),
        ({"--batch-size": "0"}, "--batch-size is 0. It must be at least 1"),
        ({"per_device_train_batch_size": "0"}, "per_device_train_batch_size is 0"),
        ({"--lerning-rate": "1"}, "Unknown setting '--lerning-rate' in the settings. Did you mean '--learning-rate'?"),
        ({"lr": 1}, "Unknown setting 'lr'"),  # short forms are flags
    ):
        with pytest.raises(InputError) as caught:
            check(given)
        assert words in str(caught.value)
        assert len(str(caught.value)) < 200
