"""Flip-Flop Consistency: measure how consistently a causal LM answers over templates, train it without labels.

>>> from flip_flop import Template, TemplateSet
>>> TemplateSet((Template("plain", "Is {{ thing }} good?", "No ||| Yes"),)).names
('plain',)
"""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.errors import InputError
    from flip_flop.evaluation.audit import audit
    from flip_flop.evaluation.predict import predict, write_predictions
    from flip_flop.evaluation.run_directory import Audit, load_run
    from flip_flop.prompts import RenderedInstance, Template, TemplateSet
    from flip_flop.report.compare import AuditComparison, compare
    from flip_flop.report.page import write_report
    from flip_flop.scoring import LoadedModel, PromptEncoder, load_model, score
    from flip_flop.scoring.options import ScoringOptions
    from flip_flop.tasks import Task, load_task
    from flip_flop.training import F2CConfig, F2CTrainer, TrainingRun, train

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

_MODULES = {
    "errors": ("InputError",),
    "evaluation.audit": ("audit",),
    "evaluation.predict": ("predict", "write_predictions"),
    "evaluation.run_directory": ("Audit", "load_run"),
    "scoring.options": ("ScoringOptions",),
    "prompts": ("RenderedInstance", "Template", "TemplateSet"),
    "report.compare": ("AuditComparison", "compare"),
    "report.page": ("write_report",),
    "scoring": ("LoadedModel", "PromptEncoder", "load_model", "score"),
    "tasks": ("Task", "load_task"),
    "training": ("F2CConfig", "F2CTrainer", "TrainingRun", "train"),
}
_, __getattr__, __dir__ = exports(__name__, _MODULES)
