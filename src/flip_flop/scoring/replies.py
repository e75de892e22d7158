"""Replies of servers as strict models. Servers are untrusted."""

import itertools
import math
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=0, lt=2**31)]
# Rounding in a server's softmax may give slightly more than 0. Servers write -9999 for a token that has no value.
LogProb = Annotated[float, Field(gt=-9999, le=1e-5, allow_inf_nan=False)]
ListedLogProb = Annotated[float, Field(ge=-1e6, le=1e-5, allow_inf_nan=False)]
ROUNDING = 0.01
MIN_SUM = 1e-6  # the most probable of a million tokens has more


class Reply(BaseModel):
    """A JSON object. Other keys are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


class Usage(Reply):
    """The numbers of tokens that a server counted."""

    prompt_tokens: Count
    completion_tokens: Count


class ListedToken(Reply):
    """A token that the model could have written."""

    token: str
    logprob: ListedLogProb
    raw: list[int] | None = Field(default=None, alias="bytes")


class WrittenToken(Reply):
    """A token that the model has written, and the most probable tokens at its place, best first."""

    token: str = ""
    logprob: LogProb | None = None
    id: Count | None = None
    top_logprobs: list[ListedToken] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_list(self) -> "WrittenToken":
        values = [each.logprob for each in self.top_logprobs]
        shown = [each.token for each in self.top_logprobs if each.token.strip(" \ufffd")]
        raw = [text_of(each.token if each.raw is None else each.raw) for each in self.top_logprobs]
        is_other = any("\ufffd" not in text != each.token for text, each in zip(raw, self.top_logprobs, strict=True))
        is_sorted = all(value >= after for value, after in itertools.pairwise(values))
        if is_other or not is_sorted or len(shown) != len(set(shown)):
            raise ValueError("tokens are listed twice, not in their order or with other bytes")
        own = values[0] if self.logprob is None else self.logprob
        if not MIN_SUM < sum(map(math.exp, values)) < 1 + ROUNDING or own > values[0] + ROUNDING:
            raise ValueError("the probabilities sum to about 0 or to more than 1")
        return self


class WrittenTokens(Reply):
    """The tokens of a chat completion, or of any completion of ``llama-server``."""

    content: list[WrittenToken] = Field(min_length=1)


class EchoedTokens(Reply):
    """The tokens of an echoed text and of its continuation."""

    tokens: list[str]
    token_logprobs: list[LogProb | None]
    text_offset: list[Any] | None = None


class PromptToken(Reply):
    """A token of a prompt (vLLM)."""

    logprob: LogProb
    decoded_token: str


def join_texts(content: Any) -> Any:
    """Return the text parts of a message as one text. Other parts are thoughts, for example."""
    if not isinstance(content, list):
        return content or ""  # reasoning in a separate field may leave no content
    return "".join(each["text"] for each in content if each["type"] in ("text", "output_text"))


class Message(Reply):
    """A turn of the assistant."""

    content: Annotated[str, BeforeValidator(join_texts)] = ""


class Choice(Reply):
    """A completion of either kind. Each API reads ``logprobs`` as :class:`EchoedTokens` or :class:`WrittenTokens`."""

    text: str | None = None
    message: Message | None = None
    logprobs: Any = None
    error: None = None


class Completion(Reply):
    """A reply with one completion."""

    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: Usage | None = None
    prompt_logprobs: list[Annotated[dict[str, PromptToken], Field(min_length=1, max_length=1)] | None] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of tokens of prompt and completion, or zeros if the server does not count."""
        return (self.usage.prompt_tokens, self.usage.completion_tokens) if self.usage else (0, 0)


class Piece(Reply):
    """A token and its text, or the bytes of a part of a character."""

    id: Count
    piece: str | list[int]


class LlamaReply(Reply):
    """A reply of ``/apply-template`` or ``/tokenize``. Old versions of ``llama-server`` do not show texts."""

    prompt: str = ""
    tokens: list[Piece] | list[Count] = []


def text_of(shown: str | list[int]) -> str:
    """Return the text of a token, with U+FFFD for a part of a character."""
    return shown if isinstance(shown, str) else bytes(shown).decode(errors="replace")
