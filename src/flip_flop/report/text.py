"""How names and numbers are written: nothing invisible in a name, no percent sign lost, no minus zero."""

import unicodedata

from markupsafe import Markup

MISSING = "–"
# Joiners carry meaning in emoji and in several scripts, and reorder nothing.
_HARMLESS = frozenset("\n\t\u200c\u200d")
_INVISIBLE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Text in which control, bidirectional and lone surrogate characters stand as escapes.

    HTML escaping leaves U+202E in place, which turns a name around on the screen, and a terminal obeys ESC.

    Args:
        text: Text from a template, a data set or a record: untrusted.
        one_line: Whether newlines and tabs are escaped too, for names and table cells.

    Example:
        >>> print(visible("gpt\u202e4"))
        gpt\u202e4
        >>> print(visible("two\nlines", one_line=True))
        two\nlines
    """
    if isinstance(text, Markup):
        return text
    kept = frozenset("\u200c\u200d") if one_line else _HARMLESS
    return "".join(
        character if character in kept or unicodedata.category(character) not in _INVISIBLE else _escape(character)
        for character in text
    )


def _escape(character: str) -> str:
    if character in "\n\t\r":
        return {"\n": "\\n", "\t": "\\t", "\r": "\\r"}[character]
    code = ord(character)
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def percent(fraction: float | None, decimals: int = 1) -> str:
    """A fraction in percent without the sign, as in the paper's tables.

    Example:
        >>> percent(0.7531), percent(None), percent(1.0)
        ('75.3', '–', '100.0')
    """
    return MISSING if fraction is None else f"{100 * fraction:.{decimals}f}"


def points(difference: float | None, decimals: int = 1) -> str:
    """A difference of two fractions in percentage points, always signed, with a true minus.

    Example:
        >>> points(0.198), points(-0.092), points(0.0001)
        ('+19.8', '−9.2', '±0.0')
    """
    if difference is None:
        return MISSING
    digits = f"{abs(100 * difference):.{decimals}f}"
    if float(digits) == 0:
        return f"±{digits}"
    return f"{'+' if difference > 0 else '−'}{digits}"


def point_interval(interval: tuple[float, float] | None, decimals: int = 1) -> str:
    """The ends of a difference's interval.

    Example:
        >>> point_interval((0.176, 0.22))
        '+17.6 to +22.0'
    """
    return MISSING if interval is None else " to ".join(points(end, decimals) for end in interval)


def percent_interval(interval: tuple[float, float] | None, decimals: int = 1) -> str:
    """The ends of a figure's interval.

    Example:
        >>> percent_interval((0.72, 0.785))
        '72.0 to 78.5'
    """
    return MISSING if interval is None else " to ".join(percent(end, decimals) for end in interval)


def count(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it should be.

    Example:
        >>> count(1, "template"), count(1200, "instance")
        ('1 template', '1,200 instances')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
