"""The APIs of servers that return log-probabilities. Servers are untrusted: replies are read as strict models."""

import functools
import itertools
import json
import math
import os
import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from transformers.convert_slow_tokenizer import bytes_to_unicode

from flip_flop.console import warn_once
from flip_flop.errors import InputError
from flip_flop.files import MAX_JSON, sha256_json, utf8
from flip_flop.hub import endpoint_of
from flip_flop.scoring.encode import num_common

# Retries begin after 0.5 s, 1 s, 2 s, ... up to 8 s. They span about a minute, in which a server can restart.
LONGEST_WAIT = 8
# No server has these statuses. The first is retried.
NOT_JSON = 599
TOO_LARGE = 499
RETRIES = 10
SECONDS = 300.0
WITHOUT_PROBABILITIES = "Add --by generation to use generated answers."
UNSUPPORTED = (400, 404, 405, 422)  # statuses of a server that lacks an endpoint or an option
OVERLOADED = re.compile(rb"(?i)rate.?limit|too.many.requests|overloaded|\b(429|50[0234])\b")
SHORT_KEY = 8
MAX_WORDS = 300
ROOM_TO_REASON = 2048  # tokens that max_completion_tokens counts, unlike max_tokens
NUM_TOP = 20  # tokens of a chat completion that OpenAI and vLLM list at most
ROUNDING = 0.01
MIN_SUM = 1e-6  # the most probable of a million tokens has more
UNK = "<unk>"
UNKNOWN = "\ufffd"  # the text of a part of a character
ESCAPE = re.compile(r"(?:\\x|<0x)([0-9A-Fa-f]{2})>?")  # a byte, as OpenAI's API and SentencePiece write it
BYTE_OF = {letter: byte for byte, letter in bytes_to_unicode().items()}  # letters of GPT-2's vocabulary
Answer = dict[str, Any]
Tokens = tuple[list[str], list[Any], int]  # texts, log-probabilities, and the number of tokens that the server has read

Count = Annotated[int, Field(ge=0, lt=2**31)]
# Rounding in a server's softmax may give slightly more than 0. Servers write -9999 for a token that has no value.
LogProb = Annotated[float, Field(gt=-9999, le=1e-5, allow_inf_nan=False)]
ListedLogProb = Annotated[float, Field(ge=-1e6, le=1e-5, allow_inf_nan=False)]


class MissingError(Exception):
    """A reply lacks what its API returns. Another API may have it."""


class UnreachableError(InputError):
    """A failure that may pass: no connection, or a server that is overloaded, slow or failing."""


class UnsupportedError(InputError):
    """A reply of a server that lacks an endpoint or an option. Another API may have an answer."""


class Question(NamedTuple):
    """A request for the score of ``answer``, or without one for a generated answer of at most ``max_tokens`` tokens.

    ``in_chat``: the server applies its chat template to the prompt. ``choices`` are all answers, and ``extract``
    finds one in a text. ``place`` names instance and template in messages. ``api`` is a key of :data:`APIS`.
    """

    prompt: str
    answer: str
    max_tokens: int
    in_chat: bool
    api: str
    choices: tuple[str, ...]
    place: str
    extract: str | None = None

    @property
    def key(self) -> str:
        """The key of the stored answer."""
        return sha256_json(self[:5])


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

    @property
    def text(self) -> str:
        """The token, or its bytes as escapes if it is a part of a character."""
        if self.raw and UNKNOWN in self.token:
            return "".join(f"<0x{byte:02X}>" for byte in self.raw)
        return self.token

    @property
    def has_other_bytes(self) -> bool:
        """Whether the bytes are another text than the token, as it is or decoded."""
        if self.raw is None:
            return False
        text = bytes(self.raw).decode(errors="replace")
        return UNKNOWN not in text and text not in (self.token, piece_of(self.token).decode(errors="replace"))


