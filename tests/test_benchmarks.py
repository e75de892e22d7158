"""The benchmarks compare equal instances and equal numbers, with the counts of real templates."""

import dataclasses
import functools
import json

import numpy as np
import pytest
import torch
from benchmarks.architectures import row
from benchmarks.models import LEAST, MODELS, PEERS, make_model, scoring_flops, training_flops
from benchmarks.ours import gradient, make_trainer, our_scores, our_step
from benchmarks.peers import naive_scores, strong_scores
from benchmarks.run import interleave
from benchmarks.training_peers import naive_step, strong_step, with_forced_consensus
from benchmarks.workload import SHAPES, count_tokens, digest, make_instances

from flip_flop.scoring import EncodedAnswer, EncodedInstance
from tests.exact import assert_scores, float32_bound

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


def test_anlis_templates_encode_the_premise_seven_times():
    instance = make_instances("anli", 1)[0]
    contexts = [row[0].context for row in instance.answers]
    assert len(contexts) == 15
    # Two templates that begin alike up to the premise's tenth token begin with the same literal.
    assert len({context[:10] for context in contexts}) == 7


def test_the_workload_is_the_same_on_every_machine():
    assert digest(make_instances("rte", 3)) == digest(make_instances("rte", 5)[:3])
    assert digest(make_instances("rte", 3)) != digest(make_instances("rte", 3, seed=1))
    assert digest(make_instances("rte", 3)).startswith("1a0c6c8e20a097db")


@pytest.mark.parametrize("backend", ["packed", "padded"])
def test_all_scorers_agree(model, backend):
    instances = make_instances("copa", 2)
    expected = naive_scores(model, instances)
    assert np.ptp(expected, axis=-1).min() > 1e-4
    assert_scores(model, strong_scores(model, instances), expected)
    assert_scores(model, our_scores(model, instances, backend), expected)


@pytest.mark.parametrize("backend", ["packed", "padded"])
def test_all_training_steps_leave_the_same_gradient(backend, tmp_path):
    instances = make_instances("copa", 2)
    trainer = make_trainer(make_model(TINY), backend, str(tmp_path))
    with with_forced_consensus():
        loss, expected = naive_step(trainer.adapted, instances, trainer.args), gradient(trainer.adapted)
        assert expected.norm() > 0
        strong = functools.partial(strong_step, trainer.adapted, instances, trainer.args)
        for step in (strong, functools.partial(our_step, trainer, instances)):
            assert step() == pytest.approx(loss, rel=float32_bound(trainer.adapted))
            assert (gradient(trainer.adapted) - expected).norm() < float32_bound(trainer.adapted, 3) * expected.norm()


def test_the_benchmarks_gradient_tells_of_every_term(tmp_path):
    instances = make_instances("copa", 1)
    trainer = make_trainer(make_model(TINY), "packed", str(tmp_path))
    with with_forced_consensus():
        our_step(trainer, instances)
        whole = gradient(trainer.adapted)
        for names in (("jsd_weight",), ("flip_weight_min", "flip_weight_max")):
            kept = {name: getattr(trainer.args, name) for name in names}
            vars(trainer.args).update(dict.fromkeys(names, 0.0))
            our_step(trainer, instances)
            vars(trainer.args).update(kept)
            assert (gradient(trainer.adapted) - whole).norm() > 1e-3 * whole.norm()


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


def test_a_peers_work_is_counted_by_hand_for_a_small_instance():
    # Sequences 5 6 and 5 7, each scored for two labels of one token: two that are distinct, four in all.
    two = [EncodedAnswer((5,), tokens) for tokens in ((1, 2), (3, 4))]  # both begin after 5: two rows of one or of two
    assert (PEERS["strong"].of(two), LEAST.of(two)) == (([1, 2, 1, 2], 4), ([1, 2, 2], 3))
    answers = [[EncodedAnswer((5, first), (label,)) for label in (1, 2)] for first in (6, 7)]
    instance = EncodedInstance("1", tuple(map(tuple, answers)))
    pair = 2 * 2 * TINY.body + 4 * TINY.layers * TINY.hidden * (1 + 2)  # a sequence's two tokens
    head = 2 * TINY.hidden * TINY.vocab
    assert scoring_flops(TINY, [instance], PEERS["naive"]) == 4 * (pair + 2 * head)
    assert scoring_flops(TINY, [instance], PEERS["lm-eval"]) == 2 * (pair + 2 * head)
    assert scoring_flops(TINY, [instance], PEERS["strong"]) == 2 * (pair + head)
    adapter, back = 2 * 2 * TINY.lora, 2 * 2 * TINY.body + 8 * TINY.layers * TINY.hidden * (1 + 2)
    for peer, scored, rows in (("T0", 4, 2), ("T1", 2, 1)):
        forward = pair + adapter + rows * head
        backward = back + 2 * adapter + rows * head
        expected = scored * forward + 2 * forward + 2 * backward
        assert training_flops(TINY, [instance], 0, PEERS[peer]) == expected


def test_rounds_rotate_and_the_first_is_dropped():
    ran = []
    variants = {"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}
    timings = interleave(variants, 2, lambda results: {name: {"scores": 0.0} for name in results}, "cpu")
    assert "".join(ran) == "ab" + "ba" + "ab"
    assert {name: len(seconds) for name, seconds in timings.seconds.items()} == {"a": 2, "b": 2}
    assert timings.faults == []


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
    "packed": ("cohere", "gemma3_text", "granite", "olmo2", "opt", "phi3", "qwen3_moe", "starcoder2"),
    "padded": ("bloom", "gpt_neo", "mamba", "mpt"),
}


@pytest.mark.parametrize("backend", ARCHITECTURES)
def test_a_dozen_architectures_are_read_and_trained_as_their_table_says(backend):
    for name in ARCHITECTURES[backend]:
        _, used, *differences, in_float32, in_bfloat16 = row(name)
        assert (used, in_float32, in_bfloat16) == (backend, "yes", "yes"), name
        assert float(differences[0]) < 1e-5, name
