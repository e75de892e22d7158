"""The result of an audit: its decision, tables of pandas, run directory, a notebook's view, and sentences of advice."""

import contextlib
import json
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Int

from flip_flop.arrays import Extremes
from flip_flop.console import count, on_one_line, percent, percent_interval, visible
from flip_flop.errors import InputError, look_up
from flip_flop.evaluation.decision import LOW_MASS, Decision, decide, predict_with, reading_advice
from flip_flop.evaluation.values import AuditValues
from flip_flop.files import check_output, compress, new_folder, write_arrays, write_bytes, write_json
from flip_flop.lazy import from_wing
from flip_flop.metrics import (
    AXES,
    METRICS,
    MIN_LABELLED,
    Scores,
    SumStatistic,
    answers_by_position,
    bootstrap_interval,
    calibration_error_per_template,
    decidable,
    label_probs,
    risk_coverage,
    vote_margin,
    vote_share,
)
from flip_flop.prompts import RenderedInstance
from flip_flop.record import RunRecord, write_manifest
from flip_flop.scoring.too_long import TOO_LONG_FILE, write_too_long

METRICS_FILE = "metrics.json"
SCORES_FILE = "scores.npz"
INSTANCES_FILE = "instances.jsonl.gz"
Table = Literal["metrics", "axes", "scores", "flips", "templates", "instances", "coverage"]
# Maximum templates and tokens to print.
MAX_NAMED = 8
MAX_TOKENS = 3
# The metrics of a notebook.
SHOWN = ("observed_agreement", "mean_f1", "f1_std", "accuracy", "token_f1", "vote_f1", "fleiss_kappa")
NEAR = 0.8  # the coverage that the sentence on abstention is for, or the closest one


