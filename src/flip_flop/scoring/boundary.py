"""The boundary rule: where a prompt ends and its answer begins, in tokens. Nothing else knows it.

An answer is scored on its own tokens only, given prompt and delimiter:

1. Prompt and answer are tokenized *together*, because a tokenizer reads the answer differently on its own
   (``" Yes"`` is one token, ``"Yes"`` another).
2. Spaces at the end of the prompt move to the answer: most vocabularies glue a space to the word behind it.
3. The cut is at the prompt's own length in tokens. Where a token spans the join, the cut is at the first token
   that differs, so that the answer still has its first letters, and the pair is counted as *merged*.
4. Every answer has at least one token and every context at least one; there is exactly one BOS token where the
   tokenizer wants one. A chat template writes its own, or has none: its text is tokenized as it stands.

A prompt is tokenized once, whatever the number of its answers. They are tokenized behind its *tail*, its last word,
which most instances of a template share. That is exact where what stands before the tail cannot change with an
answer:

- The tokenizer is BPE, WordPiece or WordLevel, without dropout: its tokens are a function of words that are cut by what
  stands next to the cut, or of pairs of neighbours. BPE of a text is valid where each two neighbours are.
- The prompt's tokens end with the tail's own, none of them unknown; with each answer the tail keeps its first token.

Else the tail is the whole prompt, which is the rule itself. The first prompt of each encoder is read in both ways.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast, overload

import numpy as np
from jaxtyping import Int32
from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError

KEPT_TAILS = 4096  # of which answers' tokens are kept
LOCAL_MODELS = ("BPE", "WordPiece", "WordLevel")


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


@dataclass(frozen=True, eq=False, slots=True)
class Continuations:
    """The answers that follow a tail, in tokens: many prompts share them.

    Attributes:
        tokens: Those of all answers, one after the other; ``ends`` is where each ends.
        dropped: How many of the context's last tokens are not before the answer, as a token spans the join.
        same: Two answers whose tokens are the same, with all that stands before them.
    """

    tokens: Int32[np.ndarray, " tokens"]
    ends: Int32[np.ndarray, " labels"]
    dropped: Int32[np.ndarray, " labels"]
    same: tuple[int, int] | None


@dataclass(frozen=True, eq=False, slots=True)
class AnswerRow(Sequence[EncodedAnswer]):
    """The answers of one prompt; an :class:`EncodedAnswer` is made when it is read.

    ``start`` stands before an answer that has no other token before it.
    """

    context: Int32[np.ndarray, " tokens"]
    answers: Continuations
    start: int | None = None

    def __len__(self) -> int:
        return len(self.answers.ends)

    @overload
    def __getitem__(self, index: int) -> EncodedAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EncodedAnswer]: ...
    def __getitem__(self, index: int | slice) -> EncodedAnswer | Sequence[EncodedAnswer]:
        """One answer, or some."""
        return tuple(self)[index]

    def __iter__(self) -> Iterator[EncodedAnswer]:
        context, tokens, begin = tuple(self.context.tolist()), self.answers.tokens.tolist(), 0
        for end, dropped in zip(self.answers.ends.tolist(), self.answers.dropped.tolist(), strict=True):
            before = context[: len(context) - dropped] if dropped else context
            yield EncodedAnswer(before or (cast(int, self.start),), tuple(tokens[begin:end]), dropped > 0)
            begin = end

    @property
    def num_merged(self) -> int:
        """How many answers' first token spans the join."""
        return int((self.answers.dropped > 0).sum())

    @property
    def longest(self) -> int:
        """The number of tokens of the longest context with its answer."""
        contexts = np.maximum(len(self.context) - self.answers.dropped, 1)
        return int((contexts + np.diff(self.answers.ends, prepend=0)).max())

    @property
    def largest(self) -> int:
        """The largest token id."""
        return int(max(self.context.max(initial=0), self.answers.tokens.max()))


# The tail of a prompt, the answers that follow it, and whether it is the whole prompt.
_Key = tuple[str, tuple[str, ...], bool]


