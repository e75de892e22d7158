"""The frame of a study: averages over seeds, and the base on the same instances and templates."""

import numpy as np
import pytest

from flip_flop.metrics import instance_agreement, mean_statistic, paired_bootstrap_interval
from flip_flop.paper.frame import average_seeds, methods_of
from flip_flop.report import load_run
from tests.studies.made_results import Maker, study1, study2, study3


def averaged(maker, method, task):
    """The averaged row of each metric."""
    cells = average_seeds(maker.frame())
    found = cells[(cells["method"] == method) & (cells["task"] == task)]
    return {cell.metric: cell for cell in found.itertuples()}


def cells_of(frame, setting, *columns):
    found = frame[(frame["setting"] == setting) & (frame["metric"] == "mean_f1")]
    return list(found[list(columns)].itertuples(index=False, name=None))


def test_seeds_are_averaged_with_sample_deviation(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("rte", "wsc"), seeds=(0, 1, 2))
    values = [metrics["mean_f1"] for metrics in maker.metrics(method="cce", task="wsc")]
    cell = averaged(maker, "cce", "wsc")["mean_f1"]
    assert cell.seeds == (0, 1, 2)
    mean = sum(values) / 3
    assert cell.mean == pytest.approx(mean)
    assert cell.std_over_seeds == pytest.approx((sum((v - mean) ** 2 for v in values) / 2) ** 0.5)
    (base,) = maker.metrics(method="base", task="wsc")
    assert cell.change == cell.improvement == pytest.approx(mean - base["mean_f1"])
    sigma = averaged(maker, "f2c", "rte")["f1_std"]
    assert sigma.change < 0 < sigma.improvement


def test_interval_is_paired_over_instances(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("rte",), methods=("f2c",))
    before, *after = [load_run(run).predictions for run in maker.runs()]
    assert len(after) == 2

    agreement = mean_statistic(instance_agreement, bounds=(0.0, 1.0))
    expected = paired_bootstrap_interval(agreement, [before], *([answers] for answers in after))
    cell = averaged(maker, "f2c", "rte")["observed_agreement"]
    assert (cell.change_low, cell.change_high) == pytest.approx(expected)


def test_audits_on_a_different_task_are_transfer(tmp_path):
    frame = study2(Maker(tmp_path)).frame()
    pairs = [("rte", "copa"), ("rte", "wsc"), ("copa", "rte"), ("copa", "wsc")]
    assert sorted(cells_of(frame, "transfer", "source", "task")) == sorted(pairs)
    assert methods_of(frame[frame["setting"] == "own"]) == ["base"]
    assert frame.loc[(frame["setting"] == "transfer") & (frame["template"] == ""), "base"].notna().all()


@pytest.mark.parametrize("others", [lambda maker: maker, study2])
def test_study_3_includes_base_and_all_templates(tmp_path, others):
    frame = study3(others(Maker(tmp_path))).frame()
    expected = [("base", 0, False), ("f2c", 3, True), ("f2c", 6, True), ("f2c", 10, False)]
    assert cells_of(frame, "unseen", "method", "k", "held_out") == expected
    assert cells_of(frame, "own", "method") == [("base",)] * (3 if others is study2 else 0)


def test_runs_on_different_instances_are_not_compared(tmp_path):
    maker = Maker(tmp_path)
    maker.audit("base", "rte")
    maker.num_instances = 31
    maker.audit("f2c", "rte", seed=0)
    cell = averaged(maker, "f2c", "rte")["mean_f1"]
    assert np.isnan([cell.change, cell.change_low, cell.change_high]).all()


def test_incomplete_audit_has_rows_without_values(tmp_path):
    maker = study1(Maker(tmp_path), tasks=("cb", "rte"), methods=("f2c",))
    maker.lose(method="f2c", task="cb", seed=0)
    maker.lose(method="f2c", task="rte", seed=1)
    frame = maker.frame()
    missing = frame[~frame["is_done"] & (frame["metric"] == "mean_f1")].sort_values("position")
    expected = [("cb", 0, "own"), ("rte", 1, "own")]
    assert list(zip(missing["task"], missing["seed"], missing["setting"], strict=True)) == expected
    assert missing["value"].isna().all()
    assert averaged(maker, "f2c", "rte")["mean_f1"].seeds == (0,)