@dataclass(frozen=True, eq=False, repr=False)
class Audit(AuditValues):
    """The result of an audit, in memory or from a run directory.

    Attributes:
        record: ``run.json``.
        metrics: ``metrics.json``. Fractions from 0 to 1, ``None`` for a metric without a value.
        data: The scores and gold labels.
        template_names: In the order of the scores.
        path: The run directory.
        too_long_file: The content of its list of prompts that were too long.
    """

    @classmethod
    def from_results(cls, results: Any, *, labels: Sequence[str] | None = None, name: str | None = None) -> "Audit":
        """Return the audit of answers that another tool has collected. No model is needed.

        Args:
            results: A ``pandas.DataFrame``, a list of dicts or a file's path, with a row per answer and the columns of
                docs/how-to/other-tools.md: ``id``, ``variant``, ``answer``, and if known ``gold`` and probabilities.
            labels: The labels; another answer counts as unreadable. By default those that have probabilities, or the
                right answers that occur. Without right answers, or with many, answers are open.
            name: The run's name in tables.

        Raises:
            InputError: ``E-DATA-COLUMN`` without a column, ``E-DATA-ROWS`` if an answer is missing or is there twice,
                ``E-LABEL`` for a right answer that is none of the labels.

        Example:
            >>> rows = [("1", "short", "yes"), ("1", "long", "yes"), ("2", "short", "no"), ("2", "long", "yes")]
            >>> Audit.from_results([dict(zip(("id", "variant", "answer"), row)) for row in rows]).value("agreement")
            0.5
        """
        audit: Audit = from_wing("from_results")(results, labels, name)
        return audit

    def write(self, out: str | os.PathLike[str], *, overwrite: bool = True) -> Path:
        """Write the run directory, whole or not at all. By default it replaces an audit that is there.

        Raises:
            InputError: ``E-OUT-USED`` if the folder has other files, or may not be replaced.
        """
        out = Path(out)
        check_out(out, overwrite=overwrite)
        arrays = {
            "scores": self.scores,
            "token_counts": self.token_counts,
            "gold": self.gold,
            "instance_ids": np.array(self.instance_ids),
            "template_names": np.array(self.template_names),
            **{f"answer_{name}": values for name, values in self.data.answered.items()},
        }
        with new_folder(out) as folder:
            self.record.write(folder)
            write_json(folder / METRICS_FILE, self.metrics)
            write_arrays(folder / SCORES_FILE, **arrays)
            write_instances(folder, self.instances)
            if self.too_long:
                write_too_long(folder / TOO_LONG_FILE, self.too_long, self.template_names)
            elif self.too_long_file:
                write_bytes(folder / TOO_LONG_FILE, self.too_long_file)
            write_manifest(folder)  # again, of all files
        return out

    def to_pandas(self, table: Table = "metrics") -> Any:
        """Return a ``pandas.DataFrame``.

        Args:
            table: ``"metrics"`` has a row per metric with ``value``, ``low`` and ``high``, the ends of its 95%
                interval, all as fractions, and the number of ``pairs`` of a flip rate. ``"axes"`` has a row per axis or
                wording, and ``form``: ``raw``, ``calibrated``, the ``average`` over the orders and ``calibrated
                average``, with the columns of :class:`~flip_flop.metrics.axes.AxisRow`. ``"scores"`` has a
                row per instance, template and label with ``score`` (mean log-probability of the answer's tokens, in
                nats), ``probability`` (over the labels) and ``tokens``. ``"flips"`` has a row per answer that was read
                and differs from the majority vote of its instance, with ``margin`` (nats between the two labels) and
                ``prompt``. ``"templates"`` has a row per template, best first (docs/how-to/templates.md).
                ``"instances"`` has a row per instance with ``vote``, ``confidence`` (share of the templates that
                predict it), ``margin`` (in probability), ``changed_by`` (``order``, ``wording``, both, or empty;
                docs/how-to/judges.md) and ``worst_template``, which gives the vote the smallest margin. ``"coverage"``
                has a row per threshold of the vote share and of the margin, with the share of instances that reach it
                and the accuracy of their votes; with gold labels, of the labelled instances.
        """
        import pandas

        frame = pandas.DataFrame(look_up(table, _TABLES, "E-CONFIG", "there is no table")(self))
        # Columns without values would be numbers. Only flips may be none.
        if len(frame):
            return frame
        return frame.astype({name: str for name in frame if name != "margin"})

    def __repr__(self) -> str:
        names = ("observed_agreement", "accuracy" if self.data.answered else "mean_f1")
        values = [f"{METRICS[name].title} {percent(self.value(name))}" for name in names if name in self.metrics]
        return f"Audit({self.heading}: {', '.join(values)})"

    def _repr_html_(self) -> str:
        rows = []
        for name in (*SHOWN, *METRICS.added):
            if self.value(name) is not None:
                form = METRICS[name].form
                row = [METRICS[name].title]
                for run in self.views:
                    row += [percent(run.value(name), **form), percent_interval(run.interval(name), **form)]
                rows.append(row)
        head = ("", "%", "95% interval", "% calibrated", "95% interval")
        return html_table(self.heading, head[: 1 + 2 * len(self.views)], rows)

    @cached_property
    def reading(self) -> str:
        """A sentence on generated answers that cannot be read, if they are more than 10 %, or an empty text."""
        return reading_advice(self)

    @cached_property
    def decision(self) -> Decision:
        """The template to use, how sure that is, and what to fix first."""
        return decide(self)

    @property
    def voting(self) -> "Audit":
        """The form whose vote to use: the uncalibrated one if its template is chosen, else the calibrated one."""
        is_raw = self.decision.template is not None and not self.decision.is_calibrated
        return self if is_raw else self.calibrated or self

    @cached_property
    def abstention_advice(self) -> str:
        """A sentence on the accuracy of the most confident votes.

        It is empty for fewer than 50 gold labels, or if no template is clearly above chance.
        """
        voting = self.voting
        *thresholds, overall = [row for row in coverage_rows(voting) if row["by"] == "vote share"]
        works = self.decision.template is not None or answers_by_position(self.data)
        if len(voting.data.labelled) < MIN_LABELLED or not thresholds or self.data.answered or not works:
            return ""
        point = min(thresholds, key=lambda row: abs(row["coverage"] - NEAR))
        command = f"{predict_with(self)} --templates all {self._abstain_below(point['threshold'])}"
        kind = "calibrated " if "offsets" in voting.metrics else ""
        part, after, before = map(percent, (1 - point["coverage"], point["accuracy"], overall["accuracy"]))
        change = f"accuracy of the {kind}vote {after} instead of {before}."
        data = voting.data.labelled
        keeps = vote_share(data) >= point["threshold"]
        right = data.voted.right[:, 0]
        if bootstrap_interval(_GAIN, keeps, right)[0] > 0:
            return f"Abstain on {part} % ({command}): {change}"
        return f"Abstaining on {part} % does not clearly help: {change}"

    @property
    def decidable_advice(self) -> str:
        """A sentence on the votes that need no review, or an empty text if there are none."""
        voting = self.voting
        share = voting.value("decidable_share")
        if not share:
            return ""
        threshold, _ = decidable(voting.data.labelled)
        rows = f"{percent(share)} % of the rows ({self._abstain_below(threshold)})"
        return f"Auto-decidable: {rows}. At most 5 % of their votes are wrong, with 95 % confidence."

    def _abstain_below(self, threshold: float) -> str:
        scale = 10 ** max(2, len(str(len(self.template_names))))  # its steps are smaller than those of vote shares
        return f"--abstain-below {math.floor(scale * threshold + 1e-9) / scale:g}"

    @property
    def low_mass(self) -> str:
        """A sentence about templates with a low own-label mass and their preferred tokens, or an empty text."""
        mass = self.metrics.get("own_label_mass_per_template") or {}
        tokens = self.metrics.get("preferred_tokens_per_template") or {}
        listed = []
        for share, name in sorted((share, name) for name, share in mass.items() if share < LOW_MASS):
            preferred = ", ".join(f"'{token}'" for token in tokens.get(name, ())[:MAX_TOKENS])
            listed.append(f"{name} ({percent(share)} %{', prefers ' if preferred else ''}{preferred})")
        if not listed:
            return ""
        names = listed[:MAX_NAMED]
        if len(listed) > MAX_NAMED:
            names.append(f"{len(listed) - MAX_NAMED} more")
        words = (
            f"under {len(listed)} of {count(len(mass), 'template')} the model gives the template's labels less "
            f"than {percent(LOW_MASS, 0)} % probability: {', '.join(names)}"
        )
        return on_one_line(words)

    @property
    def unparsed(self) -> str:
        """The most frequent generated texts that match no label, per template, or an empty text."""
        listed = []
        for name, texts in (self.metrics.get("unparsed_per_template") or {}).items():
            if texts:
                found = ", ".join(f"{number} x {text!r}" for text, number in texts)
                listed.append(f"{name} {found}")
        return on_one_line("; ".join(listed))

    @property
    def heading(self) -> str:
        """The run, its model and its data as plain text."""
        instances, templates, _ = self.scores.shape
        task = self.record.task
        parts = [task.name, task.split, count(templates, "template"), count(instances, "instance")]
        names = ", ".join(filter(None, [self.name, self.record.model.name]))
        return on_one_line(f"{names} on {', '.join(parts)}")


