"""A file of answers of a model. A run that ends early does not lose them."""

import contextlib
import json
from pathlib import Path
from typing import Any

from flip_flop.files import sha256_json


def read_answers(path: Path | None) -> dict[str, Any]:
    """Return the stored answers by key. A line without the right digest of key and answer is ignored."""
    answers = {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path and path.is_file() else ()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError, RecursionError):
            key, answer, digest = json.loads(line)
            if digest == sha256_json([key, answer]):
                answers[key] = answer
    return answers


def write_answer(path: Path | None, key: str, answer: Any) -> None:
    """Append an answer as a line, if there is a file. Several processes may write to it."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(f"\n{json.dumps([key, answer, sha256_json([key, answer])])}\n")
