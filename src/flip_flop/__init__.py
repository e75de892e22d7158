"""Flip-Flop Consistency: measure how consistently a causal LM answers over templates, train it without labels.

>>> from flip_flop import Template, TemplateSet
>>> TemplateSet((Template("plain", "Is {{ thing }} good?", "No ||| Yes"),)).names
('plain',)
"""

from typing import TYPE_CHECKING

from flip_flop.lazy import exports

if TYPE_CHECKING:
    from flip_flop.classifier.load import load_classifier
    from flip_flop.errors import InputError
    from flip_flop.evaluation.audit import audit
    from flip_flop.evaluation.predict import predict, write_predictions
    from flip_flop.evaluation.result import Audit
    from flip_flop.evaluation.run_directory import load_run
    from flip_flop.prompts import RenderedInstance, Template, TemplateSet
    from flip_flop.report.compare import AuditComparison, compare
    from flip_flop.report.page import write_report
    from flip_flop.scoring.encode import PromptEncoder
    from flip_flop.scoring.models import LoadedModel, load_model
    from flip_flop.scoring.options import ScoringOptions
    from flip_flop.scoring.scores import score
    from flip_flop.tasks import Task, load_task
    from flip_flop.training.config import F2CConfig
    from flip_flop.training.run import TrainingRun, train
    from flip_flop.training.trainer import F2CTrainer

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
    "load_classifier",
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
    "classifier.load": ("load_classifier",),
    "errors": ("InputError",),
    "evaluation.audit": ("audit",),
    "evaluation.predict": ("predict", "write_predictions"),
    "evaluation.run_directory": ("Audit", "load_run"),
    "scoring.options": ("ScoringOptions",),
    "prompts": ("RenderedInstance", "Template", "TemplateSet"),
    "report.compare": ("AuditComparison", "compare"),
    "report.page": ("write_report",),
    "scoring.encode": ("PromptEncoder",),
    "scoring.models": ("LoadedModel", "load_model"),
    "scoring.scores": ("score",),
    "tasks": ("Task", "load_task"),
    "training.config": ("F2CConfig",),
    "training.run": ("TrainingRun", "train"),
    "training.trainer": ("F2CTrainer",),
}
__getattr__, __dir__ = exports(__name__, _MODULES)
