"""``flip-flop report``."""

import functools
from pathlib import Path

import click

from flip_flop.cli.options import EXPLAIN_HELP, out_file, out_folder
from flip_flop.console import echo, echo_prose
from flip_flop.errors import InputError

PATH = click.Path(path_type=Path)
PAGE = functools.partial(out_file, suffixes=(".html", ".md", ".csv", ".txt"))
TABLE = functools.partial(out_file, suffixes=(".tex",))


@click.command("report")
@click.argument("runs", nargs=-1, required=True, type=PATH)
@click.option("--out", "-o", type=PATH, callback=PAGE, required=True, help="A .html, .md, .csv or .txt file.")
@click.option("--title", help="The page's heading.")
@click.option("--all", "everything", is_flag=True, help="Include all instances in the page, without a limit.")
@click.option("--latex", type=PATH, callback=TABLE, help="Also write the main table: a .tex file, with booktabs.")
@click.option("--figures", type=PATH, callback=out_folder, help="Also write the charts: SVG files in this folder.")
@click.option("--explain", is_flag=True, help=EXPLAIN_HELP)
@click.option("--metric", multiple=True, metavar="MODULE:NAME", help="Also show this custom metric. Repeatable.")
def report_command(
    runs: tuple[Path, ...],
    out: Path,
    title: str | None,
    everything: bool,
    latex: Path | None,
    figures: Path | None,
    explain: bool,
    metric: tuple[str, ...],
) -> None:
    """Create one page from audit folders. The first is the baseline of all comparisons.

    Audits of the same rows are compared, also if their templates differ.
    Runs of several models have the names of the models. The page and the terminal show the difference of each pair.
    """
    from flip_flop.files import lock_output, write_text
    from flip_flop.metrics import add_metric
    from flip_flop.report import audit_tables, page, sections
    from flip_flop.report.compare import as_audits, comparison_blocks

    for reference in metric:
        add_metric(reference)
    if figures is not None and figures.is_dir() and any(figures.iterdir()):
        raise InputError("E-OUT-USED", f"{figures} is not an empty folder.", "Give another --figures.")
    audits = as_audits(runs)  # before the lock: a wrong name creates no folder for --out
    groups = page.report_groups(audits)
    click.get_current_context().with_resource(lock_output(out))
    if out.suffix == ".html":
        write_text(out, page.render_page(groups, title=title, everything=everything))
    else:
        render = {
            ".md": audit_tables.render_markdown,
            ".csv": audit_tables.render_csv,
            ".txt": audit_tables.render_text,
        }[out.suffix]
        write_text(out, render(comparison_blocks(audits)).rstrip("\n") + "\n")
    if latex is not None:
        write_text(latex, sections.render_latex(groups))
    if figures is not None:
        page.write_figures(groups, figures)
    for group in groups:
        for metric_name in group.paired_metrics:
            echo(f"{group.matrix_text(metric_name)}\n")
        for text in (*group.other_prompts, *group.decision):
            is_verdict = text == group.verdict
            echo_prose("" if is_verdict else text, strong=text if is_verdict else "")
            echo()
    if explain:
        for line in audit_tables.legend(audits):
            echo_prose(line)
        echo()
    echo("\n".join(str(path) for path in (out, latex, figures) if path is not None))
