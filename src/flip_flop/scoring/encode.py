"""Rendered instances in tokens: the chat template, and the boundary rule at which a prompt ends.

The boundary rule is implemented only here. Only the tokens of the answer are scored, given prompt and delimiter:

1. Prompt and answer are tokenized *together*, because tokens depend on the text before them: ``" Yes"`` and ``"Yes"``
   are different tokens.
2. Spaces at the end of the prompt move to the answer, because most vocabularies join a space to the following word.
3. The cut is after the tokens of the prompt. If a token spans prompt and answer, the cut is before the first token
   that differs. The answer then includes all of its letters, and the pair counts as *merged*.
4. Every answer and every context has at least one token. There is exactly one BOS token if the tokenizer adds one. The
   text of a chat template is tokenized without an additional BOS.
"""

import contextlib
import functools
import inspect
import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from torch import nn
from transformers import PreTrainedTokenizerBase

from flip_flop.console import count, today, track, warn_once
from flip_flop.errors import InputError, log, unsupported
from flip_flop.prompts import MAX_OUTPUT, Chat, RenderedInstance
from flip_flop.reading import begins_reasoning, has_spaces
from flip_flop.record import Facts
from flip_flop.scoring.causal_lm import as_input_error, one_at_a_time, unwrap
from flip_flop.scoring.options import ChatTemplate
from flip_flop.scoring.too_long import TooLong, refuse_or_skip
from flip_flop.scoring.trie import EncodedAnswer, TokenTrie, build_trie

CHUNK = 64  # instances per call of the tokenizer
# Names of the greatest number of tokens in configurations: the usual one, MPT's, Whisper's.
CONTEXT_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_target_positions")


@dataclass(frozen=True)
class EncodedInstance:
    """The tokens of one instance under every template.

    Attributes:
        answers: ``[templates][labels]``.
        label: The index of the gold label, if known. Evaluation, logs and the losses that use labels read it.
        votes: The label that each template has written, if answers were generated. -1: the answer cannot be read.
        drawn: The templates of a training step, as indices, if it uses only some. ``votes`` are those of all.
    """

    id: str
    answers: Sequence[Sequence[EncodedAnswer]]
    label: int | None = None
    votes: tuple[int, ...] = ()
    drawn: tuple[int, ...] = ()

    @property
    def trie(self) -> TokenTrie:
        """The token trie."""
        return build_trie([self.answers])

    def under(self, templates: Sequence[int]) -> "EncodedInstance":
        """Return the instance under some templates."""
        answers = tuple(self.answers[template] for template in templates)
        return replace(self, answers=answers, drawn=tuple(templates))

    @property
    def longest(self) -> int:
        """The number of tokens of the longest input."""
        return max(map(longest_text, self.answers)) - 1

    @property
    def prompt_tokens(self) -> list[int]:
        """The number of tokens of each prompt, or of the longest context if every answer is merged."""
        return [len(longest_context(template)) for template in self.answers]


def special_tokens(tokenizer: Any) -> dict[int, str]:
    """Return the texts of the special tokens by their ids."""
    named = zip(tokenizer.all_special_ids, tokenizer.all_special_tokens, strict=True)
    added = tokenizer.added_tokens_decoder.items()
    return dict(named) | {number: token.content for number, token in added if token.special}


def longest_context(answers: Iterable[EncodedAnswer]) -> tuple[int, ...]:
    """Return the longest context of the answers of a template. All are beginnings of the same prompt."""
    return max((answer.context for answer in answers), key=len)


def longest_text(answers: Iterable[EncodedAnswer]) -> int:
    """Return the number of tokens of the longest context with its answer."""
    return max(len(answer.context) + len(answer.tokens) for answer in answers)


