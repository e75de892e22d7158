"""What a run is made of, part by part: each part's digest, and which parts are no longer those of a record."""

import json
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import read_object, sha256_file, sha256_text
from flip_flop.options import ADAPTER_PARTS
from flip_flop.run_record import AdapterRecord, ModelRecord, TaskRecord

# What a template writes and the task's digest change with it.
_FOLLOW_TEMPLATES = ("task", "rows", "validation")
# Notes of libraries in a configuration file, and a template that is a part of its own.
_NOT_DECIDING = ("_name_or_path", "base_model_name_or_path", "transformers_version", "peft_version", "chat_template")


def digests_of(
    task: TaskRecord | None = None, model: ModelRecord | None = None, adapter: AdapterRecord | None = None
) -> dict[str, Any]:
    """The digest of each part that these records name: SHA-256; for ``templates`` one per name."""
    found: dict[str, Any] = {}
    if task is not None:
        templates = {each.name: each.digest for each in task.templates}
        found |= {"templates": templates, "task": task.digest, "rows": task.instances_digest, **task.digests}
    if model is not None:
        found |= {"weights": model.digest, **model.digests}
    if adapter is not None:
        found |= {"adapter": adapter.digest, **adapter.digests}
    return found


def check_adapter_folder(adapter: Path) -> None:
    """Look for an adapter's files before a model is loaded; raises ``E-ADAPTER-FILE``."""
    for file in reversed(ADAPTER_PARTS.values()):
        if not (adapter / file).is_file():
            message = f"{adapter} has no {file}."
            raise InputError("E-ADAPTER-FILE", message, "Give the adapter/ folder of a training run.")


def changed_parts(before: Mapping[str, Any], now: Mapping[str, Any], parts: Mapping[str, str]) -> dict[str, str]:
    """The parts that have a digest in both and another one now, by name, in words.

    A template that differs is named, and what follows from it is not: rows, whose digests are of prompts, are then not
    compared.
    """
    changed = {
        name: words for name, words in parts.items() if before.get(name) and now.get(name) and before[name] != now[name]
    }
    if "templates" in changed:
        old, new = (dict(each["templates"]) if isinstance(each["templates"], Mapping) else {} for each in (before, now))
        differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
        changed = {name: words for name, words in changed.items() if name not in _FOLLOW_TEMPLATES}
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        changed["templates"] = f"template {', '.join(map(repr, differing[:3]))}{more}"
    return changed


def check_parts(names: Iterable[str], parts: Collection[str]) -> None:
    """Refuse a name that is none of the parts.

    Raises:
        InputError: ``E-ALLOW-CHANGED``.
    """
    for name in names:
        if name not in parts:
            message = f"--allow-changed takes no {name!r} here."
            raise InputError("E-ALLOW-CHANGED", message, f"Name one of {', '.join(parts)}.")


def refuse_changed(code: str, message: str, changed: Mapping[str, str], allowed: Collection[str], hint: str) -> None:
    """Refuse changed parts that are not allowed; the message ends with them, the hint with how to go on.

    Raises:
        InputError: Of this ``code``.
    """
    refused = {name: words for name, words in changed.items() if name not in allowed}
    if refused:
        flags = " ".join(f"--allow-changed {name}" for name in refused)
        raise InputError(code, f"{message}: {', '.join(refused.values())}.", f"{hint} To go on all the same: {flags}.")


def config_digest(path: Path) -> str:
    """The SHA-256 of a configuration in JSON, but for the notes of libraries in it; else of the file."""
    content = read_object(path)
    if content is None:
        return sha256_file(path)
    return json_digest({key: value for key, value in content.items() if key not in _NOT_DECIDING})


def json_digest(value: Any) -> str:
    """The SHA-256 of a JSON value, whatever characters are in it."""
    return sha256_text(json.dumps(value, sort_keys=True, default=str))
