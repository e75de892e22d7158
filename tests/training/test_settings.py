"""Settings: defaults of the protocols, conversion of texts, and refused values."""

import copy
import pickle
from dataclasses import fields
from datetime import date

import pytest

from flip_flop.errors import InputError
from flip_flop.method import METHODS, LossVariant
from flip_flop.training import F2CConfig, make_config
from flip_flop.training.checkpoints import recorded_settings
from flip_flop.training.settings import TrainingSettings
from tests.training.conftest import settings

BY_PROTOCOL = {item.name: item.metadata for item in fields(F2CConfig) if "release" in item.metadata}
PROTOCOLS = ("recommended", "paper", "release")
SCHEDULE = ("eval_strategy", "eval_steps", "save_strategy", "save_steps")


def schedule(*values):
    return dict(zip(SCHEDULE, values, strict=True))


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"protocol": "recommended", "votes": "frozen", "vote_calibration": "batch", "cce_space": "both"}),
        ({}, {"divergence_space": "labels", "jsd_weight": 1.0, "warmup_steps": 0.1, "learning_rate": 3e-4}),
        ({"protocol": "paper"}, {"learning_rate": 1e-5, "votes": "online"}),
        ({"protocol": "paper"}, {"vote_pass": "shared", "early_stopping_patience": 0}),
        # How long.
        ({}, {"max_steps": 150, "num_train_epochs": 3.0}),
        ({"num_train_epochs": 2}, {"max_steps": -1, "num_train_epochs": 2.0}),
        ({"max_steps": 9}, {"max_steps": 9, "num_train_epochs": 3.0}),
        ({"max_steps": -1}, {"max_steps": 150, "num_train_epochs": 3.0}),
        # A checkpoint with each evaluation.
        ({}, schedule("steps", 12, "steps", 12)),
        ({"num_train_epochs": 2}, schedule("steps", 1 / 13, "steps", 1 / 13)),
        ({"max_steps": 7}, schedule("steps", 1, "steps", 1)),
        ({"protocol": "release"}, schedule("steps", 5, "steps", 5)),
        ({"eval_steps": 50}, schedule("steps", 50, "steps", 50)),
        ({"eval_strategy": "epoch"}, schedule("epoch", None, "epoch", 500)),
        ({"eval_strategy": "no"}, schedule("no", None, "steps", 5)),
        ({"eval_strategy": "no", "save_strategy": "no"}, schedule("no", None, "no", 500)),
        # Texts.
        ({"learning-rate": "3e-4", "num_train_epochs": "2"}, {"learning_rate": 3e-4, "num_train_epochs": 2.0}),
        ({"max_cc_size": "3", "detach_cc_mixture": "false"}, {"max_cc_size": 3, "detach_cc_mixture": False}),
        ({"jsd_weight": 1, "seed": 7}, {"jsd_weight": 1.0, "seed": 7}),
        # Flags; the last one counts.
        ({"learning_rate": 1.0, "--lr": "3e-4"}, {"learning_rate": 3e-4}),
        ({"--epochs": "2", "--batch-size": "8"}, {"num_train_epochs": 2, "per_device_train_batch_size": 8}),
        # The method by name.
        ({"method": METHODS["cce"]}, {"method": "cce"}),
    ],
)
def test_settings_are_resolved(values, expected):
    config = make_config(values | {"use_cpu": True})
    assert {name: getattr(config, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"protocol": "papr"}, r"protocol is 'papr'\. It must be 'recommended', 'paper' or 'release'\."),
        ({"method": "f3c"}, r"method is 'f3c'\. Did you mean 'f2c'\?"),
        ({"optim_args": "beta"}, "optimizer or schedule: .* begin with optim"),
        ({"optim": "galore_adamw", "optim_args": "beta"}, "optimizer or schedule: .* begin with optim"),
        ({"lr_scheduler_kwargs": {"waves": 3}}, "optimizer or schedule: .*'waves'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "optimizer or schedule: .*min_lr"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": "low"}}, "lr_scheduler"),
        ({"lr_scheduler_type": "wavy"}, "lr_scheduler_type|wavy"),
        ({"save_strategy": "best"}, "save_strategy is 'best'. It must be no, steps or epoch"),
        ({"max_cc_size": 1}, "max_cc_size is 1. It must be at least 2"),
        ({"flip_temperature": 0}, "flip_temperature is 0.*above 0"),
        ({"flip_weight_min": 0.5, "flip_weight_max": 0.1}, "flip_weight_min is 0.5"),
        ({"cce_weight": "nan"}, "cce_weight is 'nan'. It must be a finite number"),
        ({"learning_rate": "fast"}, "learning_rate is 'fast'. It must be a valid number"),
        ({"lora_dropout": 1.5}, "lora_dropout is 1.5"),
        ({"num_train_epochs": None}, "num_train_epochs is None. It must be a valid number"),
        ({"max_steps": [3]}, r"max_steps is \[3\]. It must be a valid integer"),
        ({"max_cc_size": 2.5}, "max_cc_size is 2.5. It must be a valid integer"),
        ({"per_device_train_batch_size": 0}, "per_device_train_batch_size is 0"),
        ({"eval_delay": "nan"}, "eval_delay is 'nan'. It must be a finite number"),
        ({"num_train_epochs": 0}, "num_train_epochs is 0.0. It must be above 0, or -1"),
        ({"max_steps": -3}, "max_steps is -3. It must be above 0, or -1"),
        ({"max_grad_norm": "nan"}, "max_grad_norm is 'nan'"),
        ({"weight_decay": "inf"}, "weight_decay is 'inf'"),
        ({"adam_beta1": 2}, "adam_beta1 is 2.0. It must be at least 0 and below 1"),
        ({"eval_steps": -5}, "eval_steps is -5"),
        ({"seed": -1}, "seed is -1. It must be at least 0"),
        ({"seed": "9" * 23}, "seed is 9+. It must be at least 0, and below"),
        ({"seed": date(2020, 1, 1)}, "seed is .*2020.*. It must be a valid integer"),
        ({"lora_r": True}, "lora_r is True. It must be a valid integer"),
        ({"learning_rate": True}, "learning_rate is True. It must be a valid number"),
        ({"run_name": ["a"]}, r"run_name is \['a'\]. It must be a valid string"),
        ({"accelerator_config": "none.json"}, "No such file"),
        ({"accelerator_config": 1}, "accelerator_config is 1. It must be an object"),
        ({"log_level": "loud"}, "loud"),
        ({"enable_jit_checkpoint": True}, "enable_jit_checkpoint is True. It must be false: a signal"),
        ({"torch_compile_backend": "wavy"}, "torch_compile_backend is 'wavy'"),
        ({"dataloader_persistent_workers": True}, "data loader: persistent_workers"),
        ({"dataloader_multiprocessing_context": "x", "dataloader_num_workers": 1}, "data loader: multiprocessing_con"),
        ({"dataloader_multiprocessing_context": "x"}, "data loader: multiprocessing_context"),
        ({"metric_for_best_model": "eval_mean_f1"}, "select_by chooses the checkpoint"),
        ({"votes": "refreshed"}, r"votes is 'refreshed'\. It must be 'online' or 'frozen'\."),
        ({"vote_calibration": "batch", "votes": "online"}, "votes is 'online'. .* frozen if they are calibrated"),
        ({"vote_calibration": "prior"}, "label_prior is None"),
        ({"vote_calibration": "none", "label_prior": [0.5, 0.5]}, "vote_calibration is 'none'"),
        ({"vote_calibration": "batc"}, "vote_calibration is 'batc'"),
        (
            {"eval_strategy": "steps", "eval_steps": 50, "save_strategy": "steps", "save_steps": 500},
            r"save_steps is 500\. It must be eval_steps, 50",
        ),
        (
            {"eval_strategy": "epoch", "save_strategy": "no"},
            "save_strategy is 'no'. It must be epoch, as eval_strategy is, or with select_by: last",
        ),
        ({"method": "bct", "votes": "online"}, "votes is 'online'. It must be frozen for method bct"),
        ({"method": "opct", "protocol": "paper"}, "votes is 'online'. It must be frozen for method opct"),
        ({"clean_template": -1}, "clean_template is -1. It must be at least 0"),
        ({"clean_template": 0.5}, "clean_template is 0.5. It must be a valid integer"),
        ({"ppcl_beta": -0.5}, "ppcl_beta is -0.5. It must be at least 0"),
        ({"supervised_weight": -1.0}, "supervised_weight is -1.0. It must be at least 0"),
        *(
            (
                {"method": method, "supervised_weight": 0.7},
                f"supervised_weight is 0.7. It must be 0 for method {method}",
            )
            for method in ("supervised", "paft", "ppcl")
        ),
        ({"--lr": "fast"}, "--lr is 'fast'. It must be a valid number"),
        ({"--batch-size": "0"}, "--batch-size is 0. It must be at least 1"),
    ],
)
def test_invalid_value_is_one_line(values, words):
    with pytest.raises(InputError, match=f"^E-CONFIG: .*{words}"):
        make_config(values | {"use_cpu": True})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("lerning_rate", "Unknown setting 'lerning_rate' in the settings. Did you mean 'learning_rate'?"),
        ("--lerning-rate", "Unknown setting '--lerning-rate' in the settings. Did you mean '--learning-rate'?"),
        ("lr", "Unknown setting 'lr'"),  # only flags are short
        ("--quit", "Did you mean '--quiet'?"),
        ("refresh_steps", "Unknown setting 'refresh_steps'"),
    ],
)
def test_unknown_setting_is_refused_with_the_nearest_name(name, words):
    with pytest.raises(InputError, match=r"^E-CONFIG: ") as caught:
        make_config({name: "1"}, other_flags=["--quiet"])
    assert words in str(caught.value)
    assert len(str(caught.value)) < 200