@dataclass
class Boundary:
    """Tokenizes prompts with their answers, and cuts them. ``bos`` goes before a text that does not begin with it."""

    tokenizer: PreTrainedTokenizerBase
    bos: int | None = None
    _kept: dict[_Key, tuple[list[int], Continuations | None]] = field(default_factory=dict)
    _tail_starts: tuple[int, ...] | None = None  # where a tail may begin, behind its first space; None: not tried yet

    def encode(self, prompts: Sequence[tuple[str, Sequence[str]]]) -> list[AnswerRow]:
        """The answers of each prompt; an answer's text begins with the delimiter.

        Raises:
            InputError: ``E-LABEL-EMPTY`` where an answer has no token, ``E-MODEL-TOKENIZER`` where nothing can stand
                before it.
        """
        moved = []
        for prompt, answers in prompts:
            text = prompt.rstrip(" ")
            moved.append((text, tuple(prompt[len(text) :] + answer for answer in answers)))
        own = self._tokenize([text for text, _ in moved])
        if self._tail_starts is None and moved:
            starts = [at for at in (0, 1) if self._is_local and self._ends(own, moved[0][0], at)]
            whole = self._rows(moved[:1], own, None)
            self._tail_starts = tuple(at for at in starts if _equal(self._rows(moved[:1], own, at), whole))
        return self._rows(moved, own, self._tail_starts[0] if self._tail_starts else None)

    def _ends(self, own: Mapping[str, list[int]], prompt: str, start: int) -> bool:
        """Whether a prompt's tokens end with its tail's own, when it begins there."""
        tail = _tail(prompt, start)
        tokens = self._tokenize([tail])[tail]
        return own[prompt][len(own[prompt]) - len(tokens) :] == tokens

    @property
    def _is_local(self) -> bool:
        """Whether a token depends on its word, or on its neighbours, alone."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        model = getattr(backend, "model", None)
        kind = type(model).__name__
        whole_words = kind == "BPE" or (backend is not None and backend.pre_tokenizer is not None)
        if kind not in LOCAL_MODELS or not whole_words or getattr(model, "dropout", None):
            return False
        return not any(" " in str(token).strip() for token in self.tokenizer.get_added_vocab())  # a token of two words

    def _rows(
        self, moved: Sequence[tuple[str, tuple[str, ...]]], own: Mapping[str, list[int]], start: int | None
    ) -> list[AnswerRow]:
        """The prompts' answers, read behind tails; behind whole prompts without ``start``, or where not exact."""
        keys: list[_Key] = []
        for text, answers in moved:
            tail = text if start is None else _tail(text, start)
            keys.append((tail, answers, tail == text))
        self._read(keys)
        for number, (text, answers) in enumerate(moved):
            tokens, found = self._kept[keys[number]]
            if found is None or own[text][len(own[text]) - len(tokens) :] != tokens:
                keys[number] = (text, answers, True)
        self._read(keys)
        rows = []
        for (text, _), key in zip(moved, keys, strict=True):
            found = self._kept[key][1]
            assert found is not None, "a whole prompt is always exact"
            context = np.array(_with_bos(own[text], self.bos), dtype=np.int32)
            rows.append(AnswerRow(context, found, self._start(text) if found.dropped.max() >= len(context) else None))
        if len(self._kept) > KEPT_TAILS:
            self._kept.clear()
        return rows

    def _read(self, keys: Sequence[_Key]) -> None:
        """Tokenize what follows tails, all in one call, and keep it; None where a tail is not exact."""
        keys = [key for key in dict.fromkeys(keys) if key not in self._kept]
        ids = self._tokenize([text for tail, answers, _ in keys for text in (tail, *(tail + each for each in answers))])
        for key in keys:
            self._kept[key] = (ids[key[0]], self._cut(ids[key[0]], ids, key))

    def _cut(self, context: list[int], ids: Mapping[str, list[int]], key: _Key) -> Continuations | None:
        """Cut where the tail ends, or at the first token that differs."""
        tail, answers, is_whole = key
        texts = [ids[tail + answer] for answer in answers]
        if is_whole:
            context, texts = _with_bos(context, self.bos), [_with_bos(text, self.bos) for text in texts]
        elif self.tokenizer.unk_token_id is not None and self.tokenizer.unk_token_id in context:
            return None
        tokens: list[int] = []
        ends, dropped = [], []
        for answer, text in zip(answers, texts, strict=True):
            differing = (index for index, (a, b) in enumerate(zip(context, text, strict=False)) if a != b)
            cut = len(context) if text[: len(context)] == context else next(differing, len(text))
            if cut == len(text):
                # The tokenizer writes the whole as it writes the prompt: the answer left no token of its own.
                if not is_whole:
                    return None
                raise InputError(
                    "E-LABEL-EMPTY",
                    f"The answer {answer!r} has no tokens after the prompt's end {tail[-20:]!r}.",
                    "Give the label a visible text.",
                )
            if cut == 0 and not is_whole:
                return None
            tokens += text[cut:]
            ends.append(len(tokens))
            dropped.append(len(context) - cut)
        first = {tuple(text): number for number, text in reversed([*enumerate(texts)])}
        twice = ((first[tuple(text)], number) for number, text in enumerate(texts) if first[tuple(text)] < number)
        arrays = [np.array(each, dtype=np.int32) for each in (tokens, ends, dropped)]
        return Continuations(arrays[0], arrays[1], arrays[2], next(twice, None))

    def _start(self, prompt: str) -> int:
        """The token before an answer that has no other before it."""
        first = self.tokenizer.bos_token_id if self.tokenizer.bos_token_id is not None else self.tokenizer.eos_token_id
        if first is None:
            raise InputError(
                "E-MODEL-TOKENIZER",
                f"The prompt {prompt[:20]!r} and its answer are one token, and there is no BOS or EOS to go before it.",
                "Write a longer prompt.",
            )
        return first

    def _tokenize(self, texts: Sequence[str]) -> dict[str, list[int]]:
        """Each text's own tokens, without special ones; a fast tokenizer leaves Python free meanwhile."""
        texts = list(dict.fromkeys(texts))
        if not texts:
            return {}
        more = {"return_attention_mask": False, "return_token_type_ids": False}
        ids = self.tokenizer(texts, add_special_tokens=False, verbose=False, **more)["input_ids"]
        return dict(zip(texts, ids, strict=True))


def _tail(prompt: str, start: int) -> str:
    """The last word of a prompt, with the space before it, or from ``start`` 1 on without."""
    at = prompt.rfind(" ")
    return prompt if at <= 0 else prompt[at + start :]


def _equal(rows: Sequence[AnswerRow], others: Sequence[AnswerRow]) -> bool:
    return [list(row) for row in rows] == [list(row) for row in others]


def _with_bos(ids: list[int], bos: int | None) -> list[int]:
    return [bos, *ids] if bos is not None and ids[:1] != [bos] else ids
