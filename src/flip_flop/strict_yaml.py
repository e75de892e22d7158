"""YAML without aliases, tags and duplicate keys, and its validation by pydantic."""

import reprlib
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from flip_flop.errors import InputError, nearest
from flip_flop.files import inputs_of_command

Model = TypeVar("Model", bound="StrictModel")


class StrictLoader(yaml.SafeLoader):
    """The safe loader accepts duplicate keys, and nine lines of aliases that expand to 9^9 items."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node without an alias or a standard tag, whose constructor may raise any exception."""
        event: Any = self.peek_event()
        tag = getattr(event, "tag", None) or ""
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is not allowed", problem_mark=event.start_mark)
        if tag == "!" or tag.startswith("tag:yaml.org,2002:"):
            raise yaml.MarkedYAMLError(problem=f"the tag {tag} is not allowed", problem_mark=event.start_mark)
        return super().compose_node(parent, index)

    def construct_yaml_int(self, node: Any) -> int:
        """Construct a number that Python can print; otherwise the ValueError is raised here."""
        number: int = super().construct_yaml_int(node)
        str(number)
        return number

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping with texts as keys, each once."""
        seen = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                problem = f"the key {key!r} is not a text; quote it"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"duplicate key {key!r}", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


StrictLoader.add_constructor("tag:yaml.org,2002:int", StrictLoader.construct_yaml_int)


def read_yaml(path: Path, *, loader: type[StrictLoader] = StrictLoader, code: str = "E-TASK-FILE") -> Any:
    """Read one YAML document.

    Args:
        path: The file, in UTF-8.
        loader: A subclass may know more tags.
        code: The code of an error.

    Raises:
        InputError: With the file and the line.
    """
    inputs_of_command().add(path.resolve())
    try:
        return yaml.load(path.read_text(encoding="utf-8-sig"), Loader=loader)
    except OSError as error:
        raise InputError(code, f"{path} cannot be read: {error.strerror}.", "Give a YAML file.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise InputError(code, f"{path}{line}: {problem}.", "Fix the YAML at this line.") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        hint = "Save it as UTF-8." if isinstance(error, UnicodeDecodeError) else "Fix the YAML."
        raise InputError(code, f"{path}: {' '.join(str(error).split())[:200]}.", hint) from None


class StrictModel(BaseModel):
    """A model without unknown keys and without conversions: YAML reads ``no`` as false, not as a text."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def validate(model: type[Model], content: Any, where: str, *, code: str) -> Model:
    """Validate a mapping. A key without a value has its default.

    Raises:
        InputError: ``code``, with the first wrong key and the nearest known key, or the error of a validator.
    """
    if not isinstance(content, dict):
        raise InputError(code, f"{where} does not hold keys and values.", "Write key: value lines.")
    try:
        return model.model_validate({key: value for key, value in content.items() if value is not None})
    except ValidationError as error:
        first = min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")
    reason = first.get("ctx", {}).get("error")
    if isinstance(reason, InputError):
        raise InputError(reason.code, f"{where}: {reason.message}", reason.hint)
    key, *inside = first["loc"]
    fields = {field.alias or name: field for name, field in model.model_fields.items()}
    if first["type"] in ("extra_forbidden", "invalid_key", "missing"):
        *outer, last = first["loc"]
        inside_of = ", ".join(map(str, [where, *outer]))
        if first["type"] == "missing":
            raise InputError(code, f"{inside_of} has no {last}.", f"Add {last}: to it.")
        raise InputError(code, f"{inside_of} has an unknown key {last!r}.", nearest(str(last), fields))
    place = key
    examples = fields[str(key)].examples
    hint = first["msg"].replace("Input should", "It should", 1) + "."
    if inside and isinstance(inside[0], int):
        place = f"{key}, entry {inside[0] + 1},"
    elif examples:
        hint = f"Write {key}: {examples[0]}."
    raise InputError(code, f"{where}: {place} is {reprlib.repr(first['input'])}.", hint)
