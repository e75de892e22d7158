"""Makes the base of the studies: a tokenizer and a small Llama, pretrained on sentences with questions and answers.

Usage: python -m evidence.pretrain LANGUAGE OUT [--steps 2000] [--from BASE] [--skew 0.85]. A miniature of multitask
prompted pretraining: customer reviews, opinion phrases, and half of the movie reviews, of the news and of the
subjectivity sentences, under some of PromptSource's templates. The targets' rows and most of their templates are never
seen.
"""

import argparse
import functools
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evidence.demo_model import END, train_tokenizer
from evidence.prepare import OWN, templates_of
from evidence.rows import Row, halves, movie_reviews, read_rows
from flip_flop.errors import InputError
from flip_flop.files import new_folder
from flip_flop.prompts import Template
from flip_flop.strict_yaml import read_yaml

VOCAB_SIZE = 6000
MAX_TOKENS = 200
BATCH_SIZE = 48
WARM_UP = 100
# Weights in the loss of an answer's tokens and of a prompt's; the end token counts as the prompt's.
ANSWER_WEIGHT, PROMPT_WEIGHT = 6.0, 0.3


@dataclass(frozen=True)
class Options:
    """How to pretrain.

    Attributes:
        skew: The share of the last label among the rows of each source with two labels; None takes them as they come.
    """

    steps: int = 2000
    hidden_size: int = 160
    layers: int = 4
    seed: int = 0
    learning_rate: float = 2e-3
    skew: float | None = None


@dataclass(frozen=True)
class Source:
    """Rows to be read under templates, and how often, beside the other sources."""

    weight: float
    rows: Sequence[Row]
    templates: Sequence[Template]
    fields: Callable[[str], dict[str, str]] = lambda text: {"text": text}

    @functools.cached_property
    def is_binary(self) -> bool:
        """Whether there are two labels."""
        return {label for _, label in self.rows} == {0, 1}

    def example(self, rng: random.Random, skew: float | None) -> tuple[str, str]:
        """A prompt and its answer."""
        text, label = rng.choice(self.rows)
        if skew is not None and self.is_binary:
            wanted = int(rng.random() < skew)
            while label != wanted:
                text, label = rng.choice(self.rows)
        prompt, answers = rng.choice(self.templates).render(self.fields(text), None)
        return prompt, f" {answers[label]}"


def sources(folder: Path) -> list[Source]:
    """What is pretrained on: of movie reviews and news each fourth and each third of PromptSource's templates."""

    def templates(dataset: str) -> list[Template]:
        return [Template(**each) for each in templates_of(dataset)]

    def titled(text: str) -> dict[str, str]:
        return {"title": " ".join(text.split()[:4]), "content": text}

    own = [Template(**each) for each in read_yaml(OWN)["templates"][:2]]
    return [
        Source(4.0, movie_reviews(folder)[0], templates("rotten_tomatoes")[::4]),
        Source(1.5, read_rows(folder, "customer_reviews"), templates("amazon_polarity"), titled),
        Source(1.5, read_rows(folder, "opinion_phrases"), templates("yelp_polarity")),
        Source(1.5, halves(read_rows(folder, "ag_news_test"))[0], templates("ag_news")[::3]),
        Source(1.0, halves(read_rows(folder, "subjectivity"))[0], own),
    ]


def examples(found: Sequence[Source], seed: int, skew: float | None) -> Iterator[tuple[str, str]]:
    """Prompts with their answers, without end."""
    rng, weights = random.Random(seed), [source.weight for source in found]
    while True:
        yield rng.choices(found, weights)[0].example(rng, skew)


def tokenizer_texts(found: Sequence[Source], seed: int) -> list[str]:
    """The texts and some prompts."""
    stream = examples(found, seed, None)
    return [text for source in found for text, _ in source.rows] + ["".join(next(stream)) for _ in range(3000)]


