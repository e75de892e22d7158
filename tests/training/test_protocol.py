"""The paper's protocol and the release's: what each sets, a whole step of the release, its stopping, its precision."""

import copy
import logging

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import TrainerState

from flip_flop.training import make_config, train
from flip_flop.training.data import log_passes, warn_of_two_templates
from flip_flop.training.selection import StopEarly
from tests.exact import EXACT, in_float64
from tests.method import oracle
from tests.training.conftest import load_tiny, log_of, make_task, record_of, settings
from tests.training.naive_step import algorithm_1, distance, lora_gradients, made_instances, made_trainer, step
from tests.training.test_run import signal_in
from tests.training.test_trainer import make_exact_trainer, make_trainer, training_rows


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
    warn_of_two_templates(make_task().with_templates(names).instances("train"), make_config({"method": method}))
    assert [words in line for line in caplog.messages if line.startswith("W-TRAINING: ")] == [True] * (count == 2)


def test_last_step_is_always_evaluated(out):
    config = settings(num_train_epochs=1, eval_strategy="steps", eval_steps=2)  # three steps
    train(load_tiny(), make_task(), config, out, quiet=True, keep_worse=True)
    assert [entry["step"] for entry in log_of(out, "eval_mean_f1")] == [0, 2, 3]
    assert {path.name for path in (out / "checkpoints").iterdir()} == {"checkpoint-2", "checkpoint-3"}


# ---- a whole step, against separate forwards and full logits ----


def answer_rows(model, answer):
    ids = list(answer.context) + list(answer.tokens)
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
    return logits.log_softmax(-1)[len(answer.context) - 1 : len(ids) - 1]


def mean_target(rows, answer):
    return sum(rows[index, token] for index, token in enumerate(answer.tokens)) / len(answer.tokens)


def kl(log_p, log_q):
    return (log_p.exp() * (log_p - log_q)).sum()


def release_f2c(model, instance, args):
    with torch.no_grad():
        scores = [[float(mean_target(answer_rows(model, a), a)) for a in row] for row in instance.answers]
    label, (case, cc, nc, flip_weight) = oracle.consensus(scores)[2], algorithm_1(args, scores)
    if case == 1:
        return torch.zeros((), dtype=torch.float64)
    group = sum(prediction == label for prediction in oracle.consensus(scores)[0])
    assert args.max_cc_size == 2  # so that only its end differs between the bounds of line 10
    if case == 3 and group < 3:
        cc, nc = [], []
    rows = [answer_rows(model, row[label]) for row in instance.answers]
    loss = -sum(mean_target(q, row[label]) for q, row in zip(rows, instance.answers, strict=True)) / len(rows)

    def middle(j):
        return (sum(rows[t][j].exp() for t in cc if j < len(rows[t])) / sum(j < len(rows[t]) for t in cc)).log()

    if cc:
        cells = [(rows[t][j], middle(j)) for t in cc for j in range(len(rows[t]))]
        loss = loss + args.jsd_weight * sum((kl(q, m) + kl(m, q)) / 2 for q, m in cells) / len(cells)
    if nc:
        shared = [(s, j) for s in nc for j in range(len(rows[s])) if any(j < len(rows[t]) for t in cc)]
        loss = loss + flip_weight * sum(kl(middle(j).detach(), rows[s][j]) for s, j in shared) / len(shared)
    return loss / len(instance.answers[0])


def release_swarm(model, instance, args):
    losses = []
    for label in range(len(instance.answers[0])):
        rows = [answer_rows(model, row[label]) for row in instance.answers]
        cells = [(v, j) for v, q in enumerate(rows) for j in range(len(q))]
        total = 0.0
        for v, j in cells:
            others = [q[j].exp() for q in rows if j < len(q)]
            total = total + kl((sum(others) / len(others)).log().detach(), rows[v][j])
        losses.append(total / len(cells))
    return sum(losses) / len(losses)


