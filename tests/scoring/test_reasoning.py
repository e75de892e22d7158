"""The answer of a reasoning model follows its reasoning."""

import unicodedata

import pytest

from flip_flop.scoring.served_answers import after_reasoning, label_of

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
    assert after_reasoning(text) == ("", mark)
    assert label_of(text, ANSWERS) is None


@pytest.mark.parametrize(
    "text", ["Yes, <b>really</b>.", "Yes: 1 < 2 > 0", "Yes [1] (a/b)", "Yes, it is </br>fine", "Yes | no doubt"]
)
def test_formatting_is_no_mark(text):
    assert after_reasoning(text) == (text, "")


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKD"])
@pytest.mark.parametrize("other", ["NFC", "NFD"])
@pytest.mark.parametrize("choices", [["Sai", "Đúng"], ["아니요", "예"], ["No", "Sí"], ["Nao", "Não"]])
def test_unicode_form_of_an_answer_does_not_matter(choices, form, other):
    written = unicodedata.normalize(form, choices[1])
    assert label_of(f"{written}.", [unicodedata.normalize(other, each) for each in choices]) == 1


@pytest.mark.parametrize(
    ("text", "label"),
    [
        *(("A good film", None), ("a very good film", None), ("I think so", None), ("**A good film**", None)),
        *(("A", 0), ("A.", 0), ("A) good", 0), ("(A) good film", 0), ("A: good", 0), ("A is right", 0)),
        *(("A because it is good", 0), ("A\n\nThe film", 0), ("A Positive", 0), ("B good", 1), ("Answer", None)),
    ],
)
def test_article_is_not_an_option(text, label):
    assert label_of(text, ["A", "B", "I"]) == label
