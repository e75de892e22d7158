"""The first scorer, a causal LM in torch; and which scorer a model that is given stands for."""

import os
from collections.abc import Sequence
from dataclasses import replace

from transformers import PreTrainedTokenizerBase

from flip_flop.errors import InputError
from flip_flop.hub import is_endpoint
from flip_flop.metrics import Resolution
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring.endpoint import EndpointScorer
from flip_flop.scoring.given import ModelGiven, as_loaded
from flip_flop.scoring.interface import Scorer
from flip_flop.scoring.models import LoadedModel
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.resolution import SAMPLE_INSTANCES, find_resolution
from flip_flop.scoring.scorer import ScoreTable, score
from flip_flop.scoring.self_check import check_scores, preferred_tokens
from flip_flop.scoring.too_long import ids_of


class CausalLMScorer(Scorer):
    """A model that is loaded here, by the packed pass or the padded one; ``shared`` as in :func:`~flip_flop.score`."""

    def __init__(self, loaded: LoadedModel, *, shared: bool = False):
        self.loaded, self.shared, self._quiet = loaded, shared, True
        self.record, self.adapter, self.allowed_changes = loaded.record, loaded.adapter, loaded.allowed_changes

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> ScoreTable:
        """:func:`~flip_flop.score`, and then :func:`~flip_flop.scoring.self_check.check_scores`."""
        if options.by == "generation":
            raise InputError("E-GENERATION", f"{self.record.name} is loaded here, and has probabilities.")
        self._quiet = quiet  # for `resolution`, which follows
        table = score(self.loaded, instances, options, names=names, label=label, quiet=quiet, shared=self.shared)
        skipped = ids_of(table.too_long)
        kept = [instance for instance in instances if instance.id not in skipped]
        checked = check_scores(self.loaded, kept, table, options, names, quiet=quiet)
        return replace(table, settings={**table.settings, "self_check": checked})

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """In the tokenizer's chat template where it is used."""
        return self.loaded.encoder(options.chat_template).as_read(instance)

    def preferred_tokens(
        self, instances: Sequence[RenderedInstance], templates: Sequence[int], options: ScoringOptions
    ) -> list[list[str]]:
        """:func:`~flip_flop.scoring.self_check.preferred_tokens`."""
        return preferred_tokens(self.loaded, instances, templates, options)

    def resolution(
        self, instances: Sequence[RenderedInstance], table: ScoreTable, options: ScoringOptions
    ) -> Resolution | None:
        """:func:`~flip_flop.scoring.resolution.find_resolution`."""
        encoded, _ = self.loaded.encoder(options.chat_template).encode_all(instances[:SAMPLE_INSTANCES])
        return find_resolution(self.loaded.model, encoded, table, options.batch_tokens, quiet=self._quiet)


def as_scorer(given: ModelGiven | Scorer, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """The scorer that a model stands for: itself, an endpoint by its name, else what :func:`as_loaded` makes of it.

    Raises:
        InputError: Those of :func:`as_loaded`, or ``E-ENDPOINT``.
    """
    if isinstance(given, Scorer):
        return given
    if isinstance(given, str | os.PathLike) and is_endpoint(os.fspath(given)):
        return EndpointScorer(os.fspath(given), tokenizer)
    return CausalLMScorer(as_loaded(given, tokenizer))