class WrittenToken(Reply):
    """A token that the model has written, and the most probable tokens at its place, best first."""

    token: str = ""
    logprob: LogProb | None = None
    top_logprobs: list[ListedToken] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_list(self) -> "WrittenToken":
        values = [listed.logprob for listed in self.top_logprobs]
        # Several tokens may have the same text, but hardly the same probability too.
        shown = [(listed.token, listed.logprob) for listed in self.top_logprobs if listed.token.strip(" \ufffd")]
        has_other_bytes = any(listed.has_other_bytes for listed in self.top_logprobs)
        if has_other_bytes or values != sorted(values, reverse=True) or len(shown) != len(set(shown)):
            raise ValueError("tokens are listed twice, not in their order or with other bytes")
        log_prob = values[0] if self.logprob is None else self.logprob
        if not MIN_SUM < sum(map(math.exp, values)) < 1 + ROUNDING or log_prob > values[0] + ROUNDING:
            raise ValueError("the probabilities sum to about 0 or to more than 1")
        return self


class WrittenTokens(Reply):
    """The tokens of a chat completion."""

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
    return "".join(part["text"] for part in content if part["type"] in ("text", "output_text"))


class Message(Reply):
    """A turn of the assistant."""

    content: Annotated[str, BeforeValidator(join_texts)] = ""


class Choice(Reply):
    """A completion of either kind. Each API reads ``logprobs`` as :class:`EchoedTokens` or :class:`WrittenTokens`."""

    text: str | None = None
    message: Message | None = None
    logprobs: Any = None
    finish_reason: Any = None
    error: None = None


