"""The house: which floor may use which, and that every room has a floor."""

import ast
import sys
from pathlib import Path

import pytest

import flip_flop

SOURCE = Path(flip_flop.__file__).parents[1]
# Subpackages that the others never import. Commands import them by name when they are used.
OPTIONAL = ("paper", "drafting")

# Lowest first. A module imports from its package and from lower floors only.
FLOORS = [
    {"errors", "lazy"},
    {"plugins", "files", "console"},
    {"hub", "strict_yaml", "record", "reading"},
    {"method", "metrics", "prompts"},
    {"tasks", "scoring"},
    {"evaluation", "training"},
    {"report"},
    {"cli"},
    {"__main__"},
    {*OPTIONAL},
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}

# Third-party imports of packages without input and output.
MAY_IMPORT = {
    "method": {"torch", "jaxtyping"},
    "metrics": {"numpy", "sklearn", "jaxtyping"},
    "prompts": {"jinja2", "yaml", "markupsafe", "numpy"},
    "reading": {"regex", "math_verify", "sympy"},
}

MODULES = sorted(path for path in SOURCE.glob("flip_flop/**/*.py") if path != SOURCE / "flip_flop" / "__init__.py")
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in MODULES}
NODES = {path: list(ast.walk(tree)) for path, tree in TREES.items()}


def room_of(path):
    return path.relative_to(SOURCE).parts[1].removesuffix(".py")


def imports_of(nodes):
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_knows_only_floors_below_it(path):
    room = room_of(path)
    assert room in FLOOR_OF, f"{room} has no floor"
    for name in imports_of(NODES[path]):
        package, used = [*name.split("."), ""][:2]
        if room == "cli" and used in OPTIONAL:
            assert name not in imports_of(TREES[path].body), "commands import optional packages inside of functions"
            continue
        if package == "flip_flop" and used in FLOOR_OF:
            assert used == room or FLOOR_OF[used] < FLOOR_OF[room], f"{room} uses {used}"


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_pure_room_knows_only_its_libraries(room):
    used = {name.split(".")[0] for path in MODULES if room_of(path) == room for name in imports_of(NODES[path])}
    assert used <= MAY_IMPORT[room] | sys.stdlib_module_names | {"flip_flop"}
