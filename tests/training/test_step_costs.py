"""Costs of a step: tokens of forward and backward, rows of the head; and its split into rows."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.scoring.packed import pack
from tests.method import oracle
from tests.training.naive_step import LOSSES, NO_CONSENSUS, made_instances, made_trainer, slow_scores, step


class Counter:
    """Tokens into the first layer, tokens whose state behind it receives a gradient, rows of the head."""

    def __init__(self, model):
        self.forwarded = self.backward = self.head_rows = 0
        base = model.get_base_model()
        base.model.layers[0].register_forward_hook(self._layer)
        base.get_output_embeddings().register_forward_pre_hook(self._head)

    def _layer(self, layer, given, output):
        states = output[0] if isinstance(output, tuple) else output
        self.forwarded += states.shape[0] * states.shape[1]
        if states.requires_grad:
            states.register_hook(self._derived)

    def _derived(self, gradient):
        self.backward += gradient.shape[0] * gradient.shape[1]

    def _head(self, head, given):
        self.head_rows += given[0].shape[0] * given[0].shape[1]

    def found(self):
        return self.forwarded, self.backward, self.head_rows


def prefixes(sequences):
    return {sequence[:length] for sequence in sequences for length in range(1, len(sequence) + 1)}


def pairs(instance, label=None):
    return [
        answer for template in instance.answers for number, answer in enumerate(template) if label in (None, number)
    ]


def rows_of(answers):
    """The prefixes of all answer tokens, each a row of the head."""
    return {answer.context + answer.tokens[:j] for answer in answers for j in range(len(answer.tokens))}


def inputs_of(answers):
    return prefixes({answer.context + answer.tokens[:-1] for answer in answers})


def consensus_of(trainer, instance):
    """The label of the strict majority, by the slow way, or ``None``."""
    _, _, label, exists = oracle.consensus(slow_scores(trainer.adapted, instance.answers))
    return label if exists else None


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("kind", ["cce", "f2c", "swarm"])
def test_step_computes_each_prefix_once(tmp_path, kind, number):
    instance = made_instances()[number]
    trainer = made_trainer(tmp_path, **LOSSES[kind])
    label = consensus_of(trainer, instance)
    assert (label is None) == (number == NO_CONSENSUS)
    counter = Counter(trainer.adapted)
    step(trainer, [instance])
    tokens, rows = len(inputs_of(pairs(instance))), len(rows_of(pairs(instance)))
    has_loss = kind == "swarm" or label is not None
    assert counter.found() == (tokens, tokens if has_loss else 0, rows)


def test_instances_without_a_consensus_need_no_backward_in_separate_rows(tmp_path):
    instances = made_instances()
    sizes = [len(inputs_of(pairs(instance))) for instance in instances]
    for row_tokens, derived in ((1, sum(sizes) - sizes[NO_CONSENSUS]), (100_000, sum(sizes))):
        trainer = made_trainer(tmp_path / str(row_tokens), **LOSSES["cce"])
        trainer._row_tokens = row_tokens
        counter = Counter(trainer.adapted)
        step(trainer, instances)
        assert counter.found()[:2] == (sum(sizes), derived)


def test_separate_vote_pass_costs_one_forward(tmp_path):
    instance = made_instances()[0]
    trainer = made_trainer(tmp_path, vote_pass="separate", **LOSSES["cce"])
    counter = Counter(trainer.adapted)
    step(trainer, [instance])
    tokens = len(inputs_of(pairs(instance)))
    assert counter.found()[:2] == (2 * tokens, tokens)


@pytest.mark.parametrize("row_tokens", [1, 130, 100_000])
def test_micro_batch_is_split_between_instances(tmp_path, monkeypatch, row_tokens):
    instances = made_instances()
    trainer = made_trainer(tmp_path, **LOSSES["cce"])
    trainer._row_tokens = row_tokens
    rows, plain = [], trainer.compute_loss

    def watched(model, inputs, **rest):
        rows.append(inputs["instances"])
        return plain(model, inputs, **rest)

    monkeypatch.setattr(trainer, "compute_loss", watched)
    step(trainer, instances)
    groups = pack([len(inputs_of(pairs(instance))) for instance in instances], row_tokens)
    assert rows == [[instances[index] for index in sorted(group)] for group in groups]


@given(st.lists(st.integers(1, 20), max_size=8), st.integers(1, 60))
def test_rows_are_full_and_sorted_by_size(sizes, most):
    groups = list(pack(sizes, most))
    ordered = [[sizes[index] for index in group] for group in groups]
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    assert [size for group in ordered for size in group] == sorted(sizes, reverse=True)
    assert all(len(group) == 1 or sum(group) <= most for group in ordered)
    assert all(sum([*group, following[0]]) > most for group, following in itertools.pairwise(ordered))