def test_prior_that_does_not_sum_to_1_is_refused():
    with pytest.raises(InputError, match=r"E-LABEL-PRIOR: .*'0\.5,0\.6'"):
        make_config({"vote_calibration": "batch", "label_prior": "0.5,0.6"})


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol_sets_the_defaults_and_a_given_value_overrides_them(protocol):
    config = make_config({"protocol": protocol})
    defaults = {name: bundle[protocol] for name, bundle in BY_PROTOCOL.items()}
    assert {name: getattr(config, name) for name in BY_PROTOCOL} == defaults
    assert recorded_settings(config).items() >= (defaults | {"protocol": protocol}).items()
    for name, bundle in BY_PROTOCOL.items():
        value = next(bundle[other] for other in PROTOCOLS if bundle[other] != bundle[protocol])
        # Only frozen pseudo-labels are calibrated.
        values = {name: value} | ({"votes": "frozen"} if value == "batch" else {})
        changed = make_config({"protocol": protocol} | values)
        assert values.items() <= vars(changed).items()
        others = {other for other in BY_PROTOCOL if getattr(changed, other) != getattr(config, other)} - values.keys()
        assert others == ({"vote_calibration"} if value == "online" else set())


def test_defaults_of_the_losses_are_the_papers():
    assert LossVariant.of(F2CConfig(protocol="paper")) == LossVariant()
    assert LossVariant.of(F2CConfig(protocol="release")).jsd == "symmetric"


def test_tracker_that_is_not_installed_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr("flip_flop.training.config.get_available_reporting_integrations", lambda: ["trackio"])
    assert make_config({"report_to": "trackio"}).report_to == ["trackio"]
    with pytest.raises(InputError, match=r"E-CONFIG: report_to is 'wandb', .* -m pip install 'wandb>=0\.20'"):
        make_config({"report_to": "wandb"})
    with pytest.raises(InputError, match=r"E-CONFIG: report_to is 'wandb', .* -m pip install 'wandb>=0\.20'"):
        F2CConfig(report_to=["wandb"])


def test_every_own_field_has_help():
    assert all(item.metadata["help"] for item in fields(TrainingSettings))


def test_pickled_settings_have_no_token():
    config = settings(hub_token="a token")
    assert copy.copy(config).hub_token == "a token"
    assert b"a token" not in pickle.dumps(config)
