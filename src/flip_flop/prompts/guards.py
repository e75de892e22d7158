"""The guards that are put into a template's syntax tree, and the separator that is cut in it.

The separator ``|||`` is cut in the template's own syntax, so text out of a row can never act as one: in a
prompt it becomes a call that ends the render, and the target behind it is never run; between answer choices
it becomes a token that no row can know.
"""
# ruff: noqa: N802, N815, D102 - a visitor finds its methods by the names of the node classes

import secrets
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from flip_flop.prompts.safety import SEPARATOR

# A boundary, not a draw: it has to be unknown to every row, and no result depends on it.
# Digits and private-use characters, which no filter changes.
CHOICE_BOUNDARY = f"\ue000{secrets.randbits(128)}\ue000"


def _helper(name: str, *args: Any, lineno: int) -> nodes.Call:
    """A call of one of the environment's own functions, which no template can name."""
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None, lineno=lineno)


class Guards(NodeTransformer):
    """Puts the guards into a tree that has passed :func:`check_tree`."""

    def __init__(self, is_prompt: bool):
        self.is_prompt = is_prompt

    def visit_Output(self, node: nodes.Output) -> Any:
        self.generic_visit(node)
        if not self.is_prompt:
            return node
        for index, part in enumerate(node.nodes):
            if isinstance(part, nodes.TemplateData) and SEPARATOR in part.data:
                prompt = nodes.TemplateData(part.data.split(SEPARATOR, 1)[0], lineno=part.lineno)
                end = nodes.ExprStmt(_helper("end_of_prompt", lineno=part.lineno), lineno=part.lineno)
                return [nodes.Output([*node.nodes[:index], prompt], lineno=node.lineno), end]
        return node

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.TemplateData:
        if not self.is_prompt:
            node.data = node.data.replace(SEPARATOR, CHOICE_BOUNDARY)
        return node

    def visit_Const(self, node: nodes.Const) -> nodes.Const:
        if not self.is_prompt and isinstance(node.value, str):
            node.value = node.value.replace(SEPARATOR, CHOICE_BOUNDARY)
        return node

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _helper("steps", node.iter, lineno=node.lineno)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Call:
        self.generic_visit(node)
        return _helper("concatenate", *node.nodes, lineno=node.lineno)

    def visit_Assign(self, node: nodes.Assign) -> nodes.Assign:
        self.generic_visit(node)
        if isinstance(node.target, nodes.NSRef):
            node.node = _helper("held", node.node, lineno=node.lineno)
        return node

    def _visit_literal(self, node: Any) -> Any:
        self.generic_visit(node)
        is_target = getattr(node, "ctx", "load") != "load"
        is_constant = all(isinstance(child, nodes.Const | nodes.Pair) for child in node.iter_child_nodes())
        if is_target or (is_constant and not isinstance(node, nodes.Dict)):
            return node
        return _helper("bounded", node, lineno=node.lineno)

    visit_List = _visit_literal
    visit_Tuple = _visit_literal
    visit_Dict = _visit_literal
