"""``flip-flop compare``."""

import functools
from pathlib import Path

import click

from flip_flop.cli.options import out_file
from flip_flop.console import echo, markdown_cell, spreadsheet_cell

PATH = click.Path(path_type=Path)
TEXT = functools.partial(out_file, suffixes=(".md", ".csv", ".txt"))


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", "-o", type=PATH, callback=TEXT, help="Also write the differences: a .md, .csv or .txt file.")
def compare_command(runs: tuple[Path, ...], out: Path | None) -> None:
    """Show the differences of audits from the first one, by metric and by template.

    Rows are paired by id. They and their gold labels must be the same. Templates may differ: those of one name are
    compared, and the changed ones are named.
    """
    from flip_flop.files import write_text
    from flip_flop.report.compare import compare

    comparison = compare(*runs)
    text = repr(comparison)
    echo(text)
    if out is None:
        return
    if out.suffix == ".csv":
        text = comparison.to_pandas().map(spreadsheet_cell).to_csv(index=False, lineterminator="\n").rstrip("\n")
    elif out.suffix == ".md":
        text = "\n\n".join([comparison.table.markdown(), *map(markdown_cell, comparison.decision)])
    write_text(out, text + "\n")
