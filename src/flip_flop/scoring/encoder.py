"""Rendered instances in tokens, in the tokenizer's chat template if it has one."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast, overload
from unittest.mock import patch

import jinja2
from torch import nn
from transformers import PreTrainedTokenizerBase

from flip_flop.console import today
from flip_flop.errors import InputError
from flip_flop.prompts import Chat, RenderedInstance
from flip_flop.prompts.sandbox import MAX_OUTPUT
from flip_flop.scoring.boundary import AnswerRow, Boundary, EncodedInstance, longest_tokens
from flip_flop.scoring.bounds import time_limit
from flip_flop.scoring.causal_lm import as_input_error, unwrap
from flip_flop.scoring.options import ChatTemplate
from flip_flop.scoring.too_long import TooLong

CHUNK = 64  # instances per call of the tokenizer
# Upper bounds of tokens: of a byte, which Unicode normalization may turn into 11, and BOS or a leading space.
TOKENS_A_BYTE, ADDED = 12, 8


@dataclass(frozen=True)
class PromptEncoder:
    """Tokenize rendered instances by the boundary rule.

    Attributes:
        tokenizer: The tokenizer of the model.
        chat_template: ``on`` puts each prompt into the tokenizer's chat template as the user's turn, ``off`` does
            not. ``auto`` is ``on`` if the tokenizer has a chat template.
        max_length: The model's context in tokens, or ``None`` without a limit.
        vocab_size: The number of rows of the model's embedding.
        trained_chat: The system message and other chat settings of the adapter's training, if known.
        date: The date that a chat template prints (``strftime_now``); by default today's in UTC. The time is midnight.
    """

    tokenizer: PreTrainedTokenizerBase
    chat_template: ChatTemplate = "auto"
    max_length: int | None = None
    vocab_size: int | None = None
    trained_chat: Mapping[str, Any] | None = None
    date: str = field(default_factory=today)

    def __post_init__(self):
        with as_input_error("E-CONFIG-VALUE", "prompt_date", "Write a date such as 2026-11-25.", ValueError):
            datetime.fromisoformat(self.date)
        if self.chat_template == "on" and not self.tokenizer.chat_template:
            message = "chat_template is 'on', but the tokenizer has no chat template."
            raise InputError("E-CHAT-TEMPLATE", message, "Use --chat-template off, or a model with one.")

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase, chat_template: ChatTemplate = "auto", date: str = ""
    ) -> "PromptEncoder":
        """Return the encoder for a model."""
        causal_lm = unwrap(model)
        vocab_size = cast(nn.Embedding, causal_lm.get_input_embeddings()).weight.shape[0]
        context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None) or 0
        return cls(tokenizer, chat_template, context if context > 0 else None, vocab_size, date=date or today())

    @property
    def uses_chat_template(self) -> bool:
        """Whether the tokenizer's chat template is used."""
        return self.chat_template != "off" and bool(self.tokenizer.chat_template)

    @property
    def delimiter(self) -> str:
        """The text between prompt and answer: empty after the generation prompt of a chat template, else a space."""
        return "" if self.uses_chat_template else " "

    @functools.cached_property
    def starts_with_bos(self) -> bool:
        """Whether the tokenizer adds its BOS token to a text."""
        bos, started = self.tokenizer.bos_token_id, self.tokenizer("a")["input_ids"]
        return bos is not None and started[:1] == [bos]

    @property
    def bos(self) -> int | None:
        """The id of the BOS token that is added to prompts, or ``None``. Chat templates write their BOS token."""
        return self.tokenizer.bos_token_id if self.starts_with_bos and not self.uses_chat_template else None

    def encode(self, instance: RenderedInstance) -> EncodedInstance:
        """Tokenize one instance under all templates.

        Raises:
            InputError: ``E-TOO-LONG`` above the model's context, ``E-MODEL-TOKENIZER`` for a token outside of the
                model's vocabulary, ``E-LABEL-TOKENS`` for two equal answers, or as :meth:`Boundary.encode`.
        """
        return self.encode_chunk([self.as_read(instance)])[0]

    def encode_all(self, instances: Sequence[RenderedInstance]) -> tuple["EncodedRows", list[TooLong]]:
        """Return the instances that fit the model's context, in tokens, and the prompts that do not.

        Only prompts that may be too long are tokenized here. The rows tokenize the others during iteration.
        """
        read = list(map(self.as_read, instances))
        long = [number for number, instance in enumerate(read) if self._may_be_too_long(instance)]
        found = map(self._too_long, self._chunks([read[number] for number in long]))
        too_long = {number: each for number, each in zip(long, found, strict=True) if each}
        fitting = [each for number, each in enumerate(read) if number not in too_long]
        return EncodedRows(self, fitting), [one for each in too_long.values() for one in each]

    def as_read(self, instance: RenderedInstance) -> RenderedInstance:
        """Return the instance with its prompts in the chat template, if it is used."""
        if not self.uses_chat_template:
            refuse_without_template(self.tokenizer, instance.chat)
            return instance
        check_chat(self.tokenizer, instance.chat, self.trained_chat)
        clock = SimpleNamespace(now=functools.partial(datetime.fromisoformat, self.date))
        with patch("transformers.utils.chat_template_utils.datetime", clock):  # the library has no parameter for it
            prompts = [in_chat(self.tokenizer, each, instance.chat) for each in instance.prompts]
            return replace(instance, prompts=tuple(prompts))

    def delimiter_of(self, chat: Chat) -> str:
        """Return :attr:`delimiter`, or after an assistant prefix that does not end with white space, a space."""
        return self.delimiter if not chat.assistant_prefix else " " * (not chat.assistant_prefix[-1].isspace())

    @functools.cached_property
    def _boundary(self) -> Boundary:
        return Boundary(self.tokenizer, self.bos)

    def _encode(self, instances: Sequence[RenderedInstance]) -> list[EncodedInstance]:
        rows = self._boundary.encode(
            [
                (prompt, [delimiter + choice for choice in choices])
                for instance in instances
                for delimiter in [self.delimiter_of(instance.chat)]
                for prompt, choices in zip(instance.prompts, instance.choices, strict=True)
            ]
        )
        left = iter(rows)
        return [EncodedInstance(each.id, tuple(next(left) for _ in each.prompts), each.label) for each in instances]

    def _chunks(self, instances: Sequence[RenderedInstance]) -> Iterator[EncodedInstance]:
        for start in range(0, len(instances), CHUNK):
            yield from self._encode(instances[start : start + CHUNK])

    def encode_chunk(self, read: Sequence[RenderedInstance]) -> list[EncodedInstance]:
        """Tokenize instances in one call. Their prompts are in the chat template. Raises as :meth:`encode`."""
        found = self._encode(read)
        for encoded, instance in zip(found, read, strict=True):
            for each in self._too_long(encoded):
                where = f"Instance {each.id!r}, template number {each.template + 1}"
                raise InputError(
                    "E-TOO-LONG",
                    f"{where}: prompt and answer are {each.tokens} tokens, the model's context is {each.limit}.",
                    "Shorten the text or the template, or use a model with a longer context.",
                )
            self._check(encoded, instance.choices)
        return found

    def _may_be_too_long(self, instance: RenderedInstance) -> bool:
        if self.max_length is None:
            return False
        return any(
            _most_tokens(prompt) + max(map(_most_tokens, choices)) > self.max_length
            for prompt, choices in zip(instance.prompts, instance.choices, strict=True)
        )

    def _too_long(self, instance: EncodedInstance) -> list[TooLong]:
        if self.max_length is None:
            return []
        return [
            TooLong(instance.id, template, tokens, self.max_length)
            for template, tokens in enumerate(map(longest_tokens, instance.answers))
            if tokens > self.max_length
        ]

    def _check(self, instance: EncodedInstance, choices: Sequence[Sequence[str]]) -> None:
        for index, row in enumerate(cast(Sequence[AnswerRow], instance.answers)):
            where = f"Instance {instance.id!r}, template number {index + 1}"
            if self.vocab_size is not None and row.largest >= self.vocab_size:
                raise InputError(
                    "E-MODEL-TOKENIZER",
                    f"{where}: token {row.largest}, but the model's vocabulary ends at {self.vocab_size - 1}.",
                    "Use the tokenizer that belongs to the model.",
                )
            if row.answers.same is not None:
                first, second = (repr(choices[index][number]) for number in row.answers.same)
                raise InputError(
                    "E-LABEL-TOKENS",
                    f"{where}: the answers {first} and {second} are the same tokens.",
                    "Write them in characters that the model's tokenizer knows.",
                )


