"""The boundary rule: where a prompt ends and its answer begins, in tokens. Nothing else knows it.

An answer is scored on its own tokens only, given prompt and delimiter:

1. Prompt and answer are tokenized *together*, because a tokenizer reads the answer differently on its own
   (``" Yes"`` is one token, ``"Yes"`` another).
2. Spaces at the end of the prompt move to the answer: most vocabularies glue a space to the word behind it.
3. The cut is at the prompt's own length in tokens. Where a token spans the join, the cut is at the first token
   that differs, so that the answer still has its first letters, and the pair is counted as *merged*.
4. Every answer has at least one token and every context at least one; there is exactly one BOS token where the
   tokenizer wants one. A chat template writes its own, or has none: its text is tokenized as it stands.
"""

import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jinja2
from torch import nn
from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.options import ChatTemplate
from flip_flop.prompts import Chat, RenderedInstance
from flip_flop.scoring.bounds import time_limit
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.trie import TokenTrie, build_trie
from flip_flop.too_long import TooLong

log = logging.getLogger("flip_flop")


@dataclass(frozen=True)
class EncodedAnswer:
    """The token ids of one answer, at least one, and of all that stands before it, at least one.

    ``merged`` says that a token spanned the join of the two.
    """

    context: tuple[int, ...]
    tokens: tuple[int, ...]
    merged: bool = False

    @property
    def inputs(self) -> tuple[int, ...]:
        """What the model reads: all but the answer's last token, which is only ever a target."""
        return self.context + self.tokens[:-1]


@dataclass(frozen=True)
class EncodedInstance:
    """One instance under every template, in tokens.

    Attributes:
        answers: ``[templates][labels]``.
        label: The gold label's index where there is one. Only evaluation and logs read it, never a loss.
    """

    id: str
    answers: tuple[tuple[EncodedAnswer, ...], ...]
    label: int | None = None

    @functools.cached_property
    def trie(self) -> TokenTrie:
        """Its distinct tokens; built once, as they are the same in every epoch."""
        return build_trie([[(answer.context, answer.tokens) for answer in template] for template in self.answers])

    @property
    def longest(self) -> int:
        """The number of tokens of its longest sequence."""
        return int(self.trie.depth.max()) + 1