class Completion(Reply):
    """A reply with one completion."""

    choices: list[Choice] = Field(min_length=1, max_length=1)
    usage: Usage | None = None
    prompt_logprobs: list[Annotated[dict[str, PromptToken], Field(min_length=1, max_length=1)] | None] | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of tokens of prompt and completion, or zeros if the server does not count."""
        if self.usage:
            return (self.usage.prompt_tokens, self.usage.completion_tokens)
        return (0, 0)


def piece_of(token: str) -> bytes:
    r"""Return the bytes of a token that is written as in its vocabulary.

    Example:
        >>> piece_of("ĠYes"), piece_of("▁Yes"), piece_of("<0xE2>"), piece_of(r"bytes:\xe2\x96")
        (b' Yes', b' Yes', b'\xe2', b'\xe2\x96')
    """
    if ESCAPE.search(token):
        text = token.removeprefix("bytes:")
        return ESCAPE.sub(lambda found: chr(int(found[1], 16)), text).encode("latin-1", "replace")
    if all(letter in BYTE_OF for letter in token):
        return bytes(BYTE_OF[letter] for letter in token)
    return utf8(token.replace("▁", " "))


def decoded(tokens: list[str]) -> list[str]:
    """Return the texts of tokens, with U+FFFD for a part of a character.

    If none has white space and one has the mark of it, all are written as in their vocabulary.
    """
    text = "".join(tokens)
    as_in_vocabulary = re.search(r"\s", text) is None and re.search("[ĠĊ▁]", text) is not None
    texts = []
    for token in tokens:
        if as_in_vocabulary or ESCAPE.search(token):
            token = piece_of(token).decode(errors="replace")
        texts.append(token)
    return texts


def mark_errors(response: Any) -> None:
    """Give a reply that is too large, not JSON, or an error, its status. Some servers send errors with the status 200.

    Waits that the server asks for are dropped if they are shorter than the last ones of the client.
    """
    content = bytearray()
    for part in response.iter_bytes():  # decoded, in small parts
        content += part
        if len(content) > MAX_JSON:
            response.status_code = TOO_LARGE
            break
    response._content = bytes(content[:MAX_JSON])
    if re.fullmatch(f"[0-{LONGEST_WAIT}]", response.headers.get("retry-after", "")):
        del response.headers["retry-after"]
    if response.status_code == 200:
        try:
            reply = json.loads(response.content)
        except (ValueError, RecursionError):
            response.status_code = NOT_JSON
            return
        if isinstance(reply, dict) and reply.get("error"):
            response.status_code = 429 if OVERLOADED.search(response.content) else 400


class Server:
    """A server and its model, by its name ``openai:URL#NAME``. For the arguments see ``EndpointScorer``.

    Raises:
        InputError: ``E-ENDPOINT`` for an invalid name, key, address or proxy.
    """

    def __init__(self, name: str, *, retries: int = RETRIES, seconds: float = SECONDS):
        self.endpoint = endpoint_of(name)
        import openai

        self._errors: Any = openai
        self.seconds = seconds
        self.adapted: dict[str, Any] = {}  # how requests differ from the usual ones
        self.is_asked = True  # False after an error: abandoned requests report nothing
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError("E-ENDPOINT", "OPENAI_API_KEY has characters that no key has.", "Correct or unset it.")
        try:
            self._client = openai.OpenAI(
                base_url=self.endpoint.url,
                api_key=self._key or "none",
                max_retries=retries,
                timeout=seconds,
                http_client=openai.DefaultHttpxClient(
                    follow_redirects=False,
                    event_hooks={"request": [self._report_retry], "response": [mark_errors]},
                ),
            )
        except Exception as error:  # such as an invalid address or proxy
            raise InputError("E-ENDPOINT", f"{name} cannot be asked: {self.plain(error)}.") from None

    def __str__(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}"

    def _report_retry(self, request: Any) -> None:
        """Report the second retry, after less than two seconds. The client counts retries in a header."""
        if self.is_asked and int(request.headers.get("x-stainless-retry-count", 0)) >= 2:
            warn_once(f"{self}: requests fail; retrying for about a minute")

    def complete(self, **arguments: Any) -> Completion:
        """Return a completion at temperature 0. Some servers have chat completions at every address."""
        reply = self._request("/completions", arguments)
        if reply.choices[0].text is None and reply.choices[0].message is not None:
            raise MissingError("only a chat completion")
        return reply

    def chat(self, prompt: str, answer: str = "", **arguments: Any) -> Completion:
        """Return a chat completion at temperature 0, after a user turn and perhaps a begun answer."""
        turns = [{"role": "user", "content": prompt}]
        if answer:
            turns.append({"role": "assistant", "content": answer})
        return self._request("/chat/completions", {"messages": turns, **arguments})

    def _request(self, path: str, arguments: dict[str, Any]) -> Completion:
        """Send a request, and if the server refuses a parameter, send it again as the server wants."""
        body = {"model": self.endpoint.model, "temperature": 0, **arguments}
        adapted = self.adapted
        if "temperature" in adapted:
            del body["temperature"]
        if "max_tokens" in adapted:
            number = body.pop("max_tokens")
            body[adapted["max_tokens"]] = number if number == 1 else number + ROOM_TO_REASON
        if top := body.get("top_logprobs", 0):
            body["top_logprobs"] = top = min(top, adapted.get("top_logprobs", top))
        try:
            return Completion.model_validate(self.send(path, body))
        except UnsupportedError as error:
            fewer = [int(number) for number in re.findall(r"\d+", error.message) if 0 < int(number) < top]
            if "max_completion_tokens" in error.message:
                change: dict[str, Any] = {"max_tokens": "max_completion_tokens"}
            elif "temperature" in error.message:
                change = {"temperature": "default"}
            else:
                change = {"top_logprobs": max(fewer)} if fewer and "logprobs" in error.message else {}
            if adapted | change == adapted:
                raise
            self.adapted = self.adapted | change  # other threads adapt it, too
        return self._request(path, arguments)

    def send(self, path: str, body: dict[str, Any]) -> Any:
        """Return the JSON of a reply."""
        try:
            return self._client.post(path, cast_to=object, body=body)
        except self._errors.APIStatusError as error:
            status = error.status_code
            words = error.body
            if isinstance(words, dict):
                words = words.get("message") or words.get("detail")
            reason = self.plain(words or error)
            if status in (400, 422, 500) and ("logprob" in reason or "echo" in reason):
                raise UnsupportedError("E-ENDPOINT-LOGPROBS", f"{self}: {reason}.", WITHOUT_PROBABILITIES) from None
            other = UnsupportedError if status in UNSUPPORTED else InputError
            kind = UnreachableError if status == 429 or status >= 500 else other
            hint = "See the server's log." if status in (400, 413, 422) else ""
            if status < 400:
                hint = "Redirects are not followed. Give the address of the server itself."
            faults = {
                NOT_JSON: "sends a reply that is not JSON",
                TOO_LARGE: f"sends a reply of more than {MAX_JSON // 2**20} MB",
            }
            answers = faults.get(status, f"answers {status}")
            raise kind("E-ENDPOINT-ANSWER", f"{self} {answers}: {reason}.", hint) from None
        except self._errors.OpenAIError as error:
            if isinstance(error, self._errors.APIConnectionError):
                kind = UnreachableError
            else:
                kind = InputError
            raise kind("E-ENDPOINT-ANSWER", f"{self} does not answer: {self.plain(error)}.") from None

    def plain(self, error: object) -> str:
        """Return the text of an error without line breaks and without the key, which some servers repeat."""
        # A short key may be part of other words.
        if len(self._key) < SHORT_KEY:
            key = rf"(?<!\w){re.escape(self._key)}(?!\w)"
        else:
            key = re.escape(self._key)
        text = re.sub(key, "***", str(error)) if self._key else str(error)
        return " ".join(text.split())[:MAX_WORDS].rstrip(".")


def ask(server: Server, question: Question) -> Answer:
    """Ask by the API of the question.

    Raises:
        InputError: ``E-ENDPOINT-ANSWER`` and ``E-ENDPOINT-LOGPROBS`` with the place of the question, as
            ``UnsupportedError`` if only another API may answer and as ``UnreachableError`` if the failure may pass.
    """
    try:
        return APIS[question.api](server, question)
    except InputError as error:
        raise type(error)(error.code, f"{question.place}: {error.message}", error.hint) from error
    except MissingError as error:  # only this leads to the next API: one invalid reply must not change the scores
        code = "E-ENDPOINT-LOGPROBS"
        hint = WITHOUT_PROBABILITIES
        if question.api == "generation":
            code = "E-ENDPOINT-ANSWER"
            hint = ""
        raise UnsupportedError(code, f"{question.place}: {server}: {server.plain(error)}.", hint) from error
    except Exception as error:  # any that an invalid reply causes
        raise InputError(
            "E-ENDPOINT-ANSWER",
            f"{question.place}: {server} sends an invalid reply ({server.plain(_fault(error))}).",
            "See the server's log.",
        ) from error


def _fault(error: Exception) -> str:
    """Return the first fault of a reply."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'all'}: {first['msg'].removeprefix('Value error, ')}"
    if type(error) is ValueError:
        return str(error)
    return f"{type(error).__name__}: {error}"


