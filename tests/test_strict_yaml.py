"""Strict YAML: errors have the file and the line."""

import pytest

from flip_flop.errors import InputError
from flip_flop.strict_yaml import read_yaml

TAGGED = [
    "!!bool foo", '!!int ""', '!!float ""', "!!timestamp foo", "!!python/name:os.system",
    "!!python/object/apply:os.system [ls]", "!!str x", "!!binary x", "!!set {a}", "!!omap [a: 1]", "!!map {a: 1}",
    "! x", "!Template {name: x}", "!<tag:yaml.org,2002:int> x", "[a, !!int b]",
]  # fmt: skip


INVALID = ["[" * 1000 + "]" * 1000, "2024-99-99", "0x_", "1" + ":00" * 200 + ".5"]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "task.yaml"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        *((f"name: x\nlabels: {value}\n", "line 2: ") for value in TAGGED),
        *((f"name: {value}\n", "") for value in INVALID),
        ("a: &x [0]\nb: *x\n", "line 2: an alias"),
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", "line 2: duplicate key 'c'"),
        ("1: 2\n", "line 1: the key 1 is not a text"),
        ("a: 1\nno: 2\n", "line 2: the key False is not a text"),
        ("!!bool foo: 1\n", "line 1: the tag tag:yaml.org,2002:bool is not allowed"),
    ],
)
def test_tags_aliases_duplicate_keys_and_invalid_values_are_rejected(text, words, path):
    path.write_text(text)
    with pytest.raises(InputError, match=rf"^E-TASK-FILE: .*task.yaml.*{words}"):
        read_yaml(path)


def test_plain_values(path):
    path.write_text("a: [1, 2.5, yes, x, '1', ~]\nb: {c: d}\n")
    assert read_yaml(path) == {"a": [1, 2.5, True, "x", "1", None], "b": {"c": "d"}}
