"""How open answers are read, and the keys that group them, also of mathematical expressions."""

import importlib.util
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flip_flop.errors import InputError
from flip_flop.reading import AnswerFormat, latex
from flip_flop.reading.numbers import numbers
from flip_flop.reading.texts import text_key
from tests.cases import read_list
from tests.evaluation.test_open_answers import grouped
from tests.refused import refused

TEXT, NUMBER = AnswerFormat("text"), AnswerFormat("number")
PIECES = [
    "a",
    "The",
    "an",
    " ",
    "\n",
    ".",
    "-",
    "x",
    "É",
    "e\u0301",
    "İ",
    "1",
    "0",
    ",",
    "2e3",
    "$",
    "1/2",
    "−",
    ":",
    "’",
]
PIECES += [
    "Ａ",
    "１",
    "．",
    "，",
    "：",
    "–",
    "\u200b",
    "½",
    "²",
    "^",
    "{",
    "}",
    "答",
    "٫",
    "\\,",
    "<think>",
    "</think>",
]
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=12).map("".join))


@pytest.mark.slow
@settings(max_examples=2000)
@given(texts)
def test_key_is_its_own_key_so_that_equal_keys_are_classes_of_answers(text):
    for form in (TEXT, NUMBER):
        key = form.key(text)
        assert key is None or (key and form.key(key) == form.reader.reference(key).answer == key)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**12), max_value=10**12))
def test_equal_numbers_have_equal_keys(number):
    assert NUMBER.key(f"so {number}.") == NUMBER.key(f"{number:,}00") == NUMBER.reader.reference(str(number)).answer
    assert NUMBER.key(str(number + 1)) != NUMBER.key(str(number))


@pytest.mark.parametrize("case", read_list("reading/keys.yaml", "text"))
def test_numbers_that_can_be_read_in_several_ways_have_no_key(case):
    assert numbers(case["text"]) == case["keys"]


@pytest.mark.parametrize(
    ("form", "text", "key"),
    [
        (NUMBER, "First 3 and then 4.", "4"),
        (NUMBER, "It is 4, or 3,5.", None),
        (AnswerFormat("number", "after ANSWER:"), "1 ANSWER: 2\nANSWER:\n 3 shells\n4", "3"),
        (AnswerFormat("number", "after ANSWER:"), "It is 3.", None),
        (AnswerFormat("number", "after ANSWER:"), "ANSWER: 3 of 4", None),
        (AnswerFormat("text", r"is (\w+)|none"), "It is Paris, or is Rome.", "paris"),
        (AnswerFormat("text", r"is (\w+)|none"), "none", None),
        (AnswerFormat("text", r"^[^.,]+"), "The Hague, of course.", "hague"),
        (AnswerFormat("text", stop=("\n", "Q:")), "Rome Q: next\nParis", "rome"),
        (TEXT, "A.", "a"),
        (TEXT, "?!", None),
    ],
)
def test_answer_is_read_from_the_text(form, text, key):
    assert form.key(text) == key


def test_a_regular_expression_that_takes_too_long_costs_one_answer_and_is_refused_after_five(monkeypatch, caplog):
    monkeypatch.setattr("flip_flop.reading.limits.MAX_SECONDS", 0.1)
    form = AnswerFormat("text", r"(a|aa)+$")
    assert form.key(1000 * "a" + "b") is None
    assert "W-ANSWER-SLOW: reading text with extract '(a|aa)+$' takes more than 0.1 s for 'aaaa" in caplog.text
    assert form.key("ba") == "a"
    for _ in range(3):
        assert form.key(1000 * "a" + "b") is None
    refused("E-TASK-KEY: .* takes more than 0.1 s for 5 texts. Simplify extract", form.key, 1000 * "a" + "b")


def test_text_key_is_that_of_squad_with_the_punctuation_of_all_languages():
    assert text_key("  The U.S.A., a\tland! ") == "usa land"
    assert text_key("“Ｌ’eau”。\u200b") == text_key("l'eau") == "leau"


@pytest.mark.parametrize("form", [AnswerFormat("text", "<answer>(.*?)</answer>"), AnswerFormat("number")])
def test_an_answer_follows_reasoning_and_may_be_in_tags_of_its_own(form):
    text = "We <b>add</b>. [step]2[/step] <answer>4</answer>"
    assert form.key(text) == form.key(f"So <answer>3</answer>?</think>{text}", "Solve.<think>\n") == "4"
    assert form.key(f"<think>{text}") is form.key(text, "Solve.<think>\n") is None


