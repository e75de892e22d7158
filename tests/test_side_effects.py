"""State after a call of the library: of models, arguments and global settings in the process of a notebook."""

import copy
import logging

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers.utils import logging as transformers_logging

from flip_flop import F2CTrainer, audit, load_model, predict, train
from tests.refused import refused
from tests.tiny import byte_bpe, tiny_model
from tests.training.conftest import load_tiny, make_task, make_trainer, settings, training_rows
from tests.training.test_step import CHECKPOINTING

LORA = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules="all-linear")
TRAINED = {"max_steps": 2, "select_by": "last", "vote_calibration": "none"}


@pytest.mark.parametrize("ask", [audit, predict])
def test_each_module_keeps_its_mode(ask):
    adapted = get_peft_model(tiny_model(), copy.copy(LORA))  # in training mode, on a model that is not
    before = {name: module.training for name, module in adapted.named_modules()}
    assert len(set(before.values())) == 2
    ask(adapted, byte_bpe(), make_task(), quiet=True)
    assert {name: module.training for name, module in adapted.named_modules()} == before


def state_of(model):
    """The parts of a model, and all that a training run could change in them."""
    modules = {
        name: (module, module.training, len(module._forward_hooks), getattr(module, "gradient_checkpointing", None))
        for name, module in model.named_modules()
    }
    weights = [(name, weight, weight.requires_grad) for name, weight in model.named_parameters()]
    return modules, weights, model.config.to_dict(), model.generation_config.to_dict()


@pytest.mark.parametrize("interrupted", [False, True])
def test_training_leaves_a_model_as_it_was(tmp_path, interrupted):
    loaded, task = load_tiny(), make_task()
    loaded.model.config.eos_token_id = 5  # not the tokenizer's
    audited = audit(loaded, task, quiet=True)

    def stop(module, *_):
        if interrupted and module.training:
            raise KeyboardInterrupt

    hook = loaded.model.lm_head.register_forward_hook(stop)
    before = state_of(loaded.model)
    try:
        train(loaded, task, settings(**TRAINED, **{CHECKPOINTING: True}), tmp_path, quiet=True, keep_worse=True)
    except KeyboardInterrupt:
        assert interrupted
    assert state_of(loaded.model) == before
    hook.remove()
    assert not loaded.model.lm_head._forward_hooks
    again = audit(loaded, task, quiet=True)
    np.testing.assert_array_equal(again.scores, audited.scores)
    assert again.record.adapter is None


def test_training_leaves_random_numbers_as_they_were(tmp_path):
    # Type checks of the tests draw from Python's own random numbers.
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    train(load_tiny(), make_task(), settings(**TRAINED), tmp_path, quiet=True, keep_worse=True)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before


def test_an_audit_of_a_model_with_a_trainers_adapter_says_so(tmp_path):
    loaded = load_tiny()
    make_trainer(tmp_path, model=loaded)
    record = audit(loaded, make_task(), quiet=True).record
    assert (record.name, record.adapter is None) == ("adapter", False)
    refused("E-ADAPTER: the model to train has an adapter", train, loaded, make_task(), settings(), tmp_path / "run")


def test_an_adapter_that_would_not_be_the_saved_one_is_refused(tmp_path):
    adapted = get_peft_model(tiny_model("qwen2"), copy.copy(LORA))
    adapted.add_adapter("other", copy.copy(LORA))
    make_trainer(tmp_path, model=adapted)
    adapted.set_adapter("other")
    refused("E-ADAPTER: the active adapter is 'other'", make_trainer, tmp_path, model=adapted)


def test_an_adapters_configuration_is_for_many_models(tmp_path):
    given = copy.copy(LORA)
    args = settings(output_dir=str(tmp_path))
    for model in (tiny_model("gpt_neox"), tiny_model("qwen2")):  # with other names of layers
        F2CTrainer(model, args, train_dataset=training_rows(), processing_class=byte_bpe(), peft_config=given)
    assert vars(given) == vars(LORA)


def test_loading_a_model_leaves_the_librarys_messages_as_they_were():
    before = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    try:
        transformers_logging.set_verbosity_info()
        transformers_logging.enable_progress_bar()
        load_model("demo")
        assert transformers_logging.get_verbosity() == logging.INFO
        assert transformers_logging.is_progress_bar_enabled()
    finally:
        transformers_logging.set_verbosity(before[0])
        if not before[1]:
            transformers_logging.disable_progress_bar()


def test_compute_metrics_may_change_its_arrays(tmp_path):
    def change(prediction):
        prediction.predictions[:, :, 1] = -100.0
        return {}

    args = settings(output_dir=str(tmp_path))
    rows = {"train_dataset": training_rows(), "eval_dataset": training_rows(), "processing_class": byte_bpe()}
    trainer, changing = (F2CTrainer(tiny_model("qwen2"), args, **rows, compute_metrics=of) for of in (None, change))
    assert changing.evaluate() == trainer.evaluate() == changing.evaluate()