def num_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of equal items at the beginning of both sequences."""
    differing = (place for place, (item, match) in enumerate(zip(one, other, strict=False)) if item != match)
    return next(differing, min(len(one), len(other)))


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
    trained_chat: Facts | None = None
    date: str = field(default_factory=today)

    def __post_init__(self):
        with as_input_error("E-CONFIG", "prompt_date", "Write a date such as 2026-11-25.", ValueError):
            datetime.fromisoformat(self.date)
        if self.chat_template == "on" and not self.tokenizer.chat_template:
            raise InputError(
                "E-CHAT-TEMPLATE",
                "chat_template is 'on', but the tokenizer has no chat template.",
                "Use --chat-template off, or a model with one.",
            )

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase, chat_template: ChatTemplate = "auto", date: str = ""
    ) -> "PromptEncoder":
        """Return the encoder for a model."""
        causal_lm = unwrap(model)
        vocab_size = cast(nn.Embedding, causal_lm.get_input_embeddings()).weight.shape[0]
        config = causal_lm.config.get_text_config()
        lengths = [getattr(config, name, None) or 0 for name in CONTEXT_LENGTHS]
        context = next((length for length in lengths if length > 0), None)
        return cls(tokenizer, chat_template, context, vocab_size, date=date or today())

    @property
    def uses_chat_template(self) -> bool:
        """Whether the tokenizer's chat template is used."""
        return self.chat_template != "off" and bool(self.tokenizer.chat_template)

    @functools.cached_property
    def starts_with_bos(self) -> bool:
        """Whether the tokenizer adds its BOS token to a text."""
        bos = self.tokenizer.bos_token_id
        started = self.tokenizer("a")["input_ids"]
        return bos is not None and started[:1] == [bos]

    @property
    def bos(self) -> int | None:
        """The id of the BOS token that is added to prompts, or ``None``. Chat templates write their BOS token."""
        if self.starts_with_bos and not self.uses_chat_template:
            return self.tokenizer.bos_token_id
        return None

    def encode(self, instance: RenderedInstance) -> EncodedInstance:
        """Tokenize one instance under all templates.

        Raises:
            InputError: ``E-TOO-LONG`` above the model's context, or as :meth:`encode_all`.
        """
        encoded, too_long, _ = self.encode_all([instance])
        refuse_or_skip(too_long, 1, "refuse")
        return encoded[0]

    def encode_all(
        self, instances: Sequence[RenderedInstance], *, label: str = "encoding", quiet: bool = True
    ) -> tuple[list[EncodedInstance], list[TooLong], list[RenderedInstance]]:
        """Tokenize instances under all templates, each once. ``label`` is the name of the progress bar.

        Returns:
            The instances that fit the model's context, the prompts that do not, and the fitting instances as the model
            reads them.

        Raises:
            InputError: ``E-MODEL-FILE`` for a token outside of the model's vocabulary, ``E-LABEL`` for two
                equal answers, or as :meth:`encode_texts`.
        """
        encoded = []
        too_long = []
        fitting = []
        with track(label, len(instances), "instances", quiet=quiet) as advance:
            if any(instance.is_open for instance in instances):
                raise unsupported("Scoring answer choices")
            self.warn_of_special_tokens(instances)
            for start in range(0, len(instances), CHUNK):
                chunk = [self.as_read(instance) for instance in instances[start : start + CHUNK]]
                if any(map(begins_reasoning, chunk[0].prompts)):
                    warn_once(
                        "W-CHAT: the prompt begins reasoning, so labels are scored inside it. End it in the template "
                        r'or, after a chat template, with assistant_prefix: "</think>\n\n" in the task file.'
                    )
                for row, instance in zip(self._encode(chunk), chunk, strict=True):
                    long = self.too_long(row.id, map(longest_text, row.answers))
                    too_long += long
                    if not long:
                        self._check(row, instance.choices)
                        encoded.append(row)
                        fitting.append(instance)
                    advance(1)
        return encoded, too_long, fitting

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        """Special tokens."""
        names = special_tokens(self.tokenizer).values()
        return re.compile("|".join(re.escape(name) for name in names if name.strip()) or r"(?!)")

    def special_tokens_of_row(self, instance: RenderedInstance) -> set[str]:
        """Return the special tokens in fields of the row that are also in a prompt or an answer."""
        read = "".join([*instance.prompts, *itertools.chain(*instance.choices)])
        return {name for name in self._special.findall(str(instance.fields)) if name in read}

    def warn_of_special_tokens(self, instances: Sequence[RenderedInstance]) -> None:
        """Warn of rows that could end a turn and begin another. Those of templates are intended."""
        found = {row.id: names for row in instances if (names := self.special_tokens_of_row(row))}
        if found:
            tokens = sorted(set.union(*found.values()))[:3]
            warn_once(
                f"W-SPECIAL-TOKEN: {count(len(found), 'row')} (first {', '.join(list(found)[:3])}) with special tokens "
                f"of the model, such as {', '.join(tokens)}, which it does not read as text. Remove them from the data."
            )

    def prompt_ids(self, instance: RenderedInstance) -> list[list[int]]:
        """Return the tokens of each prompt of an instance as the model reads it, without an answer."""
        texts = [prompt.rstrip(" ") for prompt in instance.prompts]
        ids = self._tokenize(texts)
        return [ids[text] or [self._start(text)] for text in texts]

    def as_read(self, instance: RenderedInstance) -> RenderedInstance:
        """Return the instance with its prompts in the chat template, if it is used."""
        if not self.uses_chat_template:
            refuse_without_template(self.tokenizer, instance.chat)
            return instance
        check_chat(self.tokenizer, instance.chat, self.trained_chat)
        clock = SimpleNamespace(now=functools.partial(datetime.fromisoformat, self.date))
        # The library has no parameter for the date.
        with one_at_a_time(), patch("transformers.utils.chat_template_utils.datetime", clock):
            prompts = [in_chat(self.tokenizer, prompt, instance.chat) for prompt in instance.prompts]
            return replace(instance, prompts=tuple(prompts))

    def delimiter_of(self, chat: Chat, prompt: str) -> str:
        """Return the text between prompt and answer.

        It is empty after the generation prompt of a chat template, after an assistant prefix that ends with white
        space, and after a character of a script without spaces, such as a full-width colon. Otherwise it is a space.
        """
        prefix = chat.assistant_prefix
        is_spaced = prefix[-1].isspace() if prefix else self.uses_chat_template
        if is_spaced or not has_spaces(prompt[-1:]):
            return ""
        return " "

    @as_input_error("E-MODEL-FILE", "The tokenizer has a token beyond all vocabularies", kind=OverflowError)
    def encode_texts(self, prompts: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[EncodedAnswer, ...]]:
        """Return the answers of each prompt. The text of an answer begins with the delimiter.

        Raises:
            InputError: ``E-TPL-EMPTY`` for an answer without tokens, ``E-MODEL-FILE`` for an answer without a
                context.
        """
        texts = [prompt.rstrip(" ") for prompt, _ in prompts]
        texts += [prompt + answer for prompt, answers in prompts for answer in answers]
        ids = self._tokenize(texts)
        return [self._cut(prompt, answers, ids) for prompt, answers in prompts]

    def _cut(self, prompt: str, answers: Sequence[str], ids: Mapping[str, list[int]]) -> tuple[EncodedAnswer, ...]:
        """Cut each answer after the tokens of the prompt, or before the first token that differs."""
        text = prompt.rstrip(" ")
        alone = ids[text]
        contexts: dict[int, tuple[int, ...]] = {}  # answers share theirs
        encoded = []
        for answer in answers:
            together = ids[prompt + answer]
            cut = num_common(alone, together)
            if cut == len(together):
                raise InputError(
                    "E-TPL-EMPTY",
                    f"The answer {answer!r} has no tokens after the prompt's end {text[-20:]!r}.",
                    "Give the label a visible text.",
                )
            context = contexts.setdefault(cut, tuple(alone[:cut]) or (self._start(text),))
            encoded.append(EncodedAnswer(context, tuple(together[cut:]), merged=cut < len(alone)))
        return tuple(encoded)

    def _start(self, prompt: str) -> int:
        """Return the context of an answer that replaces all tokens of the prompt, or whose prompt has none."""
        if self.tokenizer.bos_token_id is not None:
            first = self.tokenizer.bos_token_id
        else:
            first = self.tokenizer.eos_token_id
        if first is None:
            raise InputError(
                "E-MODEL-FILE",
                f"No token comes before an answer of the prompt {prompt[:20]!r}, and the tokenizer has no BOS or EOS.",
                "Write a longer prompt.",
            )
        return first

    def _tokenize(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Return the tokens of each text, of special tokens only with BOS."""
        texts = list(dict.fromkeys(texts))
        more = {"return_attention_mask": False, "return_token_type_ids": False}
        if texts:
            ids = self.tokenizer(texts, add_special_tokens=False, verbose=False, **more)["input_ids"]
        else:
            ids = []
        if (bos := self.bos) is not None:
            ids = [tokens if tokens[:1] == [bos] else [bos, *tokens] for tokens in ids]
        return dict(zip(texts, ids, strict=True))

    def _encode(self, instances: Sequence[RenderedInstance]) -> list[EncodedInstance]:
        prompts = []
        for instance in instances:
            for prompt, choices in zip(instance.prompts, instance.choices, strict=True):
                delimiter = self.delimiter_of(instance.chat, prompt)
                answers = [delimiter + choice for choice in choices if choice or not instance.written]
                prompts.append((prompt, answers))
        templates = iter(self.encode_texts(prompts))
        encoded = []
        for rendered in instances:
            of_instance = [next(templates) for _ in rendered.prompts]
            votes: tuple[int, ...] = ()
            if rendered.written:
                choices = rendered.choices[0]
                of_instance = [_in_places(template, choices) for template in of_instance]
                votes = tuple(choices.index(text) if text else -1 for text in rendered.written)
            encoded.append(EncodedInstance(rendered.id, tuple(of_instance), rendered.label, votes))
        return encoded

    def too_long(self, identifier: str, sizes: Iterable[int]) -> list[TooLong]:
        """Return the prompts of an instance that exceed the model's context. ``sizes`` include the answers."""
        limit = math.inf if self.max_length is None else self.max_length
        return [TooLong(identifier, place, size, int(limit)) for place, size in enumerate(sizes) if size > limit]

    def _check(self, instance: EncodedInstance, choices: Sequence[Sequence[str]]) -> None:
        for index, answers in enumerate(instance.answers):
            where = f"Instance {instance.id!r}, template number {index + 1}"
            largest = max(*longest_context(answers), *(token for answer in answers for token in answer.tokens))
            if self.vocab_size is not None and largest >= self.vocab_size:
                raise InputError(
                    "E-MODEL-FILE",
                    f"{where}: token {largest}, but the model's vocabulary ends at {self.vocab_size - 1}.",
                    "Use the tokenizer that belongs to the model.",
                )
            labels: dict[tuple[int, tuple[int, ...]], int] = {}
            for label, answer in enumerate(answers):
                first = labels.setdefault((len(answer.context), answer.tokens), label)
                if first != label and not instance.votes:
                    raise InputError(
                        "E-LABEL",
                        f"{where}: the answers {choices[index][first]!r} and {choices[index][label]!r} are the same "
                        "tokens.",
                        "Write them in characters that the model's tokenizer knows.",
                    )


def _in_places(answers: Sequence[EncodedAnswer], choices: Sequence[str]) -> tuple[EncodedAnswer, ...]:
    """Return the answers of a template in the places of their texts, and one without tokens for each empty text."""
    left = iter(answers)
    blank = EncodedAnswer(answers[0].context, ())
    return tuple(next(left) if text else blank for text in choices)


_LIBRARY_NAMES = set(inspect.signature(PreTrainedTokenizerBase.apply_chat_template).parameters) - {"tools", "documents"}


def in_chat(tokenizer: PreTrainedTokenizerBase, prompt: str, chat: Chat) -> str:
    """Return the chat template's text of a user turn with this prompt, up to the assistant's answer.

    Raises:
        InputError: ``E-CHAT-TEMPLATE`` if the template fails, as some do with a system message.
    """
    if taken := _LIBRARY_NAMES.intersection(chat.chat_template_kwargs):
        raise InputError("E-CHAT-TEMPLATE", f"{sorted(taken)[0]!r} is reserved in chat_template_kwargs.", "Remove it.")
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
        if max(prompt.split(), key=len, default="") not in text:  # white space may change
            raise ValueError("its text lacks the prompt")
    except Exception as error:  # a chat template is code, and may raise any error
        what = "a user's turn"
        hint = "Use --chat-template off."
        if chat.given:
            what = f"a user's turn with {' and '.join(chat.given)}"
            hint = f"Remove {' or '.join(chat.given)} from the task: some models do not accept a system message."
        raise InputError(
            "E-CHAT-TEMPLATE",
            f"The tokenizer's chat template fails on {what}: {' '.join(str(error).split()).rstrip('.')}.",
            hint,
        ) from error
    return text + (chat.assistant_prefix or "")


def refuse_without_template(tokenizer: PreTrainedTokenizerBase | None, chat: Chat) -> None:
    """Refuse chat settings of a task if no chat template is used (``E-CHAT-TEMPLATE``)."""
    for key in chat.given:
        why = "the served model has no --tokenizer"
        hint = "Give the served model's tokenizer with --tokenizer."
        if tokenizer is not None:
            if tokenizer.chat_template:
                why = "--chat-template is off"
            else:
                why = "the tokenizer does not have one"
            hint = "Use an instruction-tuned model with a chat template, or write the text into the templates."
        raise InputError("E-CHAT-TEMPLATE", f"The task has {key}, which needs a chat template, but {why}.", hint)


def check_chat(tokenizer: PreTrainedTokenizerBase, chat: Chat, trained: Facts | None) -> None:
    """Warn if a thinking model's default applies, or if the chat settings of the adapter's training differ."""
    if "enable_thinking" in str(tokenizer.chat_template) and "enable_thinking" not in chat.chat_template_kwargs:
        warn_once(
            "W-CHAT: the chat template has enable_thinking, and the task does not set it, so the template's "
            "default applies. Write chat_template_kwargs: {enable_thinking: false}."
        )
    warn_of_unused(tokenizer, chat)
    if trained is not None and trained != chat.given:
        before, now = (dict(chat_settings) or "no chat settings" for chat_settings in (trained, chat.given))
        warn_once(f"W-CHAT: the adapter was trained with {before}, the task has {now}.")


@functools.lru_cache(maxsize=4)
def warn_of_unused(tokenizer: PreTrainedTokenizerBase, chat: Chat) -> None:
    """Warn of settings without which the chat template writes the same text, once per tokenizer."""
    for key in sorted(chat.given.keys() - {"assistant_prefix"}):
        with contextlib.suppress(InputError):  # some templates need the setting
            if in_chat(tokenizer, "text", chat) == in_chat(tokenizer, "text", replace(chat, **{key: {}})):  # type: ignore[arg-type]
                log.warning("W-CHAT: %s changes nothing in the prompt of this model's chat template.", key)
