"""Scorers, which score answers of a model, and the kinds of models that they accept."""

import abc
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.hub import is_endpoint
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.record import AdapterRecord, ModelRecord
from flip_flop.scoring.causal_lm import check_model, unwrap
from flip_flop.scoring.loading import (
    DEMO,
    EMBEDDED_MODEL,
    LoadedModel,
    compute_in_its_dtype,
    describe_weights,
    load_model,
    load_tokenizer,
)
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.scores import score


@runtime_checkable
class TrainerLike(Protocol):
    """A ``transformers.Trainer``, whose import takes seconds."""

    model: Any
    processing_class: Any


ModelGiven = LoadedModel | nn.Module | tuple[nn.Module, PreTrainedTokenizerBase] | TrainerLike | str | os.PathLike[str]


class Scorer(abc.ABC):
    """A model as a source of scores. A subclass defines ``record`` and ``scores``. The rest has defaults.

    Attributes:
        record: The model in ``run.json``.
        adapter: The adapter in ``run.json``.
        allowed_changes: ``("weights",)`` if the adapter was trained on other weights.
        is_instruct: Whether the model has a chat template, as far as known. Without it, a warning follows.
    """

    record: ModelRecord
    adapter: AdapterRecord | None = None
    allowed_changes: tuple[str, ...] = ()
    is_instruct = False

    @abc.abstractmethod
    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scores:
        """Score every label of every instance under every template.

        All instances have the same numbers of templates and labels. Instances that are too long are refused, or left
        out of the scores and listed in their ``too_long``, as the options say. ``names`` are template names, for
        errors. ``label`` names the progress bar.

        Raises:
            InputError: The instances cannot be scored. No part of them is returned.
        """

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance as the model reads it, for example in a chat template."""
        return instance


class CausalLMScorer(Scorer):
    """A local model, scored by the packed or the padded backend. ``shared`` as in :func:`~flip_flop.score`."""

    def __init__(self, loaded: LoadedModel, *, shared: bool = False):
        self.loaded, self.shared = loaded, shared
        self.record, self.adapter, self.allowed_changes = loaded.record, loaded.adapter, loaded.allowed_changes
        self.is_instruct = bool(loaded.tokenizer.chat_template) and loaded.adapter is None

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scores:
        """:func:`~flip_flop.score`."""
        if options.by == "generation":
            raise InputError(
                "E-ENDPOINT",
                f"{self.record.name} is loaded here, and has probabilities.",
                "Remove it: it is for a served model without log-probabilities.",
            )
        return score(self.loaded, instances, options, names=names, label=label, quiet=quiet, shared=self.shared)

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance in the tokenizer's chat template, if it is used."""
        return self.loaded.encoder(options.chat_template).as_read(instance)


def as_scorer(given: ModelGiven | Scorer, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """Return a scorer as it is, and a scorer for any other model, local or served.

    Raises:
        InputError: ``E-ENDPOINT``, or as :func:`as_loaded`.
    """
    if isinstance(given, Scorer):
        return given
    if isinstance(given, str | os.PathLike) and is_endpoint(os.fspath(given)):
        from flip_flop.scoring.served import EndpointScorer  # needs openai, and imports Scorer

        return EndpointScorer(os.fspath(given), tokenizer)
    return CausalLMScorer(as_loaded(given, tokenizer))


def as_loaded(given: ModelGiven, tokenizer: PreTrainedTokenizerBase | None = None) -> LoadedModel:
    """Return a :class:`LoadedModel` for a name, a folder, a model of transformers or PEFT, or a trainer.

    Without a tokenizer, the tokenizer of the model's name is loaded. The weights of
    models that are not loaded from files have no digest, so a change since an adapter's training is not detected.

    Raises:
        InputError: ``E-MODEL-TOKENIZER`` without a tokenizer, ``E-MODEL-KIND`` for another kind of model, or as
            :func:`load_model`.
    """
    if isinstance(given, tuple):
        return as_loaded(*given)
    if isinstance(given, TrainerLike):
        return as_loaded(given.model, tokenizer or given.processing_class)  # type: ignore[arg-type]  # as modules have both
    if isinstance(given, str | os.PathLike):
        given = load_model(given)
    if isinstance(given, LoadedModel):
        return given if tokenizer is None else replace(given, tokenizer=tokenizer)
    return _describe(given, tokenizer)


def _describe(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    if not isinstance(model, PreTrainedModel) and not hasattr(model, "get_base_model"):
        hint = "Give a causal language model of transformers, its name, or a pair of model and tokenizer."
        raise InputError("E-MODEL-KIND", f"{type(model).__name__} is not a model of transformers.", hint)
    causal_lm = unwrap(model)
    compute_in_its_dtype(causal_lm)
    check_model(causal_lm)
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
        **describe_weights(causal_lm, str(causal_lm.dtype).removeprefix("torch.")),
    )
    return LoadedModel(model, tokenizer, record, AdapterRecord() if hasattr(model, "peft_config") else None)
