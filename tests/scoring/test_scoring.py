"""Scores do not depend on batches, are computed once, and are checked."""

import functools
import itertools
import re
from collections import Counter
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from flip_flop import PromptEncoder, ScoringOptions, Task, audit, load_model, load_task, score
from flip_flop.prompts import RenderedInstance, Template, TemplateSet
from flip_flop.scoring import packed
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance
from flip_flop.scoring.scores import score_instances
from tests.exact import ROUNDED, assert_scores, in_float64
from tests.refused import refused
from tests.scoring.oracle import instances, naive_scores
from tests.scoring.tries import batches, batches_with_a_common_beginning
from tests.tiny import ARCHITECTURES, MORE_ARCHITECTURES, TOKENIZERS, byte_bpe, save_tiny, tiny_model

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
        assert table.values.shape == (5, 3, 2)
        assert table.values.dtype == np.float32
        assert_scores(model, table.values, expected[order])


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
    assert_scores(model, table.values, naive_scores(model, encoded))


@pytest.mark.parametrize(("batch_tokens", "rows"), [(1, 5), (100_000, 1)])
def test_packed_row_has_whole_instances_and_distinct_beginnings(batch_tokens, rows):
    model, encoded, _ = model_instances_and_naive_scores("qwen2", "byte_bpe")
    shapes = []
    hook = model.model.layers[0].register_forward_pre_hook(lambda layer, given: shapes.append(given[0].shape))
    score_instances(model, encoded, batch_tokens=batch_tokens, quiet=True)
    hook.remove()
    alone = sorted((1, len(beginnings(instance))) for instance in encoded)
    together = [(1, len(set().union(*map(beginnings, encoded))))]
    assert len(shapes) == rows
    assert sorted(shape[:2] for shape in shapes) == (alone if rows == 5 else together)


def beginnings(instance):
    """The distinct beginnings of the model's inputs, which lack the last token of an answer."""
    inputs = {answer.context + answer.tokens[:-1] for template in instance.answers for answer in template}
    return {sequence[:length] for sequence in inputs for length in range(1, len(sequence) + 1)}


@pytest.mark.parametrize("max_rows", [1, 7, 10**6])
@both_backends
def test_head_computes_few_rows_in_passes_whose_logits_fit(monkeypatch, backend, max_rows):
    model, encoded, expected = model_instances_and_naive_scores("qwen2", "byte_bpe")
    monkeypatch.setattr(packed, "MAX_LOGITS", max_rows * model.config.vocab_size)
    rows = []
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda head, given: rows.append(given[0].shape[:2]))
    scores = score_instances(model, encoded, backend=backend, batch_tokens=100_000, quiet=True).values
    hook.remove()
    assert_scores(model, scores, expected)
    most = max(len(answer_prefixes(instance)) for instance in encoded)
    assert all(lines * columns <= max(max_rows, most) for lines, columns in rows)
    if backend == "packed":
        contexts = [*map(answer_prefixes, encoded)]
        fewest = len(set().union(*contexts))
        computed = sum(columns for _, columns in rows)
        assert computed == sum(map(len, contexts)) if max_rows == 1 else fewest <= computed
        assert computed == fewest or max_rows < 100


def answer_prefixes(instance):
    """What precedes each answer token."""
    answers = [answer for template in instance.answers for answer in template]
    return {answer.context + answer.tokens[:offset] for answer in answers for offset in range(len(answer.tokens))}


@pytest.mark.parametrize("name", ["chat_template", "backend", "too_long", "by", "api"])
def test_an_unknown_choice_of_scoring_is_refused(name):
    refused(f"E-CONFIG: {name} is 'x'. Choose one of", ScoringOptions, **{name: "x"})


@pytest.mark.parametrize("value", [0, 1.5, "64", True, None])
@pytest.mark.parametrize("name", ["batch_tokens", "concurrency"])
def test_numbers_of_scoring_are_whole_and_positive(name, value):
    refused(f"E-CONFIG: {name} is {value!r}. Give a whole number", ScoringOptions, **{name: value})


