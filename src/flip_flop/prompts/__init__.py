"""Templates, and what they render to: one phrasing of the task with its answers, per row of data."""

from flip_flop.prompts.render import RenderedInstance, render_instance, templates_differ_in_answer_words
from flip_flop.prompts.template import Template, TemplateSet

__all__ = ["RenderedInstance", "Template", "TemplateSet", "render_instance", "templates_differ_in_answer_words"]
