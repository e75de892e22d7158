"""Tables of cases, in YAML files next to their tests."""

from pathlib import Path

import pytest
import yaml

TESTS = Path(__file__).parent


def read_cases(file):
    """The content of a YAML file of this folder: a list of cases, or cases by name."""
    return yaml.safe_load((TESTS / file).read_text(encoding="utf-8"))


def read_groups(file):
    """The cases of a file of groups, named by their group and their number in it."""
    return [
        pytest.param(case, id=f"{group} {number}")
        for group, cases in read_cases(file).items()
        for number, case in enumerate(cases, 1)
    ]


def read_list(file, name):
    """The cases of a list, each named by one of its values."""
    return [pytest.param(case, id=case[name]) for case in read_cases(file)]
