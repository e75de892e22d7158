"""Scoring: the padded back end against the naive loop, on random weights; ratios, with equality checked each round.

One process, interleaved, the first round dropped. A naive forward per answer with logits over the whole sequence is
what a first implementation does; the padded back end forwards each distinct sequence once and reads answer rows only.
"""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, Qwen2Config

from flip_flop.randomness import generator
from flip_flop.scoring import EncodedAnswer, EncodedInstance, score_instances
from flip_flop.scoring.answers import index_answers

ROUNDS = 5
VOCAB = 32_000
# templates, labels, tokens of a prompt, tokens of each answer
SHAPES = {"rte": (10, 2, 90, 1), "anli": (15, 3, 110, 1), "copa": (8, 2, 40, 7), "hellaswag": (4, 4, 80, 28)}


def make_instances(name: str, count: int) -> list[EncodedInstance]:
    """Random token ids; prompts of one template share their first tokens, as a common header does."""
    num_templates, num_labels, prompt, answer = SHAPES[name]
    instances = []
    for number in range(count):
        draw = generator(0, "benchmark", name, number)
        rows = []
        for _ in range(num_templates):
            context = tuple(int(token) for token in draw.integers(VOCAB, size=int(prompt * draw.uniform(0.7, 1.3))))
            rows.append(
                tuple(
                    EncodedAnswer(context, tuple(int(token) for token in draw.integers(VOCAB, size=answer)))
                    for _ in range(num_labels)
                )
            )
        instances.append(EncodedInstance(f"{name}-{number}", tuple(rows)))
    return instances


@torch.no_grad()
def naive(model: torch.nn.Module, instances: list[EncodedInstance]) -> torch.Tensor:
    """A forward per template and label, logits everywhere."""
    scores = []
    for instance in instances:
        for template in instance.answers:
            for answer in template:
                logits = model(input_ids=torch.tensor([answer.inputs]), use_cache=False).logits[0].float()
                rows = logits.log_softmax(-1)[-len(answer.tokens) :]
                scores.append(rows.gather(1, torch.tensor(answer.tokens)[:, None]).mean())
    return torch.stack(scores)


def timed(run: Callable[[], torch.Tensor]) -> tuple[float, torch.Tensor]:
    """Seconds and result."""
    start = time.perf_counter()
    result = run()
    return time.perf_counter() - start, result


def main() -> None:
    """Print one line per shape, and everything as JSON where a file is named."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=256,
        intermediate_size=1024,
        num_hidden_layers=6,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    results = {}
    print(f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name in SHAPES:
        instances = make_instances(name, 2)
        index = index_answers(instances)
        ratios = []
        for number in range(ROUNDS + 1):
            slow, expected = timed(lambda instances=instances: naive(model, instances))
            fast, scores = timed(
                lambda instances=instances: torch.from_numpy(score_instances(model, instances, quiet=True).scores)
            )
            torch.testing.assert_close(scores.flatten(), expected, rtol=0, atol=1e-5)
            if number:
                ratios.append(slow / fast)
        tokens = sum(len(sequence) for sequence in index.sequences)
        naive_tokens = sum(len(a.inputs) for i in instances for row in i.answers for a in row)
        results[name] = {
            "ratio": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
            "tokens": tokens,
            "naive_tokens": naive_tokens,
            "head_rows": len(index.row_position),
        }
        print(
            f"{name:10} {statistics.median(ratios):5.2f} x naive ({min(ratios):.2f} to {max(ratios):.2f}); "
            f"tokens {naive_tokens} -> {tokens}, head rows {naive_tokens} -> {len(index.row_position)}"
        )
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)


if __name__ == "__main__":
    main()
