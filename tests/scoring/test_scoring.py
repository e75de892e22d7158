"""Scores do not depend on batches, and the computation is minimal."""

import functools
import itertools
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import EncodedAnswer, EncodedInstance, PromptEncoder, packed, score_instances
from tests.exact import ROUNDED, assert_scores, in_float64
from tests.scoring.made import instances
from tests.scoring.oracle import naive_scores
from tests.scoring.tries import batches, batches_with_a_common_beginning
from tests.tiny import ARCHITECTURES, MORE_ARCHITECTURES, TOKENIZERS, byte_bpe, tiny_model

ALL_ARCHITECTURES = [*ARCHITECTURES, *MORE_ARCHITECTURES]

both_backends = pytest.mark.parametrize("backend", ["packed", "padded"])


@functools.cache
def model_instances_and_naive_scores(architecture, kind):
    tokenizer = TOKENIZERS[kind]()
    model, encoded = in_float64(tiny_model(architecture, len(tokenizer))), instances(tokenizer)
    return model, encoded, np.array(naive_scores(model, encoded))


@pytest.mark.parametrize(
    ("architecture", "tokenizer_kind"),
    [
        *(("qwen2", kind) for kind in TOKENIZERS),
        *(pytest.param(name, "byte_bpe", marks=pytest.mark.slow) for name in ALL_ARCHITECTURES[1:]),
    ],
)
@both_backends
def test_scores_are_mean_log_probabilities_in_any_order_and_batch(architecture, tokenizer_kind, backend):
    model, encoded, expected = model_instances_and_naive_scores(architecture, tokenizer_kind)
    for batch_tokens, order in ((1, [3, 0, 4, 2, 1]), (150, [4, 2, 0, 1, 3]), (100_000, [0, 1, 2, 3, 4])):
        chosen = [encoded[number] for number in order]
        table = score_instances(model, chosen, backend=backend, batch_tokens=batch_tokens, quiet=True)
        assert table.scores.shape == (5, 3, 2)
        assert table.scores.dtype == np.float32
        assert_scores(model, table.scores, expected[order])


# An answer's branch precedes the longer prompt in depth-first order, and every other node descends from both prompts.
BRANCH_FIRST = [[((1,), (1, 2)), ((1,), (1, 3))], [((1, 2), (3,)), ((1, 2), (2,))]]


@pytest.mark.slow
@settings(max_examples=12)
@example([BRANCH_FIRST] * 2, Random(0))
@given(batches() | batches_with_a_common_beginning(most=4), st.randoms(use_true_random=False))
@both_backends
def test_batched_scores_match_single_instances(backend, batch, random):
    model = model_instances_and_naive_scores("qwen2", "byte_bpe")[0]
    encoded = [
        EncodedInstance(str(number), tuple(tuple(EncodedAnswer(*pair) for pair in row) for row in answers))
        for number, answers in enumerate(batch)
    ]
    random.shuffle(encoded)
    table = score_instances(model, encoded, backend=backend, batch_tokens=100_000, quiet=True)
    assert_scores(model, table.scores, naive_scores(model, encoded))


@pytest.mark.parametrize(("batch_tokens", "rows"), [(1, 5), (100_000, 1)])
def test_packed_row_has_whole_instances_and_distinct_beginnings(batch_tokens, rows):
    model, encoded, _ = model_instances_and_naive_scores("qwen2", "byte_bpe")
    shapes = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda layer, given: shapes.append(given[0].shape))
    score_instances(model, encoded, batch_tokens=batch_tokens, quiet=True)
    hook.remove()
    distinct = [
        len({sequence[:length] for sequence in inputs(instance) for length in range(1, len(sequence) + 1)})
        for instance in encoded
    ]
    assert len(shapes) == rows
    assert all(shape[0] == 1 for shape in shapes)
    assert sum(shape[1] for shape in shapes) == sum(distinct)
    if rows == 5:
        assert [shape[1] for shape in shapes] == sorted(distinct, reverse=True)


def inputs(instance):
    """The inputs of the model, without the last token of an answer."""
    return {answer.context + answer.tokens[:-1] for template in instance.answers for answer in template}


