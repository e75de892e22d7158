"""The house: which floor may use which, that every room has a floor, and that files import in one direction."""

import ast
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import flip_flop

SOURCE = Path(flip_flop.__file__).parents[1]
# Packages that the core does not import. It names them by strings, and loads them on first use.
WINGS = {"served", "paper", "drafting", "foreign", "serving"}
# Wings that other wings import.
SHARED_WINGS = {"open_answers", "classifier", "variation"}

# Lowest first. A module imports from its package and from lower floors only.
FLOORS = [
    {"arrays", "errors", "lazy"},
    {"plugins", "files", "console", "texts"},
    {"hub", "strict_yaml", "record", "reading"},
    {"method", "metrics", "prompts"},
    {"tasks", "scoring"},
    {"evaluation", "training"},
    {"report"},
    {"cli"},
    SHARED_WINGS,
    {"__init__", "__main__"},
    WINGS,
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Third-party imports of the packages that compute.
MAY_IMPORT = {
    "method": {"torch", "jaxtyping"},
    "metrics": {"numpy", "jaxtyping", "yaml"},  # the table of metrics is a YAML file
    "prompts": {"jinja2", "numpy"},
    "reading": {"regex", "math_verify", "sympy"},
}


def imports_of(path):
    """The names that a file imports, also in functions and for types."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def module_of(path):
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


IMPORTS = {module_of(path): imports_of(path) for path in sorted(SOURCE.glob("flip_flop/**/*.py"))}


def room_of(module):
    return [*module.split("."), "__init__"][1]


def modules_used(module):
    """The modules that hold the imported names. A package that is imported from is its ``__init__``."""
    found = set()
    for name in IMPORTS[module]:
        while name and name not in IMPORTS:
            name = name.rpartition(".")[0]
        found.add(name)
    return found - {""}


@pytest.mark.parametrize("module", IMPORTS)
def test_a_module_knows_only_floors_below_it(module):
    room = room_of(module)
    assert room in FLOOR_OF, f"{room} has no floor"
    for used in map(room_of, modules_used(module)):
        assert used == room or FLOOR_OF[used] < FLOOR_OF[room], f"{room} uses {used}"


def test_modules_import_without_circles():
    TopologicalSorter({module: modules_used(module) for module in IMPORTS}).prepare()


def test_no_module_imports_from_a_package_that_holds_it():
    for module in IMPORTS:
        for used in modules_used(module):
            assert not module.startswith(f"{used}."), f"{module} imports from {used}"


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_pure_room_imports_its_libraries_only(room):
    used = {name.split(".")[0] for module, names in IMPORTS.items() if room_of(module) == room for name in names}
    assert used - sys.stdlib_module_names - {"flip_flop"} == MAY_IMPORT[room]
