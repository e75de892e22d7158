"""Prompts in a tokenizer's chat template, with what a task's chat has beside them."""

import functools
import inspect
import logging
from collections.abc import Mapping
from typing import Any

import jinja2
from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.prompts import Chat
from flip_flop.prompts.limits import MAX_SIZE
from flip_flop.scoring.bounds import time_limit

log = logging.getLogger("flip_flop")

_LIBRARY_NAMES = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"tools", "documents"}


def in_chat(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: Chat) -> str:
    """The prompt as the user's turn, and the beginning of the assistant's.

    Raises:
        InputError: ``E-CHAT-TEMPLATE`` where the template fails, as some do on a system turn.
    """
    if taken := _LIBRARY_NAMES.intersection(chat.chat_template_kwargs):
        message = f"chat_template_kwargs has {sorted(taken)[0]!r}, which is not for the template: the library takes it."
        raise InputError("E-CHAT-TEMPLATE", message, "Leave it out.")
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
        if len(text) > MAX_SIZE:
            raise ValueError(f"it writes {len(text):,} characters; {MAX_SIZE:,} are allowed")
    except Exception as error:  # a chat template is code of the model's authors: it may raise anything
        what, hint = "a user's turn", "Use --chat-template off."
        if chat.given:
            what = f"a user's turn with {' and '.join(chat.given)}"
            hint = f"Leave {' or '.join(chat.given)} out of the task: some models take no system message."
        message = f"The tokenizer's chat template fails on {what}: {' '.join(str(error).split()).rstrip('.')}."
        raise InputError("E-CHAT-TEMPLATE", message, hint) from error
    return text + (chat.assistant_prefix or "")


def refuse_without_template(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Refuse what only a chat template can take where none is used (``E-CHAT-TEMPLATE``)."""
    for key in chat.given:
        why = "--chat-template is off" if tokenizer.chat_template else "the tokenizer has none"
        hint = "Use an instruction-tuned model with a chat template, or write it into the templates."
        raise InputError("E-CHAT-TEMPLATE", f"The task has {key}: for the chat template, and {why}.", hint)


def check_chat(tokenizer: PreTrainedTokenizerBase, chat: Chat, trained: Mapping[str, Any] | None) -> None:
    """Warn where a template is not told whether to think, or an adapter was trained in another chat."""
    if "enable_thinking" in str(tokenizer.chat_template) and "enable_thinking" not in chat.chat_template_kwargs:
        _say(
            "W-CHAT-THINKING: the chat template knows enable_thinking, and the task does not say it: answers are "
            "scored as the template's default has it. Write chat_template_kwargs: {enable_thinking: false}."
        )
    if trained is not None and trained != chat.given:
        before, now = (dict(each) or "nothing" for each in (trained, chat.given))
        _say(f"W-CHAT-CHANGED: the adapter was trained with {before} beside the prompts, the task has {now}.")


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


@functools.lru_cache(maxsize=4)
def _check_operators(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse powers, which Python computes without a break, before the template is compiled."""
    written = tokenizer.chat_template
    for text in written.values() if isinstance(written, dict) else [written]:
        if any(value == "**" for _, kind, value in jinja2.Environment().lex(text) if kind == "operator"):
            raise ValueError("a power (**) is not allowed")