@pytest.mark.parametrize("max_rows", [1, 7, 10**6])
@both_backends
def test_head_computes_few_rows_in_passes_whose_logits_fit(monkeypatch, backend, max_rows):
    model, encoded, expected = model_instances_and_naive_scores("qwen2", "byte_bpe")
    monkeypatch.setattr(packed, "MAX_LOGITS", max_rows * model.config.vocab_size)
    rows = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, given: rows.append(given[0].shape[:2]))
    scores = score_instances(model, encoded, backend=backend, batch_tokens=100_000, quiet=True).scores
    hook.remove()
    assert_scores(model, scores, expected)
    most = max(len(answer_prefixes(instance)) for instance in encoded)
    assert all(lines * columns <= max(max_rows, most) for lines, columns in rows)
    if backend == "packed":
        assert sum(columns for _, columns in rows) == sum(len(answer_prefixes(instance)) for instance in encoded)


def answer_prefixes(instance):
    """What precedes each answer token."""
    answers = [answer for template in instance.answers for answer in template]
    return {answer.context + answer.tokens[:offset] for answer in answers for offset in range(len(answer.tokens))}


def test_nonfinite_scores_are_rejected_with_instance():
    model = tiny_model("qwen2")
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = float("nan")
    with pytest.raises(InputError, match=r"E-NONFINITE: .*'row-"):
        score_instances(model, instances(byte_bpe()), quiet=True)


def test_own_label_mass_is_probability_of_all_answers():
    model, encoded, naive = model_instances_and_naive_scores("qwen2", "byte_bpe")
    table = score_instances(model, encoded, quiet=True)
    counts = np.array([[[len(a.tokens) for a in row] for row in instance.answers] for instance in encoded])
    # A log-probability of float32 is off by its own rounding, and so is its exponential, relatively.
    bound = float(np.abs(naive * counts).max()) * ROUNDED
    np.testing.assert_allclose(table.own_label_mass, np.exp(naive * counts).sum(axis=-1), rtol=bound)


def test_out_of_memory_divides_this_forward_and_the_next(caplog):
    model, encoded, expected = model_instances_and_naive_scores("qwen2", "byte_bpe")
    many = [replace(instance, id=f"{instance.id} again {number}") for number in range(12) for instance in encoded]
    largest = max(len(instance.trie) for instance in encoded)

    def refuse(module, given, named):
        if named["input_ids"].numel() > largest:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        found = score_instances(model, many, batch_tokens=8 * largest, quiet=True).scores
        assert_scores(model, found, np.tile(expected, (12, 1, 1)))
        sizes = [record.args[1] for record in caplog.records if record.msg.startswith("W-MEMORY")]
        assert len(sizes) > 2
        assert all(after < before for before, after in itertools.pairwise(sizes))
        largest = 1
        with pytest.raises(torch.OutOfMemoryError):
            score_instances(model, encoded, quiet=True)
    finally:
        hook.remove()


@both_backends
@pytest.mark.parametrize("beginning", ["", "You are a careful reader of reviews. Answer with one word.\n\n"])
def test_shared_beginning_is_computed_once(backend, beginning):
    tokenizer = byte_bpe()
    model = in_float64(tiny_model("qwen2", len(tokenizer)))
    rows = [
        RenderedInstance(
            str(n), (f"{beginning}It is {n}: {'good ' * n}?", f"{beginning}Was it {n}?"), (("No", "Yes"),) * 2, 0
        )
        for n in range(1, 6)
    ]
    encoded = [PromptEncoder(tokenizer).encode(row) for row in rows]
    read = []
    hook = model.model.register_forward_pre_hook(
        lambda module, given, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    try:
        scores = score_instances(model, encoded, backend=backend, batch_tokens=10**6, quiet=True).scores
    finally:
        hook.remove()
    assert_scores(model, scores, np.array(naive_scores(model, encoded)))
    if backend == "packed":
        alike = len(tokenizer(beginning)["input_ids"])
        assert sum(len(each.trie) for each in encoded) - max(read) == 4 * alike
