"""Requests and replies of ``POST /v1/systemone``, and of OpenAI's ``POST /v1/decisions`` (docs/how-to/serve.md)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from flip_flop.files import Json

Options = Annotated[dict[str, JsonValue], Field(min_length=2, max_length=255)]
Levels = Annotated[list[JsonValue], Field(min_length=2, max_length=255)]
NO_TEXT = (None, "")
DIGITS = 6  # of probabilities, as in predict


@dataclass(frozen=True)
class Answer:
    """The probabilities of the labels, in their order, and the chosen label; None if the classifier abstains.

    ``tokens`` is the number of tokens of all prompts.
    """

    labels: Sequence[str]
    probs: Sequence[float]
    chosen: str | None
    tokens: int

    @property
    def confidence(self) -> float:
        """The largest probability, scaled: 0 if all are equal, 1 if the others are 0."""
        return round((len(self.probs) * max(self.probs) - 1) / (len(self.probs) - 1), DIGITS)

    @property
    def level(self) -> float:
        """The expected number of the label, from 0."""
        return round(sum(level * prob for level, prob in enumerate(self.probs)), DIGITS)


class Strict(BaseModel):
    """Without unknown keys, which are perhaps misspelt."""

    model_config = ConfigDict(extra="forbid")


class Instructed(Strict):
    """A question of ``/v1/systemone``."""

    instructions: JsonValue = None


class Noul(Instructed):
    """A yes-or-no question."""

    type: Literal["noul"] = "noul"
    criteria: dict[Literal["false", "true"], JsonValue] = {}

    @property
    def options(self) -> Json:
        """The answers and their meanings. The second means yes, as the second label of a classifier."""
        return {"No": self.criteria.get("false"), "Yes": self.criteria.get("true")}

    def typed(self, answer: Answer) -> Json:
        """Return the probability of yes."""
        return {"type": "noul", "noul": answer.probs[1]}


class Choice(Instructed):
    """A choice among labels with descriptions."""

    type: Literal["choice"] = "choice"
    criteria: Options | None = None

    @property
    def options(self) -> Json:
        """The labels and their descriptions."""
        return self.criteria or {}

    def typed(self, answer: Answer) -> Json:
        """Return the chosen label, and the probabilities by label."""
        probs = dict(zip(answer.labels, answer.probs, strict=True))
        return {"type": "choice", "choice": answer.chosen, "probabilities": probs, "confidence": answer.confidence}


class Score(Instructed):
    """A score on a scale of levels, lowest first."""

    type: Literal["score"] = "score"
    criteria: Levels | None = None

    @property
    def options(self) -> Json:
        """The levels by number: their texts may be long."""
        return _numbered(self.criteria or ())

    def typed(self, answer: Answer) -> Json:
        """Return the expected level, and texts and probabilities by number."""
        legend = _numbered(self.criteria or answer.labels)
        probs = _numbered(answer.probs)
        score = {"type": "score", "score": answer.level, "legend": legend}
        return score | {"probabilities": probs, "confidence": answer.confidence}


Question = Noul | Choice | Score
Questions = dict[str, Annotated[Question, Field(discriminator="type")]]


class SystemOne(BaseModel):
    """A request of ``/v1/systemone``."""

    model: str
    state: JsonValue
    questions: Annotated[Questions, Field(min_length=1, max_length=400)]

    def named(self) -> Iterable[tuple[str, Question]]:
        """Return the questions and their names."""
        return self.questions.items()

    def typed(self, answers: Sequence[Answer]) -> Json:
        """Return the answers by name. A question from which the classifier abstains is missing."""
        typed = {}
        for (name, question), answer in zip(self.named(), answers, strict=True):
            if answer.chosen is not None:
                typed[name] = question.typed(answer)
        return typed


class Option(Strict):
    """An option of a choice."""

    value: str
    description: str = ""


class Level(Strict):
    """A level of a score."""

    label: str
    description: str = ""


class Decision(Strict):
    """A question of ``/v1/decisions``."""

    type: Literal["predicate", "choice", "score"]
    name: str | None = None
    instructions: str = ""
    choices: tuple[Option, ...] = ()
    levels: tuple[Level, ...] = ()

    def question(self) -> Question:
        """Return the same question in the other protocol."""
        if self.type == "predicate":
            return Noul(instructions=self.instructions)
        if self.type == "choice":
            options: Json = {option.value: option.description for option in self.choices}
            return Choice(instructions=self.instructions, criteria=options or None)
        levels: list[Any] = [f"{level.label}: {level.description}".rstrip(": ") for level in self.levels]
        return Score(instructions=self.instructions, criteria=levels or None)

    def typed(self, answer: Answer) -> Json:
        """Return the answer with its name, or a refusal if the classifier abstains."""
        if answer.chosen is None:
            return {"type": "refusal", "name": self.name}
        typed: Json = {"type": self.type, "name": self.name}
        if self.type == "predicate":
            return typed | {"probability": answer.probs[1]}
        labels = [level.label for level in self.levels] or answer.labels
        rows = []
        for number, (label, prob) in enumerate(zip(labels, answer.probs, strict=True)):
            row = {"value": label} if self.type == "choice" else {"value": number, "label": label}
            rows.append(row | {"probability": prob})
        result = {"choice": answer.chosen} if self.type == "choice" else {"score": answer.level}
        return typed | result | {"confidence": answer.confidence, "probabilities": rows}


class Decisions(BaseModel):
    """A request of ``/v1/decisions``."""

    model: str
    state: str = Field(alias="input")
    questions: Annotated[list[Decision], Field(min_length=1, max_length=400)]

    def named(self) -> Iterable[tuple[str, Question]]:
        """Return the questions and their names."""
        return [(asked.name or "", asked.question()) for asked in self.questions]

    def typed(self, answers: Sequence[Answer]) -> list[Json]:
        """Return the answers in the order of the questions."""
        return [asked.typed(answer) for asked, answer in zip(self.questions, answers, strict=True)]


def as_text(content: JsonValue) -> str:
    """Return a text as it is, and other content as JSON."""
    if isinstance(content, str):
        return content
    return json.dumps(content, ensure_ascii=False)


def _numbered(values: Sequence[Any]) -> Json:
    return {str(number): value for number, value in enumerate(values)}
