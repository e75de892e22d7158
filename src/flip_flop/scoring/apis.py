"""The APIs of servers that return log-probabilities, each as a function of a server and a question."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flip_flop.scoring.questions import MissingError, Question
from flip_flop.scoring.replies import ROUNDING, Completion, EchoedTokens, Piece, WrittenTokens, text_of
from flip_flop.scoring.server import Server

NUM_TOP = 20  # tokens of a chat completion that OpenAI and vLLM list at most
UNK = "<unk>"
UNKNOWN = "\ufffd"  # the text of a part of a character
BOS = re.compile(r"<.*>|\[.*\]|", re.DOTALL)  # the text of a BOS token
Answer = dict[str, Any]
Tokens = tuple[list[str], list[Any], int]  # texts, log-probabilities, and the number of tokens that the server has read


def ask_echo(server: Server, question: Question) -> Answer:
    """Score an answer as the end of an echoed text (vLLM, SGLang, llama.cpp's Python server).

    Generated tokens are dropped. A server may count a BOS token that it does not show.
    """

    def read(answer: str) -> Tokens:
        text = question.prompt + answer
        reply = server.complete(prompt=text, echo=True, logprobs=1, max_tokens=1)
        choice, (read, written) = reply.choices[0], reply.counts
        shown = EchoedTokens.model_validate(given(choice.logprobs, "logprobs"))
        number, is_echoed = len(shown.tokens), (choice.text or "").startswith(text)
        given(is_echoed or number > 1 or None, "echoed text")
        lengths = {number, len(shown.token_logprobs), len(shown.text_offset or shown.tokens)}
        if not is_echoed or len(lengths) > 1 or not 0 <= read + written - number <= 1:
            raise ValueError("the text or the number of its tokens differs")
        kept = slice(-written or None)
        return shown.tokens[kept], shown.token_logprobs[kept], read

    return _score(read, question)


def ask_prompt_logprobs(server: Server, question: Question) -> Answer:
    """Score an answer as a begun turn of the assistant (vLLM's ``prompt_logprobs``).

    The request without the answer shows whether the chat template writes the same text before an answer.
    """

    def read(answer: str) -> Tokens:
        return _chat_tokens(server, question.prompt, answer) if answer else _chat_context(server, question.prompt)

    return _score(read, question, always_compare=True)


@functools.lru_cache(maxsize=256)  # all answers of a prompt have the same context
def _chat_context(server: Server, prompt: str) -> Tokens:
    return _chat_tokens(server, prompt, "")


def _chat_tokens(server: Server, prompt: str, answer: str) -> Tokens:
    """Return the tokens of a chat with a begun answer."""
    body: dict[str, Any] = {"prompt_logprobs": 0}
    if answer:
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    reply = server.chat(prompt, answer or None, max_tokens=1, **body)
    first, *rest = given(reply.prompt_logprobs, "prompt_logprobs")
    entries = [entry for each in rest for entry in (each or {}).values()]
    if first is not None or len(entries) != len(rest) or (reply.usage and reply.counts[0] != 1 + len(rest)):
        raise ValueError("prompt_logprobs has another number of tokens")
    return ["", *(each.decoded_token for each in entries)], [None, *(each.logprob for each in entries)], reply.counts[0]


def _score(read: Callable[[str], Tokens], question: Question, *, always_compare: bool = False) -> Answer:
    """Compute the mean log-probability of the answer's tokens, which are the last ones that ``read`` returns.

    If no tokens are exactly the answer, a request for the prompt follows. The first token that differs is the cut.
    """
    answer = question.answer or ""
    tokens, log_probs, used = read(answer)
    lengths = itertools.accumulate(map(len, reversed(tokens)))
    number = next((at for at, length in enumerate(lengths, 1) if length >= len(answer)), len(tokens))
    merged = False
    # A server may return the text of a character with its last token, and empty texts for its other tokens.
    has_other_text = "".join(tokens[-number:]) != answer or (number < len(tokens) and not tokens[-number - 1])
    if has_other_text or always_compare:
        context, _, more = read("")
        cut = common(context, tokens)
        number, merged, used = len(tokens) - cut, cut < len(context), used + more
        before, after = ("".join(each[cut:]) for each in (context, tokens))
        if always_compare and after.startswith(before) and after != before + answer and after.endswith(answer):
            raise MissingError(f"the chat template writes {after[:40]!r} for the answer")
        _check_end(context[cut:], tokens[cut:], answer)
    own = log_probs[len(tokens) - number :]
    if not own or None in own:
        raise ValueError("none for the answer's tokens")
    return _answer(own, merged, used, 1)


def ask_grammar(server: Server, question: Question) -> Answer:
    """Score an answer as a generation whose grammar allows only the answer's tokens (``llama-server``).

    The server returns the log-probabilities from before the grammar.
    """
    prompt, answer = question.prompt, question.answer or ""
    if question.in_chat:
        prompt = server.post("apply-template", messages=[{"role": "user", "content": prompt}]).prompt
        if plain(question.prompt) not in plain(prompt):
            raise ValueError("the prompt is not in its chat template")
    whole, context = (_tokenized(server, text) for text in (prompt + answer, prompt))
    cut = common(context, whole)
    _check_end([text for _, text in context[cut:]], [text for _, text in whole[cut:]], answer)
    ids = [each for each, _ in whole]
    grammar = f"root ::= {' '.join(f'<[{each}]>' for each in ids[cut:])}"
    body = {"grammar": grammar, "n_probs": 1, "post_sampling_probs": False}
    reply = server.complete(prompt=ids[:cut], max_tokens=len(ids[cut:]), **body)
    shown = WrittenTokens.model_validate(reply.choices[0].logprobs).content
    own, text = [each.logprob for each in shown], plain("".join(each.token for each in shown))
    is_same = [each.id for each in shown] == ids[cut:] and (reply.usage is None or reply.counts == (cut, len(own)))
    is_spelt = text.endswith(plain(answer)) and plain(prompt + answer).endswith(text)
    if not cut or not is_same or None in own or not (is_spelt or UNK in text or not text.isascii()):
        raise ValueError("other tokens than the answer's")
    return _answer(own, cut < len(context), *reply.counts)


def _tokenized(server: Server, text: str) -> list[tuple[int, str]]:
    """Return the tokens of a text and their texts, which are empty from old versions of ``llama-server``."""
    reply = server.post("tokenize", content=text, add_special=True, parse_special=True, with_pieces=True)
    tokens = [(each.id, text_of(each.piece)) if isinstance(each, Piece) else (each, "") for each in reply.tokens]
    first, *rest = [shown for _, shown in tokens]
    has_bos = BOS.fullmatch(first) and rest[:1] != [first]
    if not spell([first, *rest], text) and not (has_bos and spell(rest, text)):
        raise ValueError("/tokenize returns the tokens of another text")
    return tokens


def ask_top_logprobs(server: Server, question: Question) -> Answer:
    """Return the most probable first tokens of a chat completion.

    A server may list fewer tokens than requested. A second request shows whether it lists as many as it can.
    """
    reply, top = _top(server, question, NUM_TOP)
    if len(top) < server.adapted.get("top_logprobs", NUM_TOP):
        fewer = max(len(top) - 1, 1)
        shown, again = ([token for token, _ in each] for each in (top, _top(server, question, fewer)[1]))
        if again not in (shown, shown[:fewer]):
            raise ValueError(f"{len(top)} tokens are listed")
        server.adapted = {**server.adapted, "top_logprobs": len(top)}
    read, written = reply.counts
    return {"top": top, "read": read, "written": written}


def _top(server: Server, question: Question, number: int) -> tuple[Completion, list[tuple[str, float]]]:
    reply = server.chat(question.prompt, max_tokens=1, logprobs=True, top_logprobs=number)
    (first,) = WrittenTokens.model_validate(given(reply.choices[0].logprobs, "logprobs")).content
    top = [(each.token, each.logprob) for each in first.top_logprobs]
    is_listed = any(token == first.token and abs((first.logprob or value) - value) < ROUNDING for token, value in top)
    if "temperature" not in server.adapted and first.token and not is_listed:
        raise ValueError("the token is not among the most probable ones")
    return reply, top


def ask_generation(server: Server, question: Question) -> Answer:
    """Return a generated answer."""
    send = server.chat if question.in_chat else server.complete
    reply = send(prompt=question.prompt, max_tokens=question.max_tokens)
    choice = reply.choices[0]
    text = choice.message.content if question.in_chat and choice.message else choice.text
    if text is None:
        raise ValueError("no text")
    read, written = reply.counts
    return {"text": text.strip(), "read": read, "written": written}


def _check_end(context: Sequence[str], tokens: Sequence[str], answer: str) -> None:
    """Refuse tokens that are not the end of a prompt, whose tokens are ``context``, and the answer."""
    before, after = ("".join(each) for each in (context, tokens))
    if not spell(tokens, before + answer) or not (after.startswith(before) or UNKNOWN in before or "" in context):
        raise ValueError("the tokens are not those of prompt and answer")


def _answer(own: Sequence[Any], merged: bool, read: int, written: int) -> Answer:
    score = float(np.minimum(np.array(own, dtype=np.float64), 0.0).mean())
    return {"score": score, "tokens": len(own), "merged": merged, "read": read, "written": written}


def given(value: Any, name: str) -> Any:
    """Return a part of a reply (``MissingError``)."""
    if value is None:
        raise MissingError(f"no {name}")
    return value


def common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of equal items at the beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def plain(text: str) -> str:
    """Return a text without white space and in one Unicode form, because tokenizers may change both."""
    return re.sub(r"[\s▁Ġ]+", "", unicodedata.normalize("NFKD", text))


def spell(tokens: Sequence[str], text: str) -> bool:
    """Return whether tokens are a text. Empty, partial and unknown tokens match any text."""
    shown = "".join(UNKNOWN if token in ("", UNK, "▅") else token for token in tokens)
    first, *parts = (plain(each) for each in re.split(f"{UNKNOWN}+", shown))
    if not parts:
        return first == plain(text)
    *middle, last = map(re.escape, parts)
    # Atomic groups find each part once, so a hostile reply takes no longer.
    pattern = "".join([re.escape(first), *(f"(?>.*?{part})" for part in middle), f".*{last}"])
    return re.fullmatch(pattern, plain(text), re.DOTALL) is not None


APIS = {
    "echo": ask_echo,
    "grammar": ask_grammar,
    "prompt_logprobs": ask_prompt_logprobs,
    "top_logprobs": ask_top_logprobs,
    "generation": ask_generation,
}
EXACT = ("echo", "grammar", "prompt_logprobs")  # one question per answer, and the score of the whole answer