def ask_echo(server: Server, question: Question) -> Answer:
    """Score an answer as the end of an echoed text (vLLM, SGLang, llama.cpp's Python server).

    Generated tokens are dropped. A server may count a BOS token that it does not show.
    """

    def read(answer: str) -> Tokens:
        text = question.prompt + answer
        reply = server.complete(prompt=text, echo=True, logprobs=1, max_tokens=1)
        choice = reply.choices[0]
        required(required(choice.logprobs, "logprobs").get("tokens"), "echoed tokens")
        shown = EchoedTokens.model_validate(choice.logprobs)
        number = len(shown.tokens)
        is_echoed = (choice.text or "").startswith(text)
        required(is_echoed or number > 1 or None, "echoed text")
        lengths = {number, len(shown.token_logprobs), len(shown.text_offset or shown.tokens)}
        if not is_echoed or len(lengths) > 1:
            raise ValueError("the text or the number of its tokens differs")
        tokens = decoded(shown.tokens)
        end = _num_echoed(reply, tokens, text)
        return tokens[:end], shown.token_logprobs[:end], reply.counts[0]

    return _score(server, read, question)


def _num_echoed(reply: Completion, tokens: list[str], text: str) -> int:
    """Return the number of tokens that are the echoed text: all except the generated ones, of which one was requested.

    A server that does not count tokens must spell the text, perhaps after a BOS token.
    """
    number = len(tokens)
    if reply.usage is not None:
        read, written = reply.counts
        if not 0 <= read + written - number <= 1:
            raise ValueError("the number of tokens differs")
        return number - written
    for end in (number - 1, number):
        if spell(tokens[:end], text) or spell(tokens[1:end], text):
            return end
    raise MissingError("no usage")


