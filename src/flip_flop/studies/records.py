"""Reading the record and the log of a training."""

import json
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError


def read_record(training: Path) -> dict[str, Any]:
    """The ``run.json`` of a training.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN``.
    """
    record = _read_lines(training / "run.json", whole=True)[0]
    task = record.get("task") if isinstance(record, dict) else None
    if not isinstance(task, dict) or not isinstance(task.get("templates"), list):
        raise _broken(training / "run.json")
    return record


def read_log(training: Path) -> list[dict[str, Any]]:
    """The lines of a training's ``log.jsonl``.

    Raises:
        InputError: ``E-RUN-MISSING`` or ``E-RUN-BROKEN``.
    """
    return [line for line in _read_lines(training / "log.jsonl", whole=False) if isinstance(line, dict)]


def _read_lines(path: Path, *, whole: bool) -> list[Any]:
    try:
        text = path.read_text(encoding="utf-8")
        return [json.loads(part) for part in ([text] if whole else text.splitlines()) if part.strip()]
    except FileNotFoundError as error:
        raise InputError(
            "E-RUN-MISSING", f"{path.parent} has no {path.name}.", "Run the study again: it trains what is missing."
        ) from error
    except (OSError, ValueError) as error:
        raise _broken(path) from error


def _broken(path: Path) -> InputError:
    hint = "Remove its folder and run the study again."
    return InputError("E-RUN-BROKEN", f"{path} is not the record of a training.", hint)
