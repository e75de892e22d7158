"""Templates for your data: drafted from a file, in other formats, and in other words."""

from typing import Literal

TaskKind = Literal["sentiment", "topic", "yes_no", "entailment", "choice"]
