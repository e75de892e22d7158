"""Answer batches of questions: with the templates of the classifier, or with the zero-shot prompt."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import NamedTuple

from pydantic import JsonValue
from pydantic_core import from_json

from flip_flop.classifier.load import LoadedClassifier
from flip_flop.errors import InputError
from flip_flop.files import Json
from flip_flop.metrics import label_probs, vote_share
from flip_flop.prompts import Chat, RenderedInstance, fields_of
from flip_flop.serving.wire import DIGITS, NO_TEXT, Answer, Question, as_text
from flip_flop.tasks import Rows
from flip_flop.tasks.readers import NumberedRow


class Asked(NamedTuple):
    """A rendered question, the names of its labels, and whether it is the question of the classifier."""

    instance: RenderedInstance
    labels: Sequence[str]
    is_own: bool


Batch = Sequence[Asked]
Answers = list[Answer | Exception]


class Engine:
    """Answer questions with a classifier and its model.

    Attributes:
        name: The name of the classifier's task, and of its question.

    Raises:
        InputError: ``E-SERVE`` for a classifier without probabilities.
    """

    def __init__(self, classifier: LoadedClassifier):
        task = classifier.task
        if task.answer is not None or classifier.scoring.by == "generation":
            raise InputError("E-SERVE", f"{task.name!r} has generated answers, without probabilities.")
        self.name = task.name
        self.labels = [*map(str, classifier.classifier.task.labels)]
        self.classifier = classifier
        self.chat = Chat(chat_template_kwargs=task.chat_template_kwargs)
        self.field = only_field("\n".join(template.jinja for template in task.templates))
        classifier.scorer  # noqa: B018 - loads the model

    def render(self, name: str, question: Question, state: JsonValue) -> Asked:
        """Render a question about a state (``E-SERVE``, and the errors of rows)."""
        if name != self.name:
            return Asked(
                replace(zero_shot(name, question, state, self.name), chat=self.chat), [*question.options], False
            )
        row = NumberedRow(1, self._row(question, state))
        split = self.classifier.render(Rows("state", "row", (row,), {}))
        return Asked(split.instances[0], self.labels, True)

    def _row(self, question: Question, state: JsonValue) -> Json:
        """Return the state as a row: an object, the text of the only field, or an object's JSON as text."""
        options = question.options
        if question.type == "choice":
            is_same = {*options} == {*self.labels}
        else:
            is_same = len(options) == len(self.labels)
        if options and not is_same:
            labels = ", ".join(self.labels)
            raise InputError("E-SERVE", f"The labels of {self.name!r} are {labels}.", "Leave the options out.")
        if isinstance(state, str) and self.field:
            return {self.field: state}
        if isinstance(state, str):
            with suppress(ValueError):
                state = from_json(state)
        if not isinstance(state, dict):
            raise InputError("E-SERVE", "The state is not a row.", "Give an object with the fields of the templates.")
        return state

    def answer(self, batch: Batch) -> Answers:
        """Return the answer to each question, or the exception of a question that fails.

        Questions of the classifier are scored together, and others with the same number of options.
        """
        groups: dict[tuple[bool, int], list[int]] = {}
        for place, asked in enumerate(batch):
            groups.setdefault((asked.is_own, len(asked.labels)), []).append(place)
        answers = dict[int, Answer | Exception]()
        for places in groups.values():
            answers |= zip(places, each([batch[place] for place in places], self._score), strict=True)
        return [answers[place] for place in range(len(batch))]

    def _score(self, batch: Batch) -> Answers:
        """Return the majority vote, and the mean of the probabilities under all templates."""
        instances = [replace(asked.instance, id=str(number)) for number, asked in enumerate(batch)]
        abstain_below = 0.0
        if batch[0].is_own:
            abstain_below = self.classifier.abstain_below
            scored = self.classifier.scored(instances)
        else:
            scored = self.classifier.raw(instances)
        scores = scored.scores
        probs = label_probs(scores.values)
        confidence = probs.max(axis=(1, 2)) if probs.shape[1] == 1 else vote_share(scores)
        means = probs.mean(axis=1).round(DIGITS).tolist()
        tokens = [0] * len(batch)  # unknown
        if scored.prompt_tokens is not None:
            tokens = scored.prompt_tokens.sum(axis=1).tolist()
        is_given = (scores.votes >= 0) & (confidence >= abstain_below)
        answers: Answers = []
        for place, asked in enumerate(batch):
            chosen = asked.labels[scores.votes[place]] if is_given[place] else None
            answers.append(Answer(asked.labels, means[place], chosen, tokens[place]))
        return answers


def zero_shot(name: str, question: Question, state: JsonValue, classifier: str) -> RenderedInstance:
    r"""Return the prompt of a question, with its options as answers.

    Raises:
        InputError: ``E-SERVE`` for a question without options or instructions. It names the question that the
            classifier answers without both.

    Example:
        >>> from flip_flop.serving.wire import Noul
        >>> late = Noul(instructions="Can it wait?", criteria={"false": "Work has stopped."})
        >>> instance = zero_shot("late", late, "My screen is black.", "topics")
        >>> print(instance.prompts[0], instance.choices[0])
        My screen is black.
        <BLANKLINE>
        Can it wait?
        Options:
        - No: Work has stopped.
        - Yes
        Answer: ('No', 'Yes')
    """
    if not question.options or question.instructions in NO_TEXT:
        fix = f"Give both, or ask {classifier!r}, which the classifier answers."
        raise InputError("E-SERVE", f"Question {name!r} has no options or no instructions.", fix)
    lines = [as_text(state), "", as_text(question.instructions), "Options:"]
    for option, meaning in question.options.items():
        lines.append(f"- {option}" if meaning in NO_TEXT else f"- {option}: {as_text(meaning)}")
    prompt = "\n".join([*lines, "Answer:"])
    return RenderedInstance(name, (prompt,), (tuple(question.options),), None, fields={"state": state})


def only_field(source: str) -> str | None:
    """Return the field that the text of templates reads, if it is one.

    Example:
        >>> only_field("{{ text }} Good?"), only_field("{{ title }}: {{ text }}")
        ('text', None)
    """
    names = fields_of(source)
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
