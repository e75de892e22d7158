"""Labels of generated answers, which follow the reasoning of a model."""

import string
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flip_flop.reading import Reader

WORDS = ["no", "yes", "entailment", "Sci/Tech", "not sure", "是", "ไม่"]


def label_of(text, choices):
    return Reader("label", choices=tuple(choices)).read(text).answer


answers = st.lists(st.sampled_from(WORDS), min_size=2, max_size=4, unique=True)


@pytest.mark.parametrize(
    ("text", "label"),
    [("Yes", 1), (" **yes**, it is", 1), ("YES\n", 1), ("Yesterday", None), ("", None), ("no answer", 2), ("n", None)],
)
def test_label_is_the_longest_answer_at_the_beginning_of_the_text(text, label):
    assert label_of(text, ["No", "Yes", "No answer"]) == label


@pytest.mark.parametrize(
    ("text", "choices", "label"),
    [
        ("C++.", ["C", "C++"], 1),
        ("+", ["+", "-"], 0),
        ("-1", ["1", "-1"], 1),
        ("1.5", ["1", "2"], None),
        ("-1", ["1", "2"], None),
        ("“Oui”, dit-il", ["non", "oui"], 1),
        ("。是", ["否", "是"], 1),
        ("a\nc\nd", ["a\nb", "a\nc"], 1),
    ],
)
def test_answers_may_have_symbols_numbers_and_lines(text, choices, label):
    assert label_of(text, choices) == label


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("can't", ["can", "cannot"]),
        ("can’t say", ["can", "cannot"]),
        ("won't", ["won", "lost"]),
        ("World's", ["World", "Sports"]),
        ("No-one", ["No", "Yes"]),
        ("**No-one** came", ["No", "Yes"]),
        ("no_answer", ["No", "Yes"]),
        ("1-2", ["1", "2"]),
        ("1–2", ["1", "2"]),
        ("A'", ["A'b", "B"]),
    ],
)
def test_apostrophe_or_hyphen_continues_the_word(text, choices):
    assert label_of(text, choices) is None


@pytest.mark.parametrize(
    "text",
    [
        *("Yes or No", "Yes and no", "yes/no", "Yes, No", "no, or yes", "Yes & No", "yes | no", "Yes No", "YES; NO"),
        *("**Yes** or **No**", '"Yes" or "No"', "(Yes) and/or (No)", "Yes, no doubt", "Yes oder No", "Yes ou no"),
    ],
)
def test_two_answers_have_no_label(text):
    assert label_of(text, ["No", "Yes"]) is None


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("Neutral / Positive", ["positive", "neutral"]),
        ("1 or -1", ["1", "-1"]),
        ("+ or -", ["+", "-"]),
        ("(a) or (b)", ["(a)", "(b)"]),
        ("是或否", ["是", "否"]),
        ("是否", ["是", "否"]),
        ("是、否", ["是", "否"]),
    ],
)
def test_two_joined_answers_of_any_kind_have_no_label(text, choices):
    assert label_of(text, choices) is None


@pytest.mark.parametrize(
    ("text", "choices", "label"),
    [
        ("Yes, and I think so.", ["No", "Yes"], 1),
        ("Yes and everyone agrees", ["No", "Yes"], 1),
        ("Yes, yes", ["No", "Yes"], 1),
        ("Yes. No, wait", ["No", "Yes"], 1),
        ("No, positive things", ["No", "Yes"], 0),
        ("negative, not positive", ["negative", "positive"], 0),
        ("B) A dog", ["A", "B"], 1),
        ("B. A dog", ["A", "B"], 1),
        ("yes or no", ["yes", "yes or no"], 1),
        ("Sci/Tech", ["Sci", "Tech", "Sci/Tech"], 2),
        ("4 out of 5", ["4", "5"], 0),
        ("किताब है", ["किताब", "कलम"], 0),
        ("किताबें", ["किताब", "कलम"], None),
        ("लाजवाब", ["ला", "बुरा"], None),
        ("evet veya hayır", ["hayır", "evet"], None),
        ("نعم أو لا", ["لا", "نعم"], None),
        ("हाँ या नहीं", ["नहीं", "हाँ"], None),
        ("はいまたはいいえ", ["いいえ", "はい"], None),
        ("Yes-", ["No", "Yes"], 1),
        ("'yes'", ["No", "Yes"], 1),
    ],
)
def test_words_after_answer_do_not_change_its_label(text, choices, label):
    assert label_of(text, choices) == label


@pytest.mark.parametrize(
    ("text", "choices", "label"),
    [
        ("是的", ["是", "否"], 0),
        ("不是的", ["是", "不是"], 1),
        ("はいです", ["はい", "いいえ"], 0),
        ("ใช่ครับ", ["ใช่", "ไม่"], 0),
        ("A是正确的", ["A", "B"], 0),
        ("예스맨", ["예스", "아니오"], None),
    ],
)
def test_scripts_without_spaces_have_no_whole_word_rule(text, choices, label):
    assert label_of(text, choices) == label


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


SENTIMENT = ["negative", "positive"]


@pytest.mark.parametrize(
    ("text", "choices", "label"),
    [
        ("I think this is positive.", SENTIMENT, 1),
        ("The sentiment:\n\n**Negative**", SENTIMENT, 0),
        ("<think>negative?</think>It is a positive, very positive one", SENTIMENT, 1),
        ("It is about Sci/Tech", ["World", "Sci/Tech"], 1),
        ("I am not sure", ["sure", "not sure"], 1),
        ("The answer is no, because it rained", ["no", "yes"], 0),
        ("So: NO", ["no", "yes"], 0),
        ("It is positive, or negative", SENTIMENT, None),
        ("This is not positive", SENTIMENT, None),
        ("This isn't positive", SENTIMENT, None),
        ("Das ist nicht gut", ["schlecht", "gut"], None),
        ("Bu yorum olumlu değil.", ["olumsuz", "olumlu"], None),
        ("هذا ليس إيجابي", ["سلبي", "إيجابي"], None),
        ("यह सकारात्मक नहीं है", ["नकारात्मक", "सकारात्मक"], None),
        ("Het is niet positief", ["negatief", "positief"], None),
        ("Não é positivo", ["negativo", "positivo"], None),
        ("यह किताबें हैं", ["किताब", "कलम"], None),
        ("Ce n’est pas bon", ["mauvais", "bon"], None),
        ("Neither. Positive would be too much", SENTIMENT, None),
        ("Is it positive?", SENTIMENT, None),
        ("It is positively bad", SENTIMENT, None),
        ("A non-positive review", SENTIMENT, None),
        ("There is no doubt", ["no", "yes"], None),
        ("It is not about no. It is", ["no", "yes"], None),
        ("The answer is B", ["A", "B"], 1),
        ("In 10 words", ["5", "10"], None),
        ("答えは はい です", ["はい", "いいえ"], 0),
        ("It is Yes", ["Yes", "yes"], None),
    ],
)
def test_only_answer_of_a_text_is_its_label_unless_negated(text, choices, label):
    assert label_of(text, choices) == label


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


@pytest.mark.parametrize("text", ["Yes, <b>really</b>.", "Yes: 1 < 2 > 0", "Yes [1] (a/b)", "Yes, it is </br>fine"])
def test_formatting_is_no_mark(text):
    assert label_of(text, ANSWERS) == 1


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