@dataclass(frozen=True, eq=False)
class EncodedRows(Sequence[EncodedInstance]):
    """Instances as the model reads them. During iteration, a thread tokenizes them in advance.

    The error of an invalid instance is raised as soon as the thread finds it.
    """

    encoder: PromptEncoder
    read: Sequence[RenderedInstance]

    def __len__(self) -> int:
        return len(self.read)

    @overload
    def __getitem__(self, index: int) -> EncodedInstance: ...
    @overload
    def __getitem__(self, index: slice) -> "EncodedRows": ...
    def __getitem__(self, index: int | slice) -> "EncodedInstance | EncodedRows":
        """Return one instance in tokens, or a part of the rows."""
        read = self.read[index]
        return self.encoder.encode_chunk([read])[0] if isinstance(read, RenderedInstance) else replace(self, read=read)

    def __iter__(self) -> Iterator[EncodedInstance]:
        failed: list[BaseException] = []

        def encode(start: int) -> list[EncodedInstance]:
            try:
                return self.encoder.encode_chunk(self.read[start : start + CHUNK])
            except BaseException as error:
                failed.append(error)
                raise

        worker = ThreadPoolExecutor(1, "encoding")
        try:
            waiting = [worker.submit(encode, start) for start in range(0, len(self), CHUNK)][::-1]
            while waiting:
                for instance in waiting.pop().result():
                    if failed:
                        raise failed[0]
                    yield instance
        finally:
            worker.shutdown(cancel_futures=True)


