"""Settings: defaults, conversion of texts, refused values, and what the protocols of paper and release do."""

import copy
import logging
import pickle
from dataclasses import fields

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainerState

from flip_flop.method import METHODS, PAPER_METHODS
from flip_flop.training.checkpoints import recorded_settings
from flip_flop.training.config import F2CConfig, make_config
from flip_flop.training.data import log_passes
from flip_flop.training.selection import StopEarly
from flip_flop.training.settings import TrainingSettings
from flip_flop.training.votes import warn_of_templates
from tests.cases import read_cases, read_list
from tests.exact import EXACT
from tests.method.draws import PAPER
from tests.refused import refused
from tests.training.conftest import (
    load_tiny,
    log_of,
    make_exact_trainer,
    make_task,
    make_trainer,
    randomize,
    record_of,
    run,
    settings,
    training_rows,
)

BY_PROTOCOL = {item.name: item.metadata for item in fields(F2CConfig) if "release" in item.metadata}
PROTOCOLS = ("recommended", "paper", "release")


@pytest.mark.parametrize("case", read_cases("training/resolved_settings.yaml"))
def test_settings_are_resolved(case):
    config = make_config(case["values"] | {"use_cpu": True})
    assert {name: getattr(config, name) for name in case["expected"]} == case["expected"]


def test_method_may_be_given_as_an_object():
    assert make_config({"method": METHODS["cce"], "use_cpu": True}).method == "cce"


@pytest.mark.parametrize("case", read_list("training/invalid_settings.yaml", "words"))
def test_invalid_value_is_one_line(case):
    refused(f"^E-CONFIG: .*{case['words']}", make_config, case["values"] | {"use_cpu": True})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"optim_args": "beta"}, ""),
        ({"optim": "galore_adamw", "optim_args": "beta"}, ""),
        ({"lr_scheduler_kwargs": {"waves": 3}}, ".*'waves'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, ".*min_lr"),
        ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"lr_end": "low"}}, "'>' not supported"),
        ({"dataloader_persistent_workers": True}, ".*persistent_workers"),
        ({"dataloader_multiprocessing_context": "x", "dataloader_num_workers": 1}, ".*multiprocessing_con"),
    ],
)
def test_a_setting_that_the_library_refuses_is_one_line_before_anything_is_written(tmp_path, changes, words):
    line = f"^E-CONFIG: optimizer, schedule or data loader: {words}.* Correct the settings that begin with optim"
    refused(line, run, tmp_path / "run", **changes)
    assert not (tmp_path / "run" / "plan.json").exists()


def test_numbers_and_switches_of_numpy_are_plain_values():
    values = {"max_steps": 3, "eval_on_start": False, "learning_rate": 0.5, "gradient_accumulation_steps": 2}
    values |= {"method": "cce", "data_seed": 7, "eval_steps": 2.0}
    given = {name: np.array(value)[()] for name, value in values.items()}
    found, expected = (F2CConfig(**settings, use_cpu=True, output_dir="f2c") for settings in (given, values))
    assert found.to_dict() == expected.to_dict()
    assert {type(getattr(found, name)) for name in values} == {int, bool, float, str}
    refused("E-CONFIG: max_steps is 1.5. It must be", F2CConfig, max_steps=np.float64(1.5), use_cpu=True)


