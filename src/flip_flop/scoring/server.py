"""Requests to an OpenAI-compatible server. A failure is an error of one line, without the key."""

import functools
import os
import re
from typing import Any

from flip_flop.errors import InputError
from flip_flop.hub import endpoint_of
from flip_flop.scoring.questions import MissingError, UnreachableError, UnsupportedError, in_threads
from flip_flop.scoring.replies import Completion, LlamaReply

# Retries begin after 0.5 s, 1 s, 2 s, ... up to 8 s. They span about a minute, in which a server can restart.
RETRIES, SECONDS = 10, 300.0
HINTS = {
    **dict.fromkeys(range(300, 400), "Redirects are not followed. Give the address of the server itself."),
    **dict.fromkeys((400, 413, 422), "See the server's log."),
}
WITHOUT_PROBABILITIES = "Add --by generation to use generated answers."
SHORT_KEY, MAX_WORDS = 8, 300
ROOM_TO_REASON = 2048  # tokens that max_completion_tokens counts, unlike max_tokens
UNSUPPORTED = (400, 404, 405, 422)  # statuses of a server that lacks an endpoint or an option
SECONDS_TO_NAME = 30.0


class Server:
    """A server and its model, by its name ``openai:URL#NAME``. For the arguments see ``EndpointScorer``.

    Raises:
        InputError: ``E-ENDPOINT`` for an invalid name, key, address or proxy.
    """

    def __init__(self, name: str, *, retries: int = RETRIES, seconds: float = SECONDS):
        self.endpoint = endpoint_of(name)
        import openai

        from flip_flop.scoring.bounded_client import BoundedClient

        self._errors: Any = openai
        self.seconds = seconds
        self.adapted: dict[str, Any] = {}  # how requests differ from the usual ones
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise InputError("E-ENDPOINT", "OPENAI_API_KEY has characters that no key has.", "Correct or unset it.")
        try:
            self._client = openai.OpenAI(
                base_url=self.endpoint.url,
                api_key=self._key or "none",
                max_retries=retries,
                timeout=seconds,
                http_client=BoundedClient(follow_redirects=False, headers={"Accept-Encoding": "identity"}),
            )
        except Exception as error:  # such as an invalid address or proxy
            raise InputError("E-ENDPOINT", f"{name} cannot be asked: {self.plain(error)}.") from None

    def __str__(self) -> str:
        return f"{self.endpoint.model} at {self.endpoint.url}"

    @functools.cached_property
    def is_llama_server(self) -> bool:
        """Whether the server calls itself llama.cpp, as ``llama-server`` does in its list of models.

        Raises:
            InputError: ``E-ENDPOINT-ANSWER`` without a reply in time.
        """
        client = self._client.with_options(max_retries=2)

        def ask(_: Any) -> bool:
            try:
                listed: Any = client.get("/models", cast_to=object)
                return any(each["owned_by"] == "llamacpp" for each in listed["data"])
            except Exception:  # a server may have no list, or a list of another shape
                return False

        ((_, answer),) = in_threads(ask, [None], 1, min(self.seconds, SECONDS_TO_NAME))
        if isinstance(answer, BaseException):
            raise answer
        return bool(answer)

    def complete(self, **arguments: Any) -> Completion:
        """Return a completion at temperature 0. Some servers have chat completions at every address."""
        reply = self._asked("/completions", arguments)
        if reply.choices[0].text is None and reply.choices[0].message is not None:
            raise MissingError("only a chat completion")
        return reply

    def chat(self, prompt: str, answer: str | None = None, **arguments: Any) -> Completion:
        """Return a chat completion at temperature 0, after a user turn and perhaps a begun answer."""
        turns = [{"role": "user", "content": prompt}]
        if answer is not None:
            turns.append({"role": "assistant", "content": answer})
        return self._asked("/chat/completions", {"messages": turns, **arguments})

    def post(self, name: str, **body: Any) -> LlamaReply:
        """Return the reply of an endpoint of ``llama-server``, next to ``/v1``."""
        return LlamaReply.model_validate(self._send(f"{self.endpoint.url.removesuffix('/v1')}/{name}", body))

    def _asked(self, path: str, arguments: dict[str, Any]) -> Completion:
        """Ask, and if the server refuses a parameter, ask again as it wants."""
        asked = {"model": self.endpoint.model, "temperature": 0, **arguments}
        top, wanted = asked.get("top_logprobs", 0), self.adapted
        if "temperature" in wanted:
            del asked["temperature"]
        if "max_tokens" in wanted:
            number = asked.pop("max_tokens")
            asked[wanted["max_tokens"]] = number if number == 1 else number + ROOM_TO_REASON
        if top:
            asked["top_logprobs"] = top = min(top, wanted.get("top_logprobs", top))
        try:
            return Completion.model_validate(self._send(path, asked))
        except UnsupportedError as error:
            fewer = [int(each) for each in re.findall(r"\d+", error.message) if 0 < int(each) < top]
            wishes: dict[str, dict[str, Any]] = {
                "max_completion_tokens": {"max_tokens": "max_completion_tokens"},
                "temperature": {"temperature": "default"},
                "logprobs": {"top_logprobs": max(fewer)} if fewer else {},
            }
            wish = next((each for word, each in wishes.items() if word in error.message), {})
            if wanted | wish == wanted:
                raise
            self.adapted = self.adapted | wish  # other threads adapt it, too
        return self._asked(path, arguments)

    def _send(self, path: str, body: dict[str, Any]) -> Any:
        try:
            return self._client.post(path, cast_to=object, body=body)
        except self._errors.APIStatusError as error:
            reason, status = self._words(error), error.status_code
            if status in (400, 422, 500) and ("logprob" in reason or "echo" in reason):
                raise UnsupportedError("E-ENDPOINT-LOGPROBS", f"{self}: {reason}.", WITHOUT_PROBABILITIES) from None
            other = UnsupportedError if status in UNSUPPORTED else InputError
            kind = UnreachableError if status == 429 or status >= 500 else other
            raise kind("E-ENDPOINT-ANSWER", f"{self} answers {status}: {reason}.", HINTS.get(status, "")) from None
        except self._errors.OpenAIError as error:
            kind = UnreachableError if isinstance(error, self._errors.APIConnectionError) else InputError
            raise kind("E-ENDPOINT-ANSWER", f"{self} does not answer: {self.plain(error)}.") from None

    def _words(self, error: Any) -> str:
        """Return the server's own words, or all that its reply has."""
        message = error.body.get("message") if isinstance(error.body, dict) else error.body
        return self.plain(message or error)

    def plain(self, error: object) -> str:
        """Return the text of an error without line breaks and without the key, which some servers repeat."""
        # A short key may be part of other words.
        key = rf"(?<!\w){re.escape(self._key)}(?!\w)" if len(self._key) < SHORT_KEY else re.escape(self._key)
        text = re.sub(key, "***", str(error)) if self._key else str(error)
        return " ".join(text.split())[:MAX_WORDS].rstrip(".")
