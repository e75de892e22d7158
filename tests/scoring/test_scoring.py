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
from torch.utils._python_dispatch import TorchDispatchMode

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import EncodedAnswer, EncodedInstance, PromptEncoder, attention, score_instances
from flip_flop.scoring.answers import answer_states
from flip_flop.scoring.causal_lm import check_head, head_logits
from flip_flop.scoring.support import choose_backend
from tests.exact import EXACT, ROUNDED, assert_scores, in_float64
from tests.scoring.made import instances
from tests.scoring.oracle import naive_scores
from tests.scoring.tries import batches, batches_with_a_common_beginning
from tests.tiny import (
    ARCHITECTURES,
    CONFIGS,
    MORE_ARCHITECTURES,
    TOKENIZERS,
    byte_bpe,
    random_model,
    tiny_model,
)

every_architecture = pytest.mark.parametrize("architecture", [*ARCHITECTURES, *MORE_ARCHITECTURES])
both_backends = pytest.mark.parametrize("backend", ["packed", "padded"])


@functools.cache
def model_instances_and_naive_scores(architecture, kind):
    tokenizer = TOKENIZERS[kind]()
    model, encoded = in_float64(tiny_model(architecture, len(tokenizer))), instances(tokenizer)
    return model, encoded, np.array(naive_scores(model, encoded))


@pytest.mark.parametrize("tokenizer_kind", TOKENIZERS)
@both_backends
@every_architecture
def test_scores_are_mean_log_probabilities_in_any_order_and_batch(architecture, tokenizer_kind, backend):
    model, encoded, expected = model_instances_and_naive_scores(architecture, tokenizer_kind)
    for batch_tokens, order in ((1, [3, 0, 4, 2, 1]), (150, [4, 2, 0, 1, 3]), (100_000, [0, 1, 2, 3, 4])):
        chosen = [encoded[number] for number in order]
        table = score_instances(model, chosen, backend=backend, batch_tokens=batch_tokens, quiet=True)
        assert table.scores.shape == (5, 3, 2)
        assert table.scores.dtype == np.float32
        assert table.settings["backend"] == backend
        assert_scores(model, table.scores, expected[order])


@both_backends
@every_architecture
def test_float32_scores_match_within_rounding(architecture, backend):
    _, encoded, expected = model_instances_and_naive_scores(architecture, "byte_bpe")
    model = tiny_model(architecture)
    scores = score_instances(model, encoded, backend=backend, quiet=True).scores
    assert_scores(model, scores, expected)


# An answer's branch precedes the longer prompt in depth-first order, and every other node descends from both prompts.
BRANCH_FIRST = [[((1,), (1, 2)), ((1,), (1, 3))], [((1, 2), (3,)), ((1, 2), (2,))]]


@settings(max_examples=25)
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
    choose_backend(model, encoded, "packed")
    shapes.clear()  # without the shapes of the probe
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


def test_log_softmax_is_float32_for_any_dtype():
    model = tiny_model("qwen2").to(torch.bfloat16)
    states = answer_states(model, instances(byte_bpe(), 1))
    assert states.hidden.dtype == torch.bfloat16
    assert head_logits(model, states.hidden).dtype == torch.float32
    assert states.scores(model).dtype == torch.float32


@pytest.mark.parametrize("batch_tokens", [1, 100_000])
@both_backends
def test_head_computes_answer_rows_once(backend, batch_tokens):
    model = tiny_model("qwen2")
    encoded = instances(byte_bpe())
    choose_backend(model, encoded, "packed")  # the rows of its trial, once for each model
    rows = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, arguments: rows.append(arguments[0]))
    score_instances(model, encoded, backend=backend, batch_tokens=batch_tokens, quiet=True)
    hook.remove()
    prefixes = {
        (instance.id, answer.context + answer.tokens[:offset])
        for instance in encoded
        for template in instance.answers
        for answer in template
        for offset in range(len(answer.tokens))
    }
    assert sum(len(part) for part in rows) == len(prefixes)
    assert all(part.dim() == 2 for part in rows)


