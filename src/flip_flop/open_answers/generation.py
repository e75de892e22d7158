"""Open answers: written by a local model, grouped by their keys, and as answer choices for training."""

import contextlib
import functools
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
)

from flip_flop.console import track, warn_once
from flip_flop.errors import InputError, log
from flip_flop.files import Json, generator, read_answers, sha256_json, utf8, write_answer
from flip_flop.metrics import Scores
from flip_flop.prompts import OpenAnswers, RenderedInstance
from flip_flop.reading import AnswerFormat, begins_reasoning, token_f1
from flip_flop.record import Facts
from flip_flop.scoring import distributed
from flip_flop.scoring.causal_lm import TESTED, evaluation_mode, one_at_a_time, unwrap
from flip_flop.scoring.encode import special_tokens
from flip_flop.scoring.models import LoadedModel
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.scorer import Scored
from flip_flop.scoring.too_long import refuse_or_skip

RandomKey = tuple[int, str, str, int]  # of the random numbers of an answer: the arguments of generator()
Written = tuple[str, str | None]  # the text of an answer, and its end token or None
MARK_TOKENS = 16  # more than a mark of reasoning has
TEMPERATURE = 0.7  # of sampled answers, as in self-consistency (Wang et al., ICLR 2023)


def generate(
    loaded: LoadedModel,
    instances: Sequence[RenderedInstance],
    options: ScoringOptions,
    *,
    names: Sequence[str],
    label: str,
    quiet: bool,
    sampling: tuple[int, int] = (0, 0),
    shared: bool = False,
) -> Scored:
    """Write the greedy answer to each prompt, in batches of about ``options.batch_tokens``, and group the answers.

    ``sampling`` is a number of samples and their seed: the prompts of an instance are followed by that many copies of
    all of them, whose answers are sampled. A sample depends on the seed, the instance's id and the place of its prompt.
    Answers in the model's ``store`` are not written again. ``shared`` as in :func:`~flip_flop.score`.

    Raises:
        InputError: As :func:`~flip_flop.scoring.score`.
    """
    encoder = loaded.encoder(options.chat_template, options.prompt_date or "")
    asked = instances[0].open
    assert asked is not None
    assert asked.format is not None
    form = asked.format
    too_long = []
    read = []
    prompts = []
    (num_samples, seed), random_keys = sampling, list[RandomKey | None]()
    encoder.warn_of_special_tokens(instances)
    for instance in map(encoder.as_read, instances):
        ids = encoder.prompt_ids(instance)
        long = encoder.too_long(instance.id, (len(tokens) + form.max_tokens for tokens in ids))
        too_long += long
        if not long:
            copies = 1 + num_samples
            read.append(replace(instance, prompts=instance.prompts * copies, choices=instance.choices * copies))
            prompts += ids * copies
            random_keys += [None] * len(ids)
            random_keys += [(seed, "sample", instance.id, place) for place in range(len(ids) * num_samples)]
    refuse_or_skip(too_long, len(instances), options.too_long, names)
    batches = batches_of(prompts, form.max_tokens, options.batch_tokens)
    is_whole = distributed.sharding_of(loaded.model) is None  # otherwise all processes compute a batch together
    part = distributed.shard(batches) if shared and is_whole else batches

    def write_part() -> dict[int, Written]:
        with track(label, sum(map(len, part)), "answers", quiet=quiet) as advance:
            return write_all(loaded, prompts, part, form, random_keys, advance)

    answers: dict[int, Written] = {}
    for written in distributed.all_results(write_part) if shared else [write_part()]:
        answers |= written  # of the last process, if all have written all: they may round differently
    settings = {
        "chat_template": encoder.uses_chat_template,
        "prompt_date": encoder.date,
        "bos": encoder.bos is not None,
        "by": "generation",
        "batch_tokens": options.batch_tokens,
    }
    lengths = np.array(list(map(len, prompts))).reshape(len(read), -1)
    grouped = group_answers(read, map(answers.__getitem__, range(len(prompts))), settings)
    return replace(grouped, prompt_tokens=lengths, too_long=tuple(too_long))


