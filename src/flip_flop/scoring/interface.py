"""The interface of scorers: all that audits, predictions and reports know of a model."""

import abc
from collections.abc import Sequence

from flip_flop.metrics import Resolution
from flip_flop.prompts import RenderedInstance
from flip_flop.record import AdapterRecord, ModelRecord
from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.scorer import ScoreTable


class Scorer(abc.ABC):
    """A model as a source of scores. One of your own has a ``record`` and ``scores``; the rest has defaults.

    Attributes:
        record: What ``run.json`` says of the model.
        adapter: What it says of an adapter.
        allowed_changes: Parts that are not those of the adapter's training, and that were allowed.
    """

    record: ModelRecord
    adapter: AdapterRecord | None = None
    allowed_changes: tuple[str, ...] = ()

    @abc.abstractmethod
    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> ScoreTable:
        """Score every label of every instance under every template.

        All instances have the same numbers of templates and labels. Those that are too long are refused, or left out
        and named in the table's ``too_long``, as the options say. ``names`` are the templates', for errors; ``label``
        names the progress bar.

        Raises:
            InputError: Where there can be no scores; a scorer has them for every instance, or for none.
        """

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """The instance with its prompts as the model reads them, such as in a chat template."""
        return instance

    def preferred_tokens(
        self, instances: Sequence[RenderedInstance], templates: Sequence[int], options: ScoringOptions
    ) -> list[list[str]]:
        """The most probable first tokens of the answer under each of these templates; an empty list if unknown."""
        return []

    def resolution(
        self, instances: Sequence[RenderedInstance], table: ScoreTable, options: ScoringOptions
    ) -> Resolution | None:
        """The least margin between two scores that the arithmetic resolves; ``None`` where that is not known.

        ``table`` has the scores of these instances.
        """
        return None
