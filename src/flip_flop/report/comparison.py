"""Audits of one task side by side, in Python and in a notebook."""

from dataclasses import dataclass
from os import PathLike
from typing import Any

from flip_flop.console import percent
from flip_flop.evaluation.run_directory import Audit, load_run
from flip_flop.evaluation.views import SHOWN, html_table
from flip_flop.metrics import METRICS
from flip_flop.report.compare import Difference, Group, group_runs, mean_difference, require_comparable
from flip_flop.report.tables import comparison_rows, render_text


@dataclass(frozen=True, repr=False)
class AuditComparison:
    """What :func:`compare` gives: the runs under different names, the first of them being the *before*."""

    runs: tuple[Audit, ...]

    def difference(self, metric: str, run: Audit) -> Difference | None:
        """How far a run's metric is from the first run's, as a fraction, with its paired 95% interval."""
        return mean_difference(metric, self.runs[0], [run])

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``: a row for each metric and run after the first.

        Columns: ``metric``, ``run``, ``before``, ``after``, ``difference``, ``low`` and ``high`` (of the difference's
        paired 95% interval); fractions.
        """
        import pandas

        rows: list[tuple[Any, ...]] = []
        for name in METRICS:
            for run in self.runs[1:]:
                found = self.difference(name, run)
                low, high = (found and found.interval) or (None, None)
                values = (self.runs[0].value(name), run.value(name), found and found.value)
                rows.append((name, run.name, *values, low, high))
        columns = ("metric", "run", "before", "after", "difference", "low", "high")
        return pandas.DataFrame(rows, columns=columns)

    def __repr__(self) -> str:
        return render_text(comparison_rows(self.runs))

    def _repr_html_(self) -> str:
        rows = []
        for name in SHOWN:
            if self.runs[0].value(name) is not None:
                cells = [percent(self.runs[0].value(name))]
                for run in self.runs[1:]:
                    found = self.difference(name, run)
                    change = f" ({found.words()})" if found else ""
                    cells.append(f"{percent(run.value(name))}{change}")
                rows.append((METRICS[name].title, *cells))
        return html_table(self.runs[0].heading, ("%", *(run.name for run in self.runs)), rows)


def compare(*runs: Audit | str | PathLike[str]) -> AuditComparison:
    """Audits over the same task, split, templates and instances; a run directory's path stands for its audit.

    Raises:
        InputError: ``E-RUN-MISMATCH`` where they differ in these; ``E-RUN-MISSING`` or ``E-RUN-BROKEN``.
    """
    groups = group_runs([run if isinstance(run, Audit) else load_run(run) for run in runs])
    require_comparable([Group(group.runs[:1]) for group in groups])  # more than one of them: nothing is left out
    return AuditComparison(groups[0].runs)
