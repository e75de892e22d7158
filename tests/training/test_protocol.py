"""The paper's protocol and the release's: what each sets, a whole step of the release, its stopping, its precision."""

import copy
import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainerState

from flip_flop.training import make_config
from flip_flop.training.data import log_passes, warn_of_templates
from flip_flop.training.selection import StopEarly
from tests.exact import EXACT
from tests.training.conftest import (
    load_tiny,
    log_of,
    make_exact_trainer,
    make_task,
    make_trainer,
    randomize,
    record_of,
    run,
    training_rows,
)


@pytest.mark.parametrize(
    ("count", "changes", "line", "warned"),
    [
        (1488, {}, "at most 3.19 passes over 1488 training instances, in 150 steps of 32 instances", ""),
        (10_000, {}, "at most 0.48 passes", "5200 of the 10000 training instances are never seen"),
        (194, {}, "at most 21.4 passes", ""),  # CB: a pass has 7 steps, the last of 2 instances
        (40, {}, "at most 75 passes", "every training instance is seen 75 times"),
        (40, {"num_train_epochs": 2, "gradient_accumulation_steps": 2}, "at most 2 passes", ""),
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