@dataclass(eq=False)
class GumbelNoise(LogitsProcessor):
    """Adds Gumbel noise to the logits of the rows with a generator, so that their best token is a random one.

    The library samples a batch with one generator, so its samples depend on the size of the batch.
    """

    random: Sequence[np.random.Generator | None]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The logits ``[batch, vocab]`` over the temperature, with the noise."""
        noisy = scores.float() / TEMPERATURE
        for row, random in zip(noisy, self.random, strict=True):
            if random is not None:
                exponential = random.standard_exponential(len(row))  # a float32 is 0 once in 8 million
                row -= torch.from_numpy(np.log(exponential).astype(np.float32)).to(row.device)
        return noisy


@dataclass(eq=False)
class AnswerDecoder:
    """Decodes answers. The special tokens of their reasoning are text, which is read; later ones are removed."""

    tokenizer: Any
    form: AnswerFormat

    @functools.cached_property
    def special(self) -> set[int]:
        """The special tokens."""
        return set(special_tokens(self.tokenizer))

    def text(self, tokens: Sequence[int], prompt: Sequence[int]) -> str:
        """Return the text of an answer to a prompt, which may have begun the reasoning."""
        text = self.tokenizer.decode(tokens)
        start = self.end_of(prompt)
        names = map(self.tokenizer.decode, self.special.intersection(tokens))
        removed = tuple(name for name in names if name.strip() and not begins_reasoning(name))
        until = replace(self.form, stop=removed)
        while (before := until.before_stop(text, start)) != text:
            rest = text.removeprefix(before)
            text = before + rest.removeprefix(max(filter(rest.startswith, removed), key=len))
        return text

    def end_of(self, prompt: Sequence[int]) -> str:
        """Return the end of a prompt, in which reasoning may begin."""
        return str(self.tokenizer.decode(prompt[-MARK_TOKENS:]))


@dataclass(eq=False)
class _Stops(StoppingCriteria):
    """Ends answers at their stop texts. The library's criterion would also end the reasoning before an answer."""

    decoder: AnswerDecoder
    prompts: Sequence[Sequence[int]]
    width: int

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return torch.tensor(list(map(self._is_ended, input_ids.tolist(), self.prompts)), device=input_ids.device)

    def _is_ended(self, tokens: list[int], prompt: Sequence[int]) -> bool:
        text = self.decoder.text(tokens[self.width :], prompt)
        return self.decoder.form.before_stop(text, self.decoder.end_of(prompt)) != text


def batches_of(prompts: Sequence[Sequence[int]], max_tokens: int, batch_tokens: int) -> list[list[int]]:
    """Return the places of prompts of similar lengths, with little padding; the longest first."""
    batches: list[list[int]] = []
    room = 0
    for place in sorted(range(len(prompts)), key=lambda place: len(prompts[place]))[::-1]:
        if room < 1:
            batches.append([])
            room = batch_tokens // (len(prompts[place]) + max_tokens)
        batches[-1].insert(0, place)
        room -= 1
    return batches


@one_at_a_time()
def write_all(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    batches: Sequence[list[int]],
    form: AnswerFormat,
    random_keys: Sequence[RandomKey | None],
    advance: Callable[..., object],
) -> dict[int, Written]:
    """Return the answers and their end tokens by the places of their prompts. None: it is cut at ``max_tokens``."""
    model = unwrap(loaded.model)
    tokenizer = loaded.tokenizer
    known = model.generation_config.eos_token_id if model.generation_config else None
    ends = {tokenizer.eos_token_id, *(known if isinstance(known, list) else [known])} - {None}  # a tuned model has two
    settings = GenerationConfig(
        eos_token_id=sorted(ends) or None,
        pad_token_id=min(ends, default=0),
        max_new_tokens=form.max_tokens,
    )
    decoder = AnswerDecoder(tokenizer, form)
    kind = model.config.get_text_config().model_type  # it may be a part of a larger model
    in_batches = kind in TESTED["batched"]
    if not in_batches:
        warn_once(f"W-PADDED: {kind!r} is not tested with batches of open answers; they are written one at a time.")
        batches = [[place] for batch in batches for place in batch]
    stored = Json()
    answers = {}
    waiting = list(batches)[::-1]
    with contextlib.suppress(OSError):  # without a cache, answers are not stored
        stored = read_answers(loaded.store)
    with evaluation_mode(loaded.model):
        while waiting:
            batch = waiting.pop()
            read = [prompts[place] for place in batch]
            keys = [random_keys[place] for place in batch]
            key = sha256_json([read, keys, settings.to_dict(), *form.stop])
            if key not in stored:
                try:
                    stored[key] = write_tokens(loaded, read, settings, form, keys, in_batches=in_batches)
                except torch.OutOfMemoryError:
                    if len(batch) == 1:
                        raise
                    middle = len(batch) // 2
                    log.warning("W-MEMORY: %d answers do not fit; forwards now have %d", len(batch), middle)
                    waiting += [batch[middle:], batch[:middle]]
                    continue
                with contextlib.suppress(OSError):
                    write_answer(loaded.store, key, stored[key])
            for place, tokens in zip(batch, stored[key], strict=True):
                end = next((number for number, token in enumerate(tokens) if token in ends), len(tokens))
                text = decoder.text(tokens[:end], prompts[place])
                if end == form.max_tokens:
                    end_token = None
                else:
                    end_token = str(tokenizer.decode(tokens[end : end + 1]))
                # The limit may be inside a character.
                answers[place] = text.rstrip("\ufffd") if end_token is None else text, end_token
            advance(len(batch))
    return answers