def ask_prompt_logprobs(server: Server, question: Question) -> Answer:
    """Score an answer as a begun turn of the assistant (vLLM's ``prompt_logprobs``).

    The request without the answer shows whether the chat template writes the same text before an answer.
    """

    def read(answer: str) -> Tokens:
        if answer:
            return _chat_tokens(server, question.prompt, answer)
        return _chat_context(server, question.prompt)

    return _score(server, read, question, always_compare=True)


@functools.lru_cache(maxsize=256)  # all answers of a prompt have the same context
def _chat_context(server: Server, prompt: str) -> Tokens:
    return _chat_tokens(server, prompt, "")


def _chat_tokens(server: Server, prompt: str, answer: str) -> Tokens:
    """Return the tokens of a chat with a begun answer."""
    body: dict[str, Any] = {"prompt_logprobs": 0}
    if answer:
        body |= {"add_generation_prompt": False, "continue_final_message": True}
    reply = server.chat(prompt, answer, max_tokens=1, **body)
    first, *rest = required(reply.prompt_logprobs, "prompt_logprobs")
    tokens = [token for listed in rest for token in (listed or {}).values()]
    if first is not None or len(tokens) != len(rest) or (reply.usage and reply.counts[0] != 1 + len(rest)):
        raise ValueError("prompt_logprobs has another number of tokens")
    texts = decoded([token.decoded_token for token in tokens])
    log_probs = [token.logprob for token in tokens]
    return ["", *texts], [None, *log_probs], reply.counts[0]


def _score(
    server: Server, read: Callable[[str], Tokens], question: Question, *, always_compare: bool = False
) -> Answer:
    """Compute the mean log-probability of the answer's tokens, which are the last ones that ``read`` returns.

    If no tokens are exactly the answer, a request for the prompt follows. The first token that differs is the cut.
    """
    answer = question.answer
    tokens, log_probs, used = read(answer)
    lengths = itertools.accumulate(map(len, reversed(tokens)))
    number = next((place for place, length in enumerate(lengths, 1) if length >= len(answer)), len(tokens))
    merged = False
    # A server may return the text of a character with its last token, and empty texts for its other tokens.
    has_other_text = "".join(tokens[-number:]) != answer or (number < len(tokens) and not tokens[-number - 1])
    if has_other_text or always_compare:
        context, _, more = read("")
        cut = num_common(context, tokens)
        number = len(tokens) - cut
        merged = cut < len(context)
        used = used + more
        before = "".join(context[cut:])
        after = "".join(tokens[cut:])
        if always_compare and after.startswith(before) and after != before + answer and after.endswith(answer):
            raise MissingError(f"the chat template writes {after[:40]!r} for the answer")
        _check_end(context[cut:], tokens[cut:], answer)
    return _answer(server, log_probs[len(tokens) - number :], merged, used, 1)


