"""Validation of a server's replies, which are untrusted."""

from collections.abc import Sequence
from typing import Any

# Rounding in a server's softmax may give slightly more than 0. Below the lower bound, float32 results may overflow.
MIN, MAX = -1e6, 1e-5


def counts_of(reply: dict[str, Any]) -> tuple[int, int]:
    """Return the tokens of prompt and completion, or zeros if the server does not count.

    Raises:
        ValueError: One is not a count.
    """
    usage = reply.get("usage") or {"prompt_tokens": 0, "completion_tokens": 0}
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    if not all(type(each) is int and 0 <= each < 2**31 for each in counts):
        raise ValueError("usage without counts")
    return counts


def echoed_tokens(reply: dict[str, Any], text: str) -> tuple[list[str], list[float | None], int]:
    """Return the tokens of an echoed text, their log-probabilities and the number of tokens read.

    Generated tokens are dropped. A server may count a BOS token that it does not show.

    Raises:
        ValueError: Log-probabilities are missing, or the reply contradicts itself.
    """
    choice, (read, written) = reply["choices"][0], counts_of(reply)
    shown: Any = choice.get("logprobs") or {}
    tokens, log_probs = shown.get("tokens"), shown.get("token_logprobs")
    if not (
        choice["text"].startswith(text)
        and isinstance(tokens, list)
        and isinstance(log_probs, list)
        and all(isinstance(each, str) for each in tokens)
        and all(type(each) in (int, float) and MIN <= each <= MAX for each in log_probs if each is not None)
        and len(tokens) == len(log_probs) == len(shown.get("text_offset") or tokens)
        and 0 <= read + written - len(tokens) <= 1
    ):
        raise ValueError("missing or inconsistent")
    return tokens[: -written or None], log_probs[: -written or None], read


def end_with(tokens: Sequence[str], answer: str) -> bool:
    """Return whether the text of the last tokens is the answer, apart from white space.

    A server may show parts of a character as an empty token or as U+FFFD. Such an answer passes.
    """
    shown, wanted = ("".join(text.split()) for text in ("".join(tokens), answer))
    is_partial = not answer.isascii() and any(not each.strip(" \ufffd") for each in tokens[-len(answer.encode()) :])
    return is_partial or shown.endswith(wanted)