@torch.no_grad()
def write_tokens(
    loaded: LoadedModel,
    prompts: Sequence[Sequence[int]],
    settings: GenerationConfig,
    form: AnswerFormat,
    random_keys: Sequence[RandomKey | None],
    *,
    in_batches: bool,
) -> list[list[int]]:
    """Return the tokens of the answers to a batch. An answer without random numbers is greedy.

    Without ``in_batches`` there is one prompt, which is read again for each token: without padding and without a cache.
    """
    model: Any = unwrap(loaded.model)
    width = max(map(len, prompts))
    padded = torch.tensor([[0] * (width - len(tokens)) + list(tokens) for tokens in prompts], device=model.device)
    mask = torch.tensor([[0] * (width - len(tokens)) + [1] * len(tokens) for tokens in prompts], device=model.device)
    stops = StoppingCriteriaList()
    processors = LogitsProcessorList()
    if form.stop:
        stops.append(_Stops(AnswerDecoder(loaded.tokenizer, form), prompts, width))
    if any(random_keys):
        processors.append(GumbelNoise([generator(*key) if key else None for key in random_keys]))
    with distributed.shared_pass(loaded.model):
        if not in_batches:
            ids = _write_alone(model, padded, settings, stops, processors)
            return cast(list[list[int]], ids[:, width:].tolist())
        # A model's own settings may sample, or penalize repeated words.
        with patch.object(model, "generation_config", settings):
            more: dict[str, Any] = {"stopping_criteria": stops, "logits_processor": processors}
            written = model.generate(padded, attention_mask=mask, **more)
    return cast(list[list[int]], written[:, width:].tolist())


def _write_alone(
    model: PreTrainedModel,
    ids: Any,
    settings: GenerationConfig,
    stops: StoppingCriteriaList,
    processors: LogitsProcessorList,
) -> torch.Tensor:
    """Return the tokens of a prompt and its answer."""
    for _ in range(settings.max_new_tokens):
        logits = model(input_ids=ids, use_cache=False).logits[:, -1]
        token = processors(ids, logits).argmax(dim=-1, keepdim=True)
        ids = torch.cat([ids, token], dim=1)
        is_end = int(token) in (settings.eos_token_id or ())
        if is_end or bool(stops(ids, logits).all()):
            break
    return ids


