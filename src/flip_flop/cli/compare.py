"""``flip-flop compare``."""

import functools
from dataclasses import replace
from pathlib import Path

import click

from flip_flop.cli.options import EXPLAIN_HELP, out_file
from flip_flop.console import echo, echo_prose, terminal_width

PATH = click.Path(path_type=Path)
TEXT = functools.partial(out_file, suffixes=(".md", ".csv", ".txt"))


@click.command("compare")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", "-o", type=PATH, callback=TEXT, help="Also write the differences: a .md, .csv or .txt file.")
@click.option("--explain", is_flag=True, help=EXPLAIN_HELP)
def compare_command(runs: tuple[Path, ...], out: Path | None, explain: bool) -> None:
    """Show the differences of audits from the first one, by metric and by template.

    A run is a folder of `flip-flop audit`, or the results of another tool, such as a table of answers.

    Rows are paired by id. They and their gold labels must be the same. Templates may differ: those of one name are
    compared, and the changed ones are named.
    """
    from flip_flop.files import write_text
    from flip_flop.report.audit_tables import legend, table_caveats
    from flip_flop.report.compare import compare

    comparison = compare(*runs)
    echo(comparison.tables(terminal_width()))
    sentences = [*table_caveats(comparison.runs), *comparison.other_prompts, *comparison.decision]
    for sentence in sentences:
        echo()
        echo_prose(sentence)
    if explain:
        echo()
        for line in legend(comparison.runs):
            echo_prose(line)
    if out is not None:
        table = replace(comparison.table, records=comparison.to_pandas(), notes=sentences)
        render = {".md": table.markdown, ".csv": table.csv, ".txt": table.text}[out.suffix]
        write_text(out, render().rstrip("\n") + "\n")
