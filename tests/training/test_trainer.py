"""Invariants of training for all methods: labels, base weights, batch size, instances without a consensus."""

import contextlib
import json
from dataclasses import replace

import datasets
import numpy as np
import pytest
import torch
from peft import PeftModel

from flip_flop import F2CTrainer, PromptEncoder, audit, load_model, write_report
from flip_flop.method import METHODS, Method
from flip_flop.scoring.scores import score_instances
from tests.refused import refused
from tests.tiny import byte_bpe, save_tiny, tiny_model
from tests.training.conftest import (
    adapter_weights,
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

OTHERS = [name for name in METHODS if name != "f2c"]
WITH_LABELS = ("supervised", "paft", "ppcl")


def trainer_of(out, method, rows=None, **changes):
    return make_trainer(out, rows, method=method, **({"votes": "frozen", "lora_dropout": 0.0} | changes))


def relabelled(label):
    return [row | {"label": label} for row in training_rows()]


@pytest.mark.parametrize("method", ["f2c", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_each_method_lowers_its_loss_and_changes_only_the_adapter(tmp_path, method):
    model = tiny_model("qwen2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = trainer_of(tmp_path, method, model=model, num_train_epochs=4)
    adapter = adapter_weights(trainer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    assert ("no_gold" in trainer.state.log_history[0]) == (method in WITH_LABELS)
    after = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): value
        for name, value in trainer.adapted.state_dict().items()
        if "lora_" not in name
    }
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    moved = adapter_weights(trainer)
    assert all(not torch.equal(adapter[name], moved[name]) for name in adapter if "lora_B" in name)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "weight"), [*((method, 0.0) for method in METHODS), ("f2c", 0.5)], ids=str)
def test_only_methods_and_terms_that_use_labels_depend_on_them(tmp_path, method, weight):
    trainer = trainer_of(tmp_path, method, supervised_weight=weight)
    randomize(trainer)
    losses = []
    for label in (0, 1):
        encoded = [replace(instance, label=label) for instance in trainer.train_instances]
        losses.append(trainer.compute_loss(trainer.adapted, {"instances": encoded}).item())
    uses_labels = method in WITH_LABELS or weight > 0
    assert (losses[0] == losses[1]) != uses_labels


@pytest.mark.parametrize(("uses_labels", "weight"), [(False, 0.0), (False, 0.5), (True, 0.0)])
def test_an_instance_has_its_gold_label_and_the_scores_that_vote_only_where_they_belong(tmp_path, uses_labels, weight):
    seen = {}

    def loss(instance, config):
        seen[instance.id] = instance.gold, instance.vote_scores
        return {"any": instance.scores().sum()}

    method = Method("reads", "Reads", "#000000", loss, needs_consensus=False, uses_labels=uses_labels)
    trainer = trainer_of(tmp_path, method, vote_calibration="batch", supervised_weight=weight)
    encoded = list(trainer.train_instances)
    randomize(trainer)  # the base model votes
    trainer.compute_loss(trainer.adapted, {"instances": encoded})
    votes = trainer.model_scores.first_votes.scores_for(encoded)
    assert trainer.model_scores.first_votes.offsets is not None
    for row, instance in enumerate(encoded):
        gold, scores = seen[instance.id]
        assert gold == (instance.label if uses_labels else None)
        assert torch.equal(scores, votes[row])
        assert not scores.requires_grad


# 8 instances in 3 x 3: the last micro-batch is smaller than the others.
@pytest.mark.slow
@pytest.mark.parametrize("method", ["f2c", "ppcl"])
def test_one_batch_of_eight_equals_eight_of_one(tmp_path, method):
    results = []
    for size, steps in [(8, 1), (1, 8), (3, 3)]:
        batch = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        trainer = make_exact_trainer(tmp_path / f"{size}", method=method, num_train_epochs=1, **batch)
        trainer.train()
        results.append(adapter_weights(trainer))
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("method", WITH_LABELS)
def test_rows_without_a_gold_label_count_as_zeros(tmp_path, method):
    rows = training_rows()
    part = [row if number % 4 else row | {"label": None} for number, row in enumerate(rows)]
    losses = []
    for number, part_rows in enumerate([rows, part, [row for row in part if row["label"] is not None]]):
        trainer = make_exact_trainer(tmp_path / str(number), part_rows, method=method)
        loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.train_instances)})
        losses.append(loss.item())
        assert trainer.statistics.means()["no_gold"] == (0.25 if number == 1 else 0.0)
    assert losses[1] == pytest.approx(losses[2] * 0.75, rel=1e-12)
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)


