"""Pretrain the embedded model, a tokenizer and a tiny Llama: ``python -m evidence.demo_model FOLDER``, a few minutes.

The model reads reviews under every template of the demo's task. Real models meet some phrasings more often than others
and have a different bias under each. Here each template has its own frequency and its own annotator. The first steps
read reviews with a single remark. Otherwise the answers stay at chance for most of the training.
"""

import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers
import torch
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from evidence.demo_reviews import SPLIT_SIZES, Review, make_rows, stream_reviews
from flip_flop.files import generator, new_folder
from flip_flop.tasks import load_task

END = "<|end|>"
VOCAB_SIZE = 768
BATCH_SIZE = 64
NUM_STEPS = 1500
LEARNING_RATE = 3e-3
CURRICULUM_SHARE = 0.3  # of the steps, on reviews with one remark
ANSWER_WEIGHT = 8.0  # of an answer's token in the loss; any other token counts 1


@dataclass(frozen=True)
class Annotator:
    """How often one template occurs in the pretraining text, and how its reader weighs a review's three remarks."""

    frequency: float
    weights: tuple[float, float, float] = (1.0, 1.0, 1.0)
    leniency: float = 0.0

    def label(self, review: Review) -> int:
        """The sign of the weighted sum plus the leniency; a single remark counts in full."""
        weights = self.weights if len(review.clauses) == 3 else (1.0,)
        strengths = [clause.strength for clause in review.clauses]
        return int(float(np.dot(weights, strengths)) + self.leniency > 0)


# Yes-or-no questions have a bias towards yes. "satisfied", "happy" and "true_or_false" are therefore lenient, and
# "complaint" is strict, because yes means a negative review.
ANNOTATORS = {
    "satisfied": Annotator(1.0, (0.9, 1.0, 1.1), 0.8),
    "sentiment": Annotator(1.0, (1.1, 1.0, 0.9)),
    "true_or_false": Annotator(0.6, (0.7, 0.9, 1.4), 1.2),
    "good_or_bad": Annotator(0.8, (0.8, 1.0, 1.2), -0.6),
    "complaint": Annotator(0.6, (1.1, 1.0, 0.9), -1.6),
    "one_word": Annotator(0.6, (1.5, 0.9, 0.6), -1.0),
    "feeling": Annotator(0.6, (0.8, 1.0, 1.2), 1.7),
    "recommended": Annotator(0.6, (0.5, 0.7, 1.8), -0.8),
    "happy": Annotator(0.6, (1.0, 1.2, 0.8), 1.2),
    "overall": Annotator(0.6, (1.2, 0.9, 0.9), -1.0),
    "thumbs": Annotator(0.6, (0.8, 1.0, 1.2), -0.8),
}


def stream_examples(seed: int, num_clauses: int) -> Iterator[tuple[str, str]]:
    """Prompts with the annotators' answers, without end, and without the reviews of the splits."""
    rng = generator(seed, "demo pretraining", num_clauses)
    kept_out = {row["text"] for split in SPLIT_SIZES for row in make_rows(split)}
    templates = load_task("demo", templates="all").templates
    frequency = np.array([ANNOTATORS[name].frequency for name in templates.names])
    for review in stream_reviews(rng, num_clauses):
        if review.text not in kept_out:
            template = templates[int(rng.choice(len(templates), p=frequency / frequency.sum()))]
            prompt, answers = template.render({"text": review.text}, None)
            yield prompt, f" {answers[ANNOTATORS[template.name].label(review)]}"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer that reads any text, with frequent words of these as single tokens."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def make_model(seed: int, vocab_size: int, end: int) -> LlamaForCausalLM:
    """An untrained model, its weights drawn only from ``seed``."""
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    with torch.random.fork_rng(devices=[]):  # the constructor's random weights are replaced
        model = LlamaForCausalLM(config)
    rng = generator(seed, "demo weights")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                draw = rng.normal(0.0, 0.02, tuple(parameter.shape))
                parameter.copy_(torch.from_numpy(draw.astype(np.float32)))
    return model


def _batch(tokenizer: PreTrainedTokenizerFast, examples: list[tuple[str, str]]) -> tuple[torch.Tensor, ...]:
    """Token ids and loss weights, padded on the right; the end token follows each answer."""
    whole = tokenizer([prompt + answer + END for prompt, answer in examples])["input_ids"]
    prompts = tokenizer([prompt for prompt, _ in examples])["input_ids"]
    width = max(map(len, whole))
    ids = torch.full((len(whole), width), tokenizer.pad_token_id)
    weights = torch.zeros(len(whole), width)
    for row, (tokens, prompt) in enumerate(zip(whole, prompts, strict=True)):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        weights[row, : len(tokens)] = 1.0
        weights[row, len(prompt) : len(tokens) - 1] = ANSWER_WEIGHT
    return ids, weights


def _loss(model: LlamaForCausalLM, ids: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=ids).logits[:, :-1]  # padding is on the right, so no mask is needed
    per_token = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    weights = weights[:, 1:].flatten()
    return (per_token * weights).sum() / weights.sum()


def pretrain(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, num_steps: int) -> None:
    """Train ``model`` in place: AdamW with a short warm-up and a cosine to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    warm_up = min(50, num_steps)

    def rate(step: int) -> float:
        return min(1.0, (step + 1) / warm_up) * 0.5 * (1 + math.cos(math.pi * step / num_steps))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    short, full = stream_examples(seed, 1), stream_examples(seed, 3)
    model.train()
    for step in range(num_steps):
        stream = short if step < CURRICULUM_SHARE * num_steps else full
        loss = _loss(model, *_batch(tokenizer, [next(stream) for _ in range(BATCH_SIZE)]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    model.eval()


def rebuild_model(folder: Path, *, seed: int = 0, num_steps: int = NUM_STEPS) -> None:
    """Pretrain the embedded model (seed 0) into a folder: on one machine and thread the same bytes each time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        examples = stream_examples(seed, 3)
        texts = [prompt + answer for prompt, answer in (next(examples) for _ in range(4000))]
        tokenizer = train_tokenizer(texts, VOCAB_SIZE)
        model = make_model(seed, len(tokenizer), tokenizer.eos_token_id)
        pretrain(model, tokenizer, seed, num_steps)
    finally:
        torch.set_num_threads(threads)
    with new_folder(folder) as temporary:
        model.save_pretrained(temporary)
        tokenizer.save_pretrained(temporary)
        for file in temporary.iterdir():
            file.chmod(0o644)  # safetensors gives access only to the owner


if __name__ == "__main__":
    rebuild_model(Path(sys.argv[1]))