def test_mixed_precision_of_accelerates_launcher_is_refused(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    refused("^E-CONFIG: accelerate's mixed precision is bf16", settings)
    assert settings(bf16=True).bf16


def test_data_seed_decides_the_order_of_the_rows(tmp_path):
    def order(**seeds):
        batches = make_trainer(tmp_path, **seeds).get_train_dataloader()
        return [row.id for batch in batches for row in batch["instances"]]

    assert order(seed=3, data_seed=7) == order(seed=7) != order(seed=3)


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
    line = refused(r"^E-CONFIG: ", make_config, {name: "1"}, other_flags=["--quiet"])
    assert words in line
    assert len(line) < 200


def test_prior_that_does_not_sum_to_1_is_refused():
    refused(r"E-LABEL-PRIOR: .*'0\.5,0\.6'", make_config, {"vote_calibration": "batch", "label_prior": "0.5,0.6"})


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
    assert vars(F2CConfig(protocol="paper")).items() >= PAPER.items()


def test_protocol_release_trains_the_methods_of_the_release():
    for name in PAPER_METHODS:
        assert F2CConfig(method=name, protocol="release").method == f"{name}_release"
        assert F2CConfig(method=f"{name}_release", protocol="paper").method == f"{name}_release"
    assert F2CConfig(method="bct", protocol="release", votes="frozen").method == "bct"
    assert recorded_settings(F2CConfig(protocol="release"))["method"] == "f2c_release"


def test_tracker_that_is_not_installed_is_refused_with_the_install_command(monkeypatch):
    monkeypatch.setattr("flip_flop.training.config.get_available_reporting_integrations", lambda: ["trackio"])
    assert make_config({"report_to": "trackio"}).report_to == ["trackio"]
    refused(r"E-CONFIG: report_to is 'wandb', .* -m pip install 'wandb>=0\.20'", make_config, {"report_to": "wandb"})
    refused(r"E-CONFIG: report_to is 'wandb', .* -m pip install 'wandb>=0\.20'", F2CConfig, report_to=["wandb"])


def test_every_own_field_has_help():
    assert all(item.metadata["help"] for item in fields(TrainingSettings))


def test_pickled_settings_have_no_token():
    config = settings(hub_token="a token")
    assert copy.copy(config).hub_token == "a token"
    assert b"a token" not in pickle.dumps(config)


# ---- the protocols ----

PAPERS = {"protocol": "paper"}
IN_32S = {"per_device_train_batch_size": 32}


@pytest.mark.parametrize(
    ("count", "changes", "line", "warned"),
    [
        (1488, PAPERS, "at most 3.19 passes over 1488 training instances, in 150 steps of 32 instances", ""),
        (10_000, PAPERS, "at most 0.48 passes", "5200 of the 10000 training instances are never seen"),
        (194, PAPERS, "at most 21.4 passes", ""),  # CB: a pass has 7 steps, the last of 2 instances
        (250, {}, "at most 1 passes over 250 training instances, in 16 steps of 16 instances", ""),
        (40, PAPERS, "at most 75 passes", "every training instance is seen 75 times"),
        (40, {"num_train_epochs": 2, "gradient_accumulation_steps": 2}, "at most 2 passes", ""),
        # The library rounds half of the two steps of a pass up to one of 32 instances.
        (
            45,
            IN_32S | {"num_train_epochs": 0.5},
            "at most 0.711 passes",
            "13 of the 45 training instances are never seen",
        ),
        (45, IN_32S | {"num_train_epochs": 0.7}, "at most 1 passes over 45 training instances, in 2 steps", ""),
    ],
)
def test_number_of_passes_is_logged_before_training(caplog, count, changes, line, warned):
    with caplog.at_level(logging.INFO, logger="flip_flop"):
        log_passes(count, make_config(changes))
    said, *warnings = caplog.messages
    assert line in said
    assert [text.startswith("W-TRAINING: ") and warned in text for text in warnings] == [True] * bool(warned)


@pytest.mark.parametrize(
    ("method", "words"), [("f2c", "get no loss"), ("cce", "get no loss"), ("swarm", "both count equally")]
)
@pytest.mark.parametrize("count", [2, 3])
def test_two_templates_are_warned_about(caplog, method, words, count):
    names = make_task().templates.names[:count]
    warn_of_templates(make_task().with_templates(names).instances("train"), make_config({"method": method}))
    assert [words in line for line in caplog.messages if line.startswith("W-TRAINING: two")] == [True] * (count == 2)


# ---- stopping on the unsupervised loss ----

STOPPING = {
    "method": "cce", "early_stopping_patience": 2, "early_stopping_start": 1, "learning_rate": 0.0, "max_steps": 12,
    "num_train_epochs": -1, "eval_strategy": "steps", "eval_steps": 1, "select_by": "last", "save_total_limit": None,
}  # fmt: skip


def state_of(losses, every=5):
    entries = [{"step": every * number, "eval_loss": loss} for number, loss in enumerate(losses)]
    return TrainerState(log_history=[{"step": 1, "loss": 0.1}, *entries])


@pytest.mark.parametrize(
    ("losses", "due"),
    [
        ([9, 8, 7, 6, 5, 5, 5, 5, 5], False),  # four evaluations after step 20
        ([9, 8, 7, 6, 5, 5, 5, 5, 5, 5], True),
        ([1, 8, 7, 6, 5, 4, 3, 2, 1.5, 1.2], True),  # the best was before the first step
        ([9, 8, 7, 6, 5, 5, 5, 5, 5, 4], False),
        ([9, 9, 9, 9, 9], False),  # up to step 20 none counts
        ([9, 8, 7, 6, 5, float("nan"), 6, 6, 6, 6], True),
    ],
)
def test_early_stopping_counts_evaluations_without_a_lower_loss(losses, due):
    assert StopEarly(5, 20).is_due(state_of(losses)) is due
    assert not StopEarly(0, 20).is_due(state_of(losses))


@pytest.mark.slow
def test_validation_loss_is_the_methods_loss_without_dropout(tmp_path):
    changes = {"protocol": "release", "lora_dropout": 0.5, "divergence_space": "vocab"}
    rows = training_rows(count=5)
    trainer = make_exact_trainer(tmp_path, eval_rows=rows, **changes)
    randomize(trainer)
    evaluated = trainer.evaluate()
    trainer.adapted.eval()
    loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.eval_instances)})
    assert evaluated["eval_loss"] == pytest.approx(float(loss.detach()), rel=EXACT)
    unlabelled = make_exact_trainer(tmp_path, eval_rows=[row | {"label": None} for row in rows], **changes)
    unlabelled.adapted.load_state_dict(trainer.adapted.state_dict())
    assert unlabelled.evaluate()["eval_loss"] == evaluated["eval_loss"]


