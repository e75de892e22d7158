"""Run directories: complete, or not there."""

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int64

from flip_flop.errors import InputError
from flip_flop.files import new_folder, write_bytes, write_json, write_text
from flip_flop.prompts import RenderedInstance

# The report shows prompts of the first instances only: a run directory is to be handed on.
SHOWN_INSTANCES = 200


def check_out(out: Path, *, overwrite: bool = False) -> None:
    """Refuse an output folder before anything is computed.

    Raises:
        InputError: ``E-OUT-USED`` where it holds something and is not to be replaced; ``E-OUT-PATH`` where it cannot be
            written.
    """
    if out.is_file():
        raise InputError("E-OUT-PATH", f"{out} is a file.", "Give a folder.")
    out = out.resolve()
    if out.is_dir() and any(out.iterdir()) and not (overwrite and _is_audit(out)):
        hint = "Give another --out, or add --overwrite." if _is_audit(out) else "Give another --out."
        raise InputError("E-OUT-USED", f"{out} is not empty.", hint)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = out.parent / f".{out.name}.probe"
        write_bytes(probe, b"")
        probe.unlink()
    except OSError as error:
        raise InputError(
            "E-OUT-PATH", f"Cannot write to {out.parent}: {error.strerror}.", "Give another --out."
        ) from error


def _is_audit(folder: Path) -> bool:
    """Whether a folder is an audit's and nothing else's: only such a one may be replaced."""
    try:
        return json.loads((folder / "run.json").read_text(encoding="utf-8"))["kind"] == "audit"
    except (OSError, ValueError, KeyError, TypeError):
        return False


def write_run(
    out: Path,
    *,
    record: dict[str, Any],
    metrics: dict[str, Any],
    scores: Float32[np.ndarray, "instances templates labels"],
    token_counts: Int64[np.ndarray, "instances templates labels"],
    gold: Int64[np.ndarray, " instances"],
    instances: Sequence[RenderedInstance],
    template_names: Sequence[str],
) -> Path:
    """Write ``run.json``, ``metrics.json``, ``scores.npz`` and ``examples.jsonl`` into a new folder."""
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer,
        scores=scores,
        token_counts=token_counts,
        gold=gold,
        instance_ids=np.array([instance.id for instance in instances]),
        template_names=np.array(template_names),
    )
    examples = [
        json.dumps({"id": instance.id, "prompts": instance.prompts, "choices": instance.choices}, ensure_ascii=False)
        for instance in instances[:SHOWN_INSTANCES]
    ]
    with new_folder(out) as folder:
        write_json(folder / "run.json", record)
        write_json(folder / "metrics.json", metrics)
        write_bytes(folder / "scores.npz", buffer.getvalue())
        write_text(folder / "examples.jsonl", "".join(line + "\n" for line in examples))
    return out
