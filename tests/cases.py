"""Tables of cases, in YAML files beside the tests that read them."""

from pathlib import Path

import yaml

TESTS = Path(__file__).parent


def read_cases(file):
    """The cases of a YAML file of this folder, by name."""
    return yaml.safe_load((TESTS / file).read_text(encoding="utf-8"))
