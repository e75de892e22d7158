"""Labels of generated answers, which follow the reasoning of a model."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.reading import Reader
from tests.cases import read_groups

WORDS = ["no", "yes", "entailment", "Sci/Tech", "not sure", "是", "ไม่"]


def label_of(text, choices):
    return Reader("label", choices=tuple(choices)).read(text).answer


answers = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4, unique=True)


@pytest.mark.parametrize("case", read_groups("reading/labels.yaml"))
def test_label_of_a_text(case):
    assert label_of(case["text"], case["choices"]) == case["label"]


@given(answers, st.data(), st.text(st.sampled_from(string.punctuation + " "), max_size=3))
def test_single_answer_is_its_label(choices, data, space):
    label = data.draw(st.integers(0, len(choices) - 1))
    assert label_of(choices[label], choices) == label
    assert label_of(f" {choices[label].upper()} \n{space}", choices) == label


@given(st.sampled_from("'’-‐‑_"), st.text(string.ascii_letters + string.digits, min_size=1, max_size=5))
def test_no_continued_word_has_a_label(joint, rest):
    assert label_of(f"yes{joint}{rest}", ["no", "yes"]) is None


@given(answers, st.data(), st.sampled_from([" or ", " and ", "/", ", ", " / ", " AND ", ", or "]))
def test_two_joined_answers_have_no_label(choices, data, joint):
    one, other = data.draw(st.permutations(choices))[:2]
    joined = f"{one}{joint}{other}"
    assert label_of(joined, choices) is None
    assert label_of(joined, [*choices, joined]) == len(choices)


@given(st.text(max_size=50).filter(lambda text: "</think>" not in text), st.text(max_size=50), answers)
def test_think_block_is_skipped(thought, text, choices):
    assert label_of(f" <think>{thought}</think>\n\n{text}", choices) == label_of(text.lstrip(), choices)


@given(st.text(max_size=200), st.lists(st.text(min_size=1, max_size=10), min_size=2, max_size=4))
def test_any_text_has_a_label_or_none(text, choices):
    assert label_of(text, choices) in (None, *range(len(choices)))


@given(answers, st.data(), st.sampled_from(["I say: {}.", "So, {}", "It is:\n\n{}!"]))
def test_label_inside_is_the_only_word_of_the_answers(choices, data, sentence):
    label = data.draw(st.integers(0, len(choices) - 1))
    reads_words = {"是", "ไม่"}.isdisjoint(choices)
    assert label_of(sentence.format(choices[label]), choices) == (label if reads_words else None)
    one, other = data.draw(st.permutations(choices))[:2]
    assert label_of(f"Either {one} or {other}", choices) is None


# ---- reasoning ----

ANSWERS = ["No", "Yes"]
HARMONY = "<|channel|>analysis<|message|>No complaint.<|end|><|start|>assistant<|channel|>final<|message|>"


@pytest.mark.parametrize(
    "text",
    [
        *("No complaint.\n</think>\n\nYes", "<think>No</think>Yes", "<think>No</think>No<think>?</think> Yes."),
        *("No</thinking>Yes", "<thinking>No</thinking> **Yes**", "[THINK]No[/THINK]Yes", "No.[/THINK]Yes"),
        *("<THINK>No</THINK>Yes", "<seed:think>No</seed:think>Yes", "◁think▷No◁/think▷Yes", "No</thought>Yes"),
        *(HARMONY + "Yes", HARMONY + "Yes<|return|>", HARMONY.replace("final", "final <|constrain|>text") + "Yes"),
        "analysisNo complaint.assistantfinalYes",
        *("Yes<|im_end|>", "Yes</s>", "Yes <|eot_id|>\n", "<|START_THINKING|>No<|END_THINKING|>Yes"),
        "No (a </b> mark, [/x])</think>Yes",
    ],
)
def test_answer_follows_the_last_end_of_reasoning(text):
    assert label_of(text, ANSWERS) == 1
    assert label_of(text.replace("No", "-").replace("Yes", "No"), ANSWERS) == 0


@pytest.mark.parametrize(
    ("text", "mark"),
    [
        *(("<think>No complaint", "<think>"), ("No<think>hm", "<think>"), ("[THINK]No", "[THINK]")),
        *(("Yes</think>No<thinking>wait", "<thinking>"), (HARMONY[:40] + "No", "<|channel|>")),
        *(("No complaint.</scratchpad>Yes", "</scratchpad>"), ("No.[/REASONING] Yes", "[/REASONING]")),
        *(("No.<|thought_end|>Yes", "<|thought_end|>"), ("No complaint.</rationale>", "</rationale>")),
        *(("No<channel|>Yes", "<channel|>"), ("No ◁/plan▷ Yes", "◁/plan▷"), ("No</思考>Yes", "</思考>")),
    ],
)
def test_reasoning_without_an_end_or_with_an_unknown_mark_has_no_label(text, mark):
    read = Reader("label", choices=tuple(ANSWERS)).read(text)
    assert read.answer is None
    assert read.unread in (f"unknown mark {mark}", "the reasoning has no end")


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKD"])
@pytest.mark.parametrize("other", ["NFC", "NFD"])
@pytest.mark.parametrize("choices", [["Sai", "Đúng"], ["아니요", "예"], ["No", "Sí"], ["Nao", "Não"]])
def test_unicode_form_of_an_answer_does_not_matter(choices, form, other):
    written = unicodedata.normalize(form, choices[1])
    assert label_of(f"{written}.", [unicodedata.normalize(other, each) for each in choices]) == 1