def test_nonfinite_scores_are_rejected_with_instance():
    model = tiny_model("qwen2")
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = float("nan")
    refused(r"E-NONFINITE: .*'row-", score_instances, model, instances(byte_bpe()), quiet=True)


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
        found = score_instances(model, many, batch_tokens=8 * largest, quiet=True).values
        assert_scores(model, found, np.tile(expected, (12, 1, 1)))
        sizes = [record.args[1] for record in caplog.records if record.msg.startswith("W-MEMORY")]
        assert len(sizes) == 2  # copies of an instance need no more memory
        assert all(after < before for before, after in itertools.pairwise(sizes))
        largest = 1
        with pytest.raises(torch.OutOfMemoryError):
            score_instances(model, encoded, quiet=True)
    finally:
        hook.remove()


NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven")
SHARED = {
    "nothing": ("It is {row}: {text}?", "Was it {row}?"),
    "an instruction": ("Answer with one word.\n\nIt is {row}?", "Answer with one word.\n\nWas it {row}?"),
    "demonstrations": ("Dirty? No\nClean? Yes\nIt is {row}?", "Clean? Yes\nDirty? No\nIt is {row}?"),
    "a passage of every other row": ("{row} of {text}?", "{text} Was it {row}?"),
}


@both_backends
@pytest.mark.parametrize("shared", SHARED)
def test_shared_beginnings_are_computed_once_in_a_pass(backend, shared):
    tokenizer = byte_bpe()
    model = in_float64(tiny_model("qwen2", len(tokenizer)))
    passages = [f"{word} rooms " * 9 for word in ("Bad", "Good")]
    encoded = []
    for number, row in enumerate(NUMBERS):
        prompts = tuple(prompt.format(row=row, text=passages[number % 2]) for prompt in SHARED[shared])
        encoded.append(PromptEncoder(tokenizer).encode(RenderedInstance(row, prompts, (("No", "Yes"),) * 2, 0)))
    halves = [set().union(*map(beginnings, encoded[half::2])) for half in (0, 1)]
    batch_tokens = max(map(len, halves))
    read = []
    hook = model.model.register_forward_pre_hook(
        lambda module, given, named: read.append(named["input_ids"].numel()), with_kwargs=True
    )
    try:
        scores = score_instances(model, encoded, backend=backend, batch_tokens=batch_tokens, quiet=True).values
    finally:
        hook.remove()
    assert_scores(model, scores, np.array(naive_scores(model, encoded)))
    if backend == "packed":
        assert max(read) <= batch_tokens
        if "row" in shared:
            assert sum(read) == sum(map(len, halves))


# ---- each row once ----


PROMPTS = ("{{ text }} Good?", "Review: {{ text }} Is it good?", "{{ text }} It is")


def test_audit_tokenizes_and_scores_each_row_once(tmp_path, monkeypatch):
    templates = [Template(str(number), prompt, "No ||| Yes") for number, prompt in enumerate(PROMPTS)]
    rows = [{"text": f"The room was {number} times clean.", "label": "Yes"} for number in range(12)]
    task = Task("rooms", TemplateSet(tuple(templates)), {"test": rows}, labels=["No", "Yes"], label_field="label")
    loaded, texts, passes = load_model(str(save_tiny(tmp_path / "tiny"))), Counter(), []
    tokenize = PreTrainedTokenizerFast.__call__

    def count(tokenizer, batch, **options):
        texts.update([batch] if isinstance(batch, str) else batch)
        return tokenize(tokenizer, batch, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", count)
    hook = loaded.model.register_forward_pre_hook(lambda model, given, named: passes.append(named), with_kwargs=True)
    found = audit(loaded, task, quiet=True)
    hook.remove()
    prompts = [prompt for instance in found.instances for prompt in instance.prompts]
    assert {texts[prompt] for prompt in prompts} == {1}
    encoded, _, _ = loaded.encoder().encode_all(found.instances)
    packed = [named["input_ids"].numel() for named in passes if "packed" in named]
    assert len(packed) == 1 + 3  # the scores, then the preferred tokens of three rows
    assert packed[0] <= sum(len(instance.trie) for instance in encoded)
    alone = sum(named["input_ids"].numel() for named in passes if "packed" not in named)
    assert alone <= 2 * max(len(PROMPTS) * (instance.longest + 1) for instance in encoded)


@pytest.mark.slow
def test_dry_run_counts_the_tokens_of_the_passes(flip_flop, tmp_path):
    shown = flip_flop("audit", "--model", "demo", "--task", "demo", "--limit", 9, "--out", tmp_path, "--dry-run").out
    _, packed_tokens, longest = [int(number.replace(",", "")) for number in re.findall(r"([\d,]+) (?:n|p|an)", shown)]
    rows = load_task("demo").render("test", limit=9).instances
    encoded, _, _ = load_model("demo").encoder().encode_all(rows)
    read = [*map(beginnings, encoded)]
    assert (packed_tokens, longest) == (len(set().union(*read)), max(map(len, read)))


# ---- the self-check ----


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=3)))