def test_stop_text_ends_an_answer_and_not_the_reasoning_before_it():
    form = AnswerFormat("text", stop=(".", "\n"))
    assert form.before_stop("<think>In. France\n</think>Paris\nQ.") == "<think>In. France\n</think>Paris"
    assert form.answer("<think>In. France\n</think>Paris. It") == "Paris"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("word",), "Known: latex, number, text"),
        (("text", "last_number"), "kind number"),
        (("text", "("), "regular expression"),
        (("text", ""), "empty"),
        (("text", None, ("",)), "empty"),
        (("text", None, (), 0), "below 1"),
    ],
)
def test_invalid_format_is_refused_in_one_line(arguments, words):
    with pytest.raises(InputError, match=words) as error:
        AnswerFormat(*arguments)
    assert error.value.code == "E-TASK-KEY"


# ---- LaTeX ----


LATEX = AnswerFormat("latex")
EQUAL = [
    (r"The answer is $\boxed{\frac{2}{4}}$.", r"$\frac12$", "$0.5$", r"So x: \boxed{1/2}"),
    (r"$\sqrt{8}$", r"$2\sqrt{2}$"),
    ("$(x+1)^2$", "$x^2 + 2x + 1$", "$f = 1 + 2x + x^2$"),
    (r"$\{2, 1\}$", r"$\{1, 2\}$"),
    (r"$10\%$", "$0.10$"),
    ("$1,234$", "1234", r"$1\,234$", r"\boxed{1 234\text{ m}}", "$1\u202f234$", r"$1\ 234.0$"),
    (r"\boxed{(12\,345\,678, 100)}", r"$(12345678, 100)$"),
    (r"$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    (r"$\infty$", r"\boxed{\infty}"),
]


def test_equal_expressions_have_one_key_and_others_differ():
    keys = [{LATEX.key(text) for text in texts} for texts in EQUAL]
    assert [len(group) for group in keys] == [1] * len(EQUAL)
    assert len(set.union(*keys)) == len(EQUAL)
    assert None not in set.union(*keys)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "x+1",
        r"$\frac{$",
        "$" * 9,
        r"\boxed{}",
        "$0/0$",
        r"$\frac{1}{0}$",
        r"\boxed{3 4}",
        "$1 1/2$",
    ],
)
def test_a_text_without_an_expression_has_no_key(text):
    assert LATEX.key(text) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [("x+1", "x + 1"), ("1,234", "1234"), (r"\text{yes}", "yes"), ("5 cm", "5"),
     ("yes", None), ("1 000", "1000"), ("−5", "-5"), ("[1,2]", "Interval(1, 2)")],
)  # fmt: skip
def test_references_and_extracted_answers_are_expressions_without_dollars(text, key):
    assert (
        LATEX.reader.reference(text).answer
        == AnswerFormat("latex", "after ANSWER:").key(f"1 or 2. ANSWER: {text}")
        == key
    )


@pytest.fixture
def parsed():
    """Parses texts in a process of this test's own."""
    latex._stop(latex._parser())
    yield lambda text: latex._parsed.__wrapped__(text, "$" in text)
    latex._stop(latex._parser())


@pytest.mark.slow
@pytest.mark.parametrize("text", ["$10^{10^{10}}$", "$(x+1)^{100000}$"])
def test_a_hung_parser_costs_its_time_limit_and_one_answer(text, parsed, monkeypatch):
    monkeypatch.setattr("flip_flop.reading.limits.MAX_SECONDS", 0.5)
    assert parsed("$2^4$") == "16"
    with pytest.raises(TimeoutError):
        parsed(text)
    assert parsed("$2^5$") == "32"


@pytest.mark.slow
def test_a_process_that_was_killed_is_started_again(parsed):
    assert parsed("$2^4$") == "16"
    latex._parser().kill()
    latex._parser().wait()
    assert parsed("$2^5$") == "32"


@pytest.mark.slow
def test_an_interrupt_does_not_move_a_key_to_the_next_text(parsed):
    assert parsed("1") == "1"

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            parsed("$(x+1)^{100000}$")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [parsed(text) for text in ("2", "3")] == ["2", "3"]


@pytest.mark.slow
def test_the_process_reads_no_module_of_the_working_folder(parsed, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert parsed("4") == "4"


def test_answers_agree_by_expression_and_are_compared_with_references():
    scores = grouped([[r"$\frac{1}{2}$", r"\boxed{0.5}", "no idea", "$3$"]], ["1/2"], LATEX).scores
    assert scores.predictions.tolist() == [[0, 0, -1, 1]]
    assert scores.gold.tolist() == [0]


def test_without_the_library_the_kind_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    line = refused("E-TASK-KEY: the kind of answer latex needs the package math_verify", AnswerFormat, "latex")
    assert "-m pip install " in line


def test_a_process_that_does_not_start_is_one_line(monkeypatch):
    latex._stop(latex._parser())
    monkeypatch.setattr(latex.sys, "executable", "false")
    with pytest.raises(InputError, match="does not start"):
        latex.latex_key("$does not start$")
