"""Rendered instances in tokens, in the tokenizer's chat template if it has one."""

import contextlib
import functools
import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from torch import nn
from transformers import PreTrainedTokenizerBase

from flip_flop.console import today
from flip_flop.errors import InputError
from flip_flop.prompts import Chat, RenderedInstance
from flip_flop.prompts.sandbox import MAX_OUTPUT
from flip_flop.scoring.boundary import AnswerRow, Boundary, EncodedInstance, longest_tokens
from flip_flop.scoring.causal_lm import as_input_error, unwrap
from flip_flop.scoring.options import ChatTemplate
from flip_flop.scoring.too_long import TooLong

CHUNK = 64  # instances per call of the tokenizer


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
            InputError: ``E-TOO-LONG`` above the model's context, or as :meth:`encode_all`.
        """
        encoded, too_long, _ = self.encode_all([instance])
        for prompt in too_long:
            raise InputError(
                "E-TOO-LONG",
                f"Instance {prompt.id!r}, template number {prompt.template + 1}: prompt and answer are {prompt.tokens} "
                f"tokens, the model's context is {prompt.limit}.",
                "Shorten the text or the template, or use a model with a longer context.",
            )
        return encoded[0]

    def encode_all(
        self, instances: Sequence[RenderedInstance]
    ) -> tuple[list[EncodedInstance], list[TooLong], list[RenderedInstance]]:
        """Tokenize instances under all templates, each once.

        Returns:
            The instances that fit the model's context, the prompts that do not, and the fitting instances as the model
            reads them.

        Raises:
            InputError: ``E-MODEL-TOKENIZER`` for a token outside of the model's vocabulary, ``E-LABEL-TOKENS`` for two
                equal answers, or as :meth:`Boundary.encode`.
        """
        encoded: list[EncodedInstance] = []
        too_long: list[TooLong] = []
        fitting: list[RenderedInstance] = []
        for start in range(0, len(instances), CHUNK):
            chunk = [self.as_read(instance) for instance in instances[start : start + CHUNK]]
            for row, instance in zip(self._encode(chunk), chunk, strict=True):
                long = self._too_long(row)
                too_long += long
                if not long:
                    self._check(row, instance.choices)
                    encoded.append(row)
                    fitting.append(instance)
        return encoded, too_long, fitting

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
