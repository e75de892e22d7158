"""Scores do not depend on how they were computed, and nothing larger than needed is computed."""

import numpy as np
import pytest
import torch

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import PromptEncoder, score_instances
from flip_flop.scoring.answers import index_answers
from flip_flop.scoring.head import check_head, decoder_of, head_logits
from flip_flop.scoring.padded import padded_hidden_states
from flip_flop.scoring.scorer import AnswerStates, answer_states
from tests.scoring.oracle import naive_scores
from tests.tiny import ARCHITECTURES, TOKENIZERS, byte_bpe, tiny_model, with_chat_template

NATS = 2e-6


def instances(tokenizer, count=5):
    """5 instances, 3 templates, 2 labels of one and several tokens; prompts of different lengths."""
    rendered = [
        RenderedInstance(
            id=f"row-{number}",
            prompts=(
                f"The food was {'very ' * number}good. Positive?",
                f"Question: {'room ' * (7 - number)}is it dirty? Answer:",
                "Hypothesis",
            ),
            choices=(("No", "Yes"), ("False", "True, guaranteed"), ("Never", "Maybe, not sure")),
            label=None,
        )
        for number in range(count)
    ]
    return [PromptEncoder(tokenizer).encode(row) for row in rendered]


@pytest.fixture(params=ARCHITECTURES)
def architecture(request):
    return request.param


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def test_scores_are_the_mean_log_probability_of_the_answers_own_tokens(architecture, tokenizer):
    model = tiny_model(architecture, len(tokenizer))
    encoded = instances(tokenizer)
    scores = score_instances(model, encoded, quiet=True).scores
    assert scores.shape == (5, 3, 2)
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, naive_scores(model, encoded), rtol=0, atol=NATS)


def test_scores_under_a_chat_template_are_those_of_the_text_it_makes():
    tokenizer = with_chat_template(byte_bpe())
    model = tiny_model("llama", len(tokenizer))
    encoded = instances(tokenizer, 2)
    scores = score_instances(model, encoded, quiet=True).scores
    np.testing.assert_allclose(scores, naive_scores(model, encoded), rtol=0, atol=NATS)


@pytest.mark.parametrize("batch_tokens", [1, 30, 100_000])
def test_scores_do_not_depend_on_the_batch_size(architecture, batch_tokens):
    model = tiny_model(architecture)
    encoded = instances(byte_bpe())
    expected = score_instances(model, encoded, quiet=True).scores
    scores = score_instances(model, encoded, batch_tokens=batch_tokens, quiet=True).scores
    np.testing.assert_allclose(scores, expected, rtol=0, atol=NATS)


def test_scores_do_not_depend_on_the_order(architecture):
    model = tiny_model(architecture)
    encoded = instances(byte_bpe())
    expected = score_instances(model, encoded, quiet=True).scores
    order = [3, 0, 4, 2, 1]
    scores = score_instances(model, [encoded[number] for number in order], quiet=True).scores
    np.testing.assert_allclose(scores, expected[order], rtol=0, atol=NATS)


def test_scores_do_not_depend_on_the_padding_side(architecture):
    model = tiny_model(architecture)
    index = index_answers(instances(byte_bpe()))
    with torch.no_grad():
        sides = [
            AnswerStates(padded_hidden_states(decoder_of(model), index, padding_side=side), index).scores(model)
            for side in ("right", "left")
        ]
    torch.testing.assert_close(sides[0], sides[1], rtol=0, atol=NATS)


def test_the_log_softmax_is_float32_whatever_the_models_dtype():
    model = tiny_model("qwen2").to(torch.bfloat16)
    states = answer_states(model, instances(byte_bpe(), 1))
    assert states.hidden.dtype == torch.bfloat16
    assert head_logits(model, states.hidden).dtype == torch.float32
    assert states.scores(model).dtype == torch.float32


