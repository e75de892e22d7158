"""YAML read strictly: plain values only, no key twice, no aliases, no tags, no bottomless nesting."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

from flip_flop.errors import InputError

_MAX_BYTES = 5 * 1024 * 1024
_MAX_DEPTH = 20


class StrictLoader(yaml.SafeLoader):
    """The safe loader lets the last of two equal keys win, and nine lines of aliases stand for 9^9 items."""

    _depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node, unless it is an alias, bears a tag of YAML's own or lies too deep."""
        event: Any = self.peek_event()
        if self.check_event(yaml.AliasEvent):
            raise yaml.MarkedYAMLError(problem="an alias (*name) is refused", problem_mark=event.start_mark)
        # A tag forces a value through a constructor that it does not fit, which ends in any exception at all.
        # A tag that nobody registered is refused when its node is constructed.
        if event.tag is not None and (event.tag == "!" or event.tag in yaml.SafeLoader.yaml_constructors):
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise yaml.MarkedYAMLError(problem=f"the tag {tag} is refused", problem_mark=event.start_mark)
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
                if not isinstance(key, str):
                    problem = f"the key {key!r} is not a text; quote it"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                if key in seen:
                    problem = f"the key {key!r} stands here a second time"
                    raise yaml.MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(
    path: Path,
    *,
    loader: type[StrictLoader] = StrictLoader,
    code: str = "E-TASK-YAML",
    file_code: str = "E-TASK-FILE",
) -> Any:
    """Read one YAML document.

    Args:
        path: The file.
        loader: The strict loader, or one that knows more tags.
        code: The error's code where the YAML is at fault.
        file_code: The error's code where the file cannot be read.

    Raises:
        InputError: ``code``, with the file and the line; ``file_code``.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}."
        raise InputError(file_code, message, "Check its permissions.") from None
    if len(content) > _MAX_BYTES:
        raise InputError(code, f"{path} is larger than {_MAX_BYTES:,} bytes.", "Keep data in data files.")
    try:
        return yaml.load(content.decode("utf-8-sig"), Loader=loader)
    except UnicodeDecodeError as error:
        raise InputError(code, f"{path} is not UTF-8 at byte {error.start}.", "Save it as UTF-8.") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        problem = " ".join(str(error.problem or error.context).split())
        raise InputError(code, f"{path}{line}: {problem}.", "Mend the YAML there.") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        problem = " ".join(str(error).split())[:200]
        raise InputError(code, f"{path}: {problem}.", "Mend the YAML.") from None
