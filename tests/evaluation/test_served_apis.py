"""Each API of a server: exact scores equal local scores, and run.json marks the others."""

import numpy as np
import pytest
import torch

from flip_flop import ScoringOptions, audit
from flip_flop.errors import InputError
from flip_flop.prompts import Template
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.served import serving
from tests.tiny import metaspace, tiny_model, with_chat_template

pytest.importorskip("openai", reason="the package openai is not installed")
CHAT, OFF = ScoringOptions(chat_template="on"), ScoringOptions(chat_template="off")


def pair_of(kind, loaded):
    """A model and its tokenizer with a chat template. In metaspace, a token may span prompt and answer."""
    if kind == "byte_bpe":
        return loaded.model, with_chat_template(loaded.tokenizer)
    return tiny_model("llama", vocab_size=len(metaspace())), with_chat_template(metaspace())


@pytest.fixture
def served(loaded, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with serving(loaded.model, with_chat_template(loaded.tokenizer)) as found:
        yield found


@pytest.mark.parametrize(
    ("kind", "options", "api", "tokenizer"),
    [
        ("llama", OFF, "grammar", "metaspace"),
        ("vllm", ScoringOptions(), "prompt_logprobs", "byte_bpe"),
        ("vllm", CHAT, "prompt_logprobs", "byte_bpe"),
        ("llama", CHAT, "grammar", "byte_bpe"),
        ("llama", OFF, "grammar", "byte_bpe"),
        ("completions", OFF, "echo", "byte_bpe"),
    ],
)
def test_exact_api_is_found_and_matches_local_scores(loaded, tmp_path, monkeypatch, kind, options, api, tokenizer):
    pair = pair_of(tokenizer, loaded)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    local = ScoringOptions(chat_template="off" if options.chat_template == "off" else "on")
    with serving(*pair) as (server, name):
        server.kind = kind
        theirs = audit(name, make_task(), quiet=True, scoring=options)
    ours = audit(pair, make_task(), quiet=True, scoring=local)
    assert np.abs(theirs.scores - ours.scores).max() < 1e-5
    assert (theirs.token_counts == ours.token_counts).all()
    how = theirs.record.scoring
    assert (how["api"], how["exact"], how["chat_template"]) == (api, True, local.chat_template == "on")
    assert how["boundary_merged"] == ours.record.scoring["boundary_merged"]


def test_api_is_probed_once(served):
    server, name = served
    server.kind = "vllm"
    found = audit(name, make_task(), quiet=True)
    assert sum("echo" in each for each in server.requests) == 1
    assert found.record.scoring["num_asked"] == found.scores.size


def first_tokens(model, tokenizer, instances, num_top):
    """The log-probability of the longest token that begins each answer, among the most probable ones."""
    found = np.full((len(instances), len(instances[0].prompts), len(instances[0].choices[0])), np.nan)
    for row, instance in enumerate(instances):
        for at, (prompt, choices) in enumerate(zip(instance.prompts, instance.choices, strict=True)):
            turns = [{"role": "user", "content": prompt}]
            text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            with torch.no_grad():
                logits = model(torch.tensor([tokenizer(text)["input_ids"]])).logits[0, -1].double()
            top = logits.log_softmax(-1).topk(num_top)
            texts = [tokenizer.decode([each]).strip() for each in top.indices.tolist()]
            for label, choice in enumerate(choices):
                begun = [(len(text), value) for text, value in zip(texts, top.values.tolist(), strict=True)
                         if text and choice.startswith(text)]  # fmt: skip
                found[row, at, label] = max(begun, default=(0, np.nan))[1]
    return found


def test_first_tokens_are_scored_with_top_logprobs(served, loaded):
    server, name = served
    server.kind, server.num_top = "chat", 400
    task = make_task()
    found = audit(name, task, quiet=True)
    expected = first_tokens(loaded.model, server.tokenizer, [*found.instances], 400)
    assert np.abs(found.scores - expected).max() < 1e-5
    assert (found.record.scoring["api"], found.record.scoring["exact"]) == ("top_logprobs", False)
    assert found.record.scoring["num_asked"] == found.predictions.size  # one request for all labels
    mass = found.metrics["own_label_mass_per_template"]
    assert list(mass.values()) == pytest.approx(np.exp(expected).sum(axis=2).mean(axis=0))


def test_unlisted_first_tokens_have_an_upper_bound_or_no_label(served, loaded):
    server, name = served
    server.kind, server.num_top = "chat", 20
    found = audit(name, make_task(), quiet=True)
    expected = first_tokens(loaded.model, server.tokenizer, [*found.instances], 20)
    every = first_tokens(loaded.model, server.tokenizer, [*found.instances], 400)
    is_listed = np.isfinite(expected)
    assert np.abs(found.scores - expected)[is_listed].max() < 1e-5
    has_label = is_listed.any(axis=2)
    assert 0 < has_label.mean() < 1
    assert ((found.predictions < 0) == ~has_label).all()
    bounded = ~is_listed & has_label[:, :, None]
    assert (found.scores[bounded] >= every[bounded] - 1e-6).all()
    assert found.metrics["unmapped_share"] == pytest.approx(1 - has_label.mean())


@pytest.mark.parametrize("choices", ["New York ||| New Jersey ||| Ohio", "Yes ||| Yesterday ||| No"])
def test_answers_with_equal_beginnings_are_refused(served, choices):
    served[0].kind = "chat"
    task = make_task(templates=[*TEMPLATES[:2], Template("place", "{{ text }}?", choices)])
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: Template 'place': the answers .* begin alike"):
        audit(served[1], task, quiet=True)


def test_ambiguous_first_token_is_refused(served):
    served[0].kind = "chat"
    served[0].chat = lambda asked: (
        ({"message": {"content": "x"}, "logprobs": {"content": [{"top_logprobs": [
            {"token": "S", "logprob": -0.1}, {"token": "Ohio", "logprob": -3.0}]}]}},
         {"prompt_tokens": 1, "completion_tokens": 1}), {},
    )  # fmt: skip
    task = make_task(templates=[Template("topic", "{{ text }}?", "Sports ||| Sci/Tech ||| Ohio")] * 1)
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: .*template 'topic'.* does not identify"):
        audit(served[1], task, quiet=True)


def test_log_probabilities_after_the_grammar_are_refused(served):
    served[0].kind = "llama after"
    with pytest.raises(InputError, match=r"E-ENDPOINT-LOGPROBS: Instance 'test-1', template 'plain'.* 3\.00"):
        audit(served[1], make_task(), quiet=True, scoring=OFF)


def test_other_text_of_the_chat_template_is_not_scored_as_answer(served):
    """As Qwen3's template, which writes an empty thought before an answer that is in the chat already."""
    served[0].kind = "vllm"
    rendered = served[0].rendered
    served[0].rendered = lambda turns: rendered(turns).replace(
        "<|assistant|>\n", "<|assistant|>\n" + "()" * (len(turns) - 1)
    )
    found = audit(served[1], make_task(), quiet=True)
    assert found.record.scoring["api"] == "top_logprobs"


@pytest.mark.parametrize(
    "given", [{"api": "echo", "chat_template": "on"}, {"api": "top_logprobs", "chat_template": "off"}]
)
def test_api_that_does_not_fit_is_refused(served, given):
    with pytest.raises(InputError, match=r"E-CHAT-TEMPLATE: --api"):
        audit(served[1], make_task(), quiet=True, scoring=ScoringOptions(**given))


@pytest.mark.parametrize(("model", "warns"), [("tiny", False), ("Tiny-1B-Instruct", True), ("gemma-2-2b-it", True)])
def test_instruct_model_without_chat_template_is_warned_about(served, caplog, model, warns):
    audit(served[1].replace("#tiny", f"#{model}"), make_task(make_rows(1)), quiet=True)
    assert ("W-CHAT" in caplog.text) == warns


def test_dry_run_estimates_and_writes_nothing(served, flip_flop, tmp_path):
    before = {*tmp_path.rglob("*")}
    common = ["--task", "demo", "--limit", "10", "--out", tmp_path / "out", "--dry-run"]
    found = flip_flop("audit", "--model", served[1], *common, "--price-in", "2", "--price-out", "8")
    assert found.code == 0, found.err
    assert "requests: " in found.out
    assert "price: " in found.out
    assert "time: " in found.out
    local = flip_flop("audit", "--model", "demo", *common)
    assert "naive" in local.out
    assert {*tmp_path.rglob("*")} == before
