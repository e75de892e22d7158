"""Templates and rendered instances."""

from flip_flop.prompts.answers import AnswerFormat
from flip_flop.prompts.template import (
    CHAT_KEYS,
    Chat,
    RenderedInstance,
    Template,
    TemplateSet,
    render_instance,
    templates_differ_in_answer_words,
)

__all__ = [
    "CHAT_KEYS",
    "AnswerFormat",
    "Chat",
    "RenderedInstance",
    "Template",
    "TemplateSet",
    "render_instance",
    "templates_differ_in_answer_words",
]
