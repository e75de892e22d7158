"""Flip-Flop Consistency: measure how consistently a causal LM answers over templates, train it without labels.

>>> from flip_flop import Template, TemplateSet
>>> TemplateSet((Template("plain", "Is {{ thing }} good?", "No ||| Yes"),)).names
('plain',)
"""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.evaluation.audit import audit
    from flip_flop.options import ScoringOptions
    from flip_flop.prompts import RenderedInstance, Template, TemplateSet
    from flip_flop.scoring import PromptEncoder, load_model, score
    from flip_flop.tasks import Task, load_task
    from flip_flop.training import F2CConfig, F2CTrainer, train

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "evaluation.audit": ("audit",),
        "options": ("ScoringOptions",),
        "prompts": ("RenderedInstance", "Template", "TemplateSet"),
        "scoring": ("PromptEncoder", "load_model", "score"),
        "tasks": ("Task", "load_task"),
        "training": ("F2CConfig", "F2CTrainer", "train"),
    },
)
