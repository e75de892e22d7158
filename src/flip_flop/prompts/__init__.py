"""Templates and rendered instances."""

from flip_flop.prompts.lint import Encode, Finding, LintRow, lines_of, lint_templates
from flip_flop.prompts.sandbox import (
    INSTRUCTIONS,
    MAX_OUTPUT,
    OPTIONS,
    RESERVED_FIELD,
    SEPARATOR,
    Fields,
    fields_of,
    names_of,
    reference,
)
from flip_flop.prompts.template import (
    CHAT_KEYS,
    MIN_VALUE_LIMIT,
    Chat,
    OpenAnswers,
    RenderedInstance,
    Rendering,
    Template,
    TemplateSet,
    check_rendering,
    render_instance,
    templates_differ_in_answer_words,
)
