"""The training step: gradients against separate passes, costs, and rows that fit into memory."""

import itertools
from dataclasses import replace

import pytest
import torch

from flip_flop import F2CConfig
from flip_flop.scoring.encode import EncodedAnswer
from flip_flop.scoring.packed import pack
from tests.exact import EXACT, float32_bound, in_float64
from tests.tiny import tiny_model
from tests.training.naive_step import (
    LOSSES,
    NO_CONSENSUS,
    distance,
    lora_gradients,
    made_instances,
    made_trainer,
    slow_instance,
    slow_step,
    step,
)

# Its name changed in transformers 5.
CHECKPOINTING = (
    "activation_checkpointing" if hasattr(F2CConfig, "activation_checkpointing") else "gradient_checkpointing"
)
BACKENDS = ("packed", "padded")
KINDS = (
    *("cce, sums", "cce over labels", "f2c over labels, cce over both", "f2c over both", "f2c of the release"),
    *("f2c, votes of a separate pass", "swarm", "swarm of the release"),
)


def exact_trainer(folder, **settings):
    trainer = made_trainer(folder, **settings)
    in_float64(trainer.adapted)
    return trainer


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [*(("float64", kind) for kind in KINDS), ("float32", "f2c over both")])
def test_gradients_match_separate_passes(tmp_path, dtype, kind):
    instances = made_instances()
    expected_loss, expected = slow_step(exact_trainer(tmp_path / "slow", **LOSSES[kind]), instances)
    for backend in BACKENDS:
        trainer = made_trainer(tmp_path / backend, backend=backend, **LOSSES[kind])
        of_loss, of_gradients = float32_bound(trainer.adapted), float32_bound(trainer.adapted, passes=3)
        if dtype == "float64":
            in_float64(trainer.adapted)
            of_loss = of_gradients = EXACT
        assert trainer.backend == backend
        trainer._row_tokens = 120
        loss, gradients = step(trainer, instances)
        assert loss == pytest.approx(expected_loss, rel=of_loss)
        assert distance(gradients, expected) < of_gradients, backend


@pytest.mark.slow
def test_demonstrations_that_instances_share_are_computed_once(tmp_path):
    shown = [tuple(range(1, 41)), tuple(range(40, 0, -1)), tuple(range(2, 42)), tuple(range(41, 1, -1))]
    instances = []
    for row in made_instances():
        answers = [
            [replace(answer, context=examples + answer.context) for answer in template]
            for examples, template in zip(shown, row.answers, strict=True)
        ]
        instances.append(replace(row, answers=answers))
    expected_loss, expected = slow_step(exact_trainer(tmp_path / "slow", **LOSSES["f2c over both"]), instances)
    trainer = exact_trainer(tmp_path / "ours", **LOSSES["f2c over both"])
    trainer._row_tokens = merged_size(instances)
    counter = Counter(trainer.adapted)
    loss, gradients = step(trainer, instances)
    assert counter.forwarded == merged_size(instances)
    assert counter.forwarded == sum(merged_size([row]) for row in instances) - 4 * (4 * 40)
    assert loss == pytest.approx(expected_loss, rel=EXACT)
    assert distance(gradients, expected) < EXACT


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["f2c over labels, cce over both", "f2c over both", "swarm"])
def test_instances_with_different_numbers_of_answers_train_together(tmp_path, kind, backend):
    slow = exact_trainer(tmp_path / "slow", **LOSSES[kind])
    labels, places = [(0, 2), (1,), (0, 1, 2), (2, 0), (1, 2)], [(4, 1), (0,), (3, 0, 2), (1, 2), (2, 4)]
    fewer, padded = [], []
    for row, kept, where in zip(made_instances(), labels, places, strict=True):
        fewer.append(replace(row, answers=[[template[label] for label in kept] for template in row.answers]))
        answers = [[EncodedAnswer(template[0].context, ())] * 5 for template in row.answers]
        for template, label, place in itertools.product(range(4), range(len(kept)), range(5)):
            if where[label] == place:
                answers[template][place] = fewer[-1].answers[template][label]
        predictions = slow_instance(slow.adapted, fewer[-1], slow.args).consensus.predictions.tolist()
        padded.append(replace(row, answers=answers, votes=tuple(where[label] for label in predictions)))
    expected_loss, expected = slow_step(slow, fewer)
    trainer = exact_trainer(tmp_path / "ours", backend=backend, **LOSSES[kind])
    loss, gradients = step(trainer, padded)
    assert loss == pytest.approx(expected_loss, rel=EXACT)
    assert distance(gradients, expected) < EXACT


@pytest.mark.slow
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


@pytest.mark.slow
def test_dropout_depends_on_the_step_and_the_instances(tmp_path):
    instances = made_instances()
    trainer = made_trainer(tmp_path, **(LOSSES["cce"] | {"lora_dropout": 0.3}))
    first, again = step(trainer, instances), step(trainer, instances)
    trainer.state.global_step = 1
    other = step(trainer, instances)
    assert first[0] == again[0]
    assert distance(again[1], first[1]) == 0.0
    assert other[0] != first[0]


# ---- costs ----


