"""Write the tables and figures of a study, and one page with both."""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from flip_flop.console import DEMO_NOTE, markdown_cell
from flip_flop.errors import install_command
from flip_flop.files import write_bytes, write_text
from flip_flop.method import BASE
from flip_flop.paper import tables
from flip_flop.paper.frame import in_setting, methods_of, template_f1
from flip_flop.paper.study import Study
from flip_flop.report.tables import Table

if TYPE_CHECKING:
    from flip_flop.paper.figures import Plot

log = logging.getLogger("flip_flop")

RENDERERS = {"md": Table.markdown, "csv": Table.csv, "tex": Table.latex}
FORMATS = ("pdf", "svg", "png")


def write_outputs(frame: pd.DataFrame, study: Study, out: Path) -> list[Path]:
    """Write the tables and figures of complete audits, and ``index.md`` with all of them.

    Outdated tables and figures are removed. Notes below the tables name incomplete audits. Returns the written files,
    ``index.md`` first, or none if no audit is complete.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN`` for a run that cannot be read.
    """
    if not frame["is_done"].any():
        return []
    contents, plots = list(make_tables(frame)), make_plots(frame)
    files = {
        out / "tables" / f"{table.name}.{kind}": f"{render(table).rstrip()}\n".encode()
        for kind, render in RENDERERS.items()
        for table in contents
    }
    files |= {out / "figures" / f"{plot.name}.{kind}": plot.render(kind) for plot in plots for kind in FORMATS}
    for path in [*(out / "tables").glob("*.*"), *(out / "figures").glob("*.*")]:
        if path not in files and path.suffix.removeprefix(".") in (*RENDERERS, *FORMATS):
            path.unlink()
    for path, content in files.items():
        write_bytes(path, content)
    write_text(out / "index.md", _page(frame, study, contents, plots))
    return [out / "index.md", *files]


def make_tables(frame: pd.DataFrame) -> Iterator[Table]:
    """Make the tables that apply."""
    own_task = in_setting(frame, "own")
    if set(methods_of(own_task)) - {BASE.name}:
        yield tables.methods_table(frame)
        yield tables.changes_table(frame)
        if len(in_setting(frame, "held_out")):
            yield tables.changes_table(frame, "held_out")
    for method in _transferred(frame):
        yield tables.transfer_table(frame, method)
        yield tables.pairs_table(frame, method)
    if in_setting(frame, "unseen")["is_done"].any():
        yield tables.unseen_table(frame)
    if len(template_f1(own_task[own_task["method"] == BASE.name])):
        yield tables.spread_table(frame)


def make_plots(frame: pd.DataFrame) -> list["Plot"]:
    """Make the plots that apply. Without matplotlib there are none, and a warning."""
    try:
        from flip_flop.paper.figures import draw_boxes, draw_curves, draw_heatmaps
    except ModuleNotFoundError as error:
        if str(error.name).split(".")[0] != "matplotlib":
            raise
        log.warning(
            "W-STUDY: matplotlib is not installed: there are tables, and no figures. Install it: %s",
            install_command("studies"),
        )
        return []
    f1 = template_f1(frame)
    of_base = f1["method"] == BASE.name
    plots = ([draw_boxes(f1[of_base])] if of_base.any() else []) + ([] if of_base.all() else [draw_boxes(f1)])
    for method in _transferred(frame):
        plots += draw_heatmaps(frame, method)
    return plots + draw_curves(frame)


def _transferred(frame: pd.DataFrame) -> list[str]:
    transfers = in_setting(frame, "transfer")
    return methods_of(transfers[transfers["is_done"]])


def _page(frame: pd.DataFrame, study: Study, contents: Sequence[Table], plots: Sequence["Plot"]) -> str:
    parts = [f"# {markdown_cell(study.name)}"]
    if study.description:
        parts.append(markdown_cell(study.description))
    if frame["is_demo"].any():
        parts.append(f"**{DEMO_NOTE}**")
    parts += [f"{table.markdown()}\n\n{_links('tables', table.name, ('csv', 'tex'))}" for table in contents]
    for plot in plots:
        image = f"![{markdown_cell(plot.alt)}](figures/{plot.name}.png)"
        parts.append(f"### {markdown_cell(plot.title)}\n\n{image}\n\n{_links('figures', plot.name, FORMATS)}")
    return "\n\n".join(parts) + "\n"


def _links(folder: str, name: str, kinds: Sequence[str]) -> str:
    return "Files: " + ", ".join(f"[{kind}]({folder}/{name}.{kind})" for kind in kinds)
