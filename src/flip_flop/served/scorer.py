"""Served models with an OpenAI-compatible completions endpoint, such as vLLM, SGLang or llama.cpp.

The first question shows which API the server has. :mod:`flip_flop.served.apis` has one function for each.
"""

import contextlib
import itertools
import math
import multiprocessing
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.console import count, echo, today, track
from flip_flop.errors import InputError
from flip_flop.files import read_answers, sha256_json, user_cache, utf8, write_answer
from flip_flop.metrics import Scores
from flip_flop.open_answers.generation import group_answers
from flip_flop.prompts import OpenAnswers, RenderedInstance
from flip_flop.reading import Reader, has_spaces
from flip_flop.record import ModelRecord
from flip_flop.scoring.encode import PromptEncoder, refuse_without_template
from flip_flop.scoring.models import load_tokenizer
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.served.apis import (
    EXACT,
    RETRIES,
    SECONDS,
    WITHOUT_PROBABILITIES,
    Answer,
    Question,
    Server,
    UnreachableError,
    UnsupportedError,
    ask,
    piece_of,
)
from flip_flop.served.decisions import DECISIONS, requests_of

# In order, each with whether the server applies its chat template.
POSSIBLE_APIS = {
    "generation": (("generation", False), ("generation", True)),
    "probability": (("echo", False), ("prompt_logprobs", True), ("top_logprobs", True)),
}
MAX_MASS = 1.05  # of all answers of a template together; half precision may round up
CHECKED = 10  # stored answers to ask again
EXTRACTED_TOKENS = 1024  # of a text in which ``extract`` finds the label
SAME_LETTERS = 20  # of a repeated open answer
SAME_NATS = 0.1  # tolerance of a repeated score, for servers in half precision
# Words in the name of an instruction-tuned model, as in Llama-3.2-1B-Instruct, gemma-2-2b-it and zephyr-7b-chat.
INSTRUCT = re.compile(r"(?i)(?<![a-z])(instruct|chat|it|sft|dpo)(?![a-z])")

HINT_LABELS = "Use answers that begin differently, or --by generation."


