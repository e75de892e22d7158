"""Sources of scores: a local model, a served model, or one's own."""

import abc
import os
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.hub import is_endpoint
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.record import AdapterRecord, ModelRecord
from flip_flop.scoring.models import LoadedModel, ModelGiven, as_loaded
from flip_flop.scoring.open_answers import generate
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.scores import score


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
        """:func:`~flip_flop.score`, or open answers by :func:`~flip_flop.scoring.open_answers.generate`."""
        if instances[0].answer is not None:
            return generate(self.loaded, instances, options, names=names, label=label, quiet=quiet)
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


def as_scorer(model: ModelGiven | Scorer, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """Return the scorer of a model, local or served. A scorer is returned unchanged.

    Raises:
        InputError: ``E-ENDPOINT``, or as :func:`as_loaded`.
    """
    if isinstance(model, Scorer):
        return model
    if isinstance(model, str | os.PathLike) and is_endpoint(os.fspath(model)):
        from flip_flop.scoring.served import EndpointScorer  # needs openai, and imports Scorer

        return EndpointScorer(os.fspath(model), tokenizer)
    return CausalLMScorer(as_loaded(model, tokenizer))
