"""The embedded model is the one whose figures are reported, and a shortened demo writes its folders."""

import json
import logging
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from evidence.demo_model import ANNOTATORS, END, Annotator, rebuild_model, stream_examples
from evidence.demo_reviews import Clause, Review, make_rows
from hypothesis import given
from hypothesis import strategies as st
from tests.refused import refused
from transformers import AutoModelForCausalLM, AutoTokenizer

from flip_flop import load_model, load_run, write_report
from flip_flop.cli import demo as demo_run
from flip_flop.evaluation.audit import audit
from flip_flop.files import sha256_file
from flip_flop.report.compare import comparison_blocks
from flip_flop.scoring.models import EMBEDDED_MODEL
from flip_flop.tasks import RowsSource, load_task

pytestmark = pytest.mark.xdist_group("demo")


@pytest.mark.slow
def test_loading_the_embedded_task_imports_no_torch():
    code = "import sys, flip_flop.tasks; flip_flop.tasks.load_task('demo'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_folder_with_more_than_a_demo_is_kept(tmp_path):
    (tmp_path / "base").mkdir()
    (tmp_path / "thesis.txt").write_text("precious")
    refused(
        r"E-OUT-USED: .* holds thesis.txt",
        demo_run.demo_command.callback,
        out=tmp_path,
        seed=0,
        overwrite=True,
        quiet=True,
    )
    assert (tmp_path / "base").is_dir()


def test_an_annotator_weighs_remarks_by_their_place_and_a_single_remark_in_full():
    first, late = Annotator(1.0, (1.0, 0.0, 0.0)), Annotator(1.0, (0.0, 0.0, 1.0))
    review = Review("", (Clause("", 1.0), Clause("", -1.6), Clause("", -0.6)))
    assert (first.label(review), late.label(review)) == (1, 0)
    assert late.label(Review("", (Clause("", 0.5),))) == 1
    assert Annotator(1.0, leniency=1.3).label(review) == 1


def test_pretraining_never_sees_a_review_of_the_splits():
    assert set(ANNOTATORS) == set(load_task("demo", templates="all").templates.names)
    kept_out = [row["text"] for split in ("train", "validation", "test") for row in make_rows(split)]
    stream = stream_examples(0, 3)
    text = "\n".join(next(stream)[0] for _ in range(1000))
    assert not any(review in text for review in kept_out)


@pytest.mark.slow
def test_a_rebuild_gives_the_same_bytes_and_leaves_torch_as_it_was(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    for name in ("first", "second"):
        rebuild_model(tmp_path / name, seed=0, num_steps=2)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    names = sorted(file.name for file in (tmp_path / "first").iterdir())
    assert names == sorted(file.name for file in EMBEDDED_MODEL.iterdir())
    assert all((tmp_path / "first" / name).read_bytes() == (tmp_path / "second" / name).read_bytes() for name in names)


def few_rows(name, **options):
    task = load_task(name, **options)
    return replace(task, data={split: RowsSource(make_rows(split)[:30], "few rows") for split in task.data})


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "out"
    short = {"max_steps": 2, "eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    short |= {"eval_on_start": False, "logging_steps": 1}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_run, "METHODS", {name: demo_run.METHODS[name] | short for name in ("cce", "f2c")})
        patch.setattr("flip_flop.tasks.load_task", few_rows)
        audits = demo_run.run_demo(out, quiet=True)
    return out, audits


@pytest.mark.slow
def test_each_method_leaves_an_adapter_and_two_audits(demo):
    out, audits = demo
    assert [path.relative_to(out).as_posix() for path in audits["train"]] == ["base/audit", "cce/audit", "f2c/audit"]
    assert (out / "f2c" / "adapter" / "adapter_model.safetensors").is_file()
    record = json.loads((out / "f2c" / "audit" / "run.json").read_text())
    assert record["name"] == "f2c"
    assert record["model"]["is_demo"] is True
    assert record["training"]["divergence_space"] == "labels"


@pytest.mark.slow
def test_held_out_templates_are_audited_and_never_trained_on(demo):
    out, audits = demo
    trained = json.loads((out / "f2c" / "run.json").read_text())["task"]["templates"]
    held_out = json.loads((audits["held_out"][0] / "run.json").read_text())["task"]["templates"]
    assert len(held_out) == 3
    assert not {template["name"] for template in held_out} & {template["name"] for template in trained}


@pytest.mark.slow
def test_the_report_says_that_the_model_is_a_toy(demo):
    out, audits = demo
    runs = [*audits["train"], *audits["held_out"]]
    page = write_report(runs, out / "report.html").read_text()
    assert "The model is a toy" in page
    assert "0.16 million parameters" in page
    headings = comparison_blocks([load_run(run) for run in runs])
    assert len(headings) == 2  # trained templates, held-out templates


def test_every_method_of_the_paper_and_the_recommended_settings_are_in_the_demo():
    found = {(settings["method"], settings.get("protocol")) for settings in demo_run.METHODS.values()}
    assert found == {("swarm", None), ("cce", None), ("f2c", "recommended")}


# ---- the shipped model ----


DIGESTS = {
    "config.json": "685e5bbfa6435cd3a7231312b5ebfb38f7b8392c10910b8b508eda242aa2de09",
    "model.safetensors": "6ee39acdb896b703d7631f6696feddabf54c128195c2c625684781ae060cb91d",
    "tokenizer.json": "cdfd87558a0789297294006dba201df638543af65c661ef8e355e4cce0192423",
}


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(EMBEDDED_MODEL)


def test_the_shipped_bytes_are_those_whose_figures_are_reported():
    assert {name: sha256_file(EMBEDDED_MODEL / name) for name in DIGESTS} == DIGESTS


def test_stock_classes_load_the_model_without_a_warning():
    messages = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(record.getMessage())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("transformers"), "handlers", [handler])
        model = AutoModelForCausalLM.from_pretrained(EMBEDDED_MODEL)
        tokenizer = AutoTokenizer.from_pretrained(EMBEDDED_MODEL)
    assert messages == []
    assert model.dtype == torch.float32
    assert model.config.max_position_embeddings >= 512
    assert 100_000 < sum(parameter.numel() for parameter in model.parameters()) < 200_000
    assert len(tokenizer) == model.config.vocab_size
    assert tokenizer.chat_template is tokenizer.bos_token is None
    assert tokenizer.eos_token == tokenizer.pad_token == END


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_the_tokenizer_reads_any_text_and_gives_it_back(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.slow
def test_the_base_model_is_uneven_over_templates_and_its_vote_is_better_than_its_templates():
    task = load_task("demo")
    assert len(task.templates) >= 8
    found = audit(load_model("demo"), task, quiet=True).metrics
    assert 0.70 <= found["observed_agreement"] <= 0.78
    assert 0.08 <= found["f1_std"] <= 0.12
    assert 0.75 <= found["mean_f1"] <= 0.86
    assert found["vote_f1"] >= max(0.93, found["mean_f1"] + 0.08)
