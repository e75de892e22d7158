"""``flip-flop report``."""

from pathlib import Path

import click

from flip_flop.errors import InputError
from flip_flop.terminal import echo

SUFFIXES = (".html", ".md", ".csv", ".txt")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="A .html, .md, .csv or .txt file.")
@click.option("--title", help="The page's heading.")
def report_command(runs: tuple[Path, ...], out: Path, title: str | None) -> int:
    """One page from audit folders; the first is what the others are compared with."""
    from flip_flop.files import lock_output, write_text
    from flip_flop.report import comparison_rows, load_run, render_csv, render_markdown, render_text, write_report
    from flip_flop.run_record import RunRecord

    if out.suffix not in SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is not a kind of report.", f"End --out with {', '.join(SUFFIXES)}.")
    for run in runs:  # a mistyped one leaves nothing where --out would be
        RunRecord.read(run, "audit")
    click.get_current_context().with_resource(lock_output(out))
    if out.suffix == ".html":
        write_report(runs, out, title=title)
    else:
        rows = comparison_rows([load_run(run) for run in runs])
        write = {".md": render_markdown, ".csv": render_csv, ".txt": render_text}[out.suffix]
        write_text(out, write(rows).rstrip("\n") + "\n")
    echo(str(out))
    return 0