def make_model(tokenizer: PreTrainedTokenizerFast, options: Options) -> LlamaForCausalLM:
    """An untrained model."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden_size,
        intermediate_size=2 * options.hidden_size + 64,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(options.seed)
    return LlamaForCausalLM(config)


def make_batch(
    tokenizer: PreTrainedTokenizerFast, pairs: Sequence[tuple[str, str]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and loss weights, both ``[batch, width]``, padded on the right; long prompts lose their beginning."""
    whole = tokenizer([prompt + answer + END for prompt, answer in pairs])["input_ids"]
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    width = min(MAX_TOKENS, max(map(len, whole)))
    ids, weights = torch.full((len(whole), width), tokenizer.pad_token_id), torch.zeros(len(whole), width)
    for row, (tokens, prompt) in enumerate(zip(whole, prompts, strict=True)):
        kept = tokens[-MAX_TOKENS:]
        first = len(prompt) - (len(tokens) - len(kept))  # of the answer
        ids[row, : len(kept)] = torch.tensor(kept)
        weights[row, : len(kept)] = PROMPT_WEIGHT
        weights[row, first : len(kept) - 1] = ANSWER_WEIGHT
    return ids, weights


def pretrain(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, found: Sequence[Source], options: Options
) -> None:
    """Train ``model`` in place: AdamW, a short warm-up, then a cosine to zero."""
    stream, started = examples(found, options.seed, options.skew), time.monotonic()
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate, betas=(0.9, 0.98), weight_decay=0.1)
    warm_up = min(WARM_UP, options.steps)
    model.train()
    for step in range(options.steps):
        rate = options.learning_rate * min(1, (step + 1) / warm_up)
        for group in optimizer.param_groups:
            group["lr"] = rate * 0.5 * (1 + math.cos(math.pi * step / options.steps))
        ids, weights = make_batch(tokenizer, [next(stream) for _ in range(BATCH_SIZE)])
        logits = model(input_ids=ids).logits[:, :-1]  # padding is on the right, so no mask is needed
        losses = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        optimizer.zero_grad()
        ((losses * weights).sum() / weights.sum()).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 100 == 0 or step + 1 == options.steps:
            nats, seconds = losses[weights == ANSWER_WEIGHT].mean().item(), time.monotonic() - started
            print(f"step {step + 1}: {nats:.3f} nats per answer token, {seconds:.0f} s", file=sys.stderr, flush=True)
    model.eval()


def make_base(folder: Path, out: Path, options: Options, base: Path | None = None) -> None:
    """Make a base from these files, or go on with one, and write it to an empty folder ``out``."""
    found = sources(folder)
    if base is None:
        tokenizer = train_tokenizer(tokenizer_texts(found, options.seed), VOCAB_SIZE)
        model = make_model(tokenizer, options)
    else:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(base)
        model = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    print(f"{sum(weights.numel() for weights in model.parameters()):,} parameters", file=sys.stderr)
    pretrain(model, tokenizer, found, options)
    with new_folder(out) as unfinished:
        model.save_pretrained(unfinished)
        tokenizer.save_pretrained(unfinished)


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m evidence.pretrain", description="Make the base of the studies.")
    parser.add_argument("language", type=Path, metavar="LANGUAGE", help="the folder of the parquet files")
    parser.add_argument("out", type=Path, metavar="OUT", help="the model's folder")
    parser.add_argument("--from", dest="base", type=Path, help="go on with this base, whose size stays")
    parser.add_argument("--steps", type=int, default=Options.steps)
    parser.add_argument("--hidden-size", type=int, default=Options.hidden_size)
    parser.add_argument("--layers", type=int, default=Options.layers)
    parser.add_argument("--seed", type=int, default=Options.seed)
    parser.add_argument("--learning-rate", type=float, default=Options.learning_rate)
    parser.add_argument("--skew", type=float, help="the share of label 1 among answers where there are two labels")
    given = vars(parser.parse_args())
    folder, out, base = given.pop("language"), given.pop("out"), given.pop("base")
    if given["skew"] is not None and not 0 <= given["skew"] <= 1:
        parser.error("--skew is a share, 0 to 1")
    try:
        make_base(folder, out, Options(**given), base)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