def _most_tokens(text: str) -> int:
    """Return an upper bound of the number of tokens of a text."""
    return ADDED + (len(text) if text.isascii() else TOKENS_A_BYTE * len(text.encode()))


log = logging.getLogger("flip_flop")

_LIBRARY_NAMES = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"tools", "documents"}


def in_chat(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: Chat) -> str:
    """Return the chat template's text of a user turn with this prompt, up to the assistant's answer.

    Raises:
        InputError: ``E-CHAT-TEMPLATE`` if the template fails, as some do with a system message.
    """
    if taken := _LIBRARY_NAMES.intersection(chat.chat_template_kwargs):
        message = f"{sorted(taken)[0]!r} is reserved in chat_template_kwargs."
        raise InputError("E-CHAT-TEMPLATE", message, "Remove it.")
    turns = [{"role": "user", "content": prompt}]
    if chat.system:
        turns.insert(0, {"role": "system", "content": chat.system})
    try:
        _check_operators(tokenizer)
        with time_limit():
            text = str(
                tokenizer.apply_chat_template(
                    turns, **chat.chat_template_kwargs, tokenize=False, add_generation_prompt=True
                )
            )
        text.encode()  # a lone surrogate has no tokens
        if len(text) > MAX_OUTPUT:
            raise ValueError(f"it writes {len(text):,} characters; {MAX_OUTPUT:,} are allowed")
    except Exception as error:  # a chat template is code, and may raise any error
        what, hint = "a user's turn", "Use --chat-template off."
        if chat.given:
            what = f"a user's turn with {' and '.join(chat.given)}"
            hint = f"Remove {' or '.join(chat.given)} from the task: some models do not accept a system message."
        message = f"The tokenizer's chat template fails on {what}: {' '.join(str(error).split()).rstrip('.')}."
        raise InputError("E-CHAT-TEMPLATE", message, hint) from error
    return text + (chat.assistant_prefix or "")


def refuse_without_template(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Refuse chat settings of a task if no chat template is used (``E-CHAT-TEMPLATE``)."""
    for key in chat.given:
        why = "--chat-template is off" if tokenizer.chat_template else "the tokenizer does not have one"
        hint = "Use an instruction-tuned model with a chat template, or write the text into the templates."
        raise InputError("E-CHAT-TEMPLATE", f"The task has {key}, which needs a chat template, but {why}.", hint)


def check_chat(tokenizer: PreTrainedTokenizerBase, chat: Chat, trained: Mapping[str, Any] | None) -> None:
    """Warn if a thinking model's default applies, or if the chat settings of the adapter's training differ."""
    if "enable_thinking" in str(tokenizer.chat_template) and "enable_thinking" not in chat.chat_template_kwargs:
        _say(
            "W-CHAT-THINKING: the chat template has enable_thinking, and the task does not set it, so the template's "
            "default applies. Write chat_template_kwargs: {enable_thinking: false}."
        )
    warn_of_unused(tokenizer, chat)
    if trained is not None and trained != chat.given:
        before, now = (dict(each) or "no chat settings" for each in (trained, chat.given))
        _say(f"W-CHAT-CHANGED: the adapter was trained with {before}, the task has {now}.")


@functools.lru_cache(maxsize=4)
def warn_of_unused(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Warn of settings without which the chat template writes the same text, once per tokenizer."""
    for key in sorted(chat.given.keys() - {"assistant_prefix"}):
        with contextlib.suppress(InputError):  # some templates need the setting
            if in_chat(tokenizer, "text", chat) == in_chat(tokenizer, "text", replace(chat, **{key: {}})):  # type: ignore[arg-type]
                log.warning("W-CHAT-UNUSED: %s changes nothing in the prompt of this model's chat template.", key)


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


@functools.lru_cache(maxsize=4)
def _check_operators(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse powers, which a time limit cannot interrupt, and Jinja's random filter and text."""
    written = tokenizer.chat_template
    for text in written.values() if isinstance(written, dict) else [written]:
        refused = {("operator", "**"), ("name", "random"), ("name", "lipsum")}
        if any((kind, value) in refused for _, kind, value in jinja2.Environment().lex(text)):
            raise ValueError("a power (**), random or lipsum is not allowed")
