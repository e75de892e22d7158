"""The boundary rule. The rule as prose is in ``flip_flop.scoring.encode``; each sentence of it is a test here."""

from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, XLNetConfig

from flip_flop import PromptEncoder
from flip_flop.prompts import Chat, RenderedInstance
from tests.refused import refused
from tests.tiny import TOKENIZERS, byte_bpe, metaspace, random_model, tiny_model, with_chat_template, word_level

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=30)


def encode_pair(tokenizer, prompt, continuation):
    return PromptEncoder(tokenizer).encode_texts([(prompt, [continuation])])[0][0]


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request):
    return TOKENIZERS[request.param]()


def spanning_tokenizer():
    """``a`` and ``b`` make one token ``ab``: at a join of the two a token spans it."""
    vocabulary = {"a": 0, "b": 1, "ab": 2, " ": 3, "c": 4, "<end>": 5}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>")


def test_answer_token_includes_space():
    pair = encode_pair(byte_bpe(), "Is it good?", " Yes")
    assert byte_bpe().decode(pair.tokens) == " Yes"
    assert not pair.merged


def test_trailing_spaces_of_the_prompt_move_to_the_answer(tokenizer):
    moved = encode_pair(tokenizer, "Is it good? ", "Yes")
    assert moved == encode_pair(tokenizer, "Is it good?", " Yes")


@pytest.mark.parametrize(("prompt", "delimiter"), [("回答：", ""), ("答えは", ""), ("답변은", " "), ("Yes:", " ")])
def test_no_space_follows_a_script_without_spaces(prompt, delimiter):
    instance = RenderedInstance("", (prompt,), (("是", "no"),), None)
    (encoded,), _, _ = PromptEncoder(byte_bpe()).encode_all([instance])
    texts = [byte_bpe().decode(answer.context + answer.tokens) for answer in encoded.answers[0]]
    assert texts == [f"{prompt.rstrip()}{delimiter}{answer}" for answer in ("是", "no")]


@pytest.mark.parametrize(("prompt", "context"), [("ca", (4,)), ("a", (5,))])
def test_merged_token_is_cut_at_first_difference_after_one_token(prompt, context):
    pair = encode_pair(spanning_tokenizer(), prompt, "bc")
    assert (pair.context, pair.tokens, pair.merged) == (context, (2, 4), True)


@example(prompt=" ", answer="0", kind="byte_bpe")
@given(prompt=TEXT, answer=TEXT, kind=st.sampled_from(sorted(TOKENIZERS)))
def test_every_answer_has_tokens_and_text_is_complete(prompt, answer, kind):
    tokenizer = TOKENIZERS[kind]()
    alone = tokenizer(prompt.rstrip(" "), add_special_tokens=False)["input_ids"]
    together = tokenizer(prompt + " " + answer, add_special_tokens=False)["input_ids"]
    if alone[: len(together)] == together:
        # White space and text without tokens are refused.
        refused("E-TPL-EMPTY", encode_pair, tokenizer, prompt, " " + answer)
        return
    pair = encode_pair(tokenizer, prompt, " " + answer)
    assert pair.context
    assert pair.tokens
    assert list(pair.context + pair.tokens)[-len(together) :] == together


def test_exactly_one_bos_if_tokenizer_adds_one():
    tokenizer = metaspace()
    bos = tokenizer.bos_token_id
    instance = RenderedInstance("1", ("Is it good?", "<s>Is it good?"), (("No", "Yes"), ("No", "Yes")), None)
    for template in PromptEncoder(tokenizer).encode(instance).answers:
        for answer in template:
            assert (answer.context + answer.tokens).count(bos) == 1
            assert answer.context[0] == bos
    assert PromptEncoder(byte_bpe()).bos is None


@pytest.mark.parametrize(
    ("chat_template", "texts"),
    [("auto", ("<|user|>\nIs it good?</s>\n<|assistant|>\n", "Yes")), ("off", ("Is it good?", " Yes"))],
)
def test_delimiter_is_space_except_after_generation_prompt(chat_template, texts):
    tokenizer = with_chat_template(byte_bpe())
    instance = RenderedInstance("1", ("Is it good?",), (("No", "Yes"),), None)
    answer = PromptEncoder(tokenizer, chat_template).encode(instance).answers[0][1]
    assert (tokenizer.decode(answer.context), tokenizer.decode(answer.tokens)) == texts


@pytest.mark.parametrize("kind", [byte_bpe, metaspace])
@pytest.mark.parametrize("start", ["", "{{ bos_token }}"])
def test_chat_prompt_tokens_match_tokenizer(kind, start):
    tokenizer = with_chat_template(kind())
    tokenizer.chat_template = start + tokenizer.chat_template
    turns = [{"role": "user", "content": "Is it good?"}]
    own = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    (answers,) = (
        PromptEncoder(tokenizer).encode(RenderedInstance("1", ("Is it good?",), (("No", "Yes"),), None)).answers
    )
    assert [list(answer.context) for answer in answers] == [own, own]


def test_context_of_minus_one_is_unlimited():
    model = random_model(XLNetConfig(vocab_size=400, d_model=32, n_layer=1, n_head=4, d_inner=48))
    assert PromptEncoder.of(model, byte_bpe()).max_length is None


