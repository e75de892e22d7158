"""Servers of decision models: ``POST /v1/systemone``, and OpenAI's ``POST /v1/decisions``.

A request has the state of a row and a question for each template. Its answers are probabilities of the options.
"""

import itertools
import json
import math
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

from pydantic import AliasChoices, Field

from flip_flop.files import Json
from flip_flop.prompts import INSTRUCTIONS, OPTIONS, RenderedInstance, names_of
from flip_flop.served.apis import APIS, Answer, Count, Question, Reply, Server

ROUNDING = 0.005  # of probabilities: some servers send two decimals
SMALLEST = 1e-6  # for a probability that is rounded to 0

Prob = Annotated[float, Field(ge=0, le=1.001, allow_inf_nan=False)]  # rounding may give more than 1


class Listed(Reply):
    """The probability of an option in ``/v1/decisions``."""

    value: str
    probability: Prob


class Decided(Reply):
    """An answer of either protocol."""

    type: str = ""
    name: str | None = None
    noul: Prob | None = Field(default=None, validation_alias=AliasChoices("noul", "probability"))
    probabilities: dict[str, Prob] | list[Listed] = Field(default={})

    def scores(self, options: Sequence[str]) -> list[float]:
        """Return the log-probabilities of the options, ``-inf`` if the model refuses to answer.

        Raises:
            KeyError: The probability of an option is missing.
            ValueError: The probabilities do not sum to 1.
        """
        if self.type == "refusal":
            return [-math.inf] * len(options)
        found = self.probabilities
        if isinstance(found, list):
            found = {listed.value: listed.probability for listed in found}
        if self.noul is not None:
            found = {"no": 1 - self.noul, "yes": self.noul}
            options = [*map(str.casefold, options)]
        probs = [max(found[option], SMALLEST) for option in options]
        if abs(sum(probs) - 1) > ROUNDING * (10 + len(probs)):
            raise ValueError("the probabilities do not sum to 1")
        return [*map(math.log, probs)]


class Used(Reply):
    """The numbers of tokens that a server counted."""

    input_tokens: Count = 0
    output_tokens: Count = 0


class Decisions(Reply):
    """A reply with answers by the names of their questions, or as a list. An unanswered question is missing."""

    answers: dict[str, Decided] | list[Decided]
    usage: Used = Used()


def requests_of(instance: RenderedInstance, api: str, names: Sequence[str]) -> Iterator[Question]:
    """Yield a request for each state of successive templates, usually one for all."""
    names = names or [*map(str, range(len(instance.prompts)))]
    parts = [_divided(instance, number) for number in range(len(names))]
    for state, group in itertools.groupby(range(len(names)), key=lambda number: parts[number][0]):
        choices = list[str]()
        questions = {}
        for number in group:
            choices += instance.choices[number]
            questions[names[number]] = parts[number][1]
        asked: Json = {"state": state, "questions": questions}
        if api == "decisions":
            text = state if isinstance(state, str) else json.dumps(state, ensure_ascii=False, default=str)
            asked = {"input": text, "questions": [*map(_decision, questions, questions.values())]}
        prompt = json.dumps([[*questions], asked], default=str)
        yield Question(prompt, "", 0, True, api, tuple(choices), f"Instance {instance.id!r}")


def _divided(instance: RenderedInstance, number: int) -> tuple[str | Json, Json]:
    """Return the state, and a question of ``/v1/systemone`` without it.

    The marks of the template divide the prompt. Without them, the state is the row. Options that explain an answer, as
    in ``A. World``, stay in the instructions. The template's order is that of the options: their numbers from 1.
    Without an order, no and yes are the options of a ``noul``.
    """
    text = instance.prompts[number]
    choices = instance.choices[number]
    row: Json = {}
    order = list[str]()
    if instance.templates is not None:
        template = instance.templates[number]
        order = template.levels.get("order", "").split()
        read = names_of(template.jinja)
        row = {name: value for name, value in instance.fields.items() if name in read}  # others may repeat the label
        for printed in re.findall(r"{{[^{}]*\| typos\([^()]*\)[^{}]*}}", template.jinja):
            shown = instance.render(number, printed)
            row |= {name: shown for name in names_of(printed) if isinstance(row.get(name), str)}
        source = template.jinja.replace(*INSTRUCTIONS).replace(*OPTIONS)
        if source != template.jinja:
            text = instance.render(number, source)
    state, _, rest = text.rpartition(INSTRUCTIONS[1])
    instructions, _, listed = rest.partition(OPTIONS[1])
    answers = "|".join(map(re.escape, choices))
    if re.search(rf"(?<!\w)({answers}) ?[]).:=(>*-]+ *\S", listed):
        instructions += listed
    question: Json = {"type": "choice", "instructions": instructions.strip(), "criteria": dict.fromkeys(choices)}
    by_number = {str(place): choice for place, choice in enumerate(choices, 1)}
    if {*order} == by_number.keys():
        question["criteria"] = dict.fromkeys(by_number[label] for label in order)
    elif sorted(map(str.casefold, choices)) == ["no", "yes"]:
        question = {"type": "noul", "instructions": instructions.strip()}
    return state.strip() or row, question


def _decision(name: str, question: Json) -> Json:
    """Return the same question of ``/v1/decisions``."""
    decision = {"type": "predicate", "name": name, "instructions": question["instructions"]}
    if "criteria" not in question:
        return decision
    return decision | {"type": "choice", "choices": [{"value": option} for option in question["criteria"]]}


def ask_decisions(server: Server, question: Question) -> Answer:
    """Return the log-probabilities of the options of each question, ``-inf`` for a missing answer."""
    names, body = json.loads(question.prompt, parse_constant=lambda _: None)  # NaN is a missing value
    reply = Decisions.model_validate(server.send(f"/{question.api}", {"model": server.endpoint.model, **body}))
    answers = reply.answers
    if isinstance(answers, list):
        found = [answer.name or "" for answer in answers]
        if not all(found):
            found = names
        if len(found) != len(answers):
            raise ValueError("answers without names, and not one for each question")
        answers = dict(zip(found, answers, strict=True))
    size = len(question.choices) // len(names)
    choices = iter(question.choices)
    missing = Decided(type="refusal")
    scores = list[float]()
    for name in names:
        scores += answers.get(name, missing).scores([*itertools.islice(choices, size)])
    return {"scores": scores, "read": reply.usage.input_tokens, "written": reply.usage.output_tokens}


DECISIONS = ("systemone", "decisions")
APIS.update(dict.fromkeys(DECISIONS, ask_decisions))