@dataclass(frozen=True)
class PromptEncoder:
    """Turns rendered instances into tokens, by the boundary rule.

    Attributes:
        chat_template: ``auto`` puts each prompt into the tokenizer's chat template where it has one, as the
            user's turn; ``on`` insists on it; ``off`` never does.
        max_length: The model's context in tokens; ``None`` where it has no limit.
        vocab_size: The rows of the model's embedding.
        trained_chat: What the chat had beside the prompts in the adapter's training, where it is known.
    """

    tokenizer: PreTrainedTokenizerBase
    chat_template: ChatTemplate = "auto"
    max_length: int | None = None
    vocab_size: int | None = None
    trained_chat: Mapping[str, Any] | None = None

    def __post_init__(self):
        if self.chat_template == "on" and not self.tokenizer.chat_template:
            raise InputError(
                "E-CHAT-TEMPLATE",
                "chat_template is 'on', but the tokenizer has no chat template.",
                "Use --chat-template off, or a model with one.",
            )

    @classmethod
    def of(
        cls, model: nn.Module, tokenizer: PreTrainedTokenizerBase, chat_template: ChatTemplate = "auto"
    ) -> "PromptEncoder":
        """The encoder for a model, with its limits."""
        causal_lm = unwrap(model)
        vocab_size = cast(nn.Embedding, causal_lm.get_input_embeddings()).weight.shape[0]
        context = getattr(causal_lm.config.get_text_config(), "max_position_embeddings", None)
        return cls(tokenizer, chat_template, context if context and context > 0 else None, vocab_size)

    @property
    def uses_chat_template(self) -> bool:
        """Whether prompts go into the tokenizer's chat template."""
        return self.chat_template != "off" and bool(self.tokenizer.chat_template)

    @property
    def delimiter(self) -> str:
        """What stands between prompt and answer: nothing after a chat template's generation prompt, else a space."""
        return "" if self.uses_chat_template else " "

    @functools.cached_property
    def bos(self) -> int | None:
        """The id of the BOS token where this tokenizer puts one before a text; ``None`` for a chat template's."""
        if self.uses_chat_template:
            return None
        bos = self.tokenizer.bos_token_id
        started = self.tokenizer("a")["input_ids"]
        return bos if bos is not None and started and started[0] == bos else None

    def encode(self, instance: RenderedInstance) -> EncodedInstance:
        """All templates and labels of one instance in tokens.

        Raises:
            InputError: ``E-TOO-LONG`` for the model's context, ``E-MODEL-TOKENIZER`` for its vocabulary,
                ``E-LABEL-TOKENS`` for two answers of the same tokens, or as :func:`encode_pairs`.
        """
        encoded, too_long = self.encode_all([instance])
        for each in too_long:
            where = f"Instance {each.id!r}, template number {each.template + 1}"
            raise InputError(
                "E-TOO-LONG",
                f"{where}: prompt and answer are {each.tokens} tokens, the model's context is {each.limit}.",
                "Shorten the text or the template, or use a model with a longer context.",
            )
        return encoded[0]

    def encode_all(self, instances: Iterable[RenderedInstance]) -> tuple[list[EncodedInstance], list[TooLong]]:
        """The instances in tokens but for those that are too long for the model, and what is too long of these.

        Raises:
            InputError: As :meth:`encode`, but for ``E-TOO-LONG``.
        """
        fitting, too_long = [], []
        for instance in instances:
            encoded = self._encode(instance)
            found = self._too_long(encoded)
            if found:
                too_long += found
            else:
                self._check(encoded, instance.choices)
                fitting.append(encoded)
        return fitting, too_long

    def as_read(self, instance: RenderedInstance) -> RenderedInstance:
        """The instance with its prompts as the model reads them: in the chat template where it is used."""
        if not self.uses_chat_template:
            if instance.chat.given:
                key = next(iter(instance.chat.given))
                why = "--chat-template is off" if self.tokenizer.chat_template else "the tokenizer has none"
                message = f"The task has {key}: for the chat template, and {why}."
                hint = "Use an instruction-tuned model with a chat template, or write it into the templates."
                raise InputError("E-CHAT-TEMPLATE", message, hint)
            return instance
        return replace(instance, prompts=tuple(self._in_chat(prompt, instance.chat) for prompt in instance.prompts))

    def _encode(self, instance: RenderedInstance) -> EncodedInstance:
        prefix = instance.chat.assistant_prefix
        delimiter = " " if prefix and not prefix[-1].isspace() else self.delimiter
        pairs = [
            (prompt, delimiter + choice)
            for prompt, choices in zip(self.as_read(instance).prompts, instance.choices, strict=True)
            for choice in choices
        ]
        answers = iter(encode_pairs(self.tokenizer, pairs, self.bos))
        rows = [tuple(next(answers) for _ in choices) for choices in instance.choices]
        return EncodedInstance(instance.id, tuple(rows), instance.label)

    def _too_long(self, instance: EncodedInstance) -> list[TooLong]:
        if self.max_length is None:
            return []
        lengths = (max(len(each.context) + len(each.tokens) for each in answers) for answers in instance.answers)
        return [
            TooLong(instance.id, template, tokens, self.max_length)
            for template, tokens in enumerate(lengths)
            if tokens > self.max_length
        ]

    def _in_chat(self, prompt: str, chat: Chat) -> str:
        turns = [{"role": "user", "content": prompt}]
        if chat.system:
            turns.insert(0, {"role": "system", "content": chat.system})
        if (
            "enable_thinking" in str(self.tokenizer.chat_template)
            and "enable_thinking" not in chat.chat_template_kwargs
        ):
            _say(
                "W-CHAT-THINKING: the chat template knows enable_thinking, and the task does not say it: answers are "
                "scored as the template's default has it. Write chat_template_kwargs: {enable_thinking: false}."
            )
        if self.trained_chat is not None and self.trained_chat != chat.given:
            _say(
                f"W-CHAT-CHANGED: the adapter was trained with {dict(self.trained_chat) or 'nothing'} "
                f"beside the prompts, the task has {chat.given or 'nothing'}."
            )
        try:
            self._check_chat_template()
            with time_limit():
                text = self.tokenizer.apply_chat_template(
                    turns, **chat.chat_template_kwargs, tokenize=False, add_generation_prompt=True
                )
        except Exception as error:  # a chat template is code of the model's authors: it may raise anything
            what = "a user's turn"
            hint = "Use --chat-template off."
            if chat.given:
                what = f"a user's turn with {' and '.join(chat.given)}"
                hint = f"Leave {' or '.join(chat.given)} out of the task: some models take no system message."
            message = f"The tokenizer's chat template fails on {what}: {' '.join(str(error).split()).rstrip('.')}."
            raise InputError("E-CHAT-TEMPLATE", message, hint) from error
        assert isinstance(text, str)
        return text + (chat.assistant_prefix or "")

    @functools.cache  # noqa: B019 - one encoder a run
    def _check_chat_template(self) -> None:
        """Refuse powers, which Python computes without a break, before the template is compiled."""
        written = self.tokenizer.chat_template
        for text in written.values() if isinstance(written, dict) else [written]:
            if any(value == "**" for _, kind, value in jinja2.Environment().lex(text) if kind == "operator"):
                raise ValueError("a power (**) is not allowed")

    def _check(self, instance: EncodedInstance, choices: Sequence[Sequence[str]]) -> None:
        for index, answers in enumerate(instance.answers):
            where = f"Instance {instance.id!r}, template number {index + 1}"
            largest = max(max(answer.context + answer.tokens) for answer in answers)
            if self.vocab_size is not None and largest >= self.vocab_size:
                raise InputError(
                    "E-MODEL-TOKENIZER",
                    f"{where}: token {largest}, but the model's vocabulary ends at {self.vocab_size - 1}.",
                    "Use the tokenizer that belongs to the model.",
                )
            sequences = [answer.context + answer.tokens for answer in answers]
            for number, sequence in enumerate(sequences):
                if (first := sequences.index(sequence)) < number:
                    pair = f"{choices[index][first]!r} and {choices[index][number]!r}"
                    raise InputError(
                        "E-LABEL-TOKENS",
                        f"{where}: the answers {pair} are the same tokens.",
                        "Write them in characters that the model's tokenizer knows.",
                    )


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, pairs: Sequence[tuple[str, str]], bos: int | None = None
) -> list[EncodedAnswer]:
    """Tokenize each prompt and its continuation, that is delimiter and answer, together; cut where the answer begins.

    The tokenizer's special tokens are not added; ``bos`` is put in front unless the text itself begins with it.

    Raises:
        InputError: ``E-LABEL-EMPTY`` where an answer has no token, ``E-MODEL-TOKENIZER`` where nothing can stand
            before it.
    """
    pairs = [(prompt.rstrip(" "), prompt[len(prompt.rstrip(" ")) :] + answer) for prompt, answer in pairs]
    texts = list(dict.fromkeys(text for prompt, answer in pairs for text in (prompt, prompt + answer)))
    ids = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    # Many instances are kept: equal numbers and equal contexts are the same objects, a tenth of the memory.
    numbers: dict[int, int] = {}
    ids_of = {
        text: _with_bos([numbers.setdefault(number, number) for number in own], bos)
        for text, own in zip(texts, ids, strict=True)
    }
    contexts: dict[tuple[int, ...], tuple[int, ...]] = {}
    answers = []
    for prompt, text in pairs:
        answer = _cut(tokenizer, ids_of[prompt + text], ids_of[prompt], (prompt, text))
        answers.append(replace(answer, context=contexts.setdefault(answer.context, answer.context)))
    return answers


