"""Strict YAML: errors have the file and the line."""

import pytest

from flip_flop.errors import InputError
from flip_flop.strict_yaml import read_yaml

TAGGED = [
    "!!bool foo", '!!int ""', '!!float ""', "!!timestamp foo", "!!python/name:os.system",
    "!!python/object/apply:os.system [ls]", "!!str x", "!!binary x", "!!set {a}", "!!omap [a: 1]", "!!map {a: 1}",
    "! x", "!Template {name: x}", "!<tag:yaml.org,2002:int> x", "[a, !!int b]",
]  # fmt: skip


@pytest.mark.parametrize("value", TAGGED)
def test_explicit_tags_are_rejected(value, tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(f"name: x\nlabels: {value}\n")
    with pytest.raises(InputError, match=r"^E-TASK-FILE: .*task.yaml line 2: "):
        read_yaml(path)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: &x [0]\nb: *x\n", 2, "an alias"),
        ("a: 1\nb: {c: 1, d: 2, c: 3}\n", 2, "duplicate key 'c'"),
        ("1: 2\n", 1, "the key 1 is not a text"),
        ("a: 1\nno: 2\n", 2, "the key False is not a text"),
        ("!!bool foo: 1\n", 1, "the tag tag:yaml.org,2002:bool is not allowed"),
    ],
)
def test_aliases_and_duplicate_keys_are_rejected(text, line, words, tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"^E-TASK-FILE: .*task.yaml line {line}: {words}"):
        read_yaml(path)


@pytest.mark.parametrize("value", ["[" * 3000 + "]" * 3000, "2024-99-99", "0x_", "1" + ":00" * 200 + ".5"])
def test_invalid_values_are_refused(value, tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text(f"name: {value}\n")
    with pytest.raises(InputError, match=r"^E-TASK-FILE: .*task.yaml"):
        read_yaml(path)


def test_plain_values(tmp_path):
    path = tmp_path / "task.yaml"
    path.write_text("a: [1, 2.5, yes, x, '1', ~]\nb: {c: d}\n")
    assert read_yaml(path) == {"a": [1, 2.5, True, "x", "1", None], "b": {"c": "d"}}
