"""Columns of text."""

from collections.abc import Sequence


def aligned(lines: Sequence[Sequence[str]], indent: str = "") -> str:
    """Lines of cells with their columns aligned; control characters as escapes."""
    from flip_flop.report.text import visible  # with it comes torch, and --help must stay fast

    cells = [[visible(cell, one_line=True) for cell in line] for line in lines]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join((indent + line).rstrip() for line in padded)
