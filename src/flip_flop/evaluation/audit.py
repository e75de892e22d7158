"""The audit: how consistently a model answers a task over its templates, and how well."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64

from flip_flop.evaluation.records import write_run
from flip_flop.metrics import summarise
from flip_flop.prompts import RenderedInstance
from flip_flop.provenance import command, hardware, now, versions
from flip_flop.scoring.adapters import training_record
from flip_flop.scoring.answers import BATCH_TOKENS
from flip_flop.scoring.models import LoadedModel
from flip_flop.scoring.scorer import ScoreTable, ScoringOptions, score
from flip_flop.scoring.support import Backend
from flip_flop.scoring.tokens import ChatTemplate
from flip_flop.tasks import Task


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        record: Task, model, scoring, versions, hardware: what ``run.json`` holds.
        metrics: What ``metrics.json`` holds; fractions from 0 to 1, ``None`` where there is no answer.
        table: Scores of every label of every instance under every template.
        gold: Label indices, -1 where there is none.
        instances: What was scored.
        template_names: The templates, in order.
    """

    record: dict[str, Any]
    metrics: dict[str, Any]
    table: ScoreTable
    gold: Int64[np.ndarray, " instances"]
    instances: Sequence[RenderedInstance]
    template_names: tuple[str, ...]

    def write(self, out: Path) -> Path:
        """Leave a run directory that is complete or not there."""
        return write_run(
            out,
            record=self.record,
            metrics=self.metrics,
            scores=self.table.scores,
            token_counts=self.table.token_counts,
            gold=self.gold,
            instances=self.instances,
            template_names=self.template_names,
        )


def audit(
    loaded: LoadedModel,
    task: Task,
    split: str = "test",
    *,
    limit: int | None = None,
    seed: int = 0,
    name: str | None = None,
    chat_template: ChatTemplate = "auto",
    backend: Backend = "packed",
    batch_tokens: int = BATCH_TOKENS,
    quiet: bool = False,
) -> Audit:
    """Score a split under every template and sum it up.

    Args:
        loaded: From :func:`~flip_flop.scoring.load_model`.
        task: With the templates to audit; :meth:`Task.with_templates` chooses some.
        split: The split's name.
        limit: Take a uniform sample of this many instances.
        seed: For the sample, for templates that draw, and for the bootstrap.
        name: The run's name in tables; by default the adapter's method, or ``base``.
        chat_template: ``auto``, ``on`` or ``off``.
        backend: ``packed`` or ``padded``.
        batch_tokens: Tokens of one forward.
        quiet: Show no progress.

    Raises:
        InputError: For anything wrong with the rows, the templates or the model's context.
    """
    started, created = time.monotonic(), now()
    rendered = task.render(split, limit=limit, seed=seed)
    instances, gold, description = rendered.instances, rendered.gold, rendered.record
    encoder = loaded.encoder(chat_template)
    table = score(
        loaded,
        instances,
        ScoringOptions(chat_template, backend, batch_tokens),
        label="audit",
        quiet=quiet,
    )
    metrics = summarise(table.scores, gold, task.templates.names, f1=description["f1"], seed=seed)
    adapter = loaded.adapter
    record = {
        "kind": "audit",
        "flip_flop_version": versions()["flip_flop"],
        "name": name or (adapter and adapter["method"]) or ("adapter" if adapter else "base"),
        "command": command(),
        "created": created,
        "task": description,
        "model": loaded.record,
        "adapter": adapter,
        "scoring": {
            "delimiter": encoder.delimiter,
            "chat_template": encoder.uses_chat_template,
            "bos": encoder.bos is not None,
            "backend": table.backend,
            "batch_tokens": batch_tokens,
            "boundary_merged": table.num_merged,
            "num_answers": int(table.scores.size),
        },
        "training": training_of(adapter),
        "seed": seed,
        "versions": versions(),
        "hardware": hardware(),
        "seconds": round(time.monotonic() - started, 2),
    }
    return Audit(record, metrics, table, gold, instances, tuple(task.templates.names))


def training_of(adapter: dict[str, Any] | None) -> dict[str, Any] | None:
    """How an adapter was trained, where its run's record stands beside it."""
    record = training_record(Path(adapter["path"])) if adapter else None
    if record is None:
        return None
    return (record.get("training") or {}) | {
        "seconds": record.get("seconds"),
        "command": record.get("command"),
    }
