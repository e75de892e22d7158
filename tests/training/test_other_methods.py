"""Training with the methods of other papers: labels, refused settings, and falling losses."""

import json

import numpy as np
import pytest
import torch

from flip_flop import audit, load_model
from flip_flop.errors import InputError
from flip_flop.method import METHODS, Method
from flip_flop.report import write_report
from flip_flop.training import make_config, train
from tests.method.test_other_methods import LABEL_FREE, NAMES, WITH_LABELS
from tests.tiny import save_tiny
from tests.training.conftest import log_of, make_task, record_of, settings
from tests.training.test_trainer import adapter_weights, make_exact_trainer, make_trainer, training_rows


def trainer_of(out, method, rows=None, **changes):
    return make_trainer(out, rows, method=method, **({"votes": "frozen", "lora_dropout": 0.0} | changes))


def relabelled(label):
    return [row | {"label": label} for row in training_rows()]


@pytest.mark.parametrize("method", NAMES)
def test_each_method_lowers_its_loss(tmp_path, method):
    trainer = trainer_of(tmp_path, method, num_train_epochs=8)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    assert ("no_gold" in trainer.state.log_history[0]) == (method in WITH_LABELS)


@pytest.mark.parametrize("method", NAMES)
def test_only_methods_that_use_labels_depend_on_them(tmp_path, method):
    found = []
    for label in (0, 1):
        trainer = trainer_of(tmp_path / str(label), method, relabelled(label), num_train_epochs=1)
        trainer.train()
        found.append(adapter_weights(trainer))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]) == (method in LABEL_FREE)


@pytest.mark.parametrize("uses_labels", [False, True])
def test_an_instance_has_its_gold_label_and_the_scores_that_vote_only_where_they_belong(tmp_path, uses_labels):
    seen = {}

    def loss(instance, config):
        seen[instance.id] = instance.gold, instance.vote_scores
        return {"any": instance.scores().sum()}

    method = Method("reads", "Reads", "#0", loss, needs_consensus=False, uses_labels=uses_labels)
    trainer = trainer_of(tmp_path, method, vote_calibration="batch")
    encoded = list(trainer.train_instances)
    for name, value in trainer.adapted.named_parameters():  # the base model votes
        if "lora_B" in name:
            value.data.normal_(0, 1.0)
    trainer.compute_loss(trainer.adapted, {"instances": encoded})
    votes = trainer.votes.table.scores_for(encoded)
    assert trainer.votes.table.offsets is not None
    for row, instance in enumerate(encoded):
        gold, scores = seen[instance.id]
        assert gold == (instance.label if uses_labels else None)
        assert torch.equal(scores, votes[row])
        assert not scores.requires_grad


@pytest.mark.parametrize("method", WITH_LABELS)
def test_rows_without_a_gold_label_count_as_zeros(tmp_path, method):
    rows = training_rows()
    part = [row if number % 4 else row | {"label": None} for number, row in enumerate(rows)]
    losses = []
    for number, chosen in enumerate([rows, part, [row for row in part if row["label"] is not None]]):
        trainer = make_exact_trainer(tmp_path / str(number), chosen, method=method)
        loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.train_instances)})
        losses.append(loss.item())
        assert trainer.statistics.means()["no_gold"] == (0.25 if number == 1 else 0.0)
    assert losses[1] == pytest.approx(losses[2] * 0.75, rel=1e-12)
    assert losses[1] != pytest.approx(losses[0], rel=1e-3)


@pytest.mark.parametrize("method", ["paft", "ppcl"])
def test_random_templates_do_not_depend_on_the_batch(tmp_path, method):
    found = []
    for size, steps in [(8, 1), (1, 8)]:
        batch = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps, "num_train_epochs": 1}
        trainer = make_exact_trainer(tmp_path / str(size), method=method, **batch)
        trainer.train()
        found.append(adapter_weights(trainer))
    for name, value in found[0].items():
        torch.testing.assert_close(found[1][name], value, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": "bct", "votes": "online"}, "E-CONFIG: votes is 'online'. It must be frozen for method bct"),
        (
            {"method": "opct", "protocol": "paper"},
            "E-CONFIG: votes is 'online'. It must be frozen for method opct",
        ),
        ({"clean_template": -1}, "E-CONFIG: clean_template is -1. It must be at least 0"),
        ({"clean_template": 0.5}, "E-CONFIG: clean_template is 0.5. It must be a whole number"),
        ({"ppcl_beta": -0.5}, "E-CONFIG: ppcl_beta is -0.5. It must be at least 0"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(changes, words):
    with pytest.raises(InputError) as caught:
        make_config(changes)
    assert str(caught.value).startswith(words)
    assert "\n" not in str(caught.value)


def test_a_clean_template_that_does_not_exist_is_refused(tmp_path):
    trainer_of(tmp_path, "bct", clean_template=2)
    with pytest.raises(InputError, match=r"^E-CONFIG: clean_template is 3, but there are 3 templates. Use 0 to 2"):
        trainer_of(tmp_path, "bct", clean_template=3)


@pytest.mark.parametrize("method", WITH_LABELS)
def test_training_rows_without_any_gold_label_are_refused(tmp_path, method):
    message = f"^E-NO-GOLD: {method} uses gold labels, but none of the 8 training instances has one. Add `label_field`"
    with pytest.raises(InputError, match=message) as caught:
        trainer_of(tmp_path, method, relabelled(None))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["ppcl", "opct"])
def test_record_card_and_report_mark_a_training_with_labels(tmp_path, method):
    base, out, with_labels = save_tiny(tmp_path / "tiny"), tmp_path / "run", method in WITH_LABELS
    config = settings(method=method, votes="frozen", max_steps=2, clean_template=1)
    run = train(str(base), make_task(), config, out, quiet=True, keep_worse=True)
    record, card = record_of(out), (run.adapter / "README.md").read_text()
    assert record["training"]["uses_labels"] is with_labels
    assert record["training"]["clean_template"] == 1
    assert f"Trained {'with gold labels' if with_labels else 'without labels'} by {method}, with" in card
    assert ("gold labels. The loss reads them." in card) is with_labels
    assert f"`{method}`: {METHODS[method].title}." in card
    assert "| clean_template | 1 |" in card
    assert "majority vote" not in card.split("## Method and settings")[1]
    assert any(key.startswith(method) for entry in log_of(out, "loss") for key in entry)
    found = audit(load_model(str(base), adapter=run.adapter), make_task(), quiet=True)
    assert found.uses_labels is with_labels
    assert json.loads(json.dumps(found.record.to_json()["adapter"])).get("uses_labels", False) is with_labels
    found.write(tmp_path / "audit")
    page = write_report([tmp_path / "audit"], tmp_path / "report.html").read_text()
    assert (f"{method}: trained with labels" in page) is with_labels
    assert (f"{method} (labels)" in page) is with_labels


def supervised_trainer(out, rows=None, **changes):
    return make_exact_trainer(out, rows, **({"method": "f2c", "supervised_weight": 0.7} | changes))


def step_of(trainer):
    """The loss and the gradient of all instances in one step."""
    loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.train_instances)})
    loss.backward()
    gradient = {
        name: value.grad.clone() for name, value in trainer.adapted.named_parameters() if value.grad is not None
    }
    return loss.item(), gradient


