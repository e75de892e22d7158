"""Keys of mathematical answers: equal expressions, texts without one, and texts that stop the parser."""

import signal

import pytest

from flip_flop.errors import InputError
from flip_flop.prompts import AnswerFormat, latex
from tests.evaluation.test_open_answers import grouped

LATEX = AnswerFormat("latex")
EQUAL = [
    (r"The answer is $\boxed{\frac{2}{4}}$.", r"$\frac12$", "$0.5$", r"So x: \boxed{1/2}"),
    (r"$\sqrt{8}$", r"$2\sqrt{2}$"),
    ("$(x+1)^2$", "$x^2 + 2x + 1$", "$f = 1 + 2x + x^2$"),
    (r"$\{2, 1\}$", r"$\{1, 2\}$"),
    (r"$10\%$", "$0.10$"),
    ("$1,234$", "1234"),
    (r"$\begin{pmatrix} 1 \\ 2 \end{pmatrix}$", r"\boxed{\begin{pmatrix}1\\2\end{pmatrix}}"),
    (r"$\infty$", r"\boxed{\infty}"),
]


def test_equal_expressions_have_one_key_and_others_differ():
    keys = [{LATEX.key(text) for text in texts} for texts in EQUAL]
    assert [len(group) for group in keys] == [1] * len(EQUAL)
    assert len(set.union(*keys)) == len(EQUAL)
    assert None not in set.union(*keys)


@pytest.mark.parametrize(
    "text", ["", "I do not know.", "x+1", r"$\frac{$", "$" * 9, r"\boxed{}", "$0/0$", r"$\frac{1}{0}$"]
)
def test_a_text_without_an_expression_has_no_key(text):
    assert LATEX.key(text) is None


@pytest.mark.parametrize(
    ("text", "key"),
    [("x+1", "x + 1"), ("1,234", "1234"), (r"\text{yes}", "yes"), ("5 cm", "5"),
     ("yes", None), ("1 000", "1000"), ("−5", "-5"), ("[1,2]", "Interval(1, 2)")],
)  # fmt: skip
def test_references_and_extracted_answers_are_expressions_without_dollars(text, key):
    assert LATEX.reference_key(text) == AnswerFormat("latex", "after ANSWER:").key(f"1 or 2. ANSWER: {text}") == key


@pytest.fixture
def parser():
    """A process of this test's own."""
    made = latex._Parser()
    yield made
    made.stop()


@pytest.mark.parametrize("text", ["$10^{10^{10}}$", "$(x+1)^{100000}$"])
def test_a_hung_parser_costs_its_time_limit_and_one_answer(text, parser, monkeypatch):
    monkeypatch.setattr(latex, "MAX_SECONDS", 0.5)
    assert parser.key("$2^4$") == "16"
    assert parser.key(text) is None
    assert parser.key("$2^5$") == "32"


def test_a_process_that_was_killed_is_started_again(parser):
    assert parser.key("$2^4$") == "16"
    parser.process.kill()
    parser.process.wait()
    assert parser.key("$2^5$") == "32"


def test_an_interrupt_does_not_move_a_key_to_the_next_text(parser):
    assert parser.key("1") == "1"

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            parser.key("$(x+1)^{100000}$")
    finally:
        signal.signal(signal.SIGALRM, before)
    assert [parser.key(text) for text in ("2", "3")] == ["2", "3"]


def test_the_process_reads_no_module_of_the_working_folder(parser, tmp_path, monkeypatch):
    (tmp_path / "random.py").write_text("raise SystemExit")
    monkeypatch.chdir(tmp_path)
    assert parser.key("4") == "4"


def test_answers_agree_by_expression_and_are_compared_with_references():
    scores = grouped([[r"$\frac{1}{2}$", r"\boxed{0.5}", "no idea", "$3$"]], ["1/2"], LATEX)
    assert scores.predictions.tolist() == [[0, 0, -1, 1]]
    assert scores.gold.tolist() == [0]


def test_without_the_library_the_kind_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(latex.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="E-TASK-KEY: answers of the kind latex need math-verify") as caught:
        AnswerFormat("latex")
    assert "-m pip install " in str(caught.value)


def test_a_process_that_does_not_start_is_one_line(monkeypatch):
    monkeypatch.setattr(latex.sys, "executable", "false")
    with pytest.raises(InputError, match="does not start"):
        latex._Parser().key("1")
