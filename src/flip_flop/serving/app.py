"""The server: paths, limits and errors."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from flip_flop.console import today
from flip_flop.errors import InputError
from flip_flop.serving.batches import Waiting, answer_batches, ask
from flip_flop.serving.engine import Engine
from flip_flop.serving.wire import Decisions, SystemOne, as_text

MAX_BODY = 1 << 20  # bytes
MAX_STATES = 4 << 20  # characters of the state, times the questions that repeat it
RETRY_AFTER = {"Retry-After": "1"}  # seconds


def create_app(engine: Engine, *, key: str = "", max_waiting: int = 1024, timeout: float = 60.0) -> FastAPI:
    """Return the server.

    Args:
        engine: Answers the questions.
        key: The key that clients send as Bearer token, or an empty text for none.
        max_waiting: Questions in the queue.
        timeout: Seconds to receive and answer a request.
    """
    waiting = Waiting(max_waiting)

    @contextlib.asynccontextmanager
    async def answering(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(answer_batches(waiting, engine.answer))
        yield
        task.cancel()

    def check_key(request: Request) -> None:
        given = request.headers.get("authorization", "")
        if key and not secrets.compare_digest(given.encode(), f"Bearer {key}".encode()):
            raise HTTPException(401, "Send the key: Authorization: Bearer KEY.", {"WWW-Authenticate": "Bearer"})

    async def answer(request: Request, kind: type[SystemOne] | type[Decisions]) -> JSONResponse:
        body = kind.model_validate_json(await receive(request))
        if len(as_text(body.state)) * len(body.questions) > MAX_STATES:
            raise HTTPException(413, f"Ask fewer questions about a long state: {MAX_STATES:,} characters in all.")
        if body.model != engine.name:
            raise InputError("E-SERVE", f"The model {body.model!r} is not served.", f"It is {engine.name!r}.")
        rendered = [engine.render(*named, body.state) for named in body.named()]
        answers = await ask(waiting, rendered)
        tokens = sum(answer.tokens for answer in answers)
        usage = {"input_tokens": tokens, "output_tokens": 0, "total_tokens": tokens}
        return JSONResponse({"model": body.model, "answers": body.typed(answers), "usage": usage})

    async def reply(request: Request, kind: type[SystemOne] | type[Decisions]) -> JSONResponse:
        check_key(request)
        try:
            async with asyncio.timeout(timeout):
                return await answer(request, kind)
        except asyncio.QueueFull:
            raise HTTPException(429, "Too many questions wait.", RETRY_AFTER) from None
        except TimeoutError:
            raise HTTPException(529, f"No answer within {timeout:g} seconds.", RETRY_AFTER) from None
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise RequestValidationError(found) from None
        except ValueError as error:  # also InputError
            raise HTTPException(422, str(error)) from None

    app = FastAPI(lifespan=answering, openapi_url=None)

    @app.post("/v1/systemone")
    async def answer_systemone(request: Request) -> Any:
        return await reply(request, SystemOne)

    @app.post("/v1/decisions")
    async def answer_decisions(request: Request) -> Any:
        return await reply(request, Decisions)

    @app.get("/v1/models")
    async def list_models(request: Request) -> Any:
        check_key(request)
        card = {"name": engine.name, "description": engine.classifier.classifier.decision, "release_date": today()}
        return {"object": "list", "data": [{"id": engine.name, "object": "model"}], "models": [card]}

    @app.get("/health")
    async def show_health() -> Any:
        return {"status": "ok", "waiting": waiting.qsize()}

    return app


async def receive(request: Request) -> bytes:
    """Return the body. One that is too long is received and dropped: otherwise its sender misses the answer."""
    content = bytearray()
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        content += chunk[: MAX_BODY - len(content)]
    if size > MAX_BODY:
        raise HTTPException(413, f"The body has {size:,} bytes; {MAX_BODY:,} are allowed.")
    return bytes(content)
