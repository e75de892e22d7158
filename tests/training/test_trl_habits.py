"""Habits of TRL and transformers users work, or are refused with an error."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from transformers import BitsAndBytesConfig, TrainingArguments

from flip_flop import F2CConfig, F2CTrainer, audit, train
from flip_flop.training.config import make_config
from flip_flop.training.data import load_training_data
from tests.refused import refused
from tests.tiny import byte_bpe, save_tiny, tiny_model, with_chat_template
from tests.training.conftest import make_task, make_trainer, rows, settings, training_rows

ROWS = training_rows(count=6)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("base") / "tiny-lm")


STEPS = {"max_steps": 3, "eval_steps": 1, "per_device_train_batch_size": 2, "use_cpu": True}


@pytest.mark.slow
def test_a_key_of_compute_metrics_selects_the_checkpoint(tmp_path):
    values = iter([3, 9, 1, 2, 2])

    def trainer(**more):
        args = F2CConfig(str(tmp_path), metric_for_best_model="eval_mine", greater_is_better=False, **STEPS)
        data = {"train_dataset": ROWS, "eval_dataset": ROWS, "processing_class": byte_bpe()}
        return F2CTrainer(tiny_model("qwen2"), args, **data, **more)

    def compute_metrics(prediction):
        assert prediction.predictions.shape == (6, 3, 2)
        assert prediction.label_ids.tolist() == [row["label"] for row in ROWS]
        return {"mine": np.float32(next(values))}

    made = trainer(compute_metrics=compute_metrics)
    made.train()
    logged = [entry["eval_mine"] for entry in made.state.log_history if "eval_mine" in entry]
    assert made.state.best_metric == min(logged) == 1
    made.create_model_card()
    assert "selected the checkpoint\n(by eval_mine)." in (tmp_path / "README.md").read_text()
    refused(r"metric_for_best_model is 'eval_mine'\. It must be left out, or a key of comp", trainer)
    for wrong, kind in (({"mine": np.ones(2)}, "ndarray"), (None, "NoneType")):
        evaluate = trainer(compute_metrics=lambda prediction, wrong=wrong: wrong).evaluate
        refused(f"E-CONFIG: compute_metrics returned a {kind}", evaluate)


@pytest.mark.slow
def test_trainer_accepts_a_task_with_its_rows_or_others(tmp_path):
    task = make_task()
    args = settings(output_dir=str(tmp_path), num_train_epochs=1)
    trainer = F2CTrainer(tiny_model("qwen2"), args, processing_class=byte_bpe(), task=task)
    assert (len(trainer.train_instances), len(trainer.eval_instances)) == (12, 7)
    assert trainer.template_names == ["plain", "truth", "long", "terse"]
    assert "eval_own_label_mass/truth" in trainer.evaluate()
    trainer.train()
    trainer.create_model_card()
    assert f"Task `{task.name}`" in (tmp_path / "README.md").read_text()
    table = pd.DataFrame({"text": [f"room {number}" for number in range(9)]})
    fields = {"train_dataset": table, "processing_class": byte_bpe(), "task": task}
    other = F2CTrainer(tiny_model("qwen2"), args, **fields, eval_dataset={"few": rows(2), "more": table[:5]})
    assert (len(other.train_instances), len(other.eval_instances)) == (9, 2)
    asked = ("few", "more", table, task.with_templates(trainer.template_names).instances("train"))
    assert [len(other.predict(asked_for).predictions) for asked_for in asked] == [2, 5, 9, 12]
    assert "eval_more_observed_agreement" in other.evaluate()
    data = load_training_data(task, args)
    words = "E-CONFIG: the task is training data, which has its rows"
    refused(words, F2CTrainer, tiny_model("qwen2"), args, **fields | {"task": data})
    refused(
        r"E-DATA-ROWS: Row 0: .*F2CTrainer\(model, task=task\)",
        F2CTrainer,
        tiny_model("qwen2"),
        args,
        train_dataset=[{"text": "a"}],
        processing_class=byte_bpe(),
    )


@pytest.mark.slow
def test_evaluation_sets_are_logged_by_name_and_the_first_selects_the_checkpoint(tmp_path):
    sets = {"own": ROWS, "other": training_rows(count=4)}
    trainer = make_trainer(tmp_path / "two", eval_rows=sets)
    alone = make_trainer(tmp_path / "one", eval_rows=ROWS)
    trainer.train()
    alone.train()
    assert trainer.state.best_metric == alone.state.best_metric
    entry = next(entry for entry in trainer.state.log_history if "eval_selection" in entry)
    assert entry["eval_own_observed_agreement"] == entry["eval_observed_agreement"]
    assert 0 <= entry["eval_other_observed_agreement"] <= 1
    assert (
        trainer.evaluate("other")["eval_observed_agreement"]
        == trainer.predict("other").metrics["test_observed_agreement"]
    )
    assert "eval_mine_mean_f1" in trainer.evaluate({"mine": ROWS})


def test_a_prediction_has_scores_labels_and_metrics(tmp_path):
    trainer = make_trainer(tmp_path)
    result = trainer.predict(ROWS)
    assert result.predictions.shape == (6, 3, 2)
    assert result.label_ids.tolist() == [row["label"] for row in ROWS]
    assert result.metrics["test_mean_f1"] == trainer.evaluate(ROWS)["eval_mean_f1"]
    audited = audit(trainer, ROWS, quiet=True)  # a trainer has its tokenizer
    np.testing.assert_array_equal(audited.scores, result.predictions)


def test_an_optimizer_of_the_base_model_is_refused(tmp_path):
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    args, rows = settings(output_dir=str(tmp_path)), training_rows()
    build = {"train_dataset": rows, "processing_class": byte_bpe(), "optimizers": (optimizer, None)}
    refused("E-CONFIG: the optimizer has none of the adapter's parameters", F2CTrainer, model, args, **build)


def test_settings_are_made_again_from_their_values():
    values = {name: value for name, value in settings().to_dict().items() if F2CConfig.__dataclass_fields__[name].init}
    assert F2CConfig(**values).to_dict() == settings().to_dict()


def test_changed_values_of_plain_training_arguments_are_taken_over(tmp_path):
    plain = TrainingArguments(str(tmp_path), max_steps=3, per_device_train_batch_size=2, use_cpu=True, seed=7)
    trainer = F2CTrainer(tiny_model("qwen2"), plain, train_dataset=ROWS, processing_class=byte_bpe())
    assert (trainer.args.max_steps, trainer.args.per_device_train_batch_size, trainer.args.seed) == (3, 2, 7)
    assert trainer.args.learning_rate == F2CConfig(use_cpu=True).learning_rate


@pytest.mark.parametrize("options", [{"dtype": torch.bfloat16}, '{"dtype": "bfloat16"}'])  # as on a command line
def test_model_given_by_name_is_loaded_with_its_settings(base, tmp_path, options):
    args = settings(output_dir=str(tmp_path), model_init_kwargs=options)
    trainer = F2CTrainer(Path(base), args, train_dataset=ROWS)
    assert trainer.loaded.record.dtype == "bfloat16"
    assert trainer.adapted.dtype == torch.bfloat16


@pytest.mark.parametrize("value", ["x", "{", "[5]"])
def test_loading_options_that_are_no_json_object_are_refused(tmp_path, value):
    refused(
        r"E-CONFIG: .*(model_init_kwargs|property name)",
        make_config,
        {"model_init_kwargs": value, "output_dir": str(tmp_path)},
    )


@pytest.mark.parametrize(
    ("loads", "key", "value", "words"),
    [
        (True, "model_init_kwargs", {"device_map": "auto"}, ".*does not pass on 'device_map'"),
        (False, "model_init_kwargs", {"dtype": "float32"}, "dtype: the model is loaded already"),
        (False, "quantization_config", BitsAndBytesConfig(load_in_8bit=True), "quantization_config: the model is load"),
    ],
)
def test_unsuitable_loading_options_are_refused(base, tmp_path, loads, key, value, words):
    model = str(base) if loads else tiny_model("qwen2")
    changes, how = ({key: value}, {}) if key == "model_init_kwargs" else ({}, {key: value})
    args = settings(output_dir=str(tmp_path), **changes)
    refused(f"E-CONFIG: {words}", F2CTrainer, model, args, train_dataset=ROWS, processing_class=byte_bpe(), **how)


def test_an_audit_of_a_trainer_asks_the_prompts_of_its_training(tmp_path):
    tokenizer = with_chat_template(byte_bpe())
    for chat_template, is_used, chat in (("off", False, None), ("on", True, {"system": "Be brief."})):
        args = settings(output_dir=str(tmp_path), chat_template=chat_template)
        task = replace(make_task(), system="Be brief.") if is_used else make_task()
        trainer = F2CTrainer(tiny_model("qwen2"), args, processing_class=tokenizer, task=task)
        record = audit(trainer, task, quiet=True).record
        assert record.scoring["chat_template"] == is_used
        assert (record.adapter.method, record.adapter.chat) == ("f2c", chat)


def test_a_trainer_without_training_rows_evaluates_and_refuses_to_train(tmp_path):
    build = {"args": settings(output_dir=str(tmp_path)), "processing_class": byte_bpe()}
    trainer = F2CTrainer(tiny_model("qwen2"), **build, eval_dataset=ROWS)
    other = F2CTrainer(tiny_model("qwen2"), **build)
    assert "eval_own_label_mass/template_3" in trainer.evaluate()
    assert trainer.predict(ROWS).metrics == other.predict(ROWS).metrics
    refused("E-DATA-ROWS: the trainer has no training rows", trainer.train)
    refused("E-DATA-ROWS: the trainer has no evaluation rows", other.evaluate)


@pytest.mark.usefixtures("untyped")
def test_settings_of_another_type_are_refused_before_a_model_is_loaded(tmp_path):
    refused(r"E-CONFIG: the settings are a dict\. Give F2CConfig", train, "no-model", make_task(), {}, tmp_path / "run")
