"""Scores match HFLM of lm-eval in float64."""

import copy

import numpy as np
import pytest

from flip_flop.scoring.scores import score_instances
from tests.exact import ROUNDED, assert_scores, in_float64
from tests.scoring.oracle import instances, rows
from tests.tiny import TOKENIZERS, tiny_model

NOT_THERE = "lm-eval, of the development group, is not installed"
Instance = pytest.importorskip("lm_eval.api.instance", reason=NOT_THERE).Instance
HFLM = pytest.importorskip("lm_eval.models.huggingface", reason=NOT_THERE).HFLM

pytestmark = [
    pytest.mark.parametrize("backend", ["padded", "packed"]),
    pytest.mark.parametrize("architecture", ["qwen2", "gpt2"]),
]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    # lm-eval gives a tokenizer without a pad token one.
    return copy.deepcopy(TOKENIZERS[request.param]())


def ours(model, encoded, backend):
    return score_instances(model, encoded, backend=backend, quiet=True)


def assert_same(model, table, log_likelihoods):
    """lm-eval gives sums: the mean is over the tokens that both count."""
    sums = np.array([value for value, _ in log_likelihoods]).reshape(table.values.shape)
    theirs = sums / table.token_counts
    assert_scores(model, table.values, theirs)
    # Labels that score alike would hide a swap. The tokenizers are trained in each process, so a few may.
    apart = np.ptp(theirs, axis=-1) > 2 * ROUNDED * np.abs(theirs).max()
    assert apart.mean() > 0.8
    np.testing.assert_array_equal(table.values.argmax(axis=-1)[apart], theirs.argmax(axis=-1)[apart])


@pytest.mark.slow
@pytest.mark.parametrize("logits_cache", [True, False])
def test_tokens_and_scores_match_lm_eval(architecture, tokenizer, backend, logits_cache):
    model = in_float64(tiny_model(architecture, len(tokenizer)))
    encoded = instances(tokenizer)
    harness = HFLM(pretrained=model, tokenizer=tokenizer, backend="causal", batch_size=4, logits_cache=logits_cache)
    requests = []
    for row, instance in zip(rows(), encoded, strict=True):
        for prompt, choices, answers in zip(row.prompts, row.choices, instance.answers, strict=True):
            for choice, answer in zip(choices, answers, strict=True):
                texts = (prompt, f" {choice}")
                assert harness._encode_pair(*texts) == (list(answer.context), list(answer.tokens))
                requests.append(Instance(request_type="loglikelihood", doc={}, arguments=texts, idx=0))
    assert_same(model, ours(model, encoded, backend), harness.loglikelihood(requests, disable_tqdm=True))
