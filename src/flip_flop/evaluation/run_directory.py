"""An audit and its run directory, which is complete or not there."""

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from flip_flop.errors import InputError
from flip_flop.files import new_folder, write_bytes, write_json, write_text
from flip_flop.prompts import RenderedInstance
from flip_flop.run_record import RunRecord

METRICS_FILE, SCORES_FILE, EXAMPLES_FILE = "metrics.json", "scores.npz", "examples.jsonl"
# The report shows prompts of the first instances only: a run directory is to be handed on.
SHOWN_INSTANCES = 200


@dataclass(frozen=True, eq=False)
class Audit:
    """What an audit found.

    Attributes:
        record: What was measured: ``run.json``.
        metrics: ``metrics.json``; fractions from 0 to 1, ``None`` where there is no answer.
        scores: Mean log-probability of each answer's tokens, in nats.
        token_counts: The number of tokens of each answer.
        gold: Label indices, -1 where there is none.
        instances: What was scored, by id, in order.
        template_names: In order.
    """

    record: RunRecord
    metrics: dict[str, Any]
    scores: Float32[np.ndarray, "instances templates labels"]
    token_counts: Int64[np.ndarray, "instances templates labels"]
    gold: Int64[np.ndarray, " instances"]
    instances: Mapping[str, RenderedInstance]
    template_names: tuple[str, ...]

    @property
    def instance_ids(self) -> tuple[str, ...]:
        """In the order of the scores."""
        return tuple(self.instances)

    def write(self, out: Path) -> Path:
        """Write the run directory, whole or not at all; one that is there is replaced."""
        arrays = {
            "scores": self.scores,
            "token_counts": self.token_counts,
            "gold": self.gold,
            "instance_ids": np.array(self.instance_ids),
            "template_names": np.array(self.template_names),
        }
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
        shown = [self.instances[name] for name in self.instance_ids[:SHOWN_INSTANCES]]
        examples = [{"id": each.id, "prompts": each.prompts, "choices": each.choices} for each in shown]
        with new_folder(out) as folder:
            self.record.write(folder)
            write_json(folder / METRICS_FILE, self.metrics)
            write_bytes(folder / SCORES_FILE, buffer.getvalue())
            lines = [json.dumps(example, ensure_ascii=False) + "\n" for example in examples]
            write_text(folder / EXAMPLES_FILE, "".join(lines))
        return out


def check_out(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder before anything is computed.

    Raises:
        InputError: ``E-OUT-USED`` where it holds something and may not be replaced; ``E-OUT-PATH`` where it cannot be
            written.
    """
    if out.is_file():
        raise InputError("E-OUT-PATH", f"{out} is a file.", "Give a folder.")
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()):
        is_audit = _is_audit(out)
        if not (overwrite and is_audit):
            hint = "Give another --out, or add --overwrite." if is_audit else "Give another --out."
            raise InputError("E-OUT-USED", f"{out} is not empty.", hint)
    check_writable(out)


def check_writable(out: Path) -> None:
    """Refuse a path that cannot be written, before anything is computed.

    Raises:
        InputError: ``E-OUT-PATH``.
    """
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.parent / f".{out.name}.probe"
        write_bytes(probe, b"")
        probe.unlink()
    except OSError as error:
        message = f"Cannot write to {out.parent}: {error.strerror}."
        raise InputError("E-OUT-PATH", message, "Give another --out.") from error


def _is_audit(folder: Path) -> bool:
    """Only an audit, and one that can be told from all else, may be replaced."""
    try:
        RunRecord.read(folder, "audit")
    except InputError:
        return False
    return True