def choices_task(count=12):
    """Prompts without any text of the row: one template's prompt is the beginning of the other two."""
    words = ["room", "clean", "quiet", "staff", "rude", "food", "cold", "view", "nice", "bed", "small"]
    draw = np.random.default_rng(0)
    rows = [
        {"a": " ".join(draw.choice(words, 4)), "b": " ".join(draw.choice(words, 4)), "label": number % 2}
        for number in range(count)
    ]
    prompts = ("Answer:", "Answer: This or which is it?", "Answer: This, the best ending is")
    templates = [
        Template(name, prompt + " ||| {{ answer_choices[label] }}", "{{ a }} ||| {{ b }}")
        for name, prompt in zip("abc", prompts, strict=True)
    ]
    return Task("choices", TemplateSet(tuple(templates)), {"test": rows}, labels=[0, 1], label_field="label")


@pytest.mark.slow
def test_record_has_number_and_largest_difference_of_checked_scores(loaded):
    checked = audit(loaded, choices_task(), quiet=True).record.scoring["self_check"]
    assert checked["num_scores"] == 2 * 3 * 2  # rows, templates, labels
    assert 0 <= checked["largest_difference"] < 1e-5
    many = audit(loaded, choices_task(count=700), quiet=True).record.scoring["self_check"]
    assert many["num_scores"] == 3 * 3 * 2


@pytest.mark.parametrize("error", [0.01, float("nan")])
def test_wrong_scores_stop_audit_with_instance_and_template(loaded, error):
    """A kernel that is wrong for rows longer than the sequences of this task."""

    def disturb(module, given, named, output):
        if output.last_hidden_state.shape[1] > 50:
            output.last_hidden_state[:, ::3] *= 1 + error

    audit(loaded, choices_task(), quiet=True)  # the model is probed once
    hook = loaded.model.model.register_forward_hook(disturb, with_kwargs=True)
    try:
        refused(
            "E-NONFINITE" if error != error else r"E-SELF-CHECK: .*'test-.*'[abc]'",
            audit,
            loaded,
            choices_task(),
            quiet=True,
        )
    finally:
        hook.remove()


def test_rounding_of_bfloat16_is_accepted(tmp_path):
    model = load_model(str(save_tiny(tmp_path / "tiny", seed=3)), dtype="bfloat16")
    checked = audit(model, choices_task(), quiet=True).record.scoring["self_check"]
    assert 1e-5 < checked["largest_difference"] < 0.5
    assert next(model.model.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize("backend", ["packed", "padded"])
def test_autocast_around_an_audit_changes_no_score(backend):
    loaded, rows = load_model("demo"), load_task("demo").instances("test", limit=3)
    expected = score(loaded, rows, ScoringOptions(backend=backend)).scores.values
    with torch.autocast("cpu", torch.bfloat16):
        assert np.array_equal(score(loaded, rows, ScoringOptions(backend=backend)).scores.values, expected)
        assert torch.is_autocast_enabled("cpu")


def test_score_takes_a_name_and_any_instances():
    rows = load_task("demo").instances("test", limit=3)
    expected = audit("demo", load_task("demo"), limit=3, quiet=True)
    for model, some in (("demo", rows), (load_model("demo"), iter(rows))):
        assert (score(model, some).scores.values == expected.scores).all()


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "There are no instances"),
        ([{"id": "a", "prompts": ["x"], "choices": [["a", "b"]]}], "A row is of type dict. Give rendered instances"),
        (load_task("demo"), "A row is of type Task"),
    ],
)
def test_score_refuses_other_rows(untyped, rows, words):
    refused(f"E-DATA-ROWS: {words}", score, "demo", rows)