REFUSED = [
    (word_level, 400, "Is it good?", ("Xylem", "Quark"), "E-LABEL: .*'row-7', template number 2: .*'Xylem'"),
    (word_level, 400, "Is it good?", ("No", "  "), "E-TPL-EMPTY: The answer .* has no tokens after"),
    (byte_bpe, 400, "long " * 300, ("No", "Yes"), "E-TOO-LONG: .* 256 tokens: 'row-7' has 1203 .* template number 2"),
    (byte_bpe, 50, "Is it good?", ("No", "Yes"), "E-MODEL-FILE: .*vocabulary ends at 49"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "vocab_size", "prompt", "answers", "words"), REFUSED)
def test_instance_without_scores_is_rejected_with_its_place(kind, vocab_size, prompt, answers, words):
    encoder = PromptEncoder.of(tiny_model("qwen2", vocab_size), kind())
    refused(words, encoder.encode, RenderedInstance("row-7", ("Good?", prompt), (("No", "Yes"), answers), None))


def chat_of(tokenizer, chat, prompt="Is it good?"):
    instance = RenderedInstance("0", (prompt,), (("No", "Yes"),), None, chat)
    encoder = PromptEncoder(tokenizer)
    answer = encoder.encode(instance).answers[0][1]
    return encoder.as_read(instance).prompts[0], tokenizer.decode(answer.context + answer.tokens)


def test_chat_has_system_message_values_and_assistant_prefix():
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template += "{% if not enable_thinking %}<think></think>{% endif %}"
    chat = Chat("Be brief.", "Answer:", {"enable_thinking": False})
    expected = "<|system|>\nBe brief.</s>\n<|user|>\nIs it good?</s>\n<|assistant|>\n<think></think>Answer:"
    assert chat_of(tokenizer, chat) == (expected, f"{expected} Yes")
    open_end = replace(chat, assistant_prefix="Answer:\n", chat_template_kwargs={"enable_thinking": True})
    assert chat_of(tokenizer, open_end)[1].endswith("<|assistant|>\nAnswer:\nYes")


def test_unset_enable_thinking_warns_once(caplog):
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template += "{% if enable_thinking %}<think>{% endif %}"
    for _ in range(2):
        chat_of(tokenizer, Chat())
    assert caplog.text.count("W-CHAT") == 1


def test_labels_inside_reasoning_warn(caplog):
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template += "{% if add_generation_prompt %}<think>\n{% endif %}"
    assert chat_of(tokenizer, Chat(assistant_prefix="</think>\n\n"))[0].endswith("<think>\n</think>\n\n")
    assert caplog.text == ""
    chat_of(tokenizer, Chat())
    assert "W-CHAT: the prompt begins reasoning" in caplog.text


SKIPS_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}<t>{{ m.role }}\n{{ m.content }}</t>\n{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("chat", "unused"),
    [
        (Chat("Be brief."), "system"),
        (Chat(chat_template_kwargs={"enable_thinking": False}), "chat_template_kwargs"),
        (Chat("Be brief.", "Answer:", {"mood": 1}), "system"),
        (Chat(chat_template_kwargs={"mood": 1}), None),
        (Chat(assistant_prefix="Answer:"), None),
    ],
)
def test_a_chat_setting_that_changes_nothing_is_named_once(chat, unused, caplog):
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template = SKIPS_SYSTEM + "{{ mood }}<t>model\n"
    for prompt in ("Is it good?", "Is it bad?"):
        chat_of(tokenizer, chat, prompt)
    expected = [f"W-CHAT: {unused} changes nothing in the prompt of this model's chat template."]
    assert caplog.messages == (expected if unused else [])


def test_a_chat_setting_that_the_template_needs_is_used(caplog):
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template = SKIPS_SYSTEM + "{{ mood if mood is defined else raise_exception('no mood') }}"
    chat_of(tokenizer, Chat(chat_template_kwargs={"mood": 1}))
    assert caplog.messages == []


NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('No system role') }}{% endif %}"
REFUSED_CHATS = [
    (None, Chat("Be brief."), "The task has system, .* the tokenizer does not have one"),
    (NO_SYSTEM, Chat("Be brief."), r".*with system: No system role\. Remove system"),
    (
        NO_SYSTEM,
        Chat(chat_template_kwargs={"chat_template": "x"}),
        "'chat_template' is reserved in chat_template_kwargs",
    ),
]


@pytest.mark.parametrize(("chat_template", "chat", "words"), REFUSED_CHATS)
def test_chat_settings_that_the_tokenizer_does_not_take_are_rejected(chat_template, chat, words):
    tokenizer = with_chat_template(byte_bpe())
    tokenizer.chat_template = chat_template
    refused(f"E-CHAT-TEMPLATE: {words}", chat_of, tokenizer, chat)


def test_a_chat_template_that_drops_the_prompt_is_rejected():
    tokenizer = with_chat_template(byte_bpe())
    # It reads the parts of a multimodal message, and the content is a text.
    tokenizer.chat_template = "{% for part in messages[-1].content %}{{ part.text }}{% endfor %}<model>"
    refused("E-CHAT-TEMPLATE: .*its text lacks the prompt. Use --chat-template off", chat_of, tokenizer, Chat())
    tokenizer.chat_template = "{{ messages[-1].content.split() | join(' ') }}<model>"
    assert chat_of(tokenizer, Chat(), "Is  it\ngood?") is not None


def test_chat_template_cannot_be_forced_without_one():
    refused("E-CHAT-TEMPLATE", PromptEncoder, byte_bpe(), "on")
