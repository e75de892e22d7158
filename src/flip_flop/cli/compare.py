"""``flip-flop compare``."""

import functools
from dataclasses import replace
from pathlib import Path

import click

from flip_flop.cli.options import out_file
from flip_flop.console import echo

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
    echo(repr(comparison))
    if out is not None:
        table = replace(comparison.table, records=comparison.to_pandas(), notes=comparison.decision)
        render = {".md": table.markdown, ".csv": table.csv, ".txt": table.text}[out.suffix]
        write_text(out, render().rstrip("\n") + "\n")
