"""Scoring: prompts in tokens, one pass of the decoder, and the scores of all answers. Names are imported on first use.

The modules ``options`` and ``too_long`` need no torch.
"""

from typing import TYPE_CHECKING

from flip_flop import exports

if TYPE_CHECKING:
    from flip_flop.scoring.boundary import EncodedAnswer, EncodedInstance
    from flip_flop.scoring.encoder import PromptEncoder
    from flip_flop.scoring.loading import LoadedModel, load_model, load_tokenizer
    from flip_flop.scoring.scorer import CausalLMScorer, ModelGiven, Scorer, as_loaded, as_scorer
    from flip_flop.scoring.scores import score, score_instances
    from flip_flop.scoring.served import EndpointScorer
    from flip_flop.scoring.stored_calibration import store_calibration

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "boundary": ("EncodedAnswer", "EncodedInstance"),
        "encoder": ("PromptEncoder",),
        "loading": ("LoadedModel", "load_model", "load_tokenizer"),
        "scorer": ("CausalLMScorer", "ModelGiven", "Scorer", "as_loaded", "as_scorer"),
        "scores": ("score", "score_instances"),
        "served": ("EndpointScorer",),
        "stored_calibration": ("store_calibration",),
    },
)
