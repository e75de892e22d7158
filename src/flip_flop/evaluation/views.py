"""Views of an audit: tables of pandas, notebooks, and a line of text."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from html import escape
from itertools import chain
from typing import Any, Literal

import numpy as np

from flip_flop.console import count, percent, percent_interval, visible
from flip_flop.evaluation import advice
from flip_flop.metrics import METRICS, TemplateRanking, label_probs, rank_templates

Table = Literal["metrics", "scores", "flips", "templates", "instances", "coverage"]
# Threshold of low own-label mass; maximum templates and tokens to print.
LOW_MASS, MAX_NAMED, MAX_TOKENS = 0.1, 8, 3
# The metrics of a notebook.
SHOWN = ("observed_agreement", "mean_f1", "f1_std", "accuracy", "vote_f1", "fleiss_kappa")


class AuditViews:
    """The methods of :class:`~flip_flop.evaluation.run_directory.Audit` that format its values."""

    def to_pandas(self: Any, table: Table = "metrics") -> Any:
        """Return a ``pandas.DataFrame``.

        Args:
            table: ``"metrics"`` has a row per metric with ``value``, ``low`` and ``high``, the ends of its 95%
                interval. All are fractions. ``"scores"`` has a row per instance, template and label with ``score``
                (mean log-probability of the answer's tokens, in nats), ``probability`` (over the labels) and
                ``tokens``. ``"flips"`` has a row per answer that differs from the majority vote of its instance, with
                ``margin`` (nats between the two labels) and ``prompt``. ``"templates"`` has a row per template, best
                first (docs/how-to/templates.md). ``"instances"`` has a row per instance with ``vote``, ``confidence``
                (share of the templates that predict it), ``margin`` (in probability) and ``worst_template``, which
                gives the vote the smallest margin. ``"coverage"`` has a row per threshold of the vote share and of the
                margin, with the share of instances that reach it and the accuracy of their votes.
        """
        import pandas

        if table not in _TABLES:
            raise ValueError(f"There is no table {table!r}: choose one of {', '.join(_TABLES)}.")
        return pandas.DataFrame(_TABLES[table](self))

    def __repr__(self: Any) -> str:
        values = [f"{METRICS[name].title} {percent(self.value(name))}" for name in SHOWN[:2] if name in self.metrics]
        return f"Audit({self.heading}: {', '.join(values)})"

    def _repr_html_(self: Any) -> str:
        runs = [run for run in (self, self.calibrated) if run is not None]
        rows = [
            (
                METRICS[name].title,
                *chain(*((percent(each.value(name)), percent_interval(each.interval(name))) for each in runs)),
            )
            for name in SHOWN
            if self.value(name) is not None
        ]
        return html_table(
            self.heading, ("", *("%", "95% interval", "% calibrated", "95% interval")[: 2 * len(runs)]), rows
        )

    @cached_property
    def template_ranking(self: Any) -> TemplateRanking:
        """The templates, best first: by F1 from 50 gold labels on, else by agreement with the calibrated vote."""
        return rank_templates(self.data, self.calibrated and self.calibrated.data)

    @cached_property
    def template_advice(self: Any) -> str:
        """A sentence that names the template to use and those to drop, or an empty text for a single template."""
        return advice.template_advice(self)

    @cached_property
    def abstention_advice(self: Any) -> str:
        """A sentence on the accuracy of the most confident votes, or an empty text for fewer than 50 gold labels."""
        return advice.abstention_advice(self)

    @property
    def low_mass(self: Any) -> str:
        """A sentence about templates with a low own-label mass and their preferred tokens, or an empty text."""
        mass, tokens = (
            self.metrics.get(f"{name}_per_template") or {} for name in ("own_label_mass", "preferred_tokens")
        )
        listed = []
        for share, name in sorted((share, name) for name, share in mass.items() if share < LOW_MASS):
            preferred = ", ".join(f"'{token}'" for token in tokens.get(name, ())[:MAX_TOKENS])
            listed.append(f"{name} ({percent(share)} %{', prefers ' if preferred else ''}{preferred})")
        more = [f"{len(listed) - MAX_NAMED} more"] if len(listed) > MAX_NAMED else []
        words = (
            f"under {len(listed)} of {count(len(mass), 'template')} the model gives the template's labels less "
            f"than {percent(LOW_MASS, 0)} % probability: {', '.join(listed[:MAX_NAMED] + more)}"
        )
        return visible(words, one_line=True) if listed else ""

    @property
    def unparsed(self: Any) -> str:
        """The most frequent generated texts that match no label, per template, or an empty text."""
        listed = (
            f"{name} {', '.join(f'{number} x {text!r}' for text, number in texts)}"
            for name, texts in (self.metrics.get("unparsed_per_template") or {}).items()
            if texts
        )
        return visible("; ".join(listed), one_line=True)

    @property
    def heading(self: Any) -> str:
        """The run, its model and its data as plain text."""
        instances, templates, _ = self.scores.shape
        task = self.record.task
        parts = [task.name, task.split, count(templates, "template"), count(instances, "instance")]
        return visible(f"{self.name}, {self.record.model.name} on {', '.join(parts)}", one_line=True)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with escaped texts."""
    cells = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(visible(each))}</td>' for each in row)}</tr>" for row in rows)
    return (
        f"<table><caption>{escape(visible(caption))}</caption>"
        f"<thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
    )


def _metrics(found: Any) -> list[dict[str, Any]]:
    rows = []
    for name in METRICS:
        low, high = found.interval(name) or (None, None)
        rows.append({"metric": name, "value": found.value(name), "low": low, "high": high})
    return rows


def _scores(found: Any) -> dict[str, Any]:
    num_instances, num_templates, num_labels = found.scores.shape
    return {
        "id": np.repeat(found.instance_ids, num_templates * num_labels),
        "template": np.tile(np.repeat(found.template_names, num_labels), num_instances),
        "label": np.tile(found.label_names, num_instances * num_templates),
        "score": found.scores.reshape(-1),
        "probability": None if found.data.is_generated else label_probs(found.scores).reshape(-1),
        "tokens": found.token_counts.reshape(-1),
    }


def _flips(found: Any) -> dict[str, list[Any]]:
    votes = found.data.votes
    columns: dict[str, list[Any]] = {
        name: [] for name in ("id", "template", "label", "vote", "gold", "margin", "prompt")
    }
    flips = np.argwhere(found.predictions != votes[:, None]).tolist()
    flipped = {found.instance_ids[row] for row, _ in flips}
    texts = {each.id: each for each in found.instances if each.id in flipped}
    for row, column in flips:
        identifier, own, vote = found.instance_ids[row], found.predictions[row, column], votes[row]
        text, scores = texts.get(identifier), found.scores[row, column]
        values = (
            *(identifier, found.template_names[column], found.label_name(int(own)), found.label_name(int(vote))),
            found.label_name(int(found.gold[row])) if found.gold[row] >= 0 else None,
            None if found.data.is_generated else float(scores[own] - scores[vote]),
            None if text is None else text.prompts[column],
        )
        for cells, value in zip(columns.values(), values, strict=True):
            cells.append(value)
    return columns


_TABLES = {
    **{"metrics": _metrics, "scores": _scores, "flips": _flips},
    **{"templates": advice.template_rows, "instances": advice.instance_rows, "coverage": advice.coverage_rows},
}
