"""``--protocol``: what ``tasks check`` compares, and which rows an audit has."""

import json
from pathlib import Path

from tests.paper.made_datasets import Made


def test_check_compares_the_splits_of_one_protocol_with_its_own_sizes(flip_flop, made: Made) -> None:
    result = flip_flop("tasks", "check", "rte", "--protocol", "release", "--hub-mirror", made.mirror)
    (rte,) = (line.split() for line in result.out.splitlines() if line.startswith("rte  "))
    assert rte == ["rte", "54", "(1488)", "6", "(1000)", "23", "(277)", "2", "(10)", "2"]
    assert "protocol release: the authors' release" in result.out
    assert "protocol paper" not in result.out


def test_check_shows_both_protocols_by_default(flip_flop, made: Made) -> None:
    result = flip_flop("tasks", "check", "rte", "--hub-mirror", made.mirror)
    tables = [line.split()[1:3] for line in result.out.splitlines() if line.startswith("rte  ")]
    assert tables == [["54", "(1490)"], ["54", "(1488)"]]
    assert result.out.index("protocol paper") < result.out.index("protocol release")


def test_show_describes_the_splits_of_a_protocol(flip_flop, made: Made) -> None:
    result = flip_flop("tasks", "show", "rte", "--protocol", "release", "--hub-mirror", made.mirror)
    assert "in each official split, rows that repeat a prompt are excluded" in result.out


def test_an_audit_records_the_protocol(flip_flop, made: Made, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    options = ["--protocol", "release", "--hub-mirror", made.mirror, "--limit", 2, "-o", out, "-q"]
    result = flip_flop("audit", "-m", model, "-t", "cb", *options)
    assert result.code == 0, result.err
    data = json.loads((out / "run.json").read_text())["task"]["data"]
    assert (data["splits"], data["split_seed"], data["prompt_value_limit"]) == ("release", 42, 2048)
