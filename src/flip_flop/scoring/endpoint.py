"""The second scorer: a model behind an OpenAI-compatible completions endpoint, such as vLLM's, SGLang's or llama.cpp's.

The text that is scored is prompt, delimiter and answer, as in :mod:`flip_flop.scoring.tokens`; the server's tokenizer
reads it. It gives back the tokens with their log-probabilities (``echo``), and the answer's are those at the end.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.files import sha256_json, user_cache
from flip_flop.hub import endpoint_of
from flip_flop.identity import json_digest
from flip_flop.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.progress import track
from flip_flop.prompts import RenderedInstance
from flip_flop.run_record import ModelRecord
from flip_flop.scoring.answer_store import AnswerStore
from flip_flop.scoring.interface import Scorer
from flip_flop.scoring.models import load_tokenizer
from flip_flop.scoring.questions import Question, in_threads, require_different, same
from flip_flop.scoring.scorer import ScoreTable
from flip_flop.scoring.tokens import PromptEncoder
from flip_flop.terminal import echo
from flip_flop.text import count

# A request is tried so often again, after 0.5 s, 1 s, 2 s, ... up to 8 s: a minute in all, in which a server restarts.
RETRIES, SECONDS = 10, 300.0
REFUSED = (400, 413, 422)
CHECKED = 10  # labels that are asked again: a single one is often the same by chance
WITHOUT_PROBABILITIES = "Add --by generation, which takes the answer that the model writes."


class UnreachableError(InputError):
    """What passes: no connection, a server that is too busy or fails."""


class EndpointScorer(Scorer):
    """A served model, by its name ``openai:URL#NAME``.

    A tokenizer, or its name, is for its chat template alone, in which prompts are then put. The key is read from
    ``OPENAI_API_KEY``. Connections that fail, and answers 429 and 5xx, are tried ``retries`` times again.

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
        self.record = ModelRecord(name=self.endpoint.model, digests=digests, extra={"endpoint": self.endpoint.url})
        self.store = user_cache() / "answers" / f"{sha256_json(self.endpoint)[:16]}.sqlite"
        import openai

        self._errors: Any = openai
        self._key = os.environ.get("OPENAI_API_KEY", "")
        settings: Any = {"max_retries": retries, "timeout": seconds}
        try:
            self._client = openai.OpenAI(base_url=self.endpoint.url, api_key=self._key or "none", **settings)
        except Exception as error:  # of an address, or of what the environment says of proxies
            raise InputError("E-ENDPOINT", f"{name} cannot be asked: {self._plain(error)}.") from None

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """In the chat template of the tokenizer that was given; what only a template can take needs one."""
        return self._as_read(instance, self._encoder(options))

    def _encoder(self, options: ScoringOptions) -> PromptEncoder | None:
        return None if self.tokenizer is None else PromptEncoder(self.tokenizer, options.chat_template)

    def _as_read(self, instance: RenderedInstance, encoder: PromptEncoder | None) -> RenderedInstance:
        if encoder is not None:
            return encoder.as_read(instance)
        for key in instance.chat.given:
            message = f"The task has {key}: for the chat template, and a served model's is on its server."
            raise InputError("E-CHAT-TEMPLATE", message, "Give --tokenizer, whose chat template it is.")
        return instance

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> ScoreTable:
        """Ask the server, ``options.concurrency`` requests at a time; an answer that is kept is not asked again.

        By generation an answer's score is 0, the others' are ``-inf``; all are where the answer is none of them.

        Raises:
            InputError: ``E-ENDPOINT-ANSWER``, ``E-ENDPOINT-LOGPROBS``, ``E-ENDPOINT-CHANGED``, ``E-ENDPOINT-STORE``;
                ``E-ENDPOINT`` for an option of loaded models.
        """
        if options.too_long == "skip":
            raise InputError("E-ENDPOINT", "How long a prompt is, a server tells only by refusing it: none is skipped.")
        encoder = self._encoder(options)
        in_chat = encoder is None and options.chat_template == "on"
        if in_chat and options.by == "probability":
            hint = "Give --tokenizer, whose chat template it is."
            raise InputError("E-CHAT-TEMPLATE", "A served model's chat template is on its server.", hint)
        shape = (len(instances), len(instances[0].choices), len(instances[0].choices[0]))
        if options.by == "generation":
            require_different(instances)
        questions = [question for each in instances for question in self._questions(each, encoder, options, names)]
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
        return ScoreTable(scores, counts, merged, settings=settings)

    def _questions(
        self,
        instance: RenderedInstance,
        encoder: PromptEncoder | None,
        options: ScoringOptions,
        names: Sequence[str],
    ) -> Iterator[Question]:
        in_chat = encoder is None and options.chat_template == "on"
        # The BOS that a chat template writes is left out where the server's tokenizer writes it too.
        bos = encoder.tokenizer.bos_token if encoder and encoder.uses_chat_template and encoder.starts_with_bos else ""
        prompts = self._as_read(instance, encoder).prompts
        for at, (read, choices) in enumerate(zip(prompts, instance.choices, strict=True)):
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
        """The answers, and what was asked for them; some that are kept are asked again: they may no longer hold."""
        by_key = {question.key: question for question in questions}
        with AnswerStore(self.store) as store:
            kept = store.found(by_key)
            opened = [by_key[key] for key in by_key if key not in kept]
            again = [*kept][:: max(1, len(kept) // CHECKED)][: CHECKED if questions[0].answer is None else 1]
            differing = sum(
                not same(by_key[key].means(kept[key]), by_key[key].means(self._ask(by_key[key]))) for key in again
            )
            if differing > len(again) // 5:  # by generation, a label that hangs on rounding may be another one
                url, model = self.endpoint
                message = f"{url} does not answer as it did: another model is called {model}."
                raise InputError("E-ENDPOINT-CHANGED", message, f"Remove {self.store}, and all is asked again.")
            found, total = dict(kept), len(by_key)
            with track(label, total, "answers", quiet=quiet) as advance:
                advance(len(kept))
                for question, answer in in_threads(self._ask, opened, concurrency):
                    if isinstance(answer, UnreachableError) and found:
                        hint = f"{len(found):,} of {total:,} answers are kept: the same command goes on from there."
                        raise InputError(answer.code, answer.message, hint) from answer
                    if type(answer) is InputError:
                        raise InputError(answer.code, f"{question.place}: {answer.message}", answer.hint) from answer
                    if isinstance(answer, BaseException):
                        raise answer
                    found[question.key] = answer
                    store.put(question.key, answer)
                    advance(1)
        new = [found[question.key] for question in opened]
        asked = {"num_asked": len(new), "tokens_read": sum(each["read"] for each in new)}
        asked["tokens_written"] = sum(each["written"] for each in new)
        if not quiet:
            read, written = count(asked["tokens_read"], "token"), asked["tokens_written"]
            echo(f"{count(len(new), 'answer')} asked, {read} read, {written:,} written; {len(kept):,} kept", err=True)
        return [found[question.key] for question in questions], asked

    def _ask(self, question: Question) -> dict[str, Any]:
        try:
            return self._written(question) if question.answer is None else self._score(question.prompt, question.answer)
        except InputError:
            raise
        except Exception as error:  # whatever a reply of another shape leads to
            message = f"{self._what} answers with something else than a completion ({type(error).__name__})."
            raise InputError("E-ENDPOINT-ANSWER", message) from error

    def _score(self, prompt: str, answer: str) -> dict[str, Any]:
        """The mean log-probability of the answer's tokens: those at the end that are its text.

        Where no tokens are exactly that, the prompt is read alone, and the cut is at the first token that differs.
        """
        tokens, log_probs, used = self._echo(prompt + answer)
        number, text = 0, ""
        while len(text) < len(answer) and number < len(tokens):
            number += 1
            text = tokens[-number] + text
        merged = False
        # A server may show a character of several tokens with its last one, the others as nothing.
        if text != answer or (number < len(tokens) and not tokens[-number - 1]):
            context, _, more = self._echo(prompt)
            pairs = zip(context, tokens, strict=False)
            cut = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(context), len(tokens)))
            number, merged, used = len(tokens) - cut, cut < len(context), used + more
        own = np.array(log_probs[len(tokens) - number :], dtype=np.float64)  # where there is None, NaN
        if not own.size or not np.isfinite(own).all():
            raise InputError("E-ENDPOINT-LOGPROBS", f"{self._what} gives the answer {answer!r} no log-probability.")
        return {"score": float(own.mean()), "tokens": number, "merged": merged, "read": used, "written": 1}

    def _echo(self, text: str) -> tuple[list[str], list[float | None], int]:
        """A text's tokens with their log-probabilities, and how many were read; one more that is written is dropped."""
        create = self._client.completions.create
        found = self._call(
            create, model=self.endpoint.model, prompt=text, echo=True, logprobs=1, max_tokens=1, temperature=0
        )
        choice, usage = found.choices[0], found.usage
        given = choice.logprobs and choice.logprobs.token_logprobs
        if not given or not (choice.text or "").startswith(text) or usage is None:
            raise InputError(
                "E-ENDPOINT-LOGPROBS", f"{self._what} gives no log-probabilities of a prompt.", WITHOUT_PROBABILITIES
            )
        end = len(given) - usage.completion_tokens
        return choice.logprobs.tokens[:end], given[:end], usage.prompt_tokens

    def _written(self, question: Question) -> dict[str, Any]:
        """The answer that the model writes, at temperature 0."""
        settings = {"model": self.endpoint.model, "max_tokens": question.max_tokens, "temperature": 0}
        if question.in_chat:
            turns = [{"role": "user", "content": question.prompt}]
            found = self._call(self._client.chat.completions.create, messages=turns, **settings)
            text = found.choices[0].message.content
        else:
            found = self._call(self._client.completions.create, prompt=question.prompt, **settings)
            text = found.choices[0].text
        used = (found.usage.prompt_tokens, found.usage.completion_tokens) if found.usage else (0, 0)
        return {"text": (text or "").strip(), "read": used[0], "written": used[1]}

    @property
    def _what(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}"

    def _call(self, create: Callable[..., Any], **arguments: Any) -> Any:
        try:
            found = create(**arguments)
        except self._errors.APIStatusError as error:
            reason, status = self._plain(error), error.status_code
            if status in (400, 422, 500) and ("logprob" in str(error) or "echo" in str(error)):
                raise InputError("E-ENDPOINT-LOGPROBS", f"{self._what}: {reason}.", WITHOUT_PROBABILITIES) from None
            kind = UnreachableError if status == 429 or status >= 500 else InputError
            hint = "The server's log may say more; is the prompt longer than its context?" if status in REFUSED else ""
            raise kind("E-ENDPOINT-ANSWER", f"{self._what} answers {status}: {reason}.", hint) from None
        except self._errors.OpenAIError as error:
            message = f"{self._what} does not answer: {self._plain(error)}."
            raise UnreachableError("E-ENDPOINT-ANSWER", message) from None
        if not getattr(found, "choices", None):
            raise InputError("E-ENDPOINT-ANSWER", f"{self._what} answers with something else than a completion.")
        return found

    def _plain(self, error: Exception) -> str:
        """An error's text in one line, without the key, which some servers repeat."""
        text = str(error).replace(self._key, "***") if self._key else str(error)
        return " ".join(text.split())[:200].rstrip(".")


def _delimiter(instance: RenderedInstance, encoder: PromptEncoder | None) -> str:
    return " " if encoder is None else encoder.delimiter_of(instance.chat)
