"""Flip-Flop Consistency: measure how consistently a causal LM answers over templates, train it without labels.

>>> from flip_flop import Template, TemplateSet
>>> TemplateSet((Template("plain", "Is {{ thing }} good?", "No ||| Yes"),)).names
('plain',)
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flip_flop.errors import InputError
    from flip_flop.evaluation.audit import audit
    from flip_flop.evaluation.predict import predict, write_predictions
    from flip_flop.evaluation.run_directory import Audit, load_run
    from flip_flop.options import ScoringOptions
    from flip_flop.prompts import RenderedInstance, Template, TemplateSet
    from flip_flop.report.comparison import AuditComparison, compare
    from flip_flop.report.page import write_report
    from flip_flop.scoring import LoadedModel, PromptEncoder, load_model, score
    from flip_flop.tasks import Task, load_task
    from flip_flop.training import F2CConfig, F2CTrainer, TrainingRun, train

_MODULES = {
    "errors": ("InputError",),
    "evaluation.audit": ("audit",),
    "evaluation.predict": ("predict", "write_predictions"),
    "evaluation.run_directory": ("Audit", "load_run"),
    "options": ("ScoringOptions",),
    "prompts": ("RenderedInstance", "Template", "TemplateSet"),
    "report.comparison": ("AuditComparison", "compare"),
    "report.page": ("write_report",),
    "scoring": ("LoadedModel", "PromptEncoder", "load_model", "score"),
    "tasks": ("Task", "load_task"),
    "training": ("F2CConfig", "F2CTrainer", "TrainingRun", "train"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}
__all__ = [
    "Audit",
    "AuditComparison",
    "F2CConfig",
    "F2CTrainer",
    "InputError",
    "LoadedModel",
    "PromptEncoder",
    "RenderedInstance",
    "ScoringOptions",
    "Task",
    "Template",
    "TemplateSet",
    "TrainingRun",
    "audit",
    "compare",
    "load_model",
    "load_run",
    "load_task",
    "predict",
    "score",
    "train",
    "write_predictions",
    "write_report",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for: the command line's help must not wait for torch."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'flip_flop' has no attribute {name!r}")
    return getattr(importlib.import_module(f"flip_flop.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
