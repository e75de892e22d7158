"""Plots: correct numbers, labels inside the figure, and colours for all kinds of colour vision."""

import functools

import numpy as np
import pytest

from flip_flop.paper.figures import SCALE, draw_boxes, draw_curves, draw_heatmaps
from flip_flop.paper.frame import template_f1
from tests.studies.made_results import Maker, made_frame, paper_audits, study2, study3, transfer_audits


def luminance(colour):
    """Relative luminance of an sRGB colour, 0 to 1 (WCAG 2)."""
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in colour]
    return np.dot([0.2126, 0.7152, 0.0722], linear)


def with_f1(count=5, task=None):
    """The paper's audits with made F1 under each template."""
    names = {f"t{n}": 0.8 + 0.05 * n for n in range(count)}
    audits = [audit for audit in paper_audits() if task in (None, audit["task"])]
    return [audit | {"f1": {name: audit["values"]["mean_f1"] * f for name, f in names.items()}} for audit in audits]


@functools.cache
def transfer_maps():
    return {plot.name.removeprefix("transfer_"): plot for plot in draw_heatmaps(made_frame(*transfer_audits()), "f2c")}


def numbered_cells(plot):
    """Return each number of a heat map with its cell."""
    axes = plot.figure.axes[0]
    for text in axes.texts:
        x, y = text.get_position()
        (cell,) = [c for c in axes.patches if c.get_x() < x < c.get_x() + 1 and c.get_y() < y < c.get_y() + 1]
        yield text, cell


@pytest.mark.slow
def test_heat_map_shows_signed_changes():
    maps = transfer_maps()
    assert list(maps) == ["mean_f1", "f1_std", "observed_agreement"]
    for metric, plot in maps.items():
        changes = [100 * (audit["values"][metric] - audit["base"][metric]) for audit in transfer_audits()]
        found = sorted(text.get_text() for axes in plot.figure.axes for text in axes.texts)
        assert found == sorted(f"{change:+.1f}".replace("-", "−") for change in changes)
        assert len(found) == 80


@pytest.mark.slow
@pytest.mark.parametrize(("metric", "better"), [("mean_f1", "+"), ("f1_std", "−"), ("observed_agreement", "+")])
def test_heat_map_colours_improvements_green_with_readable_numbers(metric, better):
    for text, cell in numbered_cells(transfer_maps()[metric]):
        red, green, blue, _ = cell.get_facecolor()
        if abs(float(text.get_text().replace("−", "-"))) > 0.5:
            assert (green > red) == text.get_text().startswith(better)
        light, ink = luminance((red, green, blue)), 1.0 if text.get_color() == "white" else 0.0
        assert (max(light, ink) + 0.05) / (min(light, ink) + 0.05) >= 4.2  # WCAG asks 3 of large, 4.5 of small type


@pytest.mark.slow
def test_heat_map_hatches_missing_pairs(tmp_path):
    maker = study2(Maker(tmp_path))
    whole = draw_heatmaps(maker.frame(), "f2c")[0].figure.axes[0]
    assert not [patch for patch in whole.patches if patch.get_hatch()]
    maker.lose(source="copa", task="rte")
    axes = draw_heatmaps(maker.frame(), "f2c")[0].figure.axes[0]
    assert [(patch.get_x(), patch.get_y()) for patch in axes.patches if patch.get_hatch()] == [(0, 1)]
    assert len(axes.texts) == 3
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["not there yet"]


def test_boxes_are_quartiles_with_a_dot_per_template():
    audits = with_f1(7, "cb") + with_f1(7, "rte")
    axes = draw_boxes(template_f1(made_frame(*audits))).figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(dot.get_ydata()) for dot in dots] == [7] * 8
    assert [text.get_text() for text in axes.get_xticklabels()] == ["CB", "RTE"]
    median = 100 * np.median(list(audits[0]["f1"].values()))
    assert any(np.allclose(line.get_ydata(), median) for line in axes.lines if line.get_marker() != "o")


def test_study_3_draws_f1_and_agreement_by_k(tmp_path):
    maker = study3(Maker(tmp_path))
    (plot,) = draw_curves(maker.frame())
    top, bottom = plot.figure.axes
    metrics = maker.metrics()
    for axes, metric in ((top, "mean_f1"), (bottom, "observed_agreement")):
        curve = next(line for line in axes.lines if len(line.get_xdata()) == 3)
        assert list(curve.get_xdata()) == [3, 6, 10]
        assert np.allclose(curve.get_ydata(), [100 * m[metric] for m in metrics[1:]])
        base = next(line for line in axes.lines if list(line.get_xdata()) == [0, 1])  # across the whole axis
        assert np.allclose(base.get_ydata(), 100 * metrics[0][metric])
    (band,) = [each.get_paths()[0].vertices[:, 1] for each in top.collections]
    assert band.max() == pytest.approx(max(100 * (m["mean_f1"] + m["f1_std"]) for m in metrics[1:]))
    assert band.min() == pytest.approx(min(100 * (m["mean_f1"] - m["f1_std"]) for m in metrics[1:]))
    faces = [line.get_markerfacecolor() for line in top.lines if len(line.get_xdata()) == 1]
    assert faces[-1] == "white" != faces[0]  # the last one has seen the templates that it is audited on


@pytest.mark.parametrize("strength", [0.25, 0.5, 0.75, 1.0])
def test_heat_map_colours_differ_in_lightness_and_in_blue(strength):
    """Lightness, and blue against yellow, differ for red-green colour blindness too."""
    better, worse = (np.array(SCALE((1 + sign * strength) / 2)[:3]) for sign in (1, -1))
    dark, light = (116 * luminance(colour) ** (1 / 3) - 16 for colour in (better, worse))
    assert light - dark > 20 * strength  # CIE L*, in which 2.3 is just noticeable
    shares = [colour[2] / colour.sum() for colour in (better, worse)]
    assert abs(shares[0] - shares[1]) > 0.02
