"""The order of a template's answers: by its own target, and by its words."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flip_flop.prompts.sandbox import render_text
from flip_flop.prompts.template import RESERVED_FIELD, Template
from flip_flop.randomness import generator

_NO = frozenset(["no", "false", "incorrect", "wrong", "never", "negative", "impossible"])
_YES = frozenset(["yes", "true", "correct", "right", "always", "positive", "guaranteed"])


def target_index(
    template: Template, fields: Mapping[str, Any], choices: Sequence[str], *, row: str, seed: int
) -> int | None:
    """Which answer the template's target is, or None where it has no target, or one that is no answer.

    The target stands behind the ``|||`` and may read the gold label. Only lint renders it.

    Raises:
        InputError: The target fails on the row.

    Example:
        >>> plain = Template("plain", "{{ x }}? ||| {{ answer_choices[y] }}", "No ||| Yes")
        >>> target_index(plain, {"x": "tea", "y": 1}, ("No", "Yes"), row="row 1", seed=0)
        1
    """
    parts = render_text(
        template.jinja,
        {**fields, RESERVED_FIELD: list(choices)},
        is_prompt=False,
        hidden=None,
        where=f"template {template.name!r}, target",
        row=row,
        make_generator=lambda: generator(seed, "prompt", row, template.name),
    )
    return choices.index(parts[1]) if len(parts) > 1 and parts[1] in choices else None


def reversed_words(answers: Mapping[str, tuple[str, ...]]) -> Iterator[tuple[str, str]]:
    """Templates whose answers are in another order than those of the first one that can be compared.

    Two can be compared where their words are the same, or where both are a yes and a no.

    Example:
        >>> list(reversed_words({"plain": ("No", "Yes"), "truth": ("True", "False"), "other": ("no", "yes")}))
        [('truth', 'plain')]
    """
    folded = {name: tuple(choice.casefold().rstrip(".!") for choice in each) for name, each in answers.items()}
    names = list(folded)
    for index, name in enumerate(names):
        ours = folded[name]
        for other in names[:index]:
            theirs = folded[other]
            signs = _signs(ours), _signs(theirs)
            if sorted(ours) == sorted(theirs) or None not in signs:
                if signs[0] != signs[1] or (None in signs and ours != theirs):
                    yield name, other
                break


def _signs(choices: Sequence[str]) -> tuple[bool, bool] | None:
    """Which of two answers is the yes, or None."""
    if len(choices) != 2 or not all(choice in _YES | _NO for choice in choices):
        return None
    signs = choices[0] in _YES, choices[1] in _YES
    return signs if signs[0] != signs[1] else None
