"""Answer batches of questions: with the templates of the classifier, or with the zero-shot prompt."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

import jinja2
import jinja2.meta
from pydantic import JsonValue
from pydantic_core import from_json

from flip_flop.classifier.load import LoadedClassifier
from flip_flop.errors import InputError
from flip_flop.evaluation.predict import prediction_rows
from flip_flop.metrics import label_probs
from flip_flop.prompts import RESERVED_FIELD, Chat, RenderedInstance
from flip_flop.scoring.scorer import Scored
from flip_flop.scoring.scores import CausalLMScorer
from flip_flop.serving.wire import DIGITS, NO_TEXT, Answer, Json, Question, as_text
from flip_flop.tasks import Rows
from flip_flop.tasks.readers import NumberedRow


class Asked(NamedTuple):
    """A question about a state. The name of the classifier's task selects the classifier."""

    name: str
    question: Question
    state: JsonValue


Batch = Sequence[Asked]
Answers = list[Answer | Exception]


class Engine:
    """Answer questions with a classifier and its model.

    Attributes:
        name: The name of the classifier's task.

    Raises:
        InputError: ``E-SERVE`` for a classifier without probabilities.
    """

    def __init__(self, classifier: LoadedClassifier):
        task = classifier.task
        labels = classifier.classifier.task.labels
        if task.answer is not None or classifier.scoring.by == "generation":
            raise InputError("E-SERVE", f"{task.name!r} has generated answers, without probabilities.")
        self.name, self.labels, self.classifier = task.name, [*map(str, labels)], classifier
        self.scorer, self.scoring = classifier.scorer, replace(classifier.scoring, too_long="refuse")
        self.chat = Chat(chat_template_kwargs=task.chat_template_kwargs)
        self.field = only_field("\n".join(template.jinja for template in task.templates))

    def answer(self, batch: Batch) -> Answers:
        """Return the answer to each question, or the exception of a question that fails.

        Questions of the classifier are scored together, and others with the same number of options.
        """
        groups: dict[int | None, list[int]] = {}
        for place, asked in enumerate(batch):
            size = None if asked.name == self.name else len(asked.question.options)
            groups.setdefault(size, []).append(place)
        answers: dict[int, Answer | Exception] = {}
        for size, places in groups.items():
            work = self._classify if size is None else self._ask
            answers |= zip(places, each([batch[place] for place in places], work), strict=True)
        return [answers[place] for place in range(len(batch))]

    def _classify(self, batch: Batch) -> Answers:
        """Return the label of the classifier, and the mean of the probabilities under its templates."""
        rows = [NumberedRow(number, self._row(asked)) for number, asked in enumerate(batch, 1)]
        split = self.classifier.render(Rows("state", "row", tuple(rows), {}))
        scored = self._scored(split.instances, split.task.templates.names)
        offsets = self.classifier.offsets
        abstain_below = self.classifier.abstain_below
        predicted = prediction_rows(scored, split, self.scoring, offsets=offsets, abstain_below=abstain_below)
        answers: Answers = []
        for row, tokens in zip(predicted, _tokens(scored), strict=True):
            columns = zip(*(answer["probs"] for answer in row["templates"].values()), strict=True)
            probs = [round(sum(column) / len(column), DIGITS) for column in columns]
            chosen = None if row["vote"] is None else str(row["vote"])
            answers.append(Answer(self.labels, probs, chosen, tokens))
        return answers

    def _row(self, asked: Asked) -> Json:
        """Return the state as a row: an object, the text of the only field, or an object's JSON as text."""
        options = asked.question.options
        row = asked.state
        if asked.question.type == "choice":
            is_same = {*options} == {*self.labels}
        else:
            is_same = len(options) == len(self.labels)
        if options and not is_same:
            labels = ", ".join(self.labels)
            raise InputError("E-SERVE", f"The labels of {self.name!r} are {labels}.", "Leave the options out.")
        if isinstance(row, str) and self.field:
            return {self.field: row}
        if isinstance(row, str):
            with suppress(ValueError):
                row = from_json(row)
        if not isinstance(row, dict):
            raise InputError("E-SERVE", "The state is not a row.", "Give an object with the fields of the templates.")
        return row

    def _ask(self, batch: Batch) -> Answers:
        """Return the most probable option, and the probabilities of all."""
        prompts = enumerate(zero_shot(asked, self.name) for asked in batch)
        scored = self._scored([replace(prompt, id=str(number), chat=self.chat) for number, prompt in prompts])
        answers: Answers = []
        for asked, [probs], tokens in zip(batch, label_probs(scored.scores.values), _tokens(scored), strict=True):
            labels = [*asked.question.options]
            answers.append(Answer(labels, probs.tolist(), labels[probs.argmax()], tokens))
        return answers

    def _scored(self, instances: Sequence[RenderedInstance], names: Sequence[str] = ()) -> Scored:
        scored = self.scorer.checked_scores(instances, self.scoring, names=names)
        if isinstance(self.scorer, CausalLMScorer):
            self.scorer.check = False  # after the first
        return scored


def zero_shot(asked: Asked, classifier: str) -> RenderedInstance:
    r"""Return the prompt of a question, with its options as answers.

    Raises:
        InputError: ``E-SERVE`` for a question without options or instructions. It names the question that the
            classifier answers without both.

    Example:
        >>> from flip_flop.serving.wire import Noul
        >>> late = Noul(instructions="Can it wait?", criteria={"false": "Work has stopped."})
        >>> instance = zero_shot(Asked("late", late, "My screen is black."), "topics")
        >>> print(instance.prompts[0], instance.choices[0])
        My screen is black.
        <BLANKLINE>
        Can it wait?
        Options:
        - No: Work has stopped.
        - Yes
        Answer: ('No', 'Yes')
    """
    question = asked.question
    if not question.options or question.instructions in NO_TEXT:
        fix = f"Give both, or ask {classifier!r}, which the classifier answers."
        raise InputError("E-SERVE", f"Question {asked.name!r} has no options or no instructions.", fix)
    lines = [as_text(asked.state), "", as_text(question.instructions), "Options:"]
    for option, meaning in question.options.items():
        lines.append(f"- {option}" if meaning in NO_TEXT else f"- {option}: {as_text(meaning)}")
    prompt = "\n".join([*lines, "Answer:"])
    return RenderedInstance(asked.name, (prompt,), (tuple(question.options),), None, fields={"state": asked.state})


def only_field(source: str) -> str | None:
    """Return the field that the text of templates reads, if it is one.

    Example:
        >>> only_field("{{ text }} Good?"), only_field("{{ title }}: {{ text }}")
        ('text', None)
    """
    names = jinja2.meta.find_undeclared_variables(jinja2.Environment().parse(source)) - {RESERVED_FIELD}
    return names.pop() if len(names) == 1 else None


def each(batch: Batch, work: Callable[[Batch], Answers]) -> Answers:
    """Return ``work(batch)``; if it fails, of each half, so that only questions that fail alone get the exception."""
    try:
        return work(batch)
    except Exception as error:
        middle = len(batch) // 2
        if middle:
            return each(batch[:middle], work) + each(batch[middle:], work)
        return [error]


def _tokens(scored: Scored) -> list[int]:
    """Return the tokens of all prompts of each instance, zeros if unknown."""
    counts = scored.prompt_tokens
    if counts is None:
        return [0] * len(scored.scores)
    return counts.sum(axis=1).tolist()
