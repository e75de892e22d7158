"""The demo's main job, cut short: the folders that it leaves, and what they say."""

import json

import pytest

from flip_flop.demo import run as demo_run
from flip_flop.demo.run import run_demo
from flip_flop.report import comparison_rows, load_run, write_report


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    short = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    short |= {"eval_on_start": False, "logging_steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_run, "METHODS", {name: demo_run.METHODS[name] | short for name in ("cce", "f2c")})
        audits = run_demo(out, quiet=True)
    return out, audits


def test_each_method_leaves_an_adapter_and_two_audits(demo):
    out, audits = demo
    assert [path.relative_to(out).as_posix() for path in audits["train"]] == ["base/audit", "cce/audit", "f2c/audit"]
    assert (out / "f2c" / "adapter" / "adapter_model.safetensors").is_file()
    record = json.loads((out / "f2c" / "audit" / "run.json").read_text())
    assert record["name"] == "f2c"
    assert record["model"]["is_demo"] is True
    assert record["training"]["divergence_space"] == "labels"


def test_held_out_templates_are_audited_and_never_trained_on(demo):
    out, audits = demo
    trained = json.loads((out / "f2c" / "run.json").read_text())["task"]["templates"]
    held_out = json.loads((audits["held_out"][0] / "run.json").read_text())["task"]["templates"]
    assert len(held_out) == 3
    assert not {template["name"] for template in held_out} & {template["name"] for template in trained}


def test_the_report_says_that_the_model_is_a_toy(demo):
    out, audits = demo
    runs = [*audits["train"], *audits["held_out"]]
    page = write_report(runs, out / "report.html").read_text()
    assert "The model is a toy" in page
    assert "0.16 million parameters" in page
    assert len(comparison_rows([load_run(run) for run in runs])) == 2  # headings: trained templates, held-out ones


def test_every_method_of_the_paper_is_in_the_demo():
    assert {settings["method"] for settings in demo_run.METHODS.values()} == {"swarm", "cce", "f2c"}
    spaces = {settings["divergence_space"] for settings in demo_run.METHODS.values() if "divergence_space" in settings}
    assert spaces == {"vocab", "labels"}