def ask_top_logprobs(server: Server, question: Question) -> Answer:
    """Return the most probable first tokens of a chat completion.

    A server may list fewer tokens than requested. A second request shows whether it lists as many as it can.
    """
    reply, top = _top(server, question, NUM_TOP)
    if len(top) < server.adapted.get("top_logprobs", NUM_TOP):
        fewer = max(len(top) - 1, 1)
        _, top_again = _top(server, question, fewer)
        tokens = [token for token, _ in top]
        if [token for token, _ in top_again] not in (tokens, tokens[:fewer]):
            raise ValueError(f"{len(top)} tokens are listed")
        server.adapted = {**server.adapted, "top_logprobs": len(top)}
    read, written = reply.counts
    return {"top": top, "read": read, "written": written}


def _top(server: Server, question: Question, number: int) -> tuple[Completion, list[tuple[str, float]]]:
    reply = server.chat(question.prompt, max_tokens=1, logprobs=True, top_logprobs=number)
    (first,) = WrittenTokens.model_validate(required(reply.choices[0].logprobs, "logprobs")).content
    listed = [(token.token, token.logprob) for token in first.top_logprobs]
    is_listed = any(
        token == first.token and abs((first.logprob or value) - value) < ROUNDING for token, value in listed
    )
    if "temperature" not in server.adapted and first.token and not is_listed:
        raise ValueError("the token is not among the most probable ones")
    return reply, [(token.text, token.logprob) for token in first.top_logprobs]


def ask_generation(server: Server, question: Question) -> Answer:
    """Return a generated answer."""
    send = server.chat if question.in_chat else server.complete
    reply = send(prompt=question.prompt, max_tokens=question.max_tokens)
    choice, (read, written) = reply.choices[0], reply.counts
    text = choice.message.content if question.in_chat and choice.message else choice.text
    if text is None:
        raise ValueError("no text")
    return {"text": text.strip(), "cut": choice.finish_reason == "length", "read": read, "written": written}


def _check_end(context: Sequence[str], tokens: Sequence[str], answer: str) -> None:
    """Refuse tokens that are not the end of a prompt, whose tokens are ``context``, and the answer."""
    before = "".join(context)
    after = "".join(tokens)
    if not spell(tokens, before + answer) or not (after.startswith(before) or UNKNOWN in before or "" in context):
        raise ValueError("the tokens are not those of prompt and answer")


def _answer(server: Server, log_probs: Sequence[Any], merged: bool, read: int, written: int) -> Answer:
    if not log_probs or None in log_probs:
        missing = f"{server} sends no log-probability of some of the answer's tokens."
        raise InputError("E-ENDPOINT-LOGPROBS", missing, WITHOUT_PROBABILITIES)
    score = float(np.minimum(np.array(log_probs, dtype=np.float64), 0.0).mean())
    return {"score": score, "tokens": len(log_probs), "merged": merged, "read": read, "written": written}


def required(value: Any, name: str) -> Any:
    """Return a part of a reply (``MissingError``)."""
    if value is None:
        raise MissingError(f"no {name}")
    return value


def plain(text: str) -> str:
    """Return a text without white space and in one Unicode form, because tokenizers may change both."""
    return re.sub(r"\s+", "", unicodedata.normalize("NFKD", text))


def spell(tokens: Sequence[str], text: str) -> bool:
    """Return whether tokens are a text. Empty, partial and unknown tokens match any text."""
    shown = "".join(UNKNOWN if token in ("", UNK, "▅") else token for token in tokens)
    first, *parts = (plain(part) for part in re.split(f"{UNKNOWN}+", shown))
    if not parts:
        return first == plain(text)
    *middle, last = map(re.escape, parts)
    # Atomic groups find each part once, so a hostile reply takes no longer.
    pattern = "".join([re.escape(first), *(f"(?>.*?{part})" for part in middle), f".*{last}"])
    return re.fullmatch(pattern, plain(text), re.DOTALL) is not None


APIS = {
    "echo": ask_echo,
    "prompt_logprobs": ask_prompt_logprobs,
    "top_logprobs": ask_top_logprobs,
    "generation": ask_generation,
}
EXACT = ("echo", "prompt_logprobs")  # one question per answer, and the score of the whole answer
