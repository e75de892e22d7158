"""Damaged GGUF files and configurations: one error, or the scores of the undamaged model."""

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
from tests.gguf_files import write_gguf
from tests.tiny import byte_bpe, tiny_model, with_chat_template

from flip_flop import ScoringOptions
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import load_model, score
from torture.inputs import places_of, problem_of
from torture.workplace import Outcome, cache_in, damage, remove

PROMPTS = ("The food was good. Yes or no?", "True or false: the room was dirty.")
ROWS = [RenderedInstance("1", PROMPTS, (("No", "Yes"), ("False", "True")), None)]
COUNTS = ("llama.block_count", "llama.embedding_length", "llama.feed_forward_length", "llama.attention.head_count_kv")
ODD = (None, True, -1, 0, 1, 3, 1.5, 10**30, "x", "2", [], [5], {}, {"a": 1})
# Another value of these is another model, which no reader can know, as long as its type is right.
FREE = ("attention_dropout", "bos_token_id", "eos_token_id", "hidden_act", "initializer_range")
FREE += ("rms_norm_eps", "rope_theta")
SECONDS = 30
SAME, REFUSED, OTHER = "same scores", "refused", "other scores"
SAFE, ANY = (SAME, REFUSED), (SAME, REFUSED, OTHER)
Damage = Callable[[Path, Random], tuple[str, ...]]  # returns what may come of it


def damage_gguf_files(folder: Path, count: int, rng: Random) -> Outcome:
    """Damage a GGUF file or its converted weights in the cache."""
    return _attack("damaged GGUF files", write_gguf(folder / "tiny.gguf"), GGUF, folder, count, rng)


def damage_configurations(folder: Path, count: int, rng: Random) -> Outcome:
    """Put odd values into the configuration of a model and of its tokenizer."""
    tiny_model("llama").save_pretrained(folder / "tiny")
    with_chat_template(byte_bpe()).save_pretrained(folder / "tiny")
    return _attack("odd configurations of models", folder / "tiny", CONFIGURATIONS, folder, count, rng)


def _attack(title: str, model: Path, damages: dict[str, Damage], folder: Path, count: int, rng: Random) -> Outcome:
    outcome, damaged, kinds = Outcome(title, count), folder / f"damaged{model.suffix}", [*damages]
    with cache_in(folder / "cache"):
        expected = _scores(model)
        for number in range(count):
            remove(damaged, folder / "cache")
            (shutil.copytree if model.is_dir() else shutil.copy)(model, damaged)
            kind, seed, scored = kinds[number % len(kinds)], rng.random(), []
            allowed = damages[kind](damaged, Random(seed))
            problem = problem_of(lambda scored=scored: scored.append(_scores(damaged)), SECONDS)
            what = f"{kind} {seed}"
            is_same = bool(scored) and np.abs(scored[0] - expected).max() < 1e-5
            result = SAME if is_same else OTHER if scored else REFUSED
            outcome.count(f"{kind}: {result}")
            outcome.expect(problem is None, f"{what}: {problem}")
            outcome.expect(result in allowed, f"{what}: {result}")
    return outcome


def _scores(model: Path) -> np.ndarray:
    return score(load_model(str(model), device="cpu"), ROWS, ScoringOptions(chat_template="off")).scores


def _cut(file: Path, rng: Random) -> tuple[str, ...]:
    file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    return SAFE


def _flipped_in_the_header(file: Path, rng: Random) -> tuple[str, ...]:
    """A flipped bit of a number or text that the file alone has can be another valid model."""
    content = bytearray(file.read_bytes())
    content[rng.randrange(content.index(b"blk.0"))] ^= 1 << rng.randrange(8)
    file.write_bytes(content)
    return ANY


def _other_count(file: Path, rng: Random) -> tuple[str, ...]:
    """The numbers of tensors and of keys, and numbers that contradict the shapes of the tensors."""
    content, name = bytearray(file.read_bytes()), rng.choice(("tensors", "keys", *COUNTS))
    if name in COUNTS:
        at, kind = content.index(name.encode()) + len(name) + 4, "<I"  # a number's type is between
    else:
        at, kind = (8 if name == "tensors" else 16), "<Q"
    (value,) = struct.unpack_from(kind, content, at)
    struct.pack_into(kind, content, at, rng.choice([*{0, 1, value - 1, value + 1, 2 * value, 2**31} - {value}]))
    file.write_bytes(content)
    return SAFE


def _damaged_cache(file: Path, rng: Random) -> tuple[str, ...]:
    """A bit, or the end, of a converted file in the cache."""
    _scores(file)
    files = sorted(each for each in (file.parent / "cache").rglob("*") if each.is_file() and each.stat().st_size)
    damage(rng.choice(files), rng.choice(("flipped", "flipped", "halved", "empty", "missing")), rng)
    return (SAME,)


def _odd_value(folder: Path, rng: Random) -> tuple[str, ...]:
    """A value of another type, or another number, in config.json."""
    file = folder / "config.json"
    content = json.loads(file.read_text("utf-8"))
    holder, key = rng.choice([*places_of(content)])
    former, holder[key] = holder[key], rng.choice(ODD)
    file.write_text(json.dumps(content), encoding="utf-8")
    return ANY if type(former) is type(holder[key]) and key in FREE else SAFE


def _other_layers(folder: Path, rng: Random) -> tuple[str, ...]:
    file = folder / "config.json"
    content = json.loads(file.read_text("utf-8"))
    content["num_hidden_layers"] = rng.choice((-1, 0, 1, 3, 4, 10**6))
    file.write_text(json.dumps(content), encoding="utf-8")
    return SAFE


def _odd_tokenizer(folder: Path, rng: Random) -> tuple[str, ...]:
    """Any value of a tokenizer's files; many others are valid."""
    file = folder / rng.choice(("tokenizer.json", "tokenizer_config.json", "generation_config.json"))
    content = json.loads(file.read_text("utf-8"))
    holder, key = rng.choice([*places_of(content)])
    holder[key] = rng.choice((*ODD, 2**31, "\ud800"))
    file.write_text(json.dumps(content), encoding="utf-8")
    return ANY


GGUF: dict[str, Damage] = {
    "count": _other_count,
    "cut": _cut,
    "cache": _damaged_cache,
    "bit of the header": _flipped_in_the_header,
}
CONFIGURATIONS: dict[str, Damage] = {"layers": _other_layers, "value": _odd_value, "tokenizer": _odd_tokenizer}
