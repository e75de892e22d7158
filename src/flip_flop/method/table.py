"""The table of methods. Importing it needs no torch."""

import importlib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flip_flop.errors import InputError, nearest
from flip_flop.files import sha256_text
from flip_flop.plugins import PluginTable, import_object

if TYPE_CHECKING:
    from torch import Tensor

    from flip_flop.method.algorithm import Instance


@dataclass(frozen=True)
class Method:
    """A method: its name in settings, records and files, its title in tables, its colour in plots.

    Attributes:
        loss: From an instance and the settings (an ``F2CConfig``) to the loss's terms, weights included. Their sum is
            the instance's loss, and the log has each under its name. ``None`` for the base, which is not trained.
        needs_consensus: Without a strict majority an instance's loss is 0, and the instance is counted (Eq. 7).
        mixes_answer_vocabularies: Whether templates learn each other's answer words under these settings.
        uses_labels: The loss reads gold labels. Without one an instance's loss is 0, and the instance is counted.
        needs_frozen_votes: The loss reads the base model's scores, so ``votes`` must be frozen.

    Example:
        >>> def confidence(instance, config):
        ...     return {"confidence": instance.nll(int(instance.consensus.label)).amax()}
        >>> str(Method("worst_template", "Worst template", "#cc79a7", confidence))
        'worst_template'
    """

    name: str
    title: str
    colour: str
    loss: "Callable[[Instance, Any], dict[str, Tensor]] | None" = None
    needs_consensus: bool = True
    mixes_answer_vocabularies: Callable[[Any], bool] | None = None
    uses_labels: bool = False
    needs_frozen_votes: bool = False

    @property
    def is_built_in(self) -> bool:
        """Whether this package defines the method."""
        return METHODS.built_in.get(self.name) is self

    @property
    def code(self) -> str | None:
        """SHA-256 of the code of a custom method: the loss's module, or the loss itself in a script or a notebook.

        None for a method of this package, which has a version, and for code without a file.
        """
        if self.is_built_in:
            return None
        module = inspect.getmodule(self.loss)
        is_script = module is not None and module.__name__ == "__main__"
        try:
            return sha256_text(inspect.getsource(cast(Any, self.loss if is_script else module)))
        except (OSError, TypeError):
            return None

    def skips(self, instance: "Instance") -> bool:
        """Whether the instance lacks the majority or the gold label that the loss needs."""
        has_no_consensus = self.needs_consensus and not bool(instance.consensus.exists)
        return has_no_consensus or (self.uses_labels and instance.gold is None)

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled by name, as settings are: a loss may be a local function."""
        return str, (self.name,)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Method":
        return self


def _lazy(module: str, name: str, *, package: str = "method") -> Callable[..., Any]:
    """Return a function of this package that is imported when it is called, because torch takes seconds to import."""

    def function(*arguments: Any) -> Any:
        return getattr(importlib.import_module(f"flip_flop.{package}.{module}"), name)(*arguments)

    return function


def _other(name: str, title: str, colour: str, **more: Any) -> Method:
    """Return the method whose loss in ``others.py`` has its name. Without ``more``, it needs no consensus."""
    return Method(name, title, colour, _lazy("others", f"{name}_terms"), **{"needs_consensus": False} | more)


# What every method is compared with: the model before training. Okabe and Ito's colours, which differ for every kind of
# colour vision, then Tol's; the base has none.
BASE = Method("base", "Base", "#8c8c8c")
_PAPER = (
    _other("swarm", "Swarm", "#56b4e9"),
    Method("cce", "CCE", "#e69f00", _lazy("losses", "cce_terms")),
    Method(
        "f2c",
        "F2C",
        "#009e73",
        _lazy("losses", "f2c_terms"),
        mixes_answer_vocabularies=_lazy("losses", "mixes_answer_vocabularies"),
    ),
)
# Methods of other papers without labels.
_OTHERS = (
    _other("bct", "BCT", "#0072b2", needs_frozen_votes=True),
    _other("opct", "OPCT", "#d55e00", needs_frozen_votes=True),
    _other("ssd", "SSD", "#117733", needs_frozen_votes=True),
    _other("ttrl", "TTRL", "#882255", needs_consensus=True),
    _other("cpc_grpo", "CPC-GRPO", "#aa4499"),
    _other("swarm_l2", "Swarm L2", "#332288"),
    _other("swarm_l1_l2", "Swarm L1 + L2", "#88ccee"),
    _other("marginal_entropy", "Marginal entropy", "#999933"),
)
_WITH_LABELS = (
    _other("supervised", "Supervised (labels)", "#000000", uses_labels=True),
    _other("paft", "PAFT (labels)", "#661100", uses_labels=True),
    _other("ppcl", "PPCL (labels)", "#44aa99", uses_labels=True),
)
# The protocol release trains these instead of the paper's methods.
_RELEASE = (
    Method(
        "swarm_release",
        "Swarm (release)",
        "#ddcc77",
        _lazy("release", "swarm_terms", package="paper"),
        needs_consensus=False,
        mixes_answer_vocabularies=lambda config: True,
    ),
    Method("cce_release", "CCE (release)", "#cc6677", _lazy("release", "cce_terms", package="paper")),
    Method(
        "f2c_release",
        "F2C (release)",
        "#b5d33d",
        _lazy("release", "f2c_terms", package="paper"),
        mixes_answer_vocabularies=_lazy("losses", "mixes_answer_vocabularies"),
    ),
)
_BUILT_IN = (*_PAPER, *_OTHERS, *_WITH_LABELS, *_RELEASE)
METHODS = PluginTable("flip_flop.methods", {method.name: method for method in _BUILT_IN})


def find_method(method: object) -> Method:
    """The method of this name, the one at ``package.module:name``, or the method itself.

    Raises:
        InputError: ``E-CONFIG`` if it does not exist, has no loss, or has a name that is not one word or is that of
            another method, or a colour that is not ``#RRGGBB``.
    """
    if not isinstance(method, str | Method):
        raise InputError("E-CONFIG", f"method is {method!r}.", f"Use one of {', '.join(METHODS)}.")
    method = method if isinstance(method, Method) else METHODS.get(method) or _imported(method)
    faults = {
        "has no loss": method.loss is None,
        "is the name of another method": {**METHODS, BASE.name: BASE}.get(method.name, method) is not method,
        "is not one word of letters, digits and _": not re.fullmatch(r"\w[\w.-]*", method.name),
        f"has colour {method.colour!r}, which is not #RRGGBB": not re.fullmatch("#[0-9A-Fa-f]{6}", str(method.colour)),
    }
    if reasons := [fault for fault, holds in faults.items() if holds]:
        raise InputError("E-CONFIG", f"method: {method.name!r} {reasons[0]}.", "Change the Method.")
    return method


def _imported(reference: str) -> Method:
    if ":" not in reference:
        raise InputError(
            "E-CONFIG",
            f"method is {reference!r}.",
            f"{nearest(reference, METHODS)} Or give a custom Method as MODULE:NAME.",
        )
    return import_object("method", reference, Method)