class Counter:
    """Tokens into the first layer, tokens whose state behind it receives a gradient, rows of the head."""

    def __init__(self, model):
        self.forwarded = self.backward = self.head_rows = 0
        base = model.get_base_model()
        base.model.layers[0].register_forward_hook(self._layer)
        base.get_output_embeddings().register_forward_pre_hook(self._head)

    def _layer(self, layer, args, output):
        states = output[0] if isinstance(output, tuple) else output
        self.forwarded += states.shape[0] * states.shape[1]
        if states.requires_grad:
            states.register_hook(self._derived)

    def _derived(self, gradient):
        self.backward += gradient.shape[0] * gradient.shape[1]

    def _head(self, head, args):
        self.head_rows += args[0].shape[0] * args[0].shape[1]

    def counts(self):
        return self.forwarded, self.backward, self.head_rows


def rows_of(instance):
    """The prefixes of all answer tokens, each a row of the head."""
    answers = [answer for template in instance.answers for answer in template]
    return {answer.context + answer.tokens[:j] for answer in answers for j in range(len(answer.tokens))}


def inputs_of(instance):
    """The distinct prefixes of the input sequences."""
    sequences = [answer.context + answer.tokens[:-1] for template in instance.answers for answer in template]
    return {sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize(
    ("kind", "vote_pass", "passes"),
    [("cce", "shared", 1), ("f2c", "shared", 1), ("swarm", "shared", 1), ("cce", "separate", 2)],
)
def test_step_computes_each_prefix_once_in_a_pass(tmp_path, kind, vote_pass, passes, number):
    instance = made_instances()[number]
    trainer = made_trainer(tmp_path, vote_pass=vote_pass, **LOSSES[kind])
    counter = Counter(trainer.adapted)
    step(trainer, [instance])
    tokens, rows = len(inputs_of(instance)), len(rows_of(instance))
    has_loss = kind == "swarm" or number != NO_CONSENSUS
    assert counter.counts() == (passes * tokens, tokens if has_loss else 0, passes * rows)


@pytest.mark.slow
def test_instances_without_a_consensus_need_no_backward_in_separate_rows(tmp_path):
    instances = made_instances()
    sizes = [len(inputs_of(instance)) for instance in instances]
    for row_tokens, derived in ((1, sum(sizes) - sizes[NO_CONSENSUS]), (100_000, sum(sizes))):
        trainer = made_trainer(tmp_path / str(row_tokens), **LOSSES["cce"])
        trainer._row_tokens = row_tokens
        counter = Counter(trainer.adapted)
        step(trainer, instances)
        assert counter.counts()[:2] == (sum(sizes), derived)


# ---- rows ----


def merged_size(instances):
    inputs = {answer.inputs for instance in instances for template in instance.answers for answer in template}
    return len({words[:length] for words in inputs for length in range(1, len(words) + 1)})


@pytest.mark.parametrize("max_tokens", [1, 60, 100, 140, 10_000])
def test_rows_are_full_with_what_they_share_counted_once(max_tokens):
    instances = made_instances()
    rows = list(pack(tiny_model("qwen2"), instances, max_tokens))
    assert [instance for row in rows for instance in row] == instances
    assert all(len(row) == 1 or merged_size(row) <= max_tokens for row in rows)
    assert all(merged_size([*row, following[0]]) > max_tokens for row, following in itertools.pairwise(rows))


def refuse_beyond(trainer, limit, *, backward):
    """Simulate memory for rows up to this size; a backward fails when all layers but the first have a gradient."""
    seen = []

    def before(module, args, named):
        seen.append(named["input_ids"].shape[1])
        if not backward and seen[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    def after(parameter):
        if backward and seen[-1] > limit:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    trainer.adapted.get_base_model().model.register_forward_pre_hook(before, with_kwargs=True)
    first = next(value for value in trainer.adapted.parameters() if value.requires_grad)
    first.register_post_accumulate_grad_hook(after)


def steps(trainer, instances):
    """Losses, gradients and statistics of two micro-batches of one optimizer step."""
    trainer.adapted.zero_grad()
    losses = [
        float(trainer.training_step(trainer.adapted, {"instances": part}, num_items_in_batch=len(instances)))
        for part in (instances[:1], instances[1:])
    ]
    return losses, lora_gradients(trainer.adapted), trainer.statistics.means()


@pytest.mark.slow
@pytest.mark.parametrize("backward", [False, True])
def test_row_that_exceeds_the_memory_is_split(tmp_path, caplog, backward):
    instances = made_instances()
    longest = max(len(instance.trie) for instance in instances)
    plain, short = (made_trainer(tmp_path / name, **LOSSES["f2c over both"]) for name in ("plain", "short"))
    for trainer in (plain, short):
        in_float64(trainer.adapted)
        trainer._row_tokens = 100_000
    refuse_beyond(short, longest, backward=backward)
    losses, gradients, log = steps(short, instances)
    expected_losses, expected, expected_log = steps(plain, instances)
    assert longest // 2 <= short._row_tokens < sum(len(instance.trie) for instance in instances)
    assert "W-MEMORY: a row of" in caplog.text
    assert losses == pytest.approx(expected_losses, rel=EXACT)
    assert distance(gradients, expected) < EXACT
    assert log == pytest.approx(expected_log, rel=EXACT)


@pytest.mark.slow
def test_single_instance_that_exceeds_the_memory_fails(tmp_path, caplog):
    trainer, instances = made_trainer(tmp_path, **LOSSES["cce"]), made_instances()[:1]
    refuse_beyond(trainer, len(instances[0].trie) - 1, backward=True)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.training_step(trainer.adapted, {"instances": instances}, num_items_in_batch=1)
    assert "W-MEMORY" not in caplog.text
