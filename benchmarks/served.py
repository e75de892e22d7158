"""``python -m benchmarks.served openai:URL#NAME --model MODEL --task TASK``: a server's scoring beside ours.

The server serves the same weights: vLLM by ``vllm serve MODEL --served-model-name NAME``, SGLang by ``python -m
sglang.launch_server --model-path MODEL --served-model-name NAME``. Both score the same rows in turn, a few before they
are timed. It prints instances a second, and how far the scores are apart.
"""

import argparse
import os
import tempfile
import time

import numpy as np

from flip_flop import ScoringOptions, load_model
from flip_flop.scoring import CausalLMScorer, EndpointScorer
from flip_flop.tasks import load_task

WARM_UP = 4


def main(arguments: list[str] | None = None) -> None:
    """Measure, and print a line for each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.served", description=__doc__)
    parser.add_argument("served", help="openai:URL#NAME")
    parser.add_argument("--model", required=True, help="the same weights, as a folder or a hub name")
    parser.add_argument("--task", required=True, help="a task's name or file")
    parser.add_argument("--split", default="test")
    parser.add_argument("--limit", type=int, default=200, help="instances")
    parser.add_argument("--concurrency", type=int, default=32, help="requests at a time")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    given = parser.parse_args(arguments)
    rendered = load_task(given.task).render(given.split, limit=given.limit + WARM_UP, need_labels=False).instances
    if len(rendered) <= WARM_UP:
        parser.error(f"{given.task} has {len(rendered)} rows in split {given.split}; {WARM_UP + 1} are needed")
    options = ScoringOptions(concurrency=given.concurrency, chat_template="off")
    seconds, scores = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder  # no answer is kept from an earlier run
        scorers = {
            "packed": CausalLMScorer(load_model(given.model, device=given.device, dtype=given.dtype)),
            "served": EndpointScorer(given.served),
        }
        for name, scorer in scorers.items():
            scorer.scores(rendered[:WARM_UP], options)
            started = time.perf_counter()
            scores[name] = scorer.scores(rendered[WARM_UP:], options).scores
            seconds[name] = time.perf_counter() - started
            print(f"{name}: {len(scores[name]) / seconds[name]:.1f} instances a second of {scores[name].shape[1:]}")
    differing = np.abs(scores["packed"] - scores["served"]).max()
    same = (scores["packed"].argmax(axis=2) == scores["served"].argmax(axis=2)).mean()
    print(f"served / packed, seconds: {seconds['served'] / seconds['packed']:.2f}")
    print(f"largest difference of scores: {differing:.1e} nats; the same label in {same:.2%} of answers")


if __name__ == "__main__":
    main()
