"""The benchmarks compare equal instances and equal numbers, with the counts of real templates."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from benchmarks import gpu
from benchmarks.architectures import row
from benchmarks.models import MODELS, make_model, scoring_flops, training_flops
from benchmarks.run import interleave
from benchmarks.workload import SHAPES, count_tokens, make_instances

from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance

pytestmark = pytest.mark.slow
TINY = MODELS["tiny"]


@pytest.fixture(scope="module")
def model():
    return make_model(TINY)


def counted(name):
    return dataclasses.astuple(count_tokens(make_instances(name, 100)))


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_the_token_counts_of_real_templates(name):
    np.testing.assert_allclose(counted(name), dataclasses.astuple(SHAPES[name].expected), rtol=0.07)


def test_the_least_work_is_counted_by_hand_for_a_small_instance():
    # Two templates that share one token, two labels of one token: a trie of 1 + 1 + 2 tokens.
    answers = [
        [EncodedAnswer((5, 6), (label,)) for label in (1, 2)],
        [EncodedAnswer((5, 7, 8), (label,)) for label in (3, 4)],
    ]
    instance = EncodedInstance("1", tuple(tuple(row) for row in answers))
    weights, head = TINY.body, 2 * TINY.hidden * TINY.vocab
    attention = 4 * TINY.layers * TINY.hidden * (1 + 2 + 2 + 3)
    scoring = 4 * 2 * weights + attention + 2 * head
    assert scoring_flops(TINY, [instance]) == scoring
    adapter = 4 * (2 + 4) * TINY.lora
    training = scoring + 4 * 2 * weights + adapter + 2 * attention + 2 * head
    assert training_flops(TINY, [instance], 0) == training


@pytest.mark.parametrize("difference", [2e-5, float("nan")])
def test_a_difference_voids_a_timing(difference):
    timings = interleave({"a": lambda: None}, 1, lambda results: {"a": {"scores": difference}}, "cpu")
    assert [fault.partition(" differ by")[0] for fault in timings.faults] == [f"round {n}: a: scores" for n in (0, 1)]


def test_a_run_and_its_page(tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval, of the development group, is not installed")
    from benchmarks import results, run

    threads = torch.get_num_threads()
    arguments = ["--model", "tiny", "--workloads", "wsc", "--instances", "1", "--rounds", "1"]
    record = run.run(run.parse([*arguments, "--threads", str(threads), "--out", str(tmp_path / "run.json")]))
    assert json.loads((tmp_path / "run.json").read_text()) == record
    assert set(record["scoring"]["wsc"]["ratios"]) == {"lm-eval", "strong"}
    assert set(record["training"]["wsc"]["ratios"]) == {"T0", "T1"}
    assert [record[part]["wsc"]["void"] for part in ("scoring", "training")] == [[], []]
    assert results.page([record]).count("| wsc |") == 2


ARCHITECTURES = {
    "packed": ("gemma3_text", "phi3", "qwen3_moe"),
    "padded": ("bloom", "mamba"),
}


@pytest.mark.parametrize("backend", ARCHITECTURES)
def test_architectures_are_read_and_trained_as_their_table_says(backend):
    for name in ARCHITECTURES[backend]:
        _, used, *differences, in_float32, in_bfloat16, answers = row(name)
        assert (used, in_float32, in_bfloat16, answers) == (backend, "yes", "yes", "in batches"), name
        assert float(differences[0]) < 1e-5, name


def test_rounds_rotate_and_the_first_is_dropped():
    ran = []
    variants = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    timings = interleave(variants, 2, lambda results: {name: {"scores": 0.0} for name in results}, "cpu")
    assert "".join(ran) == "ab" + "ba" + "ab"
    assert {name: len(seconds) for name, seconds in timings.seconds.items()} == {"a": 2, "b": 2}
    assert timings.faults == []


@pytest.mark.slow
def test_the_measurements_of_a_gpu_run_on_a_cpu(tmp_path, monkeypatch):
    out = tmp_path / "gpu.json"
    words = ["--model", "tiny", "--device", "cpu", "--workloads", "winogrande", "--tokens", "300", "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["gpu", *words])
    gpu.main()
    entries = json.loads(out.read_text())["entries"]
    assert [entry["part"] for entry in entries] == ["scoring"] * 5 + ["step"]
    assert all(entry["seconds"] > 0 for entry in entries)
