"""A queue of questions, and one thread that answers those that wait as a batch."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

SECONDS_TO_GATHER = 0.005
MAX_BATCH = 128  # questions

Waiting = asyncio.Queue[tuple[Any, asyncio.Future[Any]]]


async def ask(waiting: Waiting, questions: Sequence[Any]) -> list[Any]:
    """Return the answers to questions. If the caller is cancelled, the questions are not answered.

    Raises:
        QueueFull: Too many questions wait.
    """
    if waiting.maxsize - waiting.qsize() < len(questions):
        raise asyncio.QueueFull
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in questions]
    for pair in zip(questions, futures, strict=True):
        waiting.put_nowait(pair)
    return await asyncio.gather(*futures)


async def answer_batches(waiting: Waiting, answer: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
    """Answer questions in the order of their arrival, until cancelled.

    ``answer`` returns an answer or an exception for each question of a batch. One thread calls it.
    """
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "model")
    while True:
        batch = [await waiting.get()]
        await asyncio.sleep(SECONDS_TO_GATHER)
        while len(batch) < MAX_BATCH and not waiting.empty():
            batch.append(waiting.get_nowait())
        batch = [pair for pair in batch if not pair[1].done()]
        answers = await loop.run_in_executor(thread, answer, [question for question, _ in batch])
        for (_, future), found in zip(batch, answers, strict=True):
            if future.done():
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)