def group_answers(read: Sequence[RenderedInstance], answers: Iterable[Written], settings: Facts) -> Scored:
    """Return generated texts as predictions: an instance's different keys are its labels.

    ``answers`` are the texts of all prompts in order, each with the text of its end token, or None if it ends at
    ``max_tokens``. Those without a stop text are counted (``W-ANSWER-CUT``). The labels have the order of the templates
    and not of the references, so that ties of a vote do not depend on the references. An answer that cannot be read has
    no label.
    """
    rows = []
    labels = []
    columns: dict[str, list[float]] = {"key": [], "exact": [], "token_f1": [], "length": []}
    num_cut = 0
    remaining = iter(answers)
    for instance in read:
        asked = instance.open
        assert asked is not None
        assert asked.format is not None
        texts = []
        endings = []
        label_of: dict[str, int] = {}
        for prompt in instance.prompts:
            generated, end_token = next(remaining)
            ended = asked.format.before_stop(generated, prompt)
            text = ended.strip()
            key = asked.format.key(text, prompt)
            texts.append(text)
            rest = generated[len(ended) :]
            stop = next((stop for stop in asked.format.stop if rest.startswith(stop)), end_token)
            endings.append(None if stop is None else ended[len(ended.rstrip()) :] + stop)
            labels.append(-1 if key is None else label_of.setdefault(key, len(label_of)))
            columns["key"].append(_number(key))
            columns["exact"].append(key in asked.references)
            columns["token_f1"].append(max((token_f1(key, right) for right in asked.references), default=0.0))
            columns["length"].append(len(text))
        num_cut += endings.count(None)
        words = [*label_of, *[""] * (len(texts) + 1 - len(label_of))]
        gold = None
        if asked.references:
            gold = next((label for key, label in label_of.items() if key in asked.references), len(texts))
            words[gold] = words[gold] or asked.references[0]
        written = replace(asked, texts=tuple(texts), endings=tuple(endings))
        rows.append(replace(instance, choices=(tuple(words),) * len(texts), label=gold, open=written))
    if num_cut:
        log.warning(
            "W-ANSWER-CUT: %d of %d answers end at max_tokens. Raise max_tokens of the answer, or add stop texts.",
            num_cut,
            len(labels),
        )
    arrays = {name: np.array(values).reshape(len(rows), -1) for name, values in columns.items()}
    is_given = np.array(labels).reshape(len(rows), -1, 1) == np.arange(len(rows[0].choices[0]))
    scores = np.where(is_given, 0.0, -np.inf).astype(np.float32)
    counts = np.zeros(is_given.shape, dtype=np.int64)
    table = Scores.of(rows, scores, counts, answered=arrays)
    return Scored(table, instances=rows, settings={**settings, "num_cut": num_cut})


def as_choices(answered: Scored, seed: int, num_samples: int = 0) -> list[RenderedInstance]:
    """Return generated answers as answer choices for training: the shortest text of each key, under all templates.

    A choice includes what ended the text, a stop text or the end token. So the model also learns where answers end.
    An instance has one choice more than answers, in a random order. Those without a text are empty: no template can
    answer with them. ``open.texts`` is the choice of each template: its answer, or its most frequent one (a tie goes to
    the first), and empty if none can be read. The gold label is the shortest choice with a reference's key, otherwise
    an empty one. It skips instances without a readable answer.

    Raises:
        InputError: ``E-DATA-ROWS`` if no answer can be read.
    """
    rows = []
    for instance, labels in zip(answered.instances, answered.scores.predictions.tolist(), strict=True):
        answers = instance.open
        assert answers is not None
        shortest: dict[int, str] = {}
        by_length = sorted(zip(labels, answers.texts, answers.endings, strict=True), key=lambda answer: len(answer[1]))
        for label, text, ending in by_length:
            shortest.setdefault(label, text + (ending or ""))
        shortest.pop(-1, None)  # answers that cannot be read
        if not shortest:
            continue
        places = generator(seed, "choices", instance.id).permutation(len(labels) + 1).tolist()
        choices = [""] * len(places)
        right = []
        for place, (label, text) in zip(places, shortest.items(), strict=False):
            choices[place] = text
            if instance.choices[0][label] in answers.references:
                right.append(place)
        gold = [*right, places[-1]][0] if answers.references else None
        prompts = instance.prompts[: len(labels) // (1 + num_samples)]
        votes = []
        for place in range(len(prompts)):
            readable = Counter(label for label in labels[place :: len(prompts)] if label >= 0)
            votes.append(shortest[readable.most_common(1)[0][0]] if readable else "")
        same = (tuple(choices),) * len(prompts)
        rows.append(replace(instance, prompts=prompts, choices=same, label=gold, open=OpenAnswers(texts=tuple(votes))))
    if not rows:
        raise InputError(
            "E-DATA-ROWS", "No generated answer can be read.", "Change `answer` in the task, or its prompts."
        )
    total = len(answered.instances)
    if num_skipped := total - len(rows):
        log.warning("W-TRAINING: skipped %d of %d rows: none of their answers can be read.", num_skipped, total)
    return rows


def _number(key: str | None) -> int:
    """Return a key as a number that is the same in all runs."""
    if key is None:
        return -1
    return int.from_bytes(hashlib.sha256(utf8(key)).digest()[:7])
