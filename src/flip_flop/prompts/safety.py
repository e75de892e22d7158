"""The allow-list of template syntax, checked on the tree before a template runs, and the guards added to the tree.

The separator ``|||`` is split in the syntax of the template, so the text of a row cannot act as a separator. In a
prompt it becomes a call that ends the render before the target. Between answer choices it becomes a secret token.
"""
# ruff: noqa: N802, N815, D102 - a visitor finds its methods by the names of the node classes

import re
import secrets
from collections.abc import Iterable
from typing import Any

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from flip_flop.errors import InputError, nearest
from flip_flop.prompts.functions import FILTERS, FUNCTIONS, METHODS, TESTS
from flip_flop.prompts.limits import MAX_RANGE

SEPARATOR = "|||"
# Rows must not know it, and results do not depend on it. Filters do not change digits and private-use characters.
CHOICE_BOUNDARY = f"\ue000{secrets.randbits(128)}\ue000"
MAX_SOURCE = 64 * 1024
MAX_NODES = 2_000
MAX_DEPTH = 60
MAX_LOOPS = 3
MAX_NUMBER = 10**12

_ALLOWED = (  # noqa: SIM905 - words, not punctuation
    "Add And Assign Call Compare Concat CondExpr Const Dict Div FloorDiv Filter For Getattr Getitem If "
    "Keyword List Mod Mul NSRef Name Neg Not Operand Or Output Pair Pos Slice Sub TemplateData Test Tuple"
).split()
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_JINJA_NAMES = ("self", "super")  # the template and the parent of a block
_HINT = "Write the template without it: a template may only print, compare and reshape a row's fields."


def check_characters(text: str, where: str) -> None:
    """Refuse a lone surrogate, which no tokenizer reads and no file holds (``E-TPL-SYNTAX``)."""
    if found := _LONE_SURROGATE.search(text):
        line, column = text.count("\n", 0, found.start()) + 1, found.start() - text.rfind("\n", 0, found.start())
        message = f"{where}, line {line}, column {column}: {found[0]!r} is half of a character."
        raise InputError("E-TPL-SYNTAX", message, "Write the whole character.")


def check_tree(tree: nodes.Template, where: str) -> None:
    """Refuse a template that holds anything outside the allow-list (``E-TPL-UNSAFE``); ``where`` names it."""
    count = 0
    stack: list[tuple[nodes.Node, int, int]] = [(child, 1, 0) for child in tree.iter_child_nodes()]
    while stack:
        node, depth, loops = stack.pop()
        count += 1
        loops += isinstance(node, nodes.For)
        problem = _problem(node)
        if problem is None and (count > MAX_NODES or depth > MAX_DEPTH):
            problem = "more or deeper syntax than a prompt can need"
        if problem is None and loops > MAX_LOOPS:
            problem = f"more than {MAX_LOOPS} loops inside each other"
        if problem is not None:
            raise InputError("E-TPL-UNSAFE", f"{where}, line {node.lineno}: {problem}.", _HINT)
        stack.extend((child, depth + 1, loops) for child in node.iter_child_nodes())


def check_parts(tree: nodes.Template, where: str) -> None:
    """Refuse a prompt with two separators in one text (``E-TPL-PARTS``); each branch of an ``if`` may have one."""
    branches: list[nodes.For | nodes.If] = [*tree.find_all(nodes.For), *tree.find_all(nodes.If)]
    bodies = [tree.body, *(node.body for node in branches), *(node.else_ for node in branches)]
    for body in bodies:
        texts = [part for node in body if isinstance(node, nodes.Output) for part in node.nodes]
        counts = [text.data.count(SEPARATOR) for text in texts if isinstance(text, nodes.TemplateData)]
        if sum(counts) > 1:
            message = f"{where}: {sum(counts)} separators {SEPARATOR} in the same text."
            raise InputError("E-TPL-PARTS", message, "Keep one, between the prompt and its target.")


def _problem(node: nodes.Node) -> str | None:
    """Describe the problem of one node, or return None."""
    kind = type(node).__name__
    if kind not in _ALLOWED:
        return f"{kind} is not allowed"
    if isinstance(node, nodes.Name | nodes.NSRef) and (node.name.startswith("__") or node.name in _JINJA_NAMES):
        return f"the name {node.name!r} is not allowed"
    if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
        return f"the attribute {node.attr!r} is not allowed"
    if isinstance(node, nodes.Const):
        return _constant_problem(node.value)
    if isinstance(node, nodes.Filter) and node.name not in FILTERS:
        return _unknown("filter", node.name, FILTERS)
    if isinstance(node, nodes.Test) and node.name not in TESTS:
        return _unknown("test", node.name, TESTS)
    if isinstance(node, nodes.For) and node.recursive:
        return "a recursive loop is not allowed"
    if isinstance(node, nodes.Filter | nodes.Test | nodes.Call) and (node.dyn_args or node.dyn_kwargs):
        return "* and ** in a call are not allowed"
    return _call_problem(node) if isinstance(node, nodes.Call) else None


def _unknown(kind: str, name: str, known: Iterable[str]) -> str:
    return f"the {kind} {name!r} is not allowed ({nearest(name, known).rstrip('.')})"


def _constant_problem(value: object) -> str | None:
    if isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        return f"a number over {MAX_NUMBER:,}"
    if isinstance(value, str) and re.fullmatch(r"__[A-Za-z]\w*__", value):
        return f"the name {value!r} is not allowed"
    if isinstance(value, str) and (found := _LONE_SURROGATE.search(value)):
        return f"{found[0]!r} is half of a character"
    return None


def _call_problem(node: nodes.Call) -> str | None:
    target = node.node
    if isinstance(target, nodes.Getattr):
        if target.attr not in METHODS:
            return _unknown("method", target.attr, METHODS)
    elif isinstance(target, nodes.Name):
        if target.name not in FUNCTIONS:
            return _unknown("function", target.name, FUNCTIONS)
        numbers = [arg.value for arg in node.args if isinstance(arg, nodes.Const) and isinstance(arg.value, int)]
        if target.name == "range" and any(abs(number) > MAX_RANGE for number in numbers):
            return f"a range over more than {MAX_RANGE:,} numbers"
    else:
        return "a call of anything but a named function or method is not allowed"
    return None


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
