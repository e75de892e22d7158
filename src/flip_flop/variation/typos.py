"""Typos in the fields that a template prints."""

import re
from dataclasses import replace

import jinja2
from jinja2 import meta, nodes
from jinja2.defaults import DEFAULT_NAMESPACE

from flip_flop.prompts import RESERVED_FIELD, Template, names_of
from flip_flop.variation.formats import TemplateParts

_PRINTED = re.compile(r"(\{\{[-+]?\s*)(.*?)(\s*[-+]?\}\})", re.DOTALL)
_ROW = frozenset(["row", "fields"])  # the names of the whole row
_OWN = frozenset([RESERVED_FIELD, "choice", "namespace", "range", "zip", *DEFAULT_NAMESPACE])


def add_typos(template: Template, share: float, seed: int) -> Template | None:
    r"""Return the template with typos in the fields of the row that it prints; None if it prints none.

    Options, answers, and the words of the template stay. The filter draws the typos when a row is rendered.

    Example:
        >>> plain = Template("plain", "Review: {{ text | trim }}\\nGood or bad?", "bad ||| good")
        >>> print(add_typos(plain, 0.05, 0).jinja)
        Review: {{ (text | trim) | typos(0.05, 0) }}
        Good or bad?
    """
    parts = TemplateParts(template)
    tree = jinja2.Environment().parse(template.jinja)
    fields = meta.find_undeclared_variables(tree) - _OWN
    in_answers = names_of(template.answer_choices or "") - _ROW
    text = ""
    for place, character in enumerate(parts.text):
        code = parts.source(character)
        is_option = parts.options is not None and parts.options.start <= place < parts.options.end
        found = _PRINTED.fullmatch(code) if code != character else None
        if found and not is_option and _root(code) in fields and not names_of(code) & in_answers:
            code = f"{found[1]}({found[2]}) | typos({share}, {seed}){found[3]}"
        text += code
    text += parts.target
    if "| typos(" not in text:
        return None
    return replace(template, jinja=text)


def _root(code: str) -> str:
    """Return the name of a printed variable without its filters, items and methods; empty for other expressions."""
    (output,) = jinja2.Environment().parse(code).body
    assert isinstance(output, nodes.Output)
    node: nodes.Node = output.nodes[0]
    while isinstance(node, nodes.Filter | nodes.Getitem | nodes.Getattr | nodes.Call):
        assert node.node is not None
        node = node.node
    return node.name if isinstance(node, nodes.Name) else ""
