"""For the site: docstrings as Markdown, their formulas as MathML, which a browser shows without a script."""

import re
import textwrap
from typing import Any

import griffe
from latex2mathml.converter import convert


class Docstrings(griffe.Extension):
    """Formulas and references of docstrings, from reStructuredText to Markdown."""

    def on_instance(self, *, obj: griffe.Object, **more: Any) -> None:
        """Rewrite the docstring of an object."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """A docstring with MathML for ``.. math::`` and ``:math:``, and code for references."""
    text = re.sub(r"^( *)\.\. math::(.*(?:\n(?:\1 +.*| *(?=\n\1 )))*)", _display, text, flags=re.MULTILINE)
    text = re.sub(r":math:`([^`]+)`", lambda found: mathml(found[1], "inline"), text)
    text = re.sub(r"^( *)Example:$", r"\1Examples:", text, flags=re.MULTILINE)  # the name by which doctests are known
    return re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", text)


def _display(found: re.Match[str]) -> str:
    first, *rest = found[2].split("\n")
    body = "\n".join([first.strip(), textwrap.dedent("\n".join(rest))]).strip()
    return "\n".join(f"\n{found[1]}{mathml(formula, 'block')}\n" for formula in re.split(r"\n\s*\n", body))


def mathml(formula: str, display: str) -> str:
    """LaTeX as MathML on one line, without what Markdown would read as emphasis."""
    found = convert(" ".join(formula.split()), display=display)
    return found.replace("_", "&#95;").replace("*", "&#42;").replace("`", "&#96;")