@pytest.mark.slow
def test_constant_loss_stops_training_early(out):
    assert run(out, **STOPPING).stopped_by is None
    training = record_of(out)["training"]
    assert (training["steps"], training["stopped_early"]) == (3, True)  # 2 and 3 come after step 1, and are no lower
    assert [entry["step"] for entry in log_of(out, "eval_loss")] == [0, 1, 2, 3]


@pytest.mark.slow
def test_validation_loss_is_not_computed_without_patience(out):
    run(out, num_train_epochs=1)
    assert log_of(out, "eval_mean_f1")
    assert not log_of(out, "eval_loss")
    assert record_of(out)["training"]["stopped_early"] is False


# ---- precision ----


@pytest.mark.slow
def test_ten_steps_at_1e_5_change_every_adapter_tensor_of_a_bfloat16_base(out):
    loaded = load_tiny(dtype=torch.bfloat16)
    common = {"learning_rate": 1e-5, "max_steps": 10, "num_train_epochs": -1, "eval_strategy": "no"}
    start = make_trainer(out / "start", model=copy.deepcopy(loaded.model), **common)
    initial = {name: value for name, value in start.adapted.named_parameters() if value.requires_grad}
    assert {value.dtype for value in initial.values()} == {torch.float32}
    run(out / "run", model=loaded, **common)
    training = record_of(out / "run")["training"]
    assert (training["adapter_dtype"], training["optimizer_dtype"]) == ("float32", "float32")
    trained = load_file(out / "run" / "adapter" / "adapter_model.safetensors")
    assert len(trained) == len(initial)
    for name, value in initial.items():
        result = trained[name.replace(".default", "")]
        assert result.dtype == torch.float32
        assert not torch.equal(result, value), name
    assert record_of(out / "run")["model"]["dtype"] == "torch.bfloat16"


@pytest.mark.slow
def test_given_bfloat16_adapter_is_trained_in_float32(tmp_path):
    model = get_peft_model(
        load_tiny(dtype=torch.bfloat16).model,
        LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"),
        autocast_adapter_dtype=False,
    )
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    trainer = make_trainer(tmp_path, model=model)
    assert {value.dtype for value in trainer.adapted.parameters() if value.requires_grad} == {torch.float32}
    trainer.train()
