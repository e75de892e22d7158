"""The process that reads mathematical answers: a text and a flag as JSON in each line, then its key as JSON.

It imports nothing of this package. It is ended if a text takes more processor seconds than its argument.
"""

import contextlib
import json
import re
import signal
import sys

MAX_BYTES = 4 << 30  # address space
# The spaces of 1\,000 and 10 000, which the parser reads as a product or a sum.
THOUSANDS = re.compile(r"(?<![\d.,])(\d{1,3})((?:(?:\\[,;: ]|[ ~\u00a0\u2009\u202f])\d{3})+)(?!\d)")


def read(text: str, is_latex: bool) -> str | None:
    """Return the expression in a text as SymPy prints it, expanded and with exact decimals, or None.

    In a text with marks of LaTeX, a number inside of an expression that cannot be parsed is not the answer.
    """
    import sympy
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    try:
        text = text.replace("−", "-").replace(r"\varnothing", r"\emptyset")
        text = THOUSANDS.sub(lambda number: re.sub(r"\D", "", number[0]), text)
        if is_latex:
            forms = [LatexExtractionConfig()]
        else:
            forms = [LatexExtractionConfig(), ExprExtractionConfig()]
        parsed = parse(text, forms, parsing_timeout=None)
        expression = next((item for item in parsed if isinstance(item, sympy.Basic | sympy.MatrixBase)), None)
        if isinstance(expression, sympy.Equality) and expression.lhs.is_Symbol:
            expression = expression.rhs  # x = 5
        if expression is None or re.search(r"\d \d", str(parsed[-1])):  # 3 4, and 1 1/2
            return None
        decimals = {number: sympy.Rational(str(number)) for number in expression.atoms(sympy.Float)}
        exact = expression.xreplace(decimals).doit()
        if isinstance(exact, sympy.core.relational.Relational):
            exact = exact.canonical  # 5 > x
        if exact.has(sympy.nan, sympy.zoo):
            return None  # divided by zero
        return str(sympy.expand(exact) if isinstance(exact, sympy.Expr) else exact)
    except Exception:  # a text of a model can break the parser anywhere
        return None


def main() -> None:
    """Answer each line of the standard input, until it ends."""
    import resource

    with contextlib.suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MAX_BYTES, MAX_BYTES))
    # A library's own prints are no replies.
    replies = sys.stdout
    sys.stdout = sys.stderr
    read("$1$", True)
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, float(sys.argv[1]))
        key = read(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(key), file=replies, flush=True)


if __name__ == "__main__":
    main()
