"""Templates, and what they render to: one phrasing of the task with its answers, per row of data."""

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
    "Chat",
    "RenderedInstance",
    "Template",
    "TemplateSet",
    "render_instance",
    "templates_differ_in_answer_words",
]
