"""Invariants of training: no labels in losses, base weights unchanged, batch size irrelevant."""

from dataclasses import asdict

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import PrinterCallback, ProgressCallback

from flip_flop.errors import InputError
from flip_flop.method import find_consensus
from flip_flop.scoring import PromptEncoder, score_instances
from flip_flop.training import F2CTrainer, train
from tests.tiny import byte_bpe, tiny_model
from tests.training.conftest import load_tiny, make_task, record_of, settings

METHODS = ("f2c", "cce", "swarm")


def training_rows(label=None, count=8):
    instances = make_task(count).with_templates(["plain", "truth", "long"]).instances("train")
    return [asdict(instance) | ({} if label is None else {"label": label}) for instance in instances]


def make_trainer(out, rows=None, model=None, eval_rows=None, **changes):
    trainer = F2CTrainer(
        model or tiny_model("qwen2"),
        settings(output_dir=str(out), **changes),
        train_dataset=rows or training_rows(),
        eval_dataset=eval_rows,
        processing_class=byte_bpe(),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def make_exact_trainer(out, rows=None, **changes):
    """In float64 and without dropout, so that equal formulas agree to many digits."""
    trainer = make_trainer(out, rows, model=tiny_model("qwen2").double(), **({"lora_dropout": 0.0} | changes))
    trainer.adapted.double()
    return trainer


def adapter_weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.adapted.named_parameters() if "lora_" in name}


@pytest.mark.parametrize("method", METHODS)
def test_gold_labels_do_not_affect_training(tmp_path, method):
    trainers = [
        make_trainer(tmp_path / str(number), rows, method=method)
        for number, rows in enumerate([training_rows(), training_rows(label=97)])
    ]
    for trainer in trainers:
        trainer.train()
    clean, poisoned = (adapter_weights(trainer) for trainer in trainers)
    assert all(torch.equal(clean[name], poisoned[name]) for name in clean)


