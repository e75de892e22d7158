"""What Python hands over as a model, as one that is loaded: the one place that tells the kinds apart."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.record import AdapterRecord, ModelRecord, json_digest
from flip_flop.scoring.causal_lm import check_head, unwrap
from flip_flop.scoring.models import (
    DEMO,
    EMBEDDED_MODEL,
    LoadedModel,
    compute_in_its_dtype,
    describe_weights,
    load_model,
    load_tokenizer,
)


@runtime_checkable
class TrainerLike(Protocol):
    """A ``transformers.Trainer``, whose import takes seconds."""

    model: Any
    processing_class: Any


ModelGiven = LoadedModel | nn.Module | tuple[nn.Module, PreTrainedTokenizerBase] | TrainerLike | str | os.PathLike[str]


def as_loaded(given: ModelGiven, tokenizer: PreTrainedTokenizerBase | None = None) -> LoadedModel:
    """What Python hands over as a model: a name or a folder, a loaded one, a model with its tokenizer, or a trainer.

    A model without a tokenizer, with an adapter or not, has the one of the name that it was loaded by. What was not
    read from files has no digests: nothing is then known of their having changed.

    Raises:
        InputError: ``E-MODEL-TOKENIZER`` where no tokenizer is found; ``E-MODEL-KIND`` for another kind of model; those
            of :func:`load_model`.
    """
    if isinstance(given, tuple):
        return as_loaded(*given)
    if isinstance(given, TrainerLike):
        return as_loaded(given.model, tokenizer or given.processing_class)  # type: ignore[arg-type]  # as modules have both
    if isinstance(given, str | os.PathLike):
        given = load_model(given)
    if isinstance(given, LoadedModel):
        return given if tokenizer is None or tokenizer is given.tokenizer else _with_tokenizer(given, tokenizer)
    return _describe(given, tokenizer)


def _with_tokenizer(loaded: LoadedModel, tokenizer: PreTrainedTokenizerBase) -> LoadedModel:
    digests = {name: digest for name, digest in loaded.record.digests.items() if name != "tokenizer"}
    digests["chat_template"] = json_digest(tokenizer.chat_template)
    return replace(loaded, tokenizer=tokenizer, record=replace(loaded.record, digests=digests))


def _describe(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    if not isinstance(model, PreTrainedModel) and not hasattr(model, "get_base_model"):
        hint = "Give a causal language model of transformers, its name, or a pair of model and tokenizer."
        raise InputError("E-MODEL-KIND", f"{type(model).__name__} is no model of transformers.", hint)
    causal_lm = unwrap(model)
    compute_in_its_dtype(causal_lm)
    check_head(causal_lm)
    name = causal_lm.config._name_or_path
    if tokenizer is None:
        if not name:
            message = f"{type(causal_lm).__name__} comes without a tokenizer, and without a name to find one by."
            raise InputError("E-MODEL-TOKENIZER", message, "Give the tokenizer too.")
        tokenizer = load_tokenizer(name, getattr(causal_lm.config, "_commit_hash", None))
    is_demo = Path(name) == EMBEDDED_MODEL
    record = ModelRecord(
        name=DEMO if is_demo else name or type(causal_lm).__name__,
        revision=getattr(causal_lm.config, "_commit_hash", None),
        is_demo=is_demo,
        digests={"chat_template": json_digest(tokenizer.chat_template)},
        **describe_weights(causal_lm, str(causal_lm.dtype).removeprefix("torch.")),
    )
    return LoadedModel(model, tokenizer, record, AdapterRecord() if hasattr(model, "peft_config") else None)
