"""Typos in the fields that a template prints."""

import re
from dataclasses import replace

from flip_flop.prompts import Template, fields_of, names_of
from flip_flop.variation.formats import TemplateParts

# A printed variable, perhaps with items, methods and filters.
_PRINTED = re.compile(r"(\{\{[-+]?\s*)((\w+)(?:\[[^]]*\]|(?:\.|\s*\|\s*)\w+(?:\([^)]*\))?)*)(\s*[-+]?\}\})", re.DOTALL)
_ROW = {"row", "fields"}  # the names of the whole row


def add_typos(template: Template, share: float, seed: int) -> Template | None:
    r"""Return the template with typos in the fields of the row that it prints; None if it prints none.

    Options, answers, and the words of the template stay. The filter draws the typos when a row is rendered.

    Example:
        >>> plain = Template("plain", "Review: {{ text | trim }}\nGood or bad?", "bad ||| good")
        >>> print(add_typos(plain, 0.05, 0).jinja)
        Review: {{ (text | trim) | typos(0.05, 0) }}
        Good or bad?
    """
    parts = TemplateParts(template)
    fields = fields_of(template.jinja)
    in_answers = names_of(template.answer_choices or "") - _ROW
    options = range(0)
    if parts.options:
        options = range(parts.options.start, parts.options.end)
    text = ""
    for place, character in enumerate(parts.text):
        code = parts.source(character)
        found = _PRINTED.fullmatch(code)
        if found and found[3] in fields and place not in options and not names_of(code) & in_answers:
            code = f"{found[1]}({found[2]}) | typos({share}, {seed}){found[4]}"
        text += code
    if text == parts.source(parts.text):
        return None
    return replace(template, jinja=text + parts.target)
