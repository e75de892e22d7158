"""Names that are imported on first use. The core imports no wing in another way."""

import pkgutil
from collections.abc import Callable, Mapping
from typing import Any


def exports(
    package: str, modules: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` of a package whose names are imported on first use."""
    module_of = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return pkgutil.resolve_name(f"{package}.{module_of[name]}:{name}")

    return get, lambda: list(module_of)


WINGS = {
    "EndpointScorer": "flip_flop.served.scorer",
    "as_choices": "flip_flop.open_answers.generation",
    "from_results": "flip_flop.foreign",
    "generate": "flip_flop.open_answers.generation",
    "load_results": "flip_flop.foreign",
    "vary_task": "flip_flop.variation.axes",
}


def from_wing(name: str) -> Any:
    """Return an object of a wing."""
    return pkgutil.resolve_name(f"{WINGS[name]}:{name}")
