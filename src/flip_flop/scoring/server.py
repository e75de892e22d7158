"""Requests to an OpenAI-compatible server. A failure is an error of one line, without the key."""

import functools
import os
from collections.abc import Callable
from typing import Any

from flip_flop.errors import InputError
from flip_flop.hub import endpoint_of
from flip_flop.scoring.questions import UnreachableError, UnsupportedError

# Retries begin after 0.5 s, 1 s, 2 s, ... up to 8 s. They span about a minute, in which a server can restart.
RETRIES, SECONDS = 10, 300.0
HINTS = {
    **dict.fromkeys(range(300, 400), "Redirects are not followed. Give the address of the server itself."),
    **dict.fromkeys((400, 413, 422), "See the server's log. The prompt may be longer than its context."),
}
WITHOUT_PROBABILITIES = "Add --by generation to use generated answers."
UNSUPPORTED = (400, 404, 405, 422)  # statuses of a server that lacks an endpoint or an option
SECONDS_TO_NAME = 10.0


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
        """Whether the server calls itself llama.cpp, as ``llama-server`` does in its list of models."""
        client = self._client.with_options(max_retries=0, timeout=SECONDS_TO_NAME)
        try:
            listed: Any = client.get("/models", cast_to=object)
            return any(each["owned_by"] == "llamacpp" for each in listed["data"])
        except Exception:  # a server may have no list, or a list of another shape
            return False

    def complete(self, **arguments: Any) -> dict[str, Any]:
        """Return the JSON of a completion at temperature 0."""
        return self._asked(self._client.completions, arguments)

    def chat(self, prompt: str, answer: str | None = None, **arguments: Any) -> dict[str, Any]:
        """Return the JSON of a chat completion at temperature 0, after a user turn and perhaps a begun answer."""
        turns = [{"role": "user", "content": prompt}]
        if answer is not None:
            turns.append({"role": "assistant", "content": answer})
        return self._asked(self._client.chat.completions, {"messages": turns, **arguments})

    def post(self, name: str, **body: Any) -> dict[str, Any]:
        """Return the JSON of an endpoint of ``llama-server``, next to ``/v1``."""
        url = f"{self.endpoint.url.removesuffix('/v1')}/{name}"
        return self._send(lambda: self._client.post(url, cast_to=object, body=body))

    def _asked(self, resource: Any, arguments: dict[str, Any]) -> Any:
        create = resource.with_raw_response.create
        return self._send(lambda: create(model=self.endpoint.model, temperature=0, **arguments).http_response.json())

    def _send(self, create: Callable[[], Any]) -> Any:
        try:
            return create()
        except self._errors.APIStatusError as error:
            reason, status = self.plain(error), error.status_code
            if status in (400, 422, 500) and ("logprob" in str(error) or "echo" in str(error)):
                raise UnsupportedError("E-ENDPOINT-LOGPROBS", f"{self}: {reason}.", WITHOUT_PROBABILITIES) from None
            other = UnsupportedError if status in UNSUPPORTED else InputError
            kind = UnreachableError if status == 429 or status >= 500 else other
            raise kind("E-ENDPOINT-ANSWER", f"{self} answers {status}: {reason}.", HINTS.get(status, "")) from None
        except self._errors.OpenAIError as error:
            kind = UnreachableError if isinstance(error, self._errors.APIConnectionError) else InputError
            raise kind("E-ENDPOINT-ANSWER", f"{self} does not answer: {self.plain(error)}.") from None

    def plain(self, error: Exception) -> str:
        """Return the text of an error without line breaks and without the key, which some servers repeat."""
        text = str(error).replace(self._key, "***") if self._key else str(error)
        return " ".join(text.split())[:200].rstrip(".")
