"""Variants: methods under names of a study's own, each with settings of its own."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flip_flop.errors import InputError, nearest
from flip_flop.method import BASE, METHODS, find_method
from flip_flop.strict_yaml import mapping_of, text_of

# Of variants that name none, in turn: what Okabe and Ito's have left beside the methods', then Tol's.
COLOURS = ("#0072b2", "#d55e00", "#332288", "#999933", "#882255", "#f0e442", "#44aa99", "#661100", "#aa4499", "#000000")
# What a variant has besides settings.
_WORDS = ("method", "title", "colour")


@dataclass(frozen=True)
class MethodVariant:
    """A method under another name; its settings are with those of methods, in the study's settings.

    Attributes:
        method: A name of :data:`~flip_flop.method.METHODS`, or ``package.module:name``.
        title: Its name in tables and figures.
        colour: In figures, as ``#rrggbb``.
    """

    method: str
    title: str
    colour: str


def read_variants(content: Mapping[str, Any], where: str) -> tuple[dict[str, MethodVariant], dict[str, dict[str, Any]]]:
    """The variants of a study's file by name, and the settings of each, which are not checked here.

    Raises:
        InputError: ``E-STUDY-KEY`` or ``E-STUDY-VALUE``; of a user's own method ``E-CONFIG-VALUE``.
    """
    variants, settings = {}, {}
    for number, name in enumerate(content):
        if name in (BASE.name, *METHODS) or not re.fullmatch("[A-Za-z0-9_-]+", name):
            hint = "Use letters, digits, - and _, and no method's name."
            raise InputError("E-STUDY-VALUE", f"{where}: a name is {name!r}.", hint)
        block = mapping_of(content[name], f"{where}, {name}", code="E-STUDY-KEY")
        variants[name] = _variant(name, block, COLOURS[number % len(COLOURS)], f"{where}, {name}")
        settings[name] = {key: value for key, value in block.items() if key not in _WORDS}
    return variants, settings


def _variant(name: str, block: dict[str, Any], default: str, where: str) -> MethodVariant:
    method, title, colour = (text_of(block, key, where, code="E-STUDY-KEY") for key in _WORDS)
    if not method:
        raise InputError("E-STUDY-KEY", f"{where} has no method.", "Write {method: f2c, votes: frozen}.")
    if ":" not in method and method not in METHODS:
        raise InputError("E-STUDY-VALUE", f"{where}: there is no method {method!r}.", nearest(method, METHODS))
    find_method(method)
    colour = colour or default
    if not re.fullmatch("#[0-9A-Fa-f]{6}", colour):
        raise InputError("E-STUDY-VALUE", f"{where}: colour is {colour!r}.", "Write it as '#0072b2'.")
    return MethodVariant(method, title or name, colour)
