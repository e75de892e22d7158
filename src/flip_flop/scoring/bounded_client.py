"""HTTP client for served models. It imports the optional package openai."""

import contextlib
import json
import re
from typing import Any

import openai

LIMIT_MIB = 8  # enough for the log-probabilities of some 75,000 tokens
OVERLOADED = re.compile(rb"(?i)rate.?limit|too.many.requests|overloaded|\b(429|50[0234])\b")


def status_of(status: int, body: bytes) -> int:
    """Return the status of a reply. Some servers send an error with the status 200.

    Example:
        >>> status_of(200, b'{"error": {"code": "429"}}'), status_of(200, b'{"error": "no such model"}')
        (429, 400)
    """
    with contextlib.suppress(ValueError, AttributeError, RecursionError):  # not JSON, or not an object
        if status == 200 and b'"error"' in body and json.loads(body).get("error"):
            return 429 if OVERLOADED.search(body) else 400
    return status


class BoundedClient(openai.DefaultHttpxClient):
    """Reads replies up to a limit, without compression."""

    ignoring = contextlib.suppress(Exception)  # at exit, modules are gone

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
        # openai reads what calls itself JSON.
        headers = {**response.headers, "Content-Type": "application/json"}
        status = status_of(response.status_code, bytes(body))
        return type(response)(status, headers=headers, content=bytes(body), request=request)

    def __del__(self) -> None:
        with self.ignoring:  # an invalid proxy leaves it without a transport
            self.close()
