"""HTTP client for served models. It imports the optional package openai."""

import contextlib
from typing import Any

import openai

LIMIT_MIB = 8  # enough for the log-probabilities of some 75,000 tokens


class BoundedClient(openai.DefaultHttpxClient):
    """Reads replies up to a limit, without compression."""

    def send(self, request: Any, **options: Any) -> Any:
        """Send a request and read its reply.

        Raises:
            OpenAIError: The reply is too large or compressed. openai does not retry after it.
        """
        body = bytearray()
        with contextlib.closing(super().send(request, **options | {"stream": True})) as response:
            for part in response.iter_raw():
                body += part
                if len(body) > LIMIT_MIB * 2**20 or response.headers.get("Content-Encoding", "identity") != "identity":
                    raise openai.OpenAIError(f"the reply is compressed or has more than {LIMIT_MIB} MiB")
        return type(response)(response.status_code, headers=response.headers, content=bytes(body), request=request)

    def __del__(self) -> None:
        with contextlib.suppress(Exception):  # an invalid proxy leaves it without a transport
            self.close()