def test_a_clean_template_that_does_not_exist_is_refused(tmp_path):
    trainer_of(tmp_path, "bct", clean_template=2)
    refused(
        r"^E-CONFIG: clean_template is 3, but there are 3 templates. Use 0 to 2",
        trainer_of,
        tmp_path,
        "bct",
        clean_template=3,
    )


@pytest.mark.parametrize(
    ("reader", "changes"),
    [*((method, {"method": method}) for method in WITH_LABELS), ("supervised_weight", {"supervised_weight": 0.7})],
)
def test_training_rows_without_any_gold_label_are_refused(tmp_path, reader, changes):
    message = f"^E-NO-GOLD: {reader} uses gold labels, but none of the 8 training instances has one. Add `label_field`"
    refused(message, make_trainer, tmp_path, relabelled(None), **changes)


# Changes, whether the training uses labels, a row of the card's table of settings, a key of the log.
MARKED = [
    ({"method": "ppcl", "clean_template": 1}, True, "| clean_template | 1 |", "ppcl"),
    ({"method": "f2c", "supervised_weight": 0.5}, True, "| supervised_weight | 0.5 |", "supervised"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("changes", "with_labels", "row", "key"), MARKED)
def test_record_card_and_report_mark_a_training_with_labels(tmp_path, changes, with_labels, row, key):
    method = METHODS[changes["method"]]
    base, out = save_tiny(tmp_path / "tiny"), tmp_path / "run"
    done = run(out, model=str(base), votes="frozen", max_steps=2, **changes)
    training, card = record_of(out)["training"], (done.adapter / "README.md").read_text()
    assert training.items() >= (changes | {"uses_labels": with_labels}).items()
    assert f"Trained {'with gold labels' if with_labels else 'without labels'} by {method.name}, with" in card
    assert ("gold labels. The loss reads them." in card) is with_labels
    assert row in card
    if not method.needs_consensus:
        assert f"`{method.name}`: {method.title}." in card
        assert "majority vote" not in card.split("## Method and settings")[1]
    assert any(name.startswith(key) for entry in log_of(out, "loss") for name in entry)
    audited = audit(load_model(str(base), adapter=done.adapter), make_task(), quiet=True)
    assert audited.uses_labels is with_labels
    assert json.loads(json.dumps(audited.record.to_json()["adapter"])).get("uses_labels", False) is with_labels
    audited.write(tmp_path / "audit")
    page = write_report([tmp_path / "audit"], tmp_path / "report.html").read_text()
    assert (f"{method.name}: trained with labels" in page) is with_labels
    if method.uses_labels:
        assert f"{method.name} (labels)" in page


def step_of(trainer):
    """The loss and the gradient of all instances in one step."""
    loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.train_instances)})
    loss.backward()
    gradient = {
        name: value.grad.clone() for name, value in trainer.adapted.named_parameters() if value.grad is not None
    }
    return loss.item(), gradient


@pytest.mark.slow
@pytest.mark.parametrize("space", ["vocab", "labels", "both"])
def test_supervised_term_adds_the_loss_and_gradient_of_the_labelled_rows(tmp_path, space):
    rows = [row if number % 4 == 1 else row | {"label": None} for number, row in enumerate(training_rows())]
    trainers = {
        "both": make_exact_trainer(tmp_path / "both", rows, cce_space=space, supervised_weight=0.7),
        "without": make_exact_trainer(tmp_path / "without", rows, cce_space=space),
        "supervised": make_exact_trainer(tmp_path / "alone", rows, cce_space=space, method="supervised"),
    }
    for trainer in trainers.values():
        for name, value in trainer.adapted.named_parameters():
            if "lora_" in name:
                value.data = torch.sin(torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape) / 9
    results = {name: step_of(trainer) for name, trainer in trainers.items()}
    loss, gradient = results["both"]
    assert loss == pytest.approx(results["without"][0] + 0.7 * results["supervised"][0], rel=1e-12)
    for name, value in gradient.items():
        expected = results["without"][1][name] + 0.7 * results["supervised"][1][name]
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)  # the model has float32 parts
    logged = trainers["both"].statistics.means()
    assert logged["no_gold"] == 0.75
    assert logged["supervised"] == pytest.approx(0.7 * results["supervised"][0], rel=1e-12)
    assert not {"no_gold", "supervised"} & trainers["without"].statistics.means().keys()


def test_separate_vote_pass_has_no_dropout(tmp_path):
    trainer = make_exact_trainer(tmp_path, vote_pass="separate", lora_dropout=0.5)
    randomize(trainer)
    encoded = [trainer.train_instances[0]]
    trainer.adapted.train()
    trainer.compute_loss(trainer.adapted, {"instances": encoded})
    assert_mass_is_logged(trainer, encoded)
    assert trainer.adapted.training


