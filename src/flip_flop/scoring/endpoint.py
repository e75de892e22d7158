"""Served models with an OpenAI-compatible completions endpoint, such as vLLM, SGLang or llama.cpp.

The text is prompt, delimiter and answer, as in :mod:`flip_flop.scoring.encoder`. The server returns its tokens with
their log-probabilities (``echo``). The last tokens are the answer.
"""

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.console import count, echo, track
from flip_flop.errors import InputError
from flip_flop.files import json_digest, sha256_json, user_cache
from flip_flop.hub import endpoint_of
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.record import ModelRecord
from flip_flop.scoring.encoder import PromptEncoder
from flip_flop.scoring.loading import load_tokenizer
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.questions import (
    AnswerStore,
    Question,
    UnreachableError,
    counts_of,
    echoed_tokens,
    end_with,
    in_threads,
    require_different,
    same,
)
from flip_flop.scoring.scorer import Scorer

# Retries begin after 0.5 s, 1 s, 2 s, ... up to 8 s. They span about a minute, in which a server can restart.
RETRIES, SECONDS = 10, 300.0
HINTS = {
    **dict.fromkeys(range(300, 400), "Redirects are not followed. Give the address of the server itself."),
    **dict.fromkeys((400, 413, 422), "See the server's log. The prompt may be longer than its context."),
}
CHECKED = 10  # stored answers to ask again
WITHOUT_PROBABILITIES = "Add --by generation to use generated answers."


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
        self.endpoint = endpoint_of(name)
        self.tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer
        digests = {"chat_template": json_digest(self.tokenizer.chat_template)} if self.tokenizer else {}
        self.record = ModelRecord(name=self.endpoint.model, digests=digests, endpoint=self.endpoint.url)
        self.store = user_cache() / "answers" / f"{sha256_json(self.endpoint)[:16]}.sqlite"
        import openai

        from flip_flop.scoring.bounded_client import BoundedClient

        self._errors: Any = openai
        self._seconds = seconds
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError("E-ENDPOINT", "OPENAI_API_KEY has characters that no key has.", "Correct or unset it.")
        try:
            self._client = openai.OpenAI(
                base_url=self.endpoint.url,
                api_key=self._key or "none",
                max_retries=retries,
                timeout=seconds,
                http_client=BoundedClient(follow_redirects=False, headers={"Accept-Encoding": "identity"}),
            )
        except Exception as error:  # such as an invalid address or proxy
            raise InputError("E-ENDPOINT", f"{name} cannot be asked: {self._plain(error)}.") from None

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance in the chat template of the tokenizer. Chat settings of a task need one."""
        return self._as_read(instance, self._encoder(options))

    def _encoder(self, options: ScoringOptions) -> PromptEncoder | None:
        return None if self.tokenizer is None else PromptEncoder(self.tokenizer, options.chat_template)

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

        Raises:
            InputError: ``E-ENDPOINT-ANSWER``, ``E-ENDPOINT-LOGPROBS``, ``E-ENDPOINT-CHANGED``, ``E-ENDPOINT-STORE``;
                ``E-ENDPOINT`` for an option of loaded models.
        """
        if options.too_long == "skip":
            raise InputError("E-ENDPOINT", "--too-long skip applies only to local models.", "Remove the option.")
        encoder = self._encoder(options)
        in_chat = encoder is None and options.chat_template == "on"
        if in_chat and options.by == "probability":
            hint = "Give the served model's tokenizer with --tokenizer."
            raise InputError("E-CHAT-TEMPLATE", "--chat-template on needs a tokenizer.", hint)
        shape = (len(instances), len(instances[0].choices), len(instances[0].choices[0]))
        if options.by == "generation":
            require_different(instances)
        read = [self._as_read(instance, encoder) for instance in instances]
        questions = [question for each in read for question in self._questions(each, encoder, options, names)]
        answers, asked = self._answers(questions, options.concurrency, label, quiet)
        if options.by == "probability":
            scores = np.array([each["score"] for each in answers], dtype=np.float32).reshape(shape)
            counts = np.array([each["tokens"] for each in answers], dtype=np.int64).reshape(shape)
        else:
            given = [each.means(answer) for each, answer in zip(questions, answers, strict=True)]
            is_given = np.array(given, dtype=object)[:, None] == np.arange(shape[2])
            scores = np.where(is_given, 0.0, -np.inf).astype(np.float32).reshape(shape)
            counts = np.zeros(shape, dtype=np.int64)
        merged = sum(each.get("merged", False) for each in answers)
        settings = {
            "delimiter": _delimiter(instances[0], encoder),
            "chat_template": in_chat or bool(encoder and encoder.uses_chat_template),
            "backend": "openai",
            "by": options.by,
            "boundary_merged": merged,
            **asked,
        }
        return Scores.of(instances, scores, counts, instances=read, settings=settings)

    def _questions(
        self,
        instance: RenderedInstance,
        encoder: PromptEncoder | None,
        options: ScoringOptions,
        names: Sequence[str],
    ) -> Iterator[Question]:
        in_chat = encoder is None and options.chat_template == "on"
        # Without this, the text would have the BOS of the chat template and the BOS of the server's tokenizer.
        bos = encoder.tokenizer.bos_token if encoder and encoder.uses_chat_template and encoder.starts_with_bos else ""
        for at, (read, choices) in enumerate(zip(instance.prompts, instance.choices, strict=True)):
            prompt = read.removeprefix(str(bos))
            place = f"Instance {instance.id!r}, template {names[at] if names else at + 1!r}"
            if options.by == "generation":
                yield Question(prompt, None, 16 + max(map(len, choices)), in_chat, choices, place)
                continue
            start = prompt.rstrip(" ")
            for choice in choices:
                answer = prompt[len(start) :] + _delimiter(instance, encoder) + choice
                yield Question(start, answer, choices=choices, place=place)

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
            asked_now = (in_threads(self._ask, each, concurrency, self._seconds) for each in (again, opened))
            with track(label, total, "answers", quiet=quiet) as advance:
                advance(len(kept))
                for question, answer in itertools.chain.from_iterable(asked_now):
                    if isinstance(answer, UnreachableError) and found:
                        hint = f"{len(found):,} of {total:,} answers are stored. To continue, run the command again."
                        raise InputError(answer.code, answer.message, hint) from answer
                    if type(answer) is InputError:
                        raise InputError(answer.code, f"{question.place}: {answer.message}", answer.hint) from answer
                    if isinstance(answer, BaseException):
                        raise answer
                    if question.key not in kept:
                        found[question.key] = answer
                        store.put(question.key, answer)
                        advance(1)
                    elif not same(question.means(kept[question.key]), question.means(answer)):
                        num_changed += 1
                    if num_changed > len(again) // 5:  # a few answers may change by rounding
                        raise InputError(
                            "E-ENDPOINT-CHANGED",
                            f"{self._what} does not answer as before: its weights have changed.",
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
            return self._written(question) if question.answer is None else self._score(question.prompt, question.answer)
        except InputError:
            raise
        except Exception as error:  # any that an invalid reply causes
            code, what, hint = (
                ("E-ENDPOINT-ANSWER", "completion", "")
                if question.answer is None
                else ("E-ENDPOINT-LOGPROBS", "log-probabilities", WITHOUT_PROBABILITIES)
            )
            message = f"{self._what} sends no valid {what} ({type(error).__name__}: {self._plain(error)})."
            raise InputError(code, message, hint) from error

    def _score(self, prompt: str, answer: str) -> dict[str, Any]:
        """Compute the mean log-probability of the answer's tokens, which are the last ones of the text.

        If no tokens are exactly the answer, a request for the prompt follows. The first token that differs is the cut.
        """
        tokens, log_probs, used = self._echo(prompt + answer)
        lengths = itertools.accumulate(map(len, reversed(tokens)))
        number = next((at for at, length in enumerate(lengths, 1) if length >= len(answer)), len(tokens))
        merged = False
        # A server may return the text of a character with its last token, and empty texts for its other tokens.
        if "".join(tokens[-number:]) != answer or (number < len(tokens) and not tokens[-number - 1]):
            context, _, more = self._echo(prompt)
            pairs = zip(context, tokens, strict=False)
            cut = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(context), len(tokens)))
            number, merged, used = len(tokens) - cut, cut < len(context), used + more
        own = log_probs[len(tokens) - number :]
        if not own or None in own or not end_with(tokens, answer):
            raise ValueError("none for the answer's tokens")
        score = np.minimum(np.array(own, dtype=np.float64), 0.0).mean()
        return {"score": float(score), "tokens": number, "merged": merged, "read": used, "written": 1}

    def _echo(self, text: str) -> tuple[list[str], list[Any], int]:
        """Return the tokens of a text, their log-probabilities and the number of tokens read."""
        return echoed_tokens(
            self._call(self._client.completions, prompt=text, echo=True, logprobs=1, max_tokens=1), text
        )

    def _written(self, question: Question) -> dict[str, Any]:
        """Ask for a generated answer."""
        if question.in_chat:
            turns = [{"role": "user", "content": question.prompt}]
            reply = self._call(self._client.chat.completions, messages=turns, max_tokens=question.max_tokens)
            text = reply["choices"][0]["message"].get("content")
        else:
            reply = self._call(self._client.completions, prompt=question.prompt, max_tokens=question.max_tokens)
            text = reply["choices"][0]["text"]
        read, written = counts_of(reply)
        return {"text": "" if text is None else text.strip(), "read": read, "written": written}

    @property
    def _what(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}"

    def _call(self, resource: Any, **arguments: Any) -> dict[str, Any]:
        """Return the JSON of a reply at temperature 0."""
        try:
            raw = resource.with_raw_response.create(model=self.endpoint.model, temperature=0, **arguments)
            return raw.http_response.json()
        except self._errors.APIStatusError as error:
            reason, status = self._plain(error), error.status_code
            if status in (400, 422, 500) and ("logprob" in str(error) or "echo" in str(error)):
                raise InputError("E-ENDPOINT-LOGPROBS", f"{self._what}: {reason}.", WITHOUT_PROBABILITIES) from None
            kind = UnreachableError if status == 429 or status >= 500 else InputError
            raise kind(
                "E-ENDPOINT-ANSWER", f"{self._what} answers {status}: {reason}.", HINTS.get(status, "")
            ) from None
        except self._errors.OpenAIError as error:
            kind = UnreachableError if isinstance(error, self._errors.APIConnectionError) else InputError
            raise kind("E-ENDPOINT-ANSWER", f"{self._what} does not answer: {self._plain(error)}.") from None

    def _plain(self, error: Exception) -> str:
        """Return the text of an error without line breaks and without the key, which some servers repeat."""
        text = str(error).replace(self._key, "***") if self._key else str(error)
        return " ".join(text.split())[:200].rstrip(".")


def _delimiter(instance: RenderedInstance, encoder: PromptEncoder | None) -> str:
    return " " if encoder is None else encoder.delimiter_of(instance.chat)