@pytest.mark.parametrize("method", METHODS)
def test_each_method_lowers_its_loss_and_changes_only_the_adapter(tmp_path, method):
    model = tiny_model("qwen2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer = make_trainer(tmp_path, model=model, method=method, num_train_epochs=8, lora_dropout=0.0)
    adapter = adapter_weights(trainer)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert np.mean(losses[-2:]) < np.mean(losses[:2])
    after = {
        name.replace("base_model.model.", "").replace(".base_layer", ""): value
        for name, value in trainer.adapted.state_dict().items()
        if "lora_" not in name
    }
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    moved = adapter_weights(trainer)
    assert all(not torch.equal(adapter[name], moved[name]) for name in adapter if "lora_B" in name)


@pytest.mark.parametrize("method", METHODS)
def test_one_batch_of_eight_equals_eight_of_one(tmp_path, method):
    shapes = [(8, 1), (1, 8), (3, 3)]  # 8 instances in 3 x 3: the last micro-batch is smaller than the others
    results = []
    for size, steps in shapes:
        batch = {"per_device_train_batch_size": size, "gradient_accumulation_steps": steps}
        trainer = make_exact_trainer(tmp_path / f"{size}", method=method, **batch)
        trainer.train()
        results.append(adapter_weights(trainer))
    for other in results[1:]:
        for name, value in results[0].items():
            torch.testing.assert_close(other[name], value, rtol=0, atol=1e-9)


def test_instances_without_consensus_count_as_zeros_in_the_mean_loss(tmp_path):
    # Four templates, which vote 2 to 2 on the last two instances.
    rows = [_doubled(row, reverse=number >= 3) for number, row in enumerate(training_rows(count=5))]
    trainer = make_exact_trainer(tmp_path, rows, method="cce")
    encoded = list(trainer.train_instances)
    loss = trainer.compute_loss(trainer.adapted, {"instances": encoded})
    scores = score_instances(trainer.adapted, encoded, quiet=True).scores
    expected = 0.0
    for own in scores.astype(np.float64):
        votes = [max(range(2), key=lambda label: (row[label], -label)) for row in own]
        winner = max(range(2), key=votes.count)
        if 2 * votes.count(winner) > len(votes):
            expected += -sum(row[winner] for row in own) / len(own)
    assert find_consensus(torch.from_numpy(scores)).exists.tolist()[3:] == [False, False]
    assert float(loss.detach()) == pytest.approx(expected / 5, rel=2**-24)  # a table's scores are float32


def _doubled(row, reverse):
    """Two templates, each twice; the copy with its answers swapped votes the other way."""
    choices = row["choices"][:2]
    copies = tuple(pair[::-1] for pair in choices) if reverse else choices
    return row | {"prompts": row["prompts"][:2] * 2, "choices": choices + copies}


def test_instances_without_consensus_change_no_weight(tmp_path):
    rows = [_doubled(row, reverse=True) for row in training_rows(count=4)]
    trainer = make_trainer(tmp_path, rows, method="f2c")
    before = adapter_weights(trainer)
    result = trainer.train()
    after = adapter_weights(trainer)
    assert result.training_loss == 0.0
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_separate_vote_pass_has_no_dropout(tmp_path):
    trainer = make_exact_trainer(tmp_path, vote_pass="separate", lora_dropout=0.5)
    for name, value in trainer.adapted.named_parameters():
        if "lora_B" in name:
            value.data.normal_(0, 0.3)
    encoded = [trainer.train_instances[0]]
    trainer.adapted.train()
    trainer.compute_loss(trainer.adapted, {"instances": encoded})
    assert_mass_is_logged(trainer, encoded)
    assert trainer.adapted.training


def test_the_log_has_terms_cases_pseudo_labels_and_own_label_mass(tmp_path):
    trainer = make_trainer(tmp_path, eval_rows=training_rows(count=6), divergence_space="vocab")
    trainer.template_names = ["plain", "truth", "long"]
    trainer.train()
    step = next(entry for entry in trainer.state.log_history if "cce" in entry)
    assert {"loss", "cce", "jsd", "flip", "case_1", "case_2", "case_3", "own_label_mass_min"} <= step.keys()
    assert step["case_1"] + step["case_2"] + step["case_3"] == pytest.approx(1)
    assert step["loss"] == pytest.approx(step["cce"] + step["jsd"] + step["flip"], rel=2**-20)  # float32
    evaluation = next(entry for entry in trainer.state.log_history if "eval_mean_f1" in entry)
    assert "eval_own_label_mass/truth" in evaluation
    assert any("pseudo_label_accuracy" in entry for entry in trainer.state.log_history)


def test_own_label_mass_in_the_log_covers_whole_answers(tmp_path):
    trainer = make_exact_trainer(tmp_path)
    encoded = list(trainer.train_instances)
    trainer.compute_loss(trainer.adapted, {"instances": encoded})
    assert_mass_is_logged(trainer, encoded)


def assert_mass_is_logged(trainer, encoded):
    table = score_instances(trainer.adapted, encoded, quiet=True)
    # A table's scores are float32: exp(score * count) is off by its exponent's share of 2^-24.
    rounding = 2**-24 * float(np.abs(table.scores * table.token_counts).max())
    assert trainer.statistics.means()["own_label_mass"] == pytest.approx(table.own_label_mass.mean(), rel=rounding)


def test_rows_can_be_a_dataset_and_the_tokenizer_needs_no_pad_token(tmp_path):
    import datasets

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


def test_single_template_is_refused(tmp_path):
    row = {"id": "1", "prompts": ["Good?"], "choices": [["No", "Yes"]], "label": None}
    with pytest.raises(InputError, match="E-NO-CONSENSUS"):
        make_trainer(tmp_path, [row])


def test_row_of_another_shape_is_refused_with_its_number(tmp_path):
    with pytest.raises(InputError, match="E-DATA-ROWS: Row 8"):
        make_trainer(tmp_path, [*training_rows(), {"prompts": ["a", "b"]}])


def test_selection_by_f1_needs_labels(tmp_path):
    rows = [row | {"label": None} for row in training_rows()]
    with pytest.raises(InputError, match="E-NO-GOLD"):
        make_trainer(tmp_path, training_rows(), eval_rows=rows, select_by="mean_f1")


def test_the_adapter_reproduces_the_trained_scores_in_plain_transformers(out):
    from peft import PeftModel

    loaded, task = load_tiny(), make_task()
    run = train(loaded, task, settings(), out, quiet=True, keep_worse=True)
    assert record_of(out)["kind"] == "train"
    chosen = task.with_templates(["plain", "held"])
    encoder = PromptEncoder(byte_bpe())
    encoded = [encoder.encode(instance) for instance in chosen.instances("test")]
    trained = score_instances(loaded.model, encoded, quiet=True).scores
    fresh = PeftModel.from_pretrained(tiny_model("qwen2"), str(run.adapter)).eval()
    np.testing.assert_array_equal(score_instances(fresh, encoded, quiet=True).scores, trained)
    assert load_file(run.adapter / "adapter_model.safetensors")