def test_each_distinct_sequence_is_forwarded_once():
    encoded = instances(byte_bpe(), 1)
    index = index_answers([encoded[0], encoded[0]])
    assert len(index.sequences) == len(set(index.sequences))
    beginnings = [a for a in index.sequences for b in index.sequences if a != b and b[: len(a)] == a]
    assert not beginnings


def test_an_answer_of_one_token_adds_no_input():
    row = RenderedInstance("1", ("The food was",), (("good", "not", "very"),), None)
    encoded = PromptEncoder(byte_bpe()).encode(row)
    assert [len(answer.tokens) for answer in encoded.answers[0]] == [1, 1, 2]
    index = index_answers([encoded])
    # One sequence for all three: the prompt, and the first token of the only answer that has a second.
    assert index.sequences == (encoded.answers[0][2].inputs,)
    assert len(index.row_position) == 2


def test_only_answer_rows_reach_the_head_each_once():
    model = tiny_model("qwen2")
    encoded = instances(byte_bpe())
    rows = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, arguments: rows.append(arguments[0]))
    score_instances(model, encoded, batch_tokens=100_000, quiet=True)
    hook.remove()
    prefixes = {
        answer.context + answer.tokens[:offset]
        for instance in encoded
        for template in instance.answers
        for answer in template
        for offset in range(len(answer.tokens))
    }
    assert sum(len(part) for part in rows) == len(prefixes)
    assert all(part.dim() == 2 for part in rows)


def test_an_audits_forward_holds_no_tensor_of_batch_sequence_vocabulary():
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
        score_instances(model, encoded, batch_tokens=100_000, quiet=True)
    num_rows = len(index_answers(encoded).row_position)
    num_positions = sum(len(sequence) for sequence in index_answers(encoded).sequences)
    assert largest == min(num_rows, 64) < num_positions / 4


def test_the_head_sees_its_rows_in_chunks_where_there_is_no_gradient(monkeypatch):
    model = tiny_model("qwen2")
    encoded = instances(byte_bpe())
    expected = score_instances(model, encoded, quiet=True).scores
    monkeypatch.setattr("flip_flop.scoring.head.HEAD_ROWS", 4)
    np.testing.assert_allclose(score_instances(model, encoded, quiet=True).scores, expected, rtol=0, atol=NATS)


def test_decoder_and_head_apart_give_the_models_own_logits(architecture):
    check_head(tiny_model(architecture))


def test_a_soft_cap_that_is_not_known_is_noticed():
    model = tiny_model("qwen2")
    model.get_output_embeddings().register_forward_hook(lambda head, arguments, output: 3 * output)
    plain = model.forward
    model.forward = lambda *args, **kwargs: _scaled(plain(*args, **kwargs))
    with pytest.raises(InputError, match="E-MODEL-KIND"):
        check_head(model)


def _scaled(output):
    output.logits = torch.tanh(output.logits)
    return output


def test_scores_that_are_not_finite_are_refused_with_the_instance():
    model = tiny_model("qwen2")
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = float("nan")
    with pytest.raises(InputError, match=r"E-NONFINITE: .*'row-"):
        score_instances(model, instances(byte_bpe()), quiet=True)


def test_the_own_label_mass_is_the_probability_of_the_templates_answers():
    model = tiny_model("qwen2")
    encoded = instances(byte_bpe(), 2)
    table = score_instances(model, encoded, quiet=True)
    naive = np.array(naive_scores(model, encoded))
    counts = np.array([[[len(a.tokens) for a in row] for row in instance.answers] for instance in encoded])
    np.testing.assert_allclose(table.own_label_mass, np.exp(naive * counts).sum(axis=-1), rtol=1e-4)


def test_a_model_without_a_pad_token_is_scored_like_any_other():
    tokenizer = byte_bpe()
    assert tokenizer.pad_token is None
    encoded = instances(tokenizer)
    model = tiny_model("gpt2", len(tokenizer))
    np.testing.assert_allclose(
        score_instances(model, encoded, quiet=True).scores, naive_scores(model, encoded), rtol=0, atol=NATS
    )
