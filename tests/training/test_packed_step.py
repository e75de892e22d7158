"""Gradients of a step match two slow passes with full logits."""

import pytest

from flip_flop.training import F2CConfig
from tests.exact import EXACT, float32_bound, in_float64
from tests.training.naive_step import LOSSES, distance, made_instances, made_trainer, slow_step, step

pytestmark = pytest.mark.slow
# Its name changed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)
BACKENDS = ("packed", "padded")


def exact_trainer(folder, **settings):
    trainer = made_trainer(folder, **settings)
    in_float64(trainer.adapted)
    return trainer


@pytest.mark.parametrize("kind", LOSSES)
def test_gradients_match_two_naive_passes(tmp_path, kind):
    instances = made_instances()
    for backend in BACKENDS:
        trainer = exact_trainer(tmp_path / backend, backend=backend, **LOSSES[kind])
        if backend == "packed":
            expected_loss, expected = slow_step(trainer, instances)
        assert trainer.backend == backend
        for row_tokens in (1, 120, 100_000):
            trainer._row_tokens = row_tokens
            loss, gradients = step(trainer, instances)
            assert loss == pytest.approx(expected_loss, rel=EXACT)
            assert distance(gradients, expected) < EXACT, (backend, row_tokens)


@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_gradients_are_within_the_rounding_bound(tmp_path, backend, kind):
    instances = made_instances()
    trainer = made_trainer(tmp_path, backend=backend, **LOSSES[kind])
    (loss, gradients), (expected_loss, expected) = step(trainer, instances), slow_step(trainer, instances)
    assert loss == pytest.approx(expected_loss, rel=float32_bound(trainer.adapted))
    assert distance(gradients, expected) < float32_bound(trainer.adapted, passes=3)


def test_votes_of_a_separate_pass_give_the_same_gradients_without_dropout(tmp_path):
    instances = made_instances()
    shared, separate = (
        step(exact_trainer(tmp_path / vote_pass, vote_pass=vote_pass, **LOSSES["f2c"]), instances)
        for vote_pass in ("shared", "separate")
    )
    assert separate[0] == pytest.approx(shared[0], rel=EXACT)
    assert distance(separate[1], shared[1]) < EXACT


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_activation_checkpointing_gives_the_same_gradients(tmp_path, backend, reentrant):
    instances = made_instances()
    plain = step(exact_trainer(tmp_path / "plain", backend=backend, **LOSSES["f2c"]), instances)
    trainer = exact_trainer(tmp_path / "again", backend=backend, **{CHECKPOINTING: True}, **LOSSES["f2c"])
    getattr(trainer.adapted, f"{CHECKPOINTING}_enable")({"use_reentrant": reentrant})
    again = step(trainer, instances)
    assert again[0] == pytest.approx(plain[0], rel=EXACT)
    assert distance(again[1], plain[1]) < EXACT


def test_activation_checkpointing_gives_the_same_adapter(tmp_path):
    weights = []
    for again in (False, True):
        trainer = exact_trainer(tmp_path / str(again), num_train_epochs=1, **{CHECKPOINTING: again}, **LOSSES["cce"])
        trainer.train()
        weights.append({name: value.detach() for name, value in trainer.adapted.named_parameters() if "lora_" in name})
    # AdamW's first steps divide a gradient by its own size, which spreads what rounding leaves of the small ones.
    assert distance(*weights) < 1e3 * EXACT


def test_dropout_depends_on_the_step_and_the_instances(tmp_path):
    instances = made_instances()
    trainer = made_trainer(tmp_path, **(LOSSES["cce"] | {"lora_dropout": 0.3}))
    first, again = step(trainer, instances), step(trainer, instances)
    trainer.state.global_step = 1
    other = step(trainer, instances)
    assert first[0] == again[0]
    assert distance(again[1], first[1]) == 0.0
    assert other[0] != first[0]
