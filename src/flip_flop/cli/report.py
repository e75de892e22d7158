"""``flip-flop report``."""

from pathlib import Path

import click

from flip_flop.console import echo
from flip_flop.errors import InputError

SUFFIXES = (".html", ".md", ".csv", ".txt")


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", "-o", type=click.Path(path_type=Path), required=True, help="A .html, .md, .csv or .txt file.")
@click.option("--title", help="The page's heading.")
@click.option("--all", "everything", is_flag=True, help="Leave no instance out of the page, however many there are.")
@click.option("--latex", type=click.Path(path_type=Path), help="Write the main table too: a .tex file, with booktabs.")
@click.option("--figures", type=click.Path(path_type=Path), help="Write the charts too: SVG files in this folder.")
@click.option("--metric", multiple=True, metavar="MODULE:NAME", help="Also show this custom metric. Repeatable.")
def report_command(
    runs: tuple[Path, ...],
    out: Path,
    title: str | None,
    everything: bool,
    latex: Path | None,
    figures: Path | None,
    metric: tuple[str, ...],
) -> int:
    """One page from audit folders; the first is what the others are compared with."""
    from flip_flop.files import lock_output, write_text
    from flip_flop.metrics import add_metric
    from flip_flop.report import (
        comparison_rows,
        load_run,
        render_csv,
        render_latex,
        render_markdown,
        render_page,
        render_text,
        report_groups,
        write_figures,
    )

    for reference in metric:
        add_metric(reference)
    if latex is not None and latex.suffix != ".tex":
        raise InputError("E-OUT-KIND", f"{latex.name} is not a LaTeX file.", "End --latex with .tex.")
    if figures is not None and (figures.is_file() or (figures.is_dir() and any(figures.iterdir()))):
        raise InputError("E-OUT-USED", f"{figures} is not an empty folder.", "Give another --figures.")
    if out.suffix not in SUFFIXES:
        raise InputError("E-OUT-KIND", f"{out.name} is not a kind of report.", f"End --out with {', '.join(SUFFIXES)}.")
    audits = [load_run(run) for run in runs]  # before the lock: a mistyped one leaves nothing where --out would be
    groups = report_groups(audits) if out.suffix == ".html" or latex is not None or figures is not None else []
    click.get_current_context().with_resource(lock_output(out))
    if out.suffix == ".html":
        write_text(out, render_page(groups, title=title, everything=everything))
    else:
        write = {".md": render_markdown, ".csv": render_csv, ".txt": render_text}[out.suffix]
        write_text(out, write(comparison_rows(audits)).rstrip("\n") + "\n")
    if latex is not None:
        write_text(latex, render_latex(groups))
    if figures is not None:
        write_figures(groups, figures)
    echo("\n".join(str(path) for path in (out, latex, figures) if path is not None))
    return 0