@pytest.mark.parametrize(("method", "slow"), [("f2c", release_f2c), ("swarm", release_swarm)])
def test_step_of_the_release_protocol_matches_the_slow_one(tmp_path, method, slow):
    instances = made_instances()
    for backend in ("packed", "padded"):
        changes = {"method": method, "protocol": "release", "divergence_space": "vocab", "backend": backend}
        trainer = made_trainer(tmp_path / backend, **changes)
        in_float64(trainer.adapted)
        loss, gradients = step(trainer, instances)
        model = copy.deepcopy(trainer.adapted)
        model.zero_grad()
        expected = sum(slow(model, instance, trainer.args) for instance in instances) / len(instances)
        expected.backward()
        assert loss == pytest.approx(float(expected.detach()), rel=EXACT)
        assert distance(gradients, lora_gradients(model)) < EXACT


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


@pytest.mark.parametrize("method", ["f2c", "cce", "swarm"])
def test_validation_loss_is_the_methods_loss_without_dropout(tmp_path, method):
    changes = {"method": method, "protocol": "release", "lora_dropout": 0.5, "divergence_space": "vocab"}
    rows = training_rows(count=5)
    trainer = make_exact_trainer(tmp_path, eval_rows=rows, **changes)
    with torch.no_grad():
        for name, value in trainer.adapted.named_parameters():
            if "lora_B" in name:
                value.normal_(0, 0.3)
    evaluated = trainer.evaluate()
    trainer.adapted.eval()
    loss = trainer.compute_loss(trainer.adapted, {"instances": list(trainer.eval_instances)})
    assert evaluated["eval_loss"] == pytest.approx(float(loss.detach()), rel=EXACT)
    unlabelled = make_exact_trainer(tmp_path, eval_rows=[row | {"label": None} for row in rows], **changes)
    unlabelled.adapted.load_state_dict(trainer.adapted.state_dict())
    assert unlabelled.evaluate()["eval_loss"] == evaluated["eval_loss"]


def test_constant_loss_stops_training_early(out):
    config = settings(**STOPPING)
    run = train(load_tiny(), make_task(), config, out, quiet=True, keep_worse=True)
    assert run.stopped_by is None
    training = record_of(out)["training"]
    assert (training["steps"], training["stopped_early"]) == (3, True)  # 2 and 3 come after step 1, and are no lower
    assert [entry["step"] for entry in log_of(out, "eval_loss")] == [0, 1, 2, 3]


@pytest.mark.parametrize("step", [2, 3])
def test_signal_does_not_change_early_stopping(out, monkeypatch, step):
    with monkeypatch.context() as patch:
        signal_in(patch, step)
        first = train(load_tiny(), make_task(), settings(**STOPPING), out, quiet=True, keep_worse=True)
    assert (first.adapter is None) is (step == 2)
    train(load_tiny(), make_task(), settings(**STOPPING), out, resume=True, quiet=True, keep_worse=True)
    assert record_of(out)["training"]["steps"] == 3
    assert [entry["step"] for entry in log_of(out, "eval_loss")] == [0, 1, 2, 3]


def test_validation_loss_is_not_computed_without_patience(out):
    train(load_tiny(), make_task(), settings(num_train_epochs=1), out, quiet=True, keep_worse=True)
    assert log_of(out, "eval_mean_f1")
    assert not log_of(out, "eval_loss")
    assert record_of(out)["training"]["stopped_early"] is False


# ---- precision ----


def test_ten_steps_at_1e_5_change_every_adapter_tensor_of_a_bfloat16_base(out):
    loaded = load_tiny(dtype=torch.bfloat16)
    common = {"learning_rate": 1e-5, "max_steps": 10, "num_train_epochs": -1, "eval_strategy": "no"}
    start = make_trainer(out / "start", model=copy.deepcopy(loaded.model), **common)
    initial = {name: value for name, value in start.adapted.named_parameters() if value.requires_grad}
    assert {value.dtype for value in initial.values()} == {torch.float32}
    train(loaded, make_task(), settings(**common), out / "run", quiet=True, keep_worse=True)
    training = record_of(out / "run")["training"]
    assert (training["adapter_dtype"], training["optimizer_dtype"]) == ("float32", "float32")
    trained = load_file(out / "run" / "adapter" / "adapter_model.safetensors")
    assert len(trained) == len(initial)
    for name, value in initial.items():
        found = trained[name.replace(".default", "")]
        assert found.dtype == torch.float32
        assert not torch.equal(found, value), name
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
