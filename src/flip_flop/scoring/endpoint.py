"""Served models with an OpenAI-compatible completions endpoint, such as vLLM, SGLang or llama.cpp.

The first question shows which API the server has. :mod:`flip_flop.scoring.apis` has one function for each.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.console import count, echo, today, track
from flip_flop.errors import InputError
from flip_flop.files import json_digest, sha256_json, user_cache
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.record import ModelRecord
from flip_flop.scoring.apis import APIS, EXACT
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.loading import load_tokenizer
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.questions import (
    AnswerStore,
    MissingError,
    Question,
    UnreachableError,
    UnsupportedError,
    in_threads,
    require_different,
    require_different_beginnings,
    same,
)
from flip_flop.scoring.scorer import Scorer
from flip_flop.scoring.server import RETRIES, SECONDS, WITHOUT_PROBABILITIES, Server

MAX_MASS = 1.05  # of all answers of a template together; half precision may round up
CHECKED = 10  # stored answers to ask again
# Words in the name of an instruction-tuned model, as in Llama-3.2-1B-Instruct, gemma-2-2b-it and zephyr-7b-chat.
INSTRUCT = re.compile(r"(?i)(?<![a-z])(instruct|chat|it|sft|dpo)(?![a-z])")


class EndpointScorer(Scorer):
    """A served model, by its name ``openai:URL#NAME``.

    The tokenizer, or its name, supplies only the chat template for prompts. The key comes from ``OPENAI_API_KEY``.
    Failed connections and statuses 429 and 5xx are retried ``retries`` times. Scoring ends if no reply is complete
    for ``seconds``.

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
        digests = {"chat_template": json_digest(self.tokenizer.chat_template)} if self.tokenizer else {}
        endpoint = self.server.endpoint
        self.record = ModelRecord(name=endpoint.model, digests=digests, endpoint=endpoint.url)
        has_template = self.tokenizer is not None and bool(self.tokenizer.chat_template)
        self.is_instruct = has_template or bool(INSTRUCT.search(endpoint.model))
        self._found: dict[tuple[str, ...], list[tuple[str, bool]]] = {}
        self.store = user_cache() / "answers" / f"{sha256_json(endpoint)[:16]}.sqlite"

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance in the chat template of the tokenizer. Chat settings of a task need one."""
        return self._as_read(instance, self._encoder(options))

    def _encoder(self, options: ScoringOptions) -> PromptEncoder | None:
        date = options.prompt_date or today()
        return None if self.tokenizer is None else PromptEncoder(self.tokenizer, options.chat_template, date=date)

    def _as_read(self, instance: RenderedInstance, encoder: PromptEncoder | None) -> RenderedInstance:
        if encoder is not None:
            return encoder.as_read(instance)
        for key in instance.chat.given:
            message = f"The task has {key}, which needs a chat template."
            raise InputError("E-CHAT-TEMPLATE", message, "Give the served model's tokenizer with --tokenizer.")
        return instance

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scores:
        """Send ``options.concurrency`` requests at a time. Stored answers are not requested again.

        With generated answers, the label of the answer has the score 0, and other labels have ``-inf``.
        With ``top_logprobs``, a score is the log-probability of the first token. If no answer is among the tokens, all
        scores are ``-inf``.

        Raises:
            InputError: ``E-ENDPOINT-ANSWER``, ``E-ENDPOINT-LOGPROBS``, ``E-ENDPOINT-LABELS``, ``E-ENDPOINT-CHANGED``,
                ``E-ENDPOINT-STORE``; ``E-ENDPOINT`` for an option of loaded models.
        """
        if options.too_long == "skip":
            raise InputError("E-ENDPOINT", "--too-long skip applies only to local models.", "Remove the option.")
        encoder = self._encoder(options)
        shape = (len(instances), len(instances[0].choices), len(instances[0].choices[0]))
        if options.by == "generation":
            require_different(instances)
        read = [self._as_read(instance, encoder) for instance in instances]
        failed = []
        # Once found, the API stays the same.
        key = options.by, options.api, options.chat_template
        for api, in_chat in self._found.get(key) or self._apis(options, encoder):
            if api == "top_logprobs":
                require_different_beginnings(instances, names)
            questions = [each for one in read for each in self._questions(one, encoder, api, in_chat, names)]
            try:
                answers, asked = self._answers(questions, options.concurrency, label, quiet)
                self._found[key] = [(api, in_chat)]
                break
            except UnsupportedError as error:
                failed.append(error)
        else:  # the reason that mentions log-probabilities says most
            raise next((each for each in failed if each.code == "E-ENDPOINT-LOGPROBS"), failed[-1])
        meanings = [question.means(answer) for question, answer in zip(questions, answers, strict=True)]
        if options.by == "generation":
            is_given = np.array(meanings, dtype=object)[:, None] == np.arange(shape[2])
            scores = np.where(is_given, 0.0, -np.inf).astype(np.float32).reshape(shape)
            counts = np.zeros(shape, dtype=np.int64)
            texts = np.array([each["text"] for each in answers], dtype=object).reshape(shape[:2]).tolist()
            read = [replace(each, written=tuple(own)) for each, own in zip(read, texts, strict=True)]
        else:
            scores = np.array(meanings, dtype=np.float32).reshape(shape)
            counts = np.array([each.get("tokens", 1) for each in answers], dtype=np.int64)
            counts = np.broadcast_to(counts.reshape(*shape[:2], -1), shape)
        settings = {
            "delimiter": "" if in_chat else _delimiter(instances[0], encoder),
            "chat_template": in_chat or bool(encoder and encoder.uses_chat_template),
            "prompt_date": encoder and encoder.date,
            "backend": "openai",
            "by": options.by,
            "api": api,
            "exact": api in EXACT,
            "boundary_merged": sum(each.get("merged", False) for each in answers),
            **asked,
            **({"adapted": self.server.adapted} if self.server.adapted else {}),
        }
        found = Scores.of(instances, scores, counts, instances=read, settings=settings)
        if options.by != "generation":
            self._check_mass(read, found, names)
        if not quiet:
            kind = "exact scores" if api in EXACT else "not exact"
            more = "".join(f"; {name}: {value}" for name, value in self.server.adapted.items())
            echo(f"api: {api}{' with the chat template of the server' * in_chat}, {kind}{more}", err=True)
        return found

    def _apis(self, options: ScoringOptions, encoder: PromptEncoder | None) -> list[tuple[str, bool]]:
        """Return the APIs to try in order, each with whether the server applies its chat template."""
        plain = encoder is not None or options.chat_template != "on"
        chat = encoder is None and options.chat_template != "off"
        ways = [(name, False) for name in ("echo", "grammar") if plain]
        ways += [(name, True) for name in ("grammar", "prompt_logprobs", "top_logprobs") if chat]
        if options.by == "generation":
            return [("generation", in_chat) for in_chat, fits in ((False, plain), (True, chat)) if fits]
        if options.api != "auto":
            found = [way for way in ways if way[0] == options.api][:1]
            if not found:
                message = f"--api {options.api} does not fit --chat-template {options.chat_template} and --tokenizer."
                raise InputError("E-CHAT-TEMPLATE", message, "Remove one of them, or see docs/how-to/models.md.")
            return found
        if self.server.is_llama_server:  # it ignores or rejects echo
            return [way for way in ways if way[0] == "grammar"][:1]
        return [way for way in ways if way[0] != "grammar"]

    def _check_mass(self, read: Sequence[RenderedInstance], found: Scores, names: Sequence[str]) -> None:
        """Refuse probabilities that sum to more than 1, such as probabilities after a grammar."""
        mass = found.own_label_mass
        for row, at in np.argwhere(mass > MAX_MASS).tolist():
            choices = sorted(read[row].choices[at])
            if not any(after.startswith(each) for each, after in itertools.pairwise(choices)):
                place = f"Instance {read[row].id!r}, template {names[at] if names else at + 1!r}"
                message = f"{place}: {self.server} gives the answers a probability of {mass[row, at]:.2f}."
                raise InputError("E-ENDPOINT-LOGPROBS", message, WITHOUT_PROBABILITIES)

    def _questions(
        self, instance: RenderedInstance, encoder: PromptEncoder | None, api: str, in_chat: bool, names: Sequence[str]
    ) -> Iterator[Question]:
        # Without this, the text would have the BOS of the chat template and the BOS of the server's tokenizer.
        bos = encoder.tokenizer.bos_token if encoder and encoder.uses_chat_template and encoder.starts_with_bos else ""
        for at, (read, choices) in enumerate(zip(instance.prompts, instance.choices, strict=True)):
            prompt = read.removeprefix(str(bos))
            place = f"Instance {instance.id!r}, template {names[at] if names else at + 1!r}"
            if api not in EXACT:
                max_tokens = 16 + max(map(len, choices)) if api == "generation" else 1
                yield Question(prompt, None, max_tokens, in_chat, choices, place, api)
                continue
            start = prompt if in_chat else prompt.rstrip(" ")
            delimiter = "" if in_chat else _delimiter(instance, encoder)
            for choice in choices:
                answer = prompt[len(start) :] + delimiter + choice
                yield Question(start, answer, in_chat=in_chat, choices=choices, place=place, api=api)

    def _answers(
        self, questions: Sequence[Question], concurrency: int, label: str, quiet: bool
    ) -> tuple[list[Any], dict[str, int]]:
        """Return all answers, and counts of the requested answers. Some stored answers are requested again."""
        by_key = {question.key: question for question in questions}
        with AnswerStore(self.store) as store:
            kept = store.found(by_key)
            opened = [by_key[key] for key in by_key if key not in kept]
            again = [by_key[key] for key in sorted(kept)[:CHECKED]]  # keys are digests, so this is a random sample
            found, total, num_changed = dict(kept), len(by_key), 0
            # A separate first request: it shows whether the server has this API.
            groups = (again, opened[:1], opened[1:])
            asked_now = (in_threads(self._ask, each, concurrency, self.server.seconds) for each in groups)
            with track(label, total, "answers", quiet=quiet) as advance:
                advance(len(kept))
                for question, answer in itertools.chain.from_iterable(asked_now):
                    if isinstance(answer, UnreachableError) and found:
                        hint = f"{len(found):,} of {total:,} answers are stored. To continue, run the command again."
                        raise InputError(answer.code, answer.message, hint) from answer
                    if type(answer) in (InputError, UnsupportedError):
                        kind = InputError if found else type(answer)
                        raise kind(answer.code, f"{question.place}: {answer.message}", answer.hint) from answer
                    if isinstance(answer, BaseException):
                        raise answer
                    if question.key not in kept:
                        found[question.key] = answer
                        store.put(question.key, answer)
                        advance(1)
                    elif "temperature" not in self.server.adapted and not same(
                        question.means(kept[question.key]), question.means(answer)
                    ):
                        num_changed += 1
                    if num_changed > len(again) // 5:  # a few answers may change by rounding
                        raise InputError(
                            "E-ENDPOINT-CHANGED",
                            f"{self.server} does not answer as before: its weights have changed.",
                            f"Remove {self.store} to ask all again.",
                        )
        new = [found[question.key] for question in opened]
        read, written = (sum(each[name] for each in new) for name in ("read", "written"))
        if not quiet:
            tokens = f"{count(read, 'token')} read, {written:,} written"
            echo(f"{count(len(new), 'answer')} asked, {tokens}; {len(kept):,} kept", err=True)
        asked = {"num_asked": len(new), "tokens_read": read, "tokens_written": written}
        return [found[question.key] for question in questions], asked

    def _ask(self, question: Question) -> dict[str, Any]:
        try:
            return APIS[question.api](self.server, question)
        except InputError:
            raise
        except Exception as error:  # any that an invalid reply causes
            code, what, hint = (
                ("E-ENDPOINT-ANSWER", "completion", "")
                if question.api == "generation"
                else ("E-ENDPOINT-LOGPROBS", "log-probabilities", WITHOUT_PROBABILITIES)
            )
            message = f"{self.server} sends no valid {what} ({type(error).__name__}: {self.server.plain(error)})."
            # Only a missing part leads to the next API: one invalid reply must not change the scores.
            kind = UnsupportedError if isinstance(error, MissingError) else InputError
            raise kind(code, message, hint) from error


def _delimiter(instance: RenderedInstance, encoder: PromptEncoder | None) -> str:
    return " " if encoder is None else encoder.delimiter_of(instance.chat)
