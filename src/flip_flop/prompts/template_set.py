"""The templates of a task, in the order given."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_json
from flip_flop.prompts.template import Template


@dataclass(frozen=True)
class TemplateSet:
    """An ordered set of templates with unique names; index ``v`` is a template's place in it.

    Raises:
        InputError: ``E-TPL-NAME-DUP``.

    Example:
        >>> terse = Template("terse", "{{ x }}?", "No ||| Yes")
        >>> templates = TemplateSet((terse, Template("plain", "Is it {{ x }}?", "No ||| Yes")))
        >>> templates.names, templates.select(["plain"]).names, len(templates)
        (('terse', 'plain'), ('plain',), 2)
    """

    templates: tuple[Template, ...]

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for template in self.templates:
            if template.name in seen:
                message = f"two templates are named {template.name!r}."
                raise InputError("E-TPL-NAME-DUP", message, "Rename one of them.")
            seen.add(template.name)

    def __len__(self) -> int:
        return len(self.templates)

    def __iter__(self) -> Iterator[Template]:
        return iter(self.templates)

    def __getitem__(self, index: int) -> Template:
        return self.templates[index]

    @property
    def names(self) -> tuple[str, ...]:
        """The templates' names, in order."""
        return tuple(template.name for template in self.templates)

    def select(self, names: Iterable[str]) -> "TemplateSet":
        """The templates of these names, in the order of the names.

        Raises:
            InputError: ``E-TPL-UNKNOWN``.
        """
        by_name = {template.name: template for template in self.templates}
        chosen = []
        for name in names:
            if name not in by_name:
                message = f"there is no template {name!r}."
                raise InputError("E-TPL-UNKNOWN", message, nearest(name, self.names))
            chosen.append(by_name[name])
        return TemplateSet(tuple(chosen))

    def digest(self) -> str:
        """The SHA-256 of the templates, in order."""
        return sha256_json([template.digest() for template in self.templates])
