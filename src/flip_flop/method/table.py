"""The methods, one table: what each is called, what it needs, and its loss."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Method:
    """A training method.

    Attributes:
        name: Its name in settings, records and files.
        title: Its name in tables.
        colour: Its colour in plots.
    """

    name: str
    title: str
    colour: str


# What every method is compared with: the model before training. Okabe and Ito's colours, which differ for every kind of
# colour vision; the base has none.
BASE = Method("base", "Base", "#8c8c8c")
METHODS = {
    "swarm": Method("swarm", "Swarm", "#56b4e9"),
    "cce": Method("cce", "CCE", "#e69f00"),
    "f2c": Method("f2c", "F2C", "#009e73"),
}


def find_method(method: str | Method) -> Method:
    """The method of this name, or the method itself."""
    return method if isinstance(method, Method) else METHODS[method]
