"""Templates for your data: drafted from a file, in other formats, and in other words."""

from typing import Literal

NUM_TEMPLATES = 4  # of a drafted task
TaskKind = Literal["sentiment", "topic", "yes_no", "entailment", "choice", "judge", "open"]
