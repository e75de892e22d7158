"""docs/release.md: every option exists and accepts its value, and every loss variant has a row."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from flip_flop.training import F2CConfig, make_config

PAGE = (Path(__file__).parents[1] / "docs" / "release.md").read_text(encoding="utf-8")
OPTIONS = sorted(set(re.findall(r"`(\w+): ([\w.-]+)`", PAGE)) - {("protocol", "paper"), ("protocol", "release")})


@pytest.mark.parametrize(("name", "value"), OPTIONS)
def test_every_option_of_the_page_is_a_setting_that_takes_the_value(name, value):
    found = getattr(make_config({name: value}), name)
    assert str(getattr(found, "value", found)).lower() == value or float(found) == float(value)


def test_the_page_has_both_values_of_every_setting_that_a_protocol_decides():
    decided = {item.name: item.metadata for item in fields(F2CConfig) if "release" in item.metadata}
    of_protocols = {name: bundle for name, bundle in decided.items() if bundle["paper"] != bundle["release"]}
    said = {
        (name, str(bundle[protocol]).lower())
        for name, bundle in of_protocols.items()
        for protocol in ("paper", "release")
    }
    assert said <= set(OPTIONS)
