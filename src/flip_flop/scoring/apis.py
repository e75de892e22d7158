"""The APIs of servers that return log-probabilities, each as a function of a server and a question."""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flip_flop.scoring.questions import MAX, MIN, Question, counts_of, echoed_tokens, end_with
from flip_flop.scoring.server import Server

NUM_TOP = 20  # tokens of a chat completion that OpenAI and vLLM list at most
Answer = dict[str, Any]


def ask_echo(server: Server, question: Question) -> Answer:
    """Score an answer as the end of an echoed text (vLLM, SGLang, llama.cpp's Python server)."""

    def read(answer: str) -> tuple[list[str], list[Any], int]:
        text = question.prompt + answer
        return echoed_tokens(server.complete(prompt=text, echo=True, logprobs=1, max_tokens=1), text)

    return _score(read, question)[0]


def ask_prompt_logprobs(server: Server, question: Question) -> Answer:
    """Score an answer as a begun turn of the assistant (vLLM's ``prompt_logprobs``).

    The request without the answer shows whether the chat template writes the same text before an answer.
    """

    def read(answer: str) -> tuple[list[str], list[Any], int]:
        return _chat_tokens(server, question.prompt, answer) if answer else _chat_context(server, question.prompt)

    found, own = _score(read, question, always_compare=True)
    if not found["merged"] and own.isascii() and own != question.answer:
        raise ValueError(f"the chat template writes {own[:40]!r} for the answer")
    return found


@functools.lru_cache(maxsize=256)  # all answers of a prompt have the same context
def _chat_context(server: Server, prompt: str) -> tuple[list[str], list[Any], int]:
    return _chat_tokens(server, prompt, "")


def _chat_tokens(server: Server, prompt: str, answer: str) -> tuple[list[str], list[Any], int]:
    """Return the tokens of a chat with a begun answer, their log-probabilities and their number."""
    body: dict[str, Any] = {"prompt_logprobs": 0}
    if answer:
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    reply = server.chat(prompt, answer or None, max_tokens=1, extra_body=body)
    first, *rest = reply["prompt_logprobs"]
    entries = [entry for each in rest for entry in each.values()]
    if first is not None or len(entries) != len(rest):
        raise ValueError("prompt_logprobs of another shape")
    log_probs = [None, *(_checked(each["logprob"]) for each in entries)]
    return ["", *(str(each["decoded_token"]) for each in entries)], log_probs, counts_of(reply)[0]


def _score(
    read: Callable[[str], tuple[list[str], list[Any], int]], question: Question, *, always_compare: bool = False
) -> tuple[Answer, str]:
    """Compute the mean log-probability of the answer's tokens, which are the last ones that ``read`` returns.

    Also returns the text of these tokens. If no tokens are exactly the answer, a request for the prompt follows. The
    first token that differs is the cut.
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
        cut = _common(context, tokens)
        number, merged, used = len(tokens) - cut, cut < len(context), used + more
    own = log_probs[len(tokens) - number :]
    if not own or None in own or not end_with(tokens, answer):
        raise ValueError("none for the answer's tokens")
    return _answer(own, merged, used, 1), "".join(tokens[-number:])


def ask_grammar(server: Server, question: Question) -> Answer:
    """Score an answer as a generation whose grammar allows only the answer's tokens (``llama-server``).

    The server returns the log-probabilities from before the grammar.
    """
    prompt = question.prompt
    if question.in_chat:
        prompt = server.post("apply-template", messages=[{"role": "user", "content": prompt}])["prompt"]
    whole, context = (
        server.post("tokenize", content=text, add_special=True, parse_special=True)["tokens"]
        for text in (prompt + (question.answer or ""), prompt)
    )
    cut = _common(context, whole)
    wanted = whole[cut:]
    grammar = f"root ::= {' '.join(f'<[{each}]>' for each in wanted)}"
    body = {"grammar": grammar, "n_probs": 1, "post_sampling_probs": False}
    reply = server.complete(prompt=whole[:cut], max_tokens=len(wanted), extra_body=body)
    shown = reply["choices"][0]["logprobs"]["content"]
    if not wanted or [each["id"] for each in shown] != wanted:
        raise ValueError("other tokens than the answer's")
    own = [_checked(each["logprob"]) for each in shown]
    return _answer(own, cut < len(context), *counts_of(reply))


def ask_top_logprobs(server: Server, question: Question) -> Answer:
    """Return the most probable first tokens of a chat completion."""
    reply = server.chat(question.prompt, max_tokens=1, logprobs=True, top_logprobs=NUM_TOP)
    listed = reply["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
    top = [(str(each["token"]), _checked(each["logprob"])) for each in listed]
    if not top or sum(math.exp(each) for _, each in top) > 1.01:
        raise ValueError("probabilities that sum to more than 1")
    read, written = counts_of(reply)
    return {"top": top, "read": read, "written": written}


def ask_generation(server: Server, question: Question) -> Answer:
    """Return a generated answer."""
    send = server.chat if question.in_chat else server.complete
    reply = send(prompt=question.prompt, max_tokens=question.max_tokens)
    choice = reply["choices"][0]
    text = choice["message"].get("content") if question.in_chat else choice["text"]
    read, written = counts_of(reply)
    return {"text": "" if text is None else text.strip(), "read": read, "written": written}


def _answer(own: Sequence[float], merged: bool, read: int, written: int) -> Answer:
    score = float(np.minimum(np.array(own, dtype=np.float64), 0.0).mean())
    return {"score": score, "tokens": len(own), "merged": merged, "read": read, "written": written}


def _common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the number of equal items at the beginning."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def _checked(value: Any) -> float:
    if type(value) not in (int, float) or not MIN <= value <= MAX:
        raise ValueError(f"{value!r} is not a log-probability")
    return float(value)


APIS = {
    "echo": ask_echo,
    "grammar": ask_grammar,
    "prompt_logprobs": ask_prompt_logprobs,
    "top_logprobs": ask_top_logprobs,
    "generation": ask_generation,
}
EXACT = ("echo", "grammar", "prompt_logprobs")  # one question per answer, and the score of the whole answer