@both_backends
def test_forward_has_no_batch_sequence_vocabulary_tensor(backend):
    model = tiny_model("qwen2", vocab_size=3001)
    encoded = instances(byte_bpe())
    largest = 0

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
            nonlocal largest
            result = function(*arguments, **(keywords or {}))
            if isinstance(result, torch.Tensor) and result.dim() and result.shape[-1] == 3001:
                largest = max(largest, result.numel() // 3001)
            return result

    with Watch():
        score_instances(model, encoded, backend=backend, batch_tokens=100_000, quiet=True)
    num_rows = sum(len(np.unique(instance.trie.token_node)) for instance in encoded)
    num_positions = sum(len(sequence) for instance in encoded for sequence in inputs(instance))
    assert largest == min(num_rows, 64) < num_positions / 4


def test_head_computes_chunks_without_gradient(monkeypatch):
    model, encoded, expected = model_instances_and_naive_scores("qwen2", "byte_bpe")
    monkeypatch.setattr("flip_flop.scoring.causal_lm.HEAD_ROWS", 4)
    assert_scores(model, score_instances(model, encoded, quiet=True).scores, expected)


def test_unknown_soft_cap_is_rejected():
    model = tiny_model("qwen2")
    model.get_output_embeddings().register_forward_hook(lambda head, arguments, output: 3 * output)
    plain = model.forward
    model.forward = lambda *args, **kwargs: _scaled(plain(*args, **kwargs))
    with pytest.raises(InputError, match="E-MODEL-KIND"):
        check_head(model)


def _scaled(output):
    output.logits = torch.tanh(output.logits)
    return output


def test_nonfinite_scores_are_rejected_with_instance():
    model = tiny_model("qwen2")
    check_head(model)  # checks a model once
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


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
@torch.no_grad()
def test_mask_kernel_scores_match_path_attention(monkeypatch, architecture):
    model = in_float64(tiny_model(architecture))
    encoded = instances(byte_bpe(), 3)
    expected = answer_states(model, encoded).scores(model)
    monkeypatch.setitem(attention.KERNELS, "cpu", "mask")
    monkeypatch.setattr(attention.PathAttention, "apply", None)  # the other kernel is not called
    torch.testing.assert_close(answer_states(model, encoded).scores(model), expected, rtol=EXACT, atol=0)


@pytest.mark.parametrize("architecture", ["qwen2", "gpt_neox"])
def test_mask_kernel_gradients_match_path_attention(monkeypatch, architecture):
    model, encoded = in_float64(tiny_model(architecture)), instances(byte_bpe(), 3)

    def gradients():
        model.zero_grad()
        answer_states(model, encoded).scores(model).sum().backward()
        return {name: weight.grad for name, weight in model.named_parameters()}

    expected = gradients()
    monkeypatch.setitem(attention.KERNELS, "cpu", "mask")
    for name, found in gradients().items():
        torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-12 * float(expected[name].abs().max() + 1))


class Count(TorchDispatchMode):
    """How many operations were asked of the device; views ask for none."""

    number = 0

    def __torch_dispatch__(self, function, types, given=(), named=None):
        self.number += not function.is_view
        return function(*given, **(named or {}))


def test_mask_kernel_launches_about_as_many_operations_as_padded(monkeypatch):
    """Answers of several tokens have many blocks."""
    encoded = instances(byte_bpe(), 3)

    def operations(backend, kernel):
        """Of a layer, forward and backward: three layers less one, by two."""
        monkeypatch.setitem(attention.KERNELS, "cpu", kernel)
        counts = []
        for layers in (1, 3):
            settings = dict(CONFIGS["qwen2"][1], num_hidden_layers=layers)
            model = random_model(CONFIGS["qwen2"][0](**settings, vocab_size=400), attn_implementation="sdpa")
            with Count() as count:
                answer_states(model, encoded, backend=backend).scores(model).sum().backward()
            counts.append(count.number)
        return (counts[1] - counts[0]) / 2

    padded, one_mask, blocks = (
        operations(*each) for each in (("padded", "sdpa"), ("packed", "mask"), ("packed", "sdpa"))
    )
    assert one_mask < 1.25 * padded
    assert attention.KERNELS["cuda"] == "mask"
    assert blocks > one_mask


def test_out_of_memory_divides_forward(caplog):
    model, encoded, expected = model_instances_and_naive_scores("qwen2", "byte_bpe")
    largest, forwards = max(len(each.trie) for each in encoded), []

    def refuse(module, given, named):
        forwards.append(named["input_ids"].numel())
        if forwards[-1] > 2 * largest:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        assert_scores(model, score_instances(model, encoded, batch_tokens=10**6, quiet=True).scores, expected)
        assert "W-MEMORY" in caplog.text
        forwards.clear()
        largest = 1
        with pytest.raises(torch.OutOfMemoryError):
            score_instances(model, encoded, quiet=True)
    finally:
        hook.remove()


def test_the_forward_size_never_rises_after_an_out_of_memory_error(caplog):
    model, encoded, _ = model_instances_and_naive_scores("qwen2", "byte_bpe")
    many = [replace(each, id=f"{each.id} again {number}") for number in range(12) for each in encoded]
    largest = max(len(each.trie) for each in encoded)

    def refuse(module, given, named):
        if named["input_ids"].numel() > largest:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    hook = model.model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        score_instances(model, many, batch_tokens=8 * largest, quiet=True)
    finally:
        hook.remove()
    sizes = [record.args[1] for record in caplog.records if record.msg.startswith("W-MEMORY")]
    assert len(sizes) > 2
    assert all(after < before for before, after in itertools.pairwise(sizes))


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
