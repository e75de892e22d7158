"""The pictures: three formats each, the same bytes each time, and colours that more eyes than most can tell apart."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from flip_flop.studies.figures import FORMATS, draw_boxes, draw_curves, draw_heatmaps, picture_bytes
from flip_flop.studies.figures.heatmaps import SCALE, luminance
from flip_flop.studies.summary import Absent, Entry, Summary, paper_entries, summarise_results
from tests.studies.made_results import MODEL, Maker, study2, study3, transfer_grid

STARTS = {"pdf": b"%PDF-", "svg": b"<?xml", "png": b"\x89PNG"}
# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
CONFUSIONS = {
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
}


def with_f1(entries, count=5):
    return tuple(
        replace(e, f1_per_template={f"t{n}": e.values["mean_f1"][0] * (0.8 + 0.05 * n) for n in range(count)})
        for e in entries
    )


def every_picture():
    own = Summary(with_f1(paper_entries()), (MODEL,))
    return [
        draw_boxes(own, all_methods=False),
        draw_boxes(own, all_methods=True),
        *draw_heatmaps(transfer_grid(), "f2c"),
    ]


def texts(picture) -> list[str]:
    return [text.get_text() for axes in picture.figure.axes for text in axes.texts]


def test_each_picture_comes_in_three_formats_with_the_same_bytes_each_time():
    digests = []
    for _ in range(2):
        pictures = every_picture()
        assert len({picture.name for picture in pictures}) == 5
        files = {(p.name, kind): picture_bytes(p, kind) for p in pictures for kind in FORMATS}
        assert all(content.startswith(STARTS[kind]) for (_, kind), content in files.items())
        digests.append({place: hashlib.sha256(content).hexdigest() for place, content in files.items()})
    assert digests[0] == digests[1]


def test_a_heat_map_holds_every_change_with_its_sign():
    maps = {picture.name: picture for picture in draw_heatmaps(transfer_grid(), "f2c")}
    assert list(maps) == ["transfer_mean_f1", "transfer_f1_std", "transfer_observed_agreement"]
    grid = transfer_grid().about("transfer")
    for name, picture in maps.items():
        figure = name.removeprefix("transfer_")
        expected = sorted(f"{100 * entry.change(figure):+.1f}".replace("-", "−") for entry in grid)
        assert sorted(texts(picture)) == expected
        assert len(expected) == 80


def test_better_is_green_for_sigma_too_where_lower_is_better():
    maps = {picture.name: picture for picture in draw_heatmaps(transfer_grid(), "f2c")}
    for name, better_sign in (("transfer_mean_f1", "+"), ("transfer_f1_std", "−")):
        axes = maps[name].figure.axes[0]
        cells = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
        for text in axes.texts:
            x, y = text.get_position()
            (cell,) = [c for c in cells if c.get_x() < x < c.get_x() + 1 and c.get_y() < y < c.get_y() + 1]
            red, green, _, _ = cell.get_facecolor()
            if abs(float(text.get_text().replace("−", "-"))) > 0.5:
                assert (green > red) == text.get_text().startswith(better_sign)


def test_a_pair_that_is_not_there_is_hatched_and_the_own_task_is_empty(tmp_path):
    results = [r for r in study2(Maker(tmp_path)) if (r.source, r.task) != ("copa", "rte")]
    summary = summarise_results(results)
    lacking = replace(summary, absent=(Absent("f2c", "rte", "copa", "transfer", None, 0),))
    axes = draw_heatmaps(lacking, "f2c")[0].figure.axes[0]
    hatched = [patch for patch in axes.patches if patch.get_hatch()]
    assert [(patch.get_x(), patch.get_y()) for patch in hatched] == [(0, 1)]
    assert len(axes.texts) == 3
    (legend,) = axes.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["not there yet"]
    assert not [patch for patch in draw_heatmaps(summary, "f2c")[0].figure.axes[0].patches if patch.get_hatch()]


@pytest.mark.parametrize("kind", CONFUSIONS)
@pytest.mark.parametrize("strength", [0.25, 0.5, 0.75, 1.0])
def test_better_and_worse_of_equal_size_differ_for_eyes_that_confuse_red_and_green(kind, strength):
    seen = [simulated(SCALE((1 + sign * strength) / 2)[:3], CONFUSIONS[kind]) for sign in (1, -1)]
    lights = [lightness(colour) for colour in seen]
    assert lights[1] - lights[0] > 20 * strength  # CIE L*, in which 2.3 is just noticeable
    assert abs(hue_axis(seen[0]) - hue_axis(seen[1])) > 0.05


def test_numbers_in_cells_have_contrast():
    for picture in draw_heatmaps(transfer_grid(), "f2c"):
        axes = picture.figure.axes[0]
        for text in axes.texts:
            x, y = text.get_position()
            (cell,) = [c for c in axes.patches if c.get_x() < x < c.get_x() + 1 and c.get_y() < y < c.get_y() + 1]
            light = luminance(cell.get_facecolor()[:3])
            ink = 1.0 if text.get_color() == "white" else 0.0
            assert (max(light, ink) + 0.05) / (min(light, ink) + 0.05) >= 4.2  # WCAG asks 3 of large, 4.5 of small type


def test_the_boxes_are_the_quartiles_and_every_template_a_dot():
    entries = [entry for entry in paper_entries() if entry.task in ("rte", "cb")]
    picture = draw_boxes(Summary(with_f1(entries, count=7), (MODEL,)), all_methods=True)
    axes = picture.figure.axes[0]
    dots = [line for line in axes.lines if line.get_marker() == "o"]
    assert [len(dot.get_ydata()) for dot in dots] == [7] * 8
    assert [text.get_text() for text in axes.get_xticklabels()] == ["CB", "RTE"]
    median = 100 * np.median(list(with_f1(entries, 7)[0].f1_per_template.values()))
    assert any(np.allclose(line.get_ydata(), median) for line in axes.lines if line.get_marker() != "o")


def test_without_gold_labels_there_is_no_box():
    assert draw_boxes(Summary(tuple(paper_entries()), (MODEL,)), all_methods=True) is None


def test_study_3_draws_f1_with_its_band_and_agreement_over_k(tmp_path):
    results = study3(Maker(tmp_path))
    picture = draw_curves(summarise_results(results))
    top, bottom = picture.figure.axes
    metrics = [result.metrics for result in results]
    for axes, figure in ((top, "mean_f1"), (bottom, "observed_agreement")):
        curve = next(line for line in axes.lines if len(line.get_xdata()) == 3)
        assert list(curve.get_xdata()) == [3, 6, 10]
        assert np.allclose(curve.get_ydata(), [100 * m[figure] for m in metrics[1:]])
        base = next(line for line in axes.lines if list(line.get_xdata()) == [0, 1])  # across the whole axis
        assert np.allclose(base.get_ydata(), 100 * metrics[0][figure])
    (band,) = [each.get_paths()[0].vertices[:, 1] for each in top.collections]
    assert band.max() == pytest.approx(max(100 * (m["mean_f1"] + m["f1_std"]) for m in metrics[1:]))
    assert band.min() == pytest.approx(min(100 * (m["mean_f1"] - m["f1_std"]) for m in metrics[1:]))
    faces = [line.get_markerfacecolor() for line in top.lines if len(line.get_xdata()) == 1]
    assert faces[-1] == "white" != faces[0]  # the last one has seen the templates that it is audited on


def test_nothing_lies_outside_a_picture_or_on_another_label(tmp_path):
    pictures = [*every_picture(), draw_curves(summarise_results(study3(Maker(tmp_path))))]
    for picture in pictures:
        canvas = picture.figure.canvas
        canvas.draw()
        renderer = canvas.get_renderer()
        page = picture.figure.bbox
        for axes in picture.figure.axes:
            for labels in (axes.get_xticklabels(), axes.get_yticklabels()):
                if any(label.get_rotation() for label in labels):
                    labels = []  # the boxes of slanted words overlap where the words do not
                boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
                inside = [box for box in boxes if box.width]
                assert not any(a.overlaps(b) for n, a in enumerate(inside) for b in inside[n + 1 :]), picture.name
            for text in [*axes.texts, axes.title, axes.xaxis.label, axes.yaxis.label]:
                if text.get_text():
                    box = text.get_window_extent(renderer)
                    assert box.x0 >= -1, (picture.name, text)
                    assert box.x1 <= page.x1 + 1, (picture.name, text)
        for legend in picture.figure.legends:
            box = legend.get_window_extent(renderer)
            assert box.x0 >= -1, picture.name
            assert box.x1 <= page.x1 + 1, picture.name


def test_a_name_with_a_dollar_sign_or_of_any_length_is_only_a_name():
    entries = [replace(e, task="$x^{broken" + 30 * "w") for e in paper_entries() if e.task == "rte"]
    picture = draw_boxes(Summary(with_f1(entries), (MODEL,)), all_methods=True)
    assert picture_bytes(picture, "png").startswith(STARTS["png"])


def simulated(colour, confusion):
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in colour]
    return np.clip(np.array(confusion) @ np.array(linear), 0, 1)


def lightness(linear) -> float:
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return 116 * light ** (1 / 3) - 16


def hue_axis(linear) -> float:
    """Blue against yellow, what such eyes have left."""
    return float((linear[0] + linear[1]) / 2 - linear[2]) / float(sum(linear))


def test_a_curve_that_does_not_move_gets_an_axis_of_a_few_points():
    values = {"mean_f1": (0.0,), "f1_std": (0.0,), "observed_agreement": (1.0,)}
    base = Entry("base", "rte", None, "unseen", values, num_templates=0, audited=5)
    trained = replace(base, method="f2c", source="rte", num_templates=5, held_out=True)
    for axes in draw_curves(Summary((base, trained), (MODEL,))).figure.axes:
        low, high = axes.get_ylim()
        assert high - low > 3.99
