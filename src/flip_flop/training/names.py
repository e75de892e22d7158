"""Names of settings as a user writes them: a field's, a flag's, or a flag's short form. No torch."""

import ast
import contextlib
import functools
import importlib.util
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.training.settings import TrainingSettings
from flip_flop.training.values import check_value, convert

# Flags by another name.
ALIASES = {"--lr": "learning_rate", "--epochs": "num_train_epochs", "--batch-size": "per_device_train_batch_size"}


def check_settings(
    settings: Mapping[str, Any], source: str = "the settings", other_flags: Sequence[str] = ()
) -> TrainingSettings:
    """What can be told of settings without the libraries, whose import takes seconds: every name, and our own values.

    ``other_flags``, those of the command itself, may be what a wrong name stands for.

    Raises:
        InputError: As :func:`~flip_flop.training.config.make_config`, which checks the rest.
    """
    own = {item.name: item for item in fields(TrainingSettings)}
    found = find_names(settings, [*own, *inherited_names()], source, other_flags)
    given = {name: key for name, key in found.items() if name in own}
    with in_given_spelling(given):
        values = {name: convert(settings[key], own[name].type) for name, key in given.items()}
        for name, value in values.items():
            check_value(name, value, own[name].type)
        return TrainingSettings(**values)


@functools.cache
def inherited_names() -> frozenset[str]:
    """The fields of ``transformers.TrainingArguments``, from its source: it is not imported."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    source = Path(spec.origin).with_name("training_args.py").read_text(encoding="utf-8")
    classes = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)}
    found = [node.target for node in classes["TrainingArguments"].body if isinstance(node, ast.AnnAssign)]
    return frozenset(target.id for target in found if isinstance(target, ast.Name) and not target.id.startswith("_"))


def find_names(
    settings: Iterable[str], known: Iterable[str], source: str, other_flags: Sequence[str] = ()
) -> dict[str, str]:
    """Field names, each with the last key that stands for it; ``E-CONFIG-KEY`` for a key that stands for none."""
    names, found = set(known), {}
    for key in map(str, settings):
        name = ALIASES.get(key) or key.removeprefix("--").replace("-", "_")
        if name not in names:
            of_a_kind = [*map(as_flag, names), *ALIASES, *other_flags] if key.startswith("--") else names
            raise InputError("E-CONFIG-KEY", f"Unknown setting {key!r} in {source}.", nearest(key, of_a_kind))
        found[name] = key
    return found


@contextlib.contextmanager
def in_given_spelling(given: Mapping[str, str]) -> Iterator[None]:
    """An error of a setting that was given as a flag begins with that flag."""
    try:
        yield
    except InputError as error:
        name, space, rest = error.message.partition(" ")
        if not given.get(name, "").startswith("--"):
            raise
        raise InputError(error.code, given[name] + space + rest, error.hint) from error


def as_flag(name: str) -> str:
    """The flag of a field.

    Example:
        >>> as_flag("learning_rate")
        '--learning-rate'
    """
    return f"--{name.replace('_', '-')}"