def write_instances(folder: Path, instances: Iterable[RenderedInstance]) -> None:
    """Write :data:`INSTANCES_FILE`: a JSON object per line, with ``id``, ``prompts``, ``choices``, ``written``."""
    lines = (
        {"id": instance.id, "prompts": instance.prompts, "choices": instance.choices}
        | ({"written": instance.written} if instance.written else {})
        for instance in instances
    )
    write_bytes(folder / INSTANCES_FILE, compress(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def check_out(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder before the audit.

    Raises:
        InputError: ``E-OUT-USED`` if it is not empty and may not be replaced, ``E-OUT-PATH`` if it cannot be written.
    """
    check_output(out, is_folder=True)
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()):
        is_audit = False  # only a folder with a valid run.json of an audit may be replaced
        with contextlib.suppress(InputError):
            is_audit = bool(RunRecord.read(out, "audit", check_files=False))
        if not (overwrite and is_audit):
            raise InputError(
                "E-OUT-USED", f"{out} is not empty.", f"Give another --out{', or add --overwrite' * is_audit}."
            )


def template_rows(run: Audit) -> list[dict[str, Any]]:
    """Return a row per template, best first."""
    ranking = run.template_ranking
    labels = run.label_names
    labelled = run.data.labelled
    quality = "accuracy" if run.data.answered else "macro_f1"
    mass = run.metrics.get("own_label_mass_per_template") or {}
    tokens = run.metrics.get("prompt_tokens_per_template") or {}
    kappas = run.metrics.get("cohen_kappa_per_template") or {}
    missing: list[Any] = [None] * len(ranking.order)
    f1 = missing if ranking.f1 is None else ranking.f1.tolist()
    top = missing if run.data.answered else [labels[label] for label in ranking.top_label]
    errors = missing
    if len(labelled) and not run.data.is_generated:
        errors = calibration_error_per_template(labelled).tolist()
    preference = missing
    preferred = missing
    if ranking.bias is not None:
        preference = (np.abs(ranking.bias).sum(axis=1) / 2).tolist()
        preferred = [labels[label] for label in ranking.bias.argmax(axis=1)]
    rows = []
    for rank, index in enumerate(ranking.order, start=1):
        name = run.template_names[index]
        difference, low, high = ranking.differences[index] or (None, None, None)
        row = {
            "template": name,
            "rank": rank,
            "fault": ranking.faults[index],
            "agreement": float(ranking.agreement[index]) if len(ranking.order) > 1 else None,
            quality: f1[index],
            "difference": difference,
            "low": low,
            "high": high,
        }
        row |= {
            "label_preference": preference[index],
            "preferred_label": preferred[index],
            "constancy": float(ranking.constancy[index]),
            "top_label": top[index],
            "ece": errors[index],
            "cohen_kappa": kappas.get(name),
            "own_label_mass": mass.get(name),
            "prompt_tokens": tokens.get(name),
        }
        rows.append(row)
    return rows


def instance_rows(run: Audit) -> dict[str, Any]:
    """Return the columns of a table with a row per instance."""
    data = run.data
    rows = range(len(data))
    probs = label_probs(data.values)
    is_vote = data.votes[:, None, None] == np.arange(data.num_labels)
    lead = (probs * is_vote).sum(axis=2) - np.where(is_vote, -np.inf, probs).max(axis=2, initial=0.0)
    worst = lead.argmin(axis=1)
    names = np.array(run.template_names, object)[worst]
    labels = np.array(_label_names(run, data.predictions[rows, worst], rows), object)
    is_equal = lead.min(axis=1) >= lead.max(axis=1)
    names[is_equal] = None
    labels[is_equal] = None
    return {
        "id": run.instance_ids,
        "vote": _label_names(run, data.votes, rows),
        "confidence": vote_share(data),
        "margin": None if data.is_generated else vote_margin(data),
        "changed_by": changed_by(data),
        "gold": _gold_names(run, rows),
        "worst_template": names,
        "worst_label": labels,
    }


def changed_by(data: Scores) -> list[str | None]:
    """Return the axes that change each instance's answer; empty for a stable one. None without a pair of answers."""
    flips = {axis: data.flips_along(axis) for axis in AXES}
    found = []
    for row in range(len(data)):
        is_known = any(counts[row, 1] for counts in flips.values())
        changing = ", ".join(axis for axis, counts in flips.items() if counts[row, 0])
        found.append(changing if is_known else None)
    return found


def coverage_rows(run: Audit) -> list[dict[str, Any]]:
    """Return a row per threshold of the vote share and of the margin. Without gold labels accuracy is None."""
    has_gold = len(run.data.labelled) > 0
    data = run.data.labelled if has_gold else run.data
    measures = {"vote share": vote_share} | ({} if data.is_generated else {"margin": vote_margin})
    rows = []
    for by, measure in measures.items():
        for threshold, coverage, risk in risk_coverage(measure(data), ~data.voted.right[:, 0]).tolist():
            accuracy = 1 - risk if has_gold else None
            rows.append({"by": by, "threshold": threshold, "coverage": coverage, "accuracy": accuracy})
    return rows


def _gain_counts(keeps: Bool[np.ndarray, " instances"], right: Bool[np.ndarray, " instances"]) -> np.ndarray:
    counts = np.stack([keeps & right, keeps, right, np.ones(len(right))], axis=1)
    return counts.astype(np.float64)


def _gain_extremes(*_: object) -> Extremes:
    """Return a row of each kind: kept and wrong, or not kept and right; kept and right, or not kept and wrong."""
    return np.array([[0, 1, 0, 1], [0, 0, 1, 1]]), np.array([[1, 1, 1, 1], [0, 0, 0, 1]])


# The accuracy of the votes above the threshold, minus the accuracy of all.
_GAIN = SumStatistic(
    _gain_counts, lambda sums: sums[:, 0] / sums[:, 1] - sums[:, 2] / sums[:, 3], extremes=_gain_extremes
)


def html_table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with escaped texts below a caption."""
    import pandas

    table = pandas.DataFrame(rows, columns=head).map(visible)
    return f"<p>{escape(visible(caption))}</p>{table.to_html(index=False)}"


def _metrics(run: Audit) -> list[dict[str, Any]]:
    rows = []
    for name in METRICS:
        low, high = run.interval(name) or (None, None)
        row = {"metric": name, "value": run.value(name), "low": low, "high": high}
        rows.append(row | {"pairs": run.num_pairs(name) or None})
    return rows


def _axes(run: Audit) -> list[dict[str, Any]]:
    names = ("axis", "wording", "form")
    return [dict(zip(names, key, strict=True)) | asdict(row) for key, row in run.axis_rows.items()]


def _scores(run: Audit) -> Any:
    from pandas import MultiIndex

    cells = MultiIndex.from_product([run.instance_ids, run.template_names, run.label_names])
    table = cells.to_frame(index=False, name=["id", "template", "label"])
    probs = None if run.data.is_generated else label_probs(run.scores).reshape(-1)
    return table.assign(score=run.scores.reshape(-1), probability=probs, tokens=run.token_counts.reshape(-1))


def _flips(run: Audit) -> dict[str, Any]:
    votes = run.data.votes[:, None]
    is_flip = (run.predictions != votes) & (run.predictions >= 0) & (votes >= 0)
    rows, columns = (places.tolist() for places in np.nonzero(is_flip))
    answers = run.predictions[rows, columns]
    votes = run.data.votes[rows]
    ids = [run.instance_ids[row] for row in rows]
    missing = [None] * len(run.template_names)
    flipped = set(ids)
    prompts = {instance.id: instance.prompts for instance in run.instances if instance.id in flipped}
    shown = [prompts.get(name, missing)[column] for name, column in zip(ids, columns, strict=True)]
    margins = None
    if not run.data.is_generated:
        margins = (run.scores[rows, columns, answers] - run.scores[rows, columns, votes]).astype(np.float64)
    return {
        "id": ids,
        "template": [run.template_names[column] for column in columns],
        "label": _label_names(run, answers, rows),
        "vote": _label_names(run, votes, rows),
        "gold": _gold_names(run, rows),
        "margin": margins,
        "prompt": shown,
    }


def _gold_names(run: Audit, rows: Iterable[int]) -> list[str | None]:
    gold = run.gold
    return [run.label_name(int(gold[row]), row) if gold[row] >= 0 else None for row in rows]


def _label_names(run: Audit, labels: Int[np.ndarray, " labels"], rows: Iterable[int]) -> list[str]:
    return [run.label_name(label, row) for label, row in zip(labels.tolist(), rows, strict=True)]


_TABLES = {
    "metrics": _metrics,
    "axes": _axes,
    "scores": _scores,
    "flips": _flips,
    "templates": template_rows,
    "instances": instance_rows,
    "coverage": coverage_rows,
}
