"""From run directories to entries: seeds together, each beside the base on the same instances and templates."""

import json
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest

from flip_flop.errors import InputError
from flip_flop.metrics import observed_agreement, paired_bootstrap_interval
from flip_flop.report import load_run
from flip_flop.studies.plan import Cell
from flip_flop.studies.summary import summarise_results
from tests.studies.made_results import Maker, make_training, study1, study2, study3


def of(summary, method, task, source=None):
    (found,) = [e for e in summary.entries if (e.method, e.task) == (method, task) and source in (None, e.source)]
    return found


def test_the_seeds_of_a_method_stand_together_as_mean_and_sample_deviation(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte", "wsc"), seeds=(0, 1, 2))
    values = [r.metrics["mean_f1"] for r in results if (r.method, r.task) == ("cce", "wsc")]
    entry = of(summarise_results(results), "cce", "wsc")
    assert entry.seeds == (0, 1, 2)
    mean = sum(values) / 3
    assert entry.spread("mean_f1").mean == pytest.approx(mean)
    assert entry.spread("mean_f1").std == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    (base,) = [r.metrics["mean_f1"] for r in results if (r.method, r.task) == ("base", "wsc")]
    assert entry.change("mean_f1") == pytest.approx(mean - base)


def test_lower_sigma_is_an_improvement(tmp_path):
    entry = of(summarise_results(study1(Maker(tmp_path), tasks=("rte",))), "f2c", "rte")
    assert entry.change("f1_std") < 0 < entry.improvement("f1_std")
    assert entry.improvement("mean_f1") == entry.change("mean_f1")


def test_the_interval_resamples_the_same_instances_in_the_base_and_in_every_seed(tmp_path):
    results = [r for r in study1(Maker(tmp_path), tasks=("rte",)) if r.method in ("base", "f2c")]
    runs = [load_run(result.run).predictions for result in results]
    before, after = [runs[0], runs[0]], runs[1:]
    assert len(after) == 2

    def slow(*arrays):
        return fmean(observed_agreement(array) for array in arrays)

    expected = paired_bootstrap_interval(slow, before, after)
    assert of(summarise_results(results), "f2c", "rte").intervals["observed_agreement"] == pytest.approx(expected)


def test_what_was_trained_on_another_task_is_transfer(tmp_path):
    summary = summarise_results(study2(Maker(tmp_path)))
    assert [(e.source, e.task) for e in summary.about("transfer")] == [
        ("rte", "copa"),
        ("rte", "wsc"),
        ("copa", "rte"),
        ("copa", "wsc"),
    ]
    assert {e.method for e in summary.about("own")} == {"base"}
    assert all(e.base for e in summary.about("transfer"))


def test_study_3_has_the_base_and_the_training_on_all_templates_at_its_ends(tmp_path):
    summary = summarise_results(study3(Maker(tmp_path)))
    assert [(e.method, e.num_templates, e.held_out) for e in summary.about("unseen")] == [
        ("base", 0, False),
        ("f2c", 3, True),
        ("f2c", 6, True),
        ("f2c", 10, False),
    ]
    assert summary.about("own") == []


def test_a_study_may_ask_everything_at_once(tmp_path):
    maker = Maker(tmp_path)
    results = [*study2(maker), *study3(Maker(tmp_path / "three"))]
    summary = summarise_results(results)
    assert {e.question for e in summary.entries} == {"own", "transfer", "unseen"}
    assert len([e for e in summary.about("own") if e.method == "base"]) == 3


def test_runs_on_other_instances_are_not_compared(tmp_path):
    base = Maker(tmp_path / "a", num_instances=30).audit("base", "rte")
    after = Maker(tmp_path / "b", num_instances=31).audit("f2c", "rte", seed=0)
    entry = of(summarise_results([base, after]), "f2c", "rte")
    assert entry.change("mean_f1") is None
    assert not entry.intervals


def test_without_gold_labels_there_is_agreement_and_no_f1(tmp_path):
    maker = Maker(tmp_path)
    results = [maker.audit("base", "mine", no_gold=True), maker.audit("f2c", "mine", seed=0, no_gold=True)]
    entry = of(summarise_results(results), "f2c", "mine")
    assert entry.spread("mean_f1") is None
    assert entry.change("observed_agreement") is not None
    assert entry.f1_per_template == {}


def test_what_the_plan_asks_for_and_is_not_done_is_absent(tmp_path):
    maker = Maker(tmp_path)
    results = [maker.audit("base", "rte"), maker.audit("f2c", "rte", seed=0)]
    names = tuple(f"t{index:02d}" for index in range(6))

    def cell(method, task, seed):
        trained = None if method == "base" else "key"
        source = None if method == "base" else task
        return Cell("k", "audit", "l", method, task, task, source, seed, None, False, names, trained, {}, None, "test")

    audits = [cell("base", "rte", None), *(cell("f2c", task, seed) for task in ("rte", "cb") for seed in (0, 1))]
    absent = summarise_results(results, audits).absent
    assert [(a.method, a.task, a.seed, a.question) for a in absent] == [
        ("f2c", "rte", 1, "own"),
        ("f2c", "cb", 0, "own"),
        ("f2c", "cb", 1, "own"),
    ]


def test_a_training_whose_record_is_gone_is_named(tmp_path):
    results = study3(Maker(tmp_path))
    (results[-1].training / "run.json").unlink()
    with pytest.raises(InputError) as caught:
        summarise_results(results)
    assert caught.value.code == "E-RUN-MISSING"
    (results[-1].training / "run.json").write_text(json.dumps({"kind": "train"}))
    with pytest.raises(InputError) as caught:
        summarise_results(results)
    assert caught.value.code == "E-RUN-BROKEN"


def test_each_template_has_its_mean_over_seeds(tmp_path):
    results = study1(Maker(tmp_path), tasks=("rte",))
    per_seed = [r.metrics["f1_per_template"] for r in results if r.method == "swarm"]
    entry = of(summarise_results(results), "swarm", "rte")
    assert list(entry.f1_per_template) == [f"t{index:02d}" for index in range(6)]
    assert entry.f1_per_template["t02"] == pytest.approx(np.mean([each["t02"] for each in per_seed]))


def test_a_training_is_read_from_its_own_folder(tmp_path):
    maker = Maker(tmp_path)
    training = make_training(tmp_path / "elsewhere", "f2c", 8)
    results = study3(maker)
    results[-1] = replace(results[-1], training=training)
    assert summarise_results(results).about("unseen")[-1].num_templates == 8
