"""Scoring: prompts in tokens, one pass of the model, and the scores of all answers.

The names of this package need no torch. The modules that read a model do.
"""

from flip_flop.scoring.options import DEFAULT_SCORING, ScoringOptions
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.too_long import ids_of, listed_beside, words