def _with_bos(ids: list[int], bos: int | None) -> list[int]:
    return [bos, *ids] if bos is not None and ids[:1] != [bos] else ids


def _cut(
    tokenizer: PreTrainedTokenizerBase, whole: list[int], context: list[int], texts: tuple[str, str]
) -> EncodedAnswer:
    """Cut where the context ends, or at the first token that differs."""
    differing = (index for index, (a, b) in enumerate(zip(context, whole, strict=False)) if a != b)
    cut = next(differing, min(len(context), len(whole)))
    merged = cut < len(context)
    if cut == len(whole):
        # The tokenizer writes the whole as it writes the prompt: the answer left no token of its own.
        raise InputError(
            "E-LABEL-EMPTY",
            f"The answer {texts[1]!r} has no tokens after the prompt's end {texts[0][-20:]!r}.",
            "Give the label a visible text.",
        )
    if cut > 0:
        return EncodedAnswer(tuple(whole[:cut]), tuple(whole[cut:]), merged)
    first = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    if first is None:
        raise InputError(
            "E-MODEL-TOKENIZER",
            f"The prompt {texts[0][:20]!r} and its answer are one token, and there is no BOS or EOS to go before it.",
            "Write a longer prompt.",
        )
    return EncodedAnswer((first,), tuple(whole), merged)
