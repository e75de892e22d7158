"""YAML read strictly: plain values only, no duplicate keys, no aliases, no tags, limited depth; and typed keys."""

from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Any

import yaml

from flip_flop.errors import InputError, nearest

_MAX_BYTES = 5 * 1024 * 1024
_MAX_DEPTH = 20


class StrictLoader(yaml.SafeLoader):
    """The safe loader lets the last of two equal keys win, and nine lines of aliases stand for 9^9 items."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, unless it is an alias, has one of YAML's own tags or lies too deep."""
        event: Any = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is not allowed", problem_mark=event.start_mark)
        # A tag forces a value through a constructor that it does not fit, which may raise any exception.
        # A tag that nobody registered is refused when its node is constructed.
        if event.tag is not None and (event.tag == "!" or event.tag in yaml.SafeLoader.yaml_constructors):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.MarkedYAMLError(problem=f"the tag {tag} is not allowed", problem_mark=event.start_mark)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem="it is nested too deeply", problem_mark=event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping with texts as keys, each once."""
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                problem = None
                if not isinstance(key, str):
                    problem = f"the key {key!r} is not a text; quote it"
                elif key in seen:
                    problem = f"duplicate key {key!r}"
                if problem is not None:
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(
    path: Path, *, loader: type[StrictLoader] = StrictLoader, code: str = "E-TASK-YAML", file_code: str = "E-TASK-FILE"
) -> Any:
    """Read one YAML document; ``loader`` may know more tags.

    Raises:
        InputError: ``code``, with the file and the line; ``file_code`` where the file cannot be read.
    """
    try:
        content = path.read_bytes()
        if len(content) > _MAX_BYTES:
            raise InputError(code, f"{path} is larger than {_MAX_BYTES:,} bytes.", "Keep data in data files.")
        return yaml.load(content.decode("utf-8-sig"), Loader=loader)
    except OSError as error:
        raise InputError(file_code, f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InputError(code, f"{path} is not UTF-8 at byte {error.start}.", "Save it as UTF-8.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise InputError(code, f"{path}{line}: {problem}.", "Fix the YAML at this line.") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(code, f"{path}: {' '.join(str(error).split())[:200]}.", "Fix the YAML.") from None


def mapping_of(value: Any, where: str, known: Collection[str] | None = None, *, code: str) -> dict[str, Any]:
    """The value, where it is a mapping with no key but the ``known`` ones."""
    if not isinstance(value, dict):
        raise InputError(code, f"{where} does not hold keys and values.", "Write key: value lines.")
    for key in value:
        if known is not None and key not in known:
            raise InputError(code, f"{where} has an unknown key {key!r}.", nearest(key, known))
    return value


def text_of(mapping: dict[str, Any], key: str, where: str, *, code: str) -> str | None:
    """The text under a key, or None where the key is absent or empty."""
    value = mapping.get(key)
    if value is not None and not isinstance(value, str):
        raise InputError(code, f"{where}: {key} is {value!r}, not a text.", "Quote it.")
    return value