@pytest.mark.slow
def test_the_log_has_terms_cases_pseudo_labels_and_own_label_mass(tmp_path):
    trainer = make_trainer(tmp_path, eval_rows=training_rows(count=6), divergence_space="vocab")
    trainer.train()
    step = next(entry for entry in trainer.state.log_history if "cce" in entry)
    assert {"loss", "cce", "jsd", "flip", "case_1", "case_2", "case_3", "own_label_mass_min"} <= step.keys()
    assert step["case_1"] + step["case_2"] + step["case_3"] == pytest.approx(1)
    assert step["loss"] == pytest.approx(step["cce"] + step["jsd"] + step["flip"], rel=2**-20)  # float32
    evaluation = next(entry for entry in trainer.state.log_history if "eval_mean_f1" in entry)
    assert f"eval_own_label_mass/{trainer.template_names[1]}" in evaluation
    assert any("pseudo_label_accuracy" in entry for entry in trainer.state.log_history)


def assert_mass_is_logged(trainer, encoded):
    table = score_instances(trainer.adapted, encoded, quiet=True)
    # A table's scores are float32: exp(score * count) is off by its exponent's share of 2^-24.
    rounding = 2**-24 * float(np.abs(table.values * table.token_counts).max())
    assert trainer.statistics.means()["own_label_mass"] == pytest.approx(table.own_label_mass.mean(), rel=rounding)


def test_rows_can_be_evaluated_if_no_evaluation_is_due(tmp_path):
    rows = datasets.Dataset.from_list(training_rows(count=6))
    trainer = make_trainer(tmp_path, rows, eval_rows=training_rows(count=5), eval_strategy="no", select_by="mean_f1")
    assert trainer.evaluate()["eval_selection"] == trainer.evaluate()["eval_base_selection"]


def test_rows_can_be_a_dataset_and_the_tokenizer_needs_no_pad_token(tmp_path):
    assert byte_bpe().pad_token is None
    trainer = make_trainer(tmp_path, datasets.Dataset.from_list(training_rows(count=4)), num_train_epochs=1)
    trainer.train()
    assert trainer.state.global_step == 1


def test_default_folder_is_named_after_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_model("qwen2")
    model.config._name_or_path = "someone/tiny-lm"
    trainer = F2CTrainer(model, train_dataset=training_rows(), processing_class=byte_bpe())
    assert trainer.args.output_dir == "tiny-lm-F2C"
    assert trainer.args.report_to == []


ONE_TEMPLATE = {"id": "1", "prompts": ["Good?"], "choices": [["No", "Yes"]], "label": None}
TWO_TEMPLATES = {"id": "1", "prompts": ["Good?", "Fine?"], "choices": [["No", "Yes"]] * 2, "label": None}


@pytest.mark.parametrize(
    ("rows", "changes", "code"),
    [
        ([ONE_TEMPLATE], {}, "E-NO-CONSENSUS"),
        ([*training_rows(), {"prompts": ["a", "b"]}], {}, "E-DATA-ROWS: Row 8"),
        *((relabelled(label), {"method": "supervised"}, "E-DATA-ROWS: .* the label is ") for label in (-2, -1, 2, "1")),
        (training_rows(), {"eval_rows": relabelled(None), "select_by": "mean_f1"}, "E-NO-GOLD"),
        (training_rows(), {"eval_rows": []}, "E-DATA-ROWS: the validation split has no rows"),
        (training_rows(), {"eval_rows": [TWO_TEMPLATES]}, "E-DATA-ROWS: .* train: 3 and 2 and validation: 2 and 2"),
    ],
)
def test_unsuitable_rows_are_refused(tmp_path, rows, changes, code):
    refused(code, make_trainer, tmp_path, rows, **changes)


@pytest.mark.slow
def test_the_adapter_reproduces_the_trained_scores_in_plain_transformers(out, monkeypatch):
    monkeypatch.setattr("flip_flop.training.run.restored", contextlib.nullcontext)  # the model stays trained
    loaded, task = load_tiny(), make_task()
    adapter = run(out, model=loaded).adapter
    assert record_of(out)["kind"] == "train"
    templates = task.with_templates(["plain", "held"])
    encoder = PromptEncoder(byte_bpe())
    encoded = [encoder.encode(instance) for instance in templates.instances("test")]
    trained = score_instances(loaded.model, encoded, quiet=True).values
    fresh = PeftModel.from_pretrained(tiny_model("qwen2"), str(adapter)).eval()
    np.testing.assert_array_equal(score_instances(fresh, encoded, quiet=True).values, trained)
