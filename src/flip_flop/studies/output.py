"""What a study leaves for its readers: tables, pictures, and one page with both."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from flip_flop.files import write_bytes, write_text
from flip_flop.studies.figures import FORMATS, Picture, draw_boxes, draw_curves, draw_heatmaps, picture_bytes
from flip_flop.studies.plan import Cell
from flip_flop.studies.results import Result
from flip_flop.studies.selection import read_choices
from flip_flop.studies.study import Study
from flip_flop.studies.summary import BASE, Summary, summarise_results
from flip_flop.studies.tables import (
    Table,
    changes_table,
    methods_table,
    pairs_table,
    render_csv,
    render_latex,
    render_markdown,
    selection_table,
    spread_table,
    transfer_table,
    unseen_table,
)
from flip_flop.studies.tables.notes import DEMO
from flip_flop.text import markdown_cell

WRITTEN = (".md", ".csv", ".tex", *(f".{kind}" for kind in FORMATS))


def write_outputs(results: Sequence[Result], study: Study, out: Path, audits: Sequence[Cell] = ()) -> list[Path]:
    """Write the tables and figures that the results give reason for, and ``index.md`` with all of them.

    Older tables and figures that are not written anew are removed: they are of a study that was another one.

    Args:
        results: The complete audits.
        study: Whose they are.
        out: The study's folder; ``tables/`` and ``figures/`` are written below it.
        audits: All audits of the study's plan: what of them is not complete is named below the tables.

    Returns:
        The files written, ``index.md`` first; none without results.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a run that cannot be read.
    """
    if not results:
        return []
    summary = summarise_results(results, audits)
    tables, pictures = list(make_tables(summary, results)), list(make_pictures(summary))
    texts = {f"{table.name}.md": render_markdown(table) for table in tables}
    texts |= {f"{table.name}.csv": render_csv(table) for table in tables}
    texts |= {f"{table.name}.tex": render_latex(table) for table in tables}
    files = {out / "tables" / name: text.encode("utf-8") for name, text in texts.items()}
    for picture in pictures:
        files |= {out / "figures" / f"{picture.name}.{kind}": picture_bytes(picture, kind) for kind in FORMATS}
    for path in [*(out / "tables").glob("*.*"), *(out / "figures").glob("*.*")]:
        if path not in files and path.suffix in WRITTEN:
            path.unlink()
    for path, content in files.items():
        write_bytes(path, content)
    write_text(out / "index.md", _page(summary, study, tables, pictures))
    return [out / "index.md", *files]


def make_tables(summary: Summary, results: Sequence[Result]) -> Iterator[Table]:
    """The tables that apply."""
    trained = any(method != BASE for method in summary.methods("own"))
    if trained:
        yield methods_table(summary)
        yield changes_table(summary)
    for method in _transfer_methods(summary):
        yield transfer_table(summary, method)
        yield pairs_table(summary, method)
    if summary.about("unseen"):
        yield unseen_table(summary)
    if any(entry.method == BASE and entry.f1_per_template for entry in summary.about("own")):
        yield spread_table(summary)
    choices = read_choices(results)
    if choices:
        yield selection_table(summary, choices)


def make_pictures(summary: Summary) -> Iterator[Picture]:
    """The pictures that apply."""
    base = draw_boxes(summary, all_methods=False)
    if base is not None:
        yield base
    if any(entry.method != BASE and entry.f1_per_template for entry in summary.about("own")):
        every = draw_boxes(summary, all_methods=True)
        assert every is not None, "what has F1 under a template has a box"
        yield every
    for method in _transfer_methods(summary):
        yield from draw_heatmaps(summary, method)
    curves = draw_curves(summary)
    if curves is not None:
        yield curves


def _transfer_methods(summary: Summary) -> list[str]:
    found = {entry.method for entry in summary.about("transfer")}
    return [method for method in summary.methods("transfer") if method in found]


def _page(summary: Summary, study: Study, tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    parts = [f"# {markdown_cell(study.name)}"]
    if study.description:
        parts.append(markdown_cell(study.description))
    if summary.is_demo:
        parts.append(f"**{DEMO}**")
    parts += [
        render_markdown(table).rstrip() + f"\n\n{_links('tables', table.name, ('csv', 'tex'))}" for table in tables
    ]
    for picture in pictures:
        image = f"![{markdown_cell(picture.alt)}](figures/{picture.name}.png)"
        links = _links("figures", picture.name, FORMATS)
        parts.append(f"### {markdown_cell(picture.title)}\n\n{image}\n\n{links}")
    return "\n\n".join(parts) + "\n"


def _links(folder: str, name: str, kinds: Sequence[str]) -> str:
    return "Files: " + ", ".join(f"[{kind}]({folder}/{name}.{kind})" for kind in kinds)