class EndpointScorer(Scorer):
    """A served model, by its name ``openai:URL#NAME``.

    The tokenizer, or its name, supplies only the chat template for prompts. The key comes from ``OPENAI_API_KEY``.
    Failed connections, statuses 429 and 5xx, and replies that are not JSON are retried ``retries`` times. Scoring ends
    if no reply is complete for ``seconds``.

    Raises:
        InputError: ``E-ENDPOINT``, or those of :func:`~flip_flop.scoring.load_tokenizer`.
    """

    def __init__(
        self,
        name: str,
        tokenizer: PreTrainedTokenizerBase | str | None = None,
        *,
        retries: int = RETRIES,
        seconds: float = SECONDS,
    ):
        self.server = Server(name, retries=retries, seconds=seconds)
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        endpoint = self.server.endpoint
        self.record = ModelRecord(name=endpoint.model, endpoint=endpoint.url)
        has_template = self.tokenizer is not None and bool(self.tokenizer.chat_template)
        self.is_instruct = has_template or bool(INSTRUCT.search(endpoint.model))
        self.store: Path = user_cache() / "answers" / f"{sha256_json(endpoint)[:16]}.jsonl"
        self._apis: dict[tuple[str, ...], list[tuple[str, bool]]] = {}  # by options; once found, an API stays the same

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance in the chat template of the tokenizer. Chat settings of a task need one."""
        if (encoder := self._encoder(options)) is not None:
            return encoder.as_read(instance)
        refuse_without_template(None, instance.chat)
        return instance

    def _encoder(self, options: ScoringOptions) -> PromptEncoder | None:
        if self.tokenizer is None:
            return None
        return PromptEncoder(self.tokenizer, options.chat_template, date=options.prompt_date or today())

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scored:
        """Send ``options.concurrency`` requests at a time. Stored answers are not requested again.

        With generated answers, the label of the answer has the score 0, and other labels have ``-inf``.
        With ``top_logprobs``, scores are those of :func:`first_token_scores`, and with an API of
        :data:`~flip_flop.served.decisions.DECISIONS` the logarithms of the probabilities.

        Raises:
            InputError: ``E-ENDPOINT-ANSWER``, ``E-ENDPOINT-LOGPROBS``;
                ``E-ENDPOINT`` for an option of loaded models.
        """
        if options.too_long == "skip":
            raise InputError("E-ENDPOINT", "--too-long skip applies only to local models.", "Remove the option.")
        options = replace(options, prompt_date=options.prompt_date or today())  # of all prompts
        encoder = self._encoder(options)
        if instances[0].is_open:
            options = replace(options, by="generation")
        elif options.by == "generation":
            require_different(instances)
        if encoder is not None:
            encoder.warn_of_special_tokens(instances)
        read = [self.as_read(instance, options) for instance in instances]
        key = (options.by, options.api, options.chat_template)
        failures = []
        for api, in_chat in self._apis.get(key) or self._possible_apis(options, encoder):
            if api == "top_logprobs":
                require_different_beginnings(instances, names)
            questions = [
                question for instance in read for question in _questions(instance, encoder, api, in_chat, names)
            ]
            try:
                answers, totals = self._answers(questions, options.concurrency, label, quiet)
                break
            except UnsupportedError as error:
                failures.append(error)
        else:  # the reason that mentions log-probabilities says most
            raise next((error for error in failures if error.code == "E-ENDPOINT-LOGPROBS"), failures[-1])
        self._apis[key] = [(api, in_chat)]
        first = instances[0]
        num_merged = sum(answer.get("merged", False) for answer in answers)
        settings = {
            "delimiter": "" if in_chat else _delimiter(first, encoder, first.prompts[0]),
            "chat_template": in_chat or bool(encoder and encoder.uses_chat_template),
            "prompt_date": encoder and encoder.date,
            "backend": "openai",
            "by": options.by,
            "api": api,
            "exact": api in EXACT,
            "boundary_merged": num_merged,
            **totals,
        }
        if self.tokenizer is not None:
            settings["tokenizer"] = self.tokenizer.name_or_path
        if self.server.adapted:
            settings["adapted"] = self.server.adapted
        scored = _scores_of(read, questions, answers, settings)
        if api in EXACT:
            self._check_mass(read, scored.scores, names)
        if not quiet:
            kind = "exact scores" if api in EXACT else "not exact"
            chat = " with the chat template of the server" * in_chat
            if api in DECISIONS:
                kind = "probabilities of the options"
                chat = ""
            changes = "".join(f"; {name}: {value}" for name, value in self.server.adapted.items())
            echo(f"api: {api}{chat}, {kind}{changes}", err=True)
        return scored

    def _possible_apis(self, options: ScoringOptions, encoder: PromptEncoder | None) -> list[tuple[str, bool]]:
        """Return the APIs to try in order, each with whether the server applies its chat template."""
        is_usable = {
            False: encoder is not None or options.chat_template != "on",
            True: encoder is None and options.chat_template != "off",
        }
        apis = []
        possible = POSSIBLE_APIS[options.by]
        if options.api in DECISIONS:
            possible = ((options.api, True),)
        for name, in_chat in possible:
            if is_usable[in_chat] and options.api in ("auto", name):
                apis.append((name, in_chat))
        if not apis:
            raise InputError(
                "E-CHAT-TEMPLATE",
                f"--api {options.api} does not fit --chat-template {options.chat_template} and --tokenizer.",
                "Remove one of them, or see docs/how-to/models.md.",
            )
        return apis

    def _check_mass(self, read: Sequence[RenderedInstance], scores: Scores, names: Sequence[str]) -> None:
        """Refuse probabilities that sum to more than 1, such as those of a sampler that has no choice."""
        mass = scores.own_label_mass
        for row, template in np.argwhere(mass > MAX_MASS).tolist():
            choices = sorted(read[row].choices[template])
            if not any(after.startswith(choice) for choice, after in itertools.pairwise(choices)):
                raise InputError(
                    "E-ENDPOINT-LOGPROBS",
                    f"{_place(read[row], template, names)}: {self.server} gives the answers a probability of "
                    f"{mass[row, template]:.2f}.",
                    WITHOUT_PROBABILITIES,
                )

    def _answers(
        self, questions: Sequence[Question], concurrency: int, label: str, quiet: bool
    ) -> tuple[list[Answer], dict[str, int]]:
        """Return all answers, and counts of the requested answers. Some stored answers are requested again."""
        by_key = {question.key: question for question in questions}
        stored = {key: answer for key, answer in read_answers(self.store).items() if key in by_key}
        missing = [question for key, question in by_key.items() if key not in stored]
        again = [by_key[key] for key in sorted(stored)[:CHECKED]]  # keys are digests, so this is a random sample
        answers = dict(stored)
        num_changed = 0
        num_allowed = len(again) // 5  # a few may change by rounding
        asked = []
        self.server.is_asked = True
        with (
            track(label, len(by_key), "answers", quiet=quiet) as advance,
            ThreadPool(concurrency) as pool,
        ):
            advance(len(stored))
            try:
                # A separate first request: it shows whether the server has this API.
                for question, answer in itertools.chain.from_iterable(
                    self._ask_all(group, pool) for group in (again, missing[:1], missing[1:])
                ):
                    asked.append(answer)
                    if question.key not in stored:
                        answers[question.key] = answer
                        write_answer(self.store, question.key, answer)
                        advance(1)
                    elif "temperature" not in self.server.adapted:
                        num_changed += not _is_same(question, stored[question.key], answer)
                    if num_changed > num_allowed:
                        break
            except (InputError, KeyboardInterrupt) as error:
                self.server.is_asked = False
                if not answers:
                    raise
                kept = f"{len(answers):,} of {len(by_key):,} answers are stored. Run the command again to continue."
                if isinstance(error, InputError):
                    hint = kept if isinstance(error, UnreachableError) else f"{error.hint} {kept}"
                    if isinstance(error, UnsupportedError) or error.code == "E-ENDPOINT-LOGPROBS":
                        hint = error.hint  # the same command fails again
                    raise InputError(error.code, error.message, hint) from error
                echo(f"\n{kept}", err=True)
                raise
        if num_changed > num_allowed:
            raise InputError(
                "E-ENDPOINT-ANSWER",
                f"{self.server} does not answer as before: its weights have changed.",
                f"Remove {self.store} to ask all again.",
            )
        read = sum(answer["read"] for answer in asked)
        written = sum(answer["written"] for answer in asked)
        if not quiet:
            tokens = f"{count(read, 'token')} read, {written:,} written"
            echo(f"{count(len(asked), 'answer')} asked, {tokens}; {len(stored):,} kept", err=True)
        totals = {"num_asked": len(asked), "tokens_read": read, "tokens_written": written}
        return [answers[question.key] for question in questions], totals

    def _ask_all(self, questions: Sequence[Question], pool: ThreadPool) -> Iterator[tuple[Question, Answer]]:
        """Yield questions with their answers, in the order of arrival."""
        replies = pool.imap_unordered(lambda question: (question, ask(self.server, question)), questions)
        for question in questions:
            try:
                yield replies.next(self.server.seconds)
            except multiprocessing.TimeoutError:
                message = f"{question.place}: {self.server} sent no reply in {self.server.seconds:g} seconds."
                raise UnreachableError("E-ENDPOINT-ANSWER", message) from None


def _meaning(question: Question, answer: Answer) -> Any:
    """Return scores in nats, or the beginning of an open answer. A label that was written has the score 0."""
    if "scores" in answer:
        return answer["scores"]
    if "top" in answer:
        return first_token_scores(answer["top"], question.choices, question.place)
    if "score" in answer:
        return [answer["score"]]
    if not question.choices:  # long texts may end in another way
        return answer["text"][:SAME_LETTERS]
    scores = [-math.inf] * len(question.choices)
    label = Reader("label", question.extract, question.choices).read(answer["text"], question.prompt).answer
    if isinstance(label, int):
        scores[label] = 0.0
    return scores


def _is_same(question: Question, one: Answer, other: Answer) -> bool:
    meaning = _meaning(question, one)
    again = _meaning(question, other)
    if isinstance(meaning, list):
        return np.allclose(meaning, again, rtol=0, atol=SAME_NATS)
    return meaning == again


def _scores_of(
    read: Sequence[RenderedInstance], questions: Sequence[Question], answers: Sequence[Answer], settings: dict[str, Any]
) -> Scored:
    """Return the scores of instances from the answers to their questions."""
    shape = (len(read), len(read[0].choices), len(read[0].choices[0]))
    is_written = settings["by"] == "generation"
    if read[0].is_open:
        ended = ((answer["text"], None if answer.get("cut") else "") for answer in answers)
        return group_answers(read, ended, settings)
    if is_written:
        texts = np.array([answer["text"] for answer in answers], dtype=object).reshape(shape[:2]).tolist()
        read = [
            replace(instance, open=replace(instance.open or OpenAnswers(), texts=tuple(written)))
            for instance, written in zip(read, texts, strict=True)
        ]
    scores = np.concatenate(list(map(_meaning, questions, answers))).astype(np.float32).reshape(shape)
    if settings["api"] in DECISIONS:
        counts = np.zeros(shape, dtype=np.int64)
    else:
        counts = np.array([answer.get("tokens", int(not is_written)) for answer in answers], dtype=np.int64)
        counts = np.broadcast_to(counts.reshape(*shape[:2], -1), shape)
    return Scored(Scores.of(read, scores, counts), instances=read, settings=settings)


def _place(instance: RenderedInstance, template: int, names: Sequence[str]) -> str:
    return f"Instance {instance.id!r}, template {names[template] if names else template + 1!r}"


def _questions(
    instance: RenderedInstance, encoder: PromptEncoder | None, api: str, in_chat: bool, names: Sequence[str]
) -> Iterator[Question]:
    if api in DECISIONS:
        yield from requests_of(instance, api, names)
        return
    # Without this, the text would have the BOS of the chat template and the BOS of the server's tokenizer.
    if encoder and encoder.uses_chat_template and encoder.starts_with_bos:
        bos = encoder.tokenizer.bos_token
    else:
        bos = ""
    for template, (text, choices) in enumerate(zip(instance.prompts, instance.choices, strict=True)):
        prompt = text.removeprefix(str(bos))
        place = _place(instance, template, names)
        if api not in EXACT:
            max_tokens = 16 + max(map(len, choices)) if api == "generation" else 1
            how = instance.open or OpenAnswers()
            if how.extract is not None:
                max_tokens = EXTRACTED_TOKENS
            if how.format is not None:
                max_tokens = how.format.max_tokens
                choices = ()
            yield Question(prompt, "", max_tokens, in_chat, api, choices, place, how.extract)
            continue
        start = prompt if in_chat else prompt.rstrip(" ")
        delimiter = "" if in_chat else _delimiter(instance, encoder, prompt)
        for choice in choices:
            yield Question(start, prompt[len(start) :] + delimiter + choice, 1, in_chat, api, choices, place)


def _delimiter(instance: RenderedInstance, encoder: PromptEncoder | None, prompt: str) -> str:
    if encoder is None:
        return " " if has_spaces(prompt[-1:]) else ""
    return encoder.delimiter_of(instance.chat, prompt)


def require_different(instances: Sequence[RenderedInstance]) -> None:
    """Refuse answers that a generated text cannot distinguish (``E-ENDPOINT``)."""
    for group in dict.fromkeys(group for instance in instances for group in instance.choices):
        reader = Reader("label", choices=group)
        if [reader.read(choice).answer for choice in group] != list(range(len(group))):
            raise InputError(
                "E-ENDPOINT",
                f"Generated texts cannot distinguish the answers {', '.join(map(repr, group))}.",
                "Use other words.",
            )


def require_different_beginnings(instances: Sequence[RenderedInstance], names: Sequence[str]) -> None:
    """Refuse answers whose first words begin alike (``E-ENDPOINT-LOGPROBS``)."""
    for template, group in dict.fromkeys(pair for instance in instances for pair in enumerate(instance.choices)):
        words = sorted((*unicodedata.normalize("NFC", choice).split(), "")[0] for choice in group)
        if any(after.startswith(word) for word, after in itertools.pairwise(words)):
            name = names[template] if names else template + 1
            raise InputError(
                "E-ENDPOINT-LOGPROBS",
                f"Template {name!r}: the answers {', '.join(map(repr, group))} begin alike.",
                HINT_LABELS,
            )


def first_token_scores(top: Sequence[tuple[str, float]], choices: Sequence[str], place: str) -> list[float]:
    """Return the log-probability that the first token begins an answer, from the most probable tokens.

    The probabilities of all tokens that begin this answer and no other are summed. An answer without such a token gets
    an upper bound: the probability of an unlisted token, or of the tokens that begin it and others. All scores are
    ``-inf`` if no token begins an answer, or if another answer would be best with the tokens that begin several.

    Raises:
        InputError: ``E-ENDPOINT-LOGPROBS`` if tokens that begin several answers are more probable than any answer.

    Example:
        >>> first_token_scores([("Yes", -1.0), (" Yes", -1.0), ("N", -2.0)], ["No", "Yes"], "")
        [-2.0, -0.3068528194400547]
        >>> first_token_scores([("The", -0.1), ("Yes", -5.0)], ["No", "Yes"], "")
        [-5.001, -5.0]
    """
    answers = [utf8(unicodedata.normalize("NFC", choice)) for choice in choices]
    own = np.full(len(answers), -np.inf)
    shared = own.copy()  # with the tokens that begin other answers too
    for token, log_prob in top:
        labels = _begun_labels(token, answers)
        sums = own if len(labels) == 1 else shared
        sums[labels] = np.logaddexp(sums[labels], log_prob)
    none = [-math.inf] * len(answers)
    best = own.argmax()
    if own[best] == shared.max() == -np.inf:
        return none
    if shared.max() >= own[best]:
        raise InputError(
            "E-ENDPOINT-LOGPROBS",
            f"{place}: the first token does not identify one of {', '.join(map(repr, choices))}.",
            HINT_LABELS,
        )
    with_shared = np.where(shared > -np.inf, np.logaddexp(own, shared), -np.inf)
    if np.delete(with_shared, best).max(initial=-np.inf) >= own[best]:
        return none
    unlisted = max(1.0 - sum(math.exp(log_prob) for _, log_prob in top), 1e-9)
    # Less than any listed token, also in float32.
    bound = min(math.log(unlisted), *(log_prob - 1e-3 for _, log_prob in top))
    scores: list[float] = np.where(own > -np.inf, own, np.maximum(bound, shared)).tolist()
    return scores


def _begun_labels(token: str, answers: Sequence[bytes]) -> list[int]:
    """Return the labels of the answers that begin with a token, as it is or decoded."""
    for piece in (utf8(token), piece_of(token)):
        with contextlib.suppress(UnicodeDecodeError):  # a part of a character
            piece = unicodedata.normalize("NFC", piece.decode().strip()).encode()
        begun = [label for label, answer in enumerate(answers) if answer.startswith(piece)]
        if piece and begun:
            return begun
    return []