@pytest.mark.parametrize("space", ["vocab", "labels", "both"])
def test_supervised_term_adds_the_loss_and_gradient_of_the_labelled_rows(tmp_path, space):
    rows = [row if number % 4 == 1 else row | {"label": None} for number, row in enumerate(training_rows())]
    trainers = {
        "both": supervised_trainer(tmp_path / "both", rows, cce_space=space),
        "without": supervised_trainer(tmp_path / "without", rows, cce_space=space, supervised_weight=0.0),
        "supervised": make_exact_trainer(tmp_path / "alone", rows, cce_space=space, method="supervised"),
    }
    for trainer in trainers.values():
        for name, value in trainer.adapted.named_parameters():
            if "lora_" in name:
                value.data = torch.sin(torch.arange(value.numel(), dtype=torch.float64)).reshape(value.shape) / 9
    found = {name: step_of(trainer) for name, trainer in trainers.items()}
    loss, gradient = found["both"]
    assert loss == pytest.approx(found["without"][0] + 0.7 * found["supervised"][0], rel=1e-12)
    for name, value in gradient.items():
        expected = found["without"][1][name] + 0.7 * found["supervised"][1][name]
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7)  # the model has float32 parts
    logged = trainers["both"].statistics.means()
    assert logged["no_gold"] == 0.75
    assert logged["supervised"] == pytest.approx(0.7 * found["supervised"][0], rel=1e-12)
    assert not {"no_gold", "supervised"} & trainers["without"].statistics.means().keys()


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_a_method_without_labels_never_sees_the_gold_label(tmp_path, weight):
    seen = []

    def loss(instance, config):
        seen.append(instance.gold)
        return {"any": instance.scores().sum()}

    method = Method("reads", "Reads", "#0", loss, needs_consensus=False)
    trainer = supervised_trainer(tmp_path, method=method, supervised_weight=weight)
    step_of(trainer)
    assert seen == [None] * 8


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_training_depends_on_labels_only_with_a_supervised_weight(tmp_path, weight):
    found = []
    for label in (0, 1):
        trainer = trainer_of(
            tmp_path / str(label), "f2c", relabelled(label), supervised_weight=weight, num_train_epochs=1
        )
        trainer.train()
        found.append(adapter_weights(trainer))
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0]) == (weight == 0)


def test_supervised_weight_needs_labels_and_a_method_without_them(tmp_path):
    with pytest.raises(InputError, match=r"^E-NO-GOLD: supervised_weight uses gold labels, but none of the 8 training"):
        supervised_trainer(tmp_path, relabelled(None))
    for method in WITH_LABELS:
        with pytest.raises(InputError, match=rf"^E-CONFIG: supervised_weight is 0.7. It must be 0 for method {method}"):
            make_config({"method": method, "supervised_weight": 0.7})
    with pytest.raises(InputError, match=r"^E-CONFIG: supervised_weight is -1.0. It must be at least 0"):
        make_config({"supervised_weight": -1.0})


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_record_card_and_report_mark_a_supervised_term(tmp_path, weight):
    base, out = save_tiny(tmp_path / "tiny"), tmp_path / "run"
    config = settings(votes="frozen", max_steps=2, supervised_weight=weight)
    run = train(str(base), make_task(), config, out, quiet=True, keep_worse=True)
    card = (run.adapter / "README.md").read_text()
    assert record_of(out)["training"]["uses_labels"] is (weight > 0)
    assert record_of(out)["training"]["supervised_weight"] == weight
    assert f"Trained {'with gold labels' if weight else 'without labels'} by f2c, with" in card
    assert ("| supervised_weight | 0.5 |" in card) is (weight > 0)
    found = audit(load_model(str(base), adapter=run.adapter), make_task(), quiet=True)
    assert found.uses_labels is (weight > 0)
    found.write(tmp_path / "audit")
    page = write_report([tmp_path / "audit"], tmp_path / "report.html").read_text()
    assert ("f2c: trained with labels" in page) is (weight > 0)
