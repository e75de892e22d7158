"""A training step has the gradients of the slow way, two passes and full logits."""

import pytest
import torch

from flip_flop.scoring import packed, scorer
from flip_flop.training import F2CConfig
from tests.exact import EXACT, float32_bound, in_float64
from tests.training.naive_step import ALWAYS, LOSSES, NEVER, distance, made_instances, made_trainer, slow_step, step

RELATIVE = 1e-5
# Its name changed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)
WAYS = {
    "one pass": ("packed", NEVER),
    "two parts": ("packed", ALWAYS),
    "padded": ("padded", NEVER),
    "padded, consensus answers twice": ("padded", ALWAYS),
}


def part(monkeypatch, share):
    """Have answers without gradient computed apart: always or never, in both back ends."""
    monkeypatch.setattr(packed, "SPARED_SHARE", share)
    monkeypatch.setattr(scorer, "is_worth_twice", lambda trie: share == ALWAYS)


@pytest.mark.parametrize("kind", LOSSES)
def test_the_gradients_are_those_of_two_naive_passes(tmp_path, monkeypatch, kind):
    instances = made_instances()
    for way, (backend, share) in WAYS.items():
        part(monkeypatch, share)
        trainer = made_trainer(tmp_path / way, backend=backend, **LOSSES[kind])
        in_float64(trainer.adapted)
        if way == "one pass":
            expected_loss, expected = slow_step(trainer, instances)
        assert trainer.backend == backend
        for row_tokens in (1, 120, 100_000):
            trainer._row_tokens = row_tokens
            loss, gradients = step(trainer, instances)
            assert loss == pytest.approx(expected_loss, rel=EXACT)
            assert distance(gradients, expected) < EXACT, (way, row_tokens)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("way", WAYS)
def test_float32_gradients_are_as_near_as_its_products_are(tmp_path, monkeypatch, way, kind):
    instances = made_instances()
    backend, share = WAYS[way]
    part(monkeypatch, share)
    trainer = made_trainer(tmp_path, backend=backend, **LOSSES[kind])
    (loss, gradients), (expected_loss, expected) = step(trainer, instances), slow_step(trainer, instances)
    assert loss == pytest.approx(expected_loss, rel=float32_bound(trainer.adapted))
    assert distance(gradients, expected) < float32_bound(trainer.adapted, passes=3)


@pytest.mark.parametrize("share", [NEVER, ALWAYS])
def test_votes_of_a_separate_pass_give_the_same_gradients_without_dropout(tmp_path, monkeypatch, share):
    instances = made_instances()
    part(monkeypatch, share)
    shared, separate = (
        step(made_trainer(tmp_path / vote_pass, vote_pass=vote_pass, **LOSSES["f2c"]), instances)
        for vote_pass in ("shared", "separate")
    )
    assert separate[0] == pytest.approx(shared[0], rel=1e-6)
    assert distance(separate[1], shared[1]) < RELATIVE


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_layers_that_are_computed_anew_in_the_backward_give_the_same_gradients(tmp_path, monkeypatch, way, reentrant):
    instances = made_instances()
    backend, share = WAYS[way]
    part(monkeypatch, share)
    plain = step(made_trainer(tmp_path / "plain", backend=backend, **LOSSES["f2c"]), instances)
    trainer = made_trainer(tmp_path / "anew", backend=backend, **{CHECKPOINTING: True}, **LOSSES["f2c"])
    getattr(trainer.adapted, f"{CHECKPOINTING}_enable")({"use_reentrant": reentrant})
    anew = step(trainer, instances)
    assert anew[0] == pytest.approx(plain[0], rel=1e-6)
    assert distance(anew[1], plain[1]) < RELATIVE  # two parts are not cut there, which rounds otherwise


def test_a_whole_training_with_layers_computed_anew_gives_the_same_adapter(tmp_path, monkeypatch):
    part(monkeypatch, ALWAYS)
    weights = []
    for anew in (False, True):
        trainer = made_trainer(tmp_path / str(anew), num_train_epochs=1, **{CHECKPOINTING: anew}, **LOSSES["cce"])
        trainer.train()
        weights.append({name: value.detach() for name, value in trainer.adapted.named_parameters() if "lora_" in name})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-5)


def test_dropout_is_drawn_for_the_step_and_the_instances(tmp_path, monkeypatch):
    instances = made_instances()
    part(monkeypatch, ALWAYS)
    trainer = made_trainer(tmp_path, **(LOSSES["cce"] | {"lora_dropout": 0.3}))
    first, again = step(trainer, instances), step(trainer, instances)
    trainer.state.global_step = 1
    other = step(trainer, instances)
    assert first[0] == again[0]
    assert distance(again[1], first[1]) == 0.0
    assert other[0] != first[0]
