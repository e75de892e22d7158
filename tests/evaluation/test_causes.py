"""The axis that matters most, wordings that fail, and the cheapest remedy, in decisions and tables."""

from dataclasses import replace

import numpy as np
import pytest

from flip_flop import load_run, write_report
from flip_flop.metrics import batch_offsets
from flip_flop.record import AdapterRecord
from flip_flop.report.audit_tables import legend
from flip_flop.report.axes import LEGEND, axis_table
from tests.cases import read_list
from tests.evaluation.test_advice import with_offsets
from tests.report.made_runs import wide_run, write_run
from tests.report.pages import Page

pytestmark = pytest.mark.slow
LABELS = ("World", "Sports", "Business", "Science")
ROWS = 300


def made_run(folder, contents, by_place, *, by_wording=0.0, noise=0.3, is_calibrated=True, has_gold=True):
    """An audit of rotations of four options; each wording reads so much of the content, and adds bias and noise."""
    random = np.random.default_rng(0)
    gold = random.integers(4, size=ROWS)
    signal = np.eye(4)[gold] * random.normal(1.2, 1.0, size=(ROWS, 1))
    columns, levels, templates = [], [], []
    for number, content in enumerate(contents):
        own = noise * random.normal(size=(ROWS, 4)) + by_wording * random.normal(size=4)
        for turn in range(4):
            places = np.roll(by_place, turn)
            columns.append(content * signal + own + places)
            order = " ".join(str(1 + (place + turn) % 4) for place in range(4))
            levels.append({"wording": f"ask {number}", "order": order})
            templates.append((f"ask-{number}-{turn}", "{{ text }}", "A ||| B ||| C ||| D"))
    scores = np.stack(columns, axis=1)
    scores = (scores - np.logaddexp.reduce(scores, axis=2, keepdims=True)).astype(np.float32)
    given = gold if has_gold else np.full(ROWS, -1)
    run = load_run(write_run(folder, "base", scores, given, templates, labels=LABELS, levels=levels))
    if not is_calibrated:
        return run
    run = with_offsets(run, batch_offsets(run.scores))
    run.metrics["calibrated"]["label_prior"] = [0.25] * 4
    return run


@pytest.mark.parametrize("case", read_list("evaluation/remedies.yaml", "remedy"))
def test_second_sentence_is_the_axis_that_matters_most_and_the_third_its_cheapest_remedy(case, tmp_path):
    run = made_run(tmp_path / "run", case["contents"], case["by_place"], **case.get("settings", {}))
    use, second, third, *_ = run.decision.sentences
    assert use.startswith(f"Use {run.decision.template}")
    row, other = (run.axis_rows[axis, None, "raw"] for axis in case["axes"])
    ends = f"{100 * row.low:.1f} to {100 * row.high:.1f}"
    rate = f"{100 * row.flips:.1f} % of {row.pairs:,} pairs of answers (95% interval: {ends}"
    assert second.startswith(f"{case['most']} changes the answer most: {rate}")
    assert ("not clearly more than" in second) is (row.low <= other.high)
    assert third.startswith(case["advice"])


def test_without_labels_a_remedy_is_named_by_its_flips_only(tmp_path):
    run = made_run(tmp_path / "run", [3, 3], [1.2, 0.4, 0, 0], has_gold=False)
    _, cause, remedy = run.decision.sentences
    assert cause.startswith("The order of the options changes the answer most: ")
    assert remedy == "Average over the orders, one pass for each, which ends most of these changes."
    assert np.isnan(run.to_pandas("axes")["accuracy"]).all()
    assert "accuracy" not in axis_table(run).text()


def test_training_is_no_remedy_for_an_adapter(tmp_path):
    run = made_run(tmp_path / "run", [1, 1, 1], [0.1, 0, 0, 0], noise=0.8)
    trained = replace(run, record=replace(run.record, adapter=AdapterRecord(path="x")))
    assert "Train on" in run.decision.text
    assert "Train on" not in trained.decision.text


def test_scorer_of_places_is_rescued_by_an_average(tmp_path):
    run = made_run(tmp_path / "run", [2, 2], [9, 0, 0, 0], is_calibrated=False)
    first, second, third = run.decision.sentences
    assert first.startswith("The model answers by position, not by content: the order of the options changes 100.0 % ")
    assert second.startswith("Average over the orders, one pass for each, which ends most of these changes: accuracy ")
    assert third.startswith("The wording changes 0.0 % of 1,200 pairs ")


def test_table_of_axes_is_the_same_on_a_terminal_in_the_report_and_in_pandas(tmp_path):
    run = made_run(tmp_path / "run", [2, 2, 0.02], [0.6, 0.2, 0, 0])
    frame = run.to_pandas("axes").set_index(["axis", "form"]).loc[("wording", "average")]
    text = f"{100 * frame.flips:.1f} ({100 * frame.low:.1f} to {100 * frame.high:.1f})"
    lines = axis_table(run).text().splitlines()
    assert text in next(line for line in lines if line.startswith("wording "))
    assert [line.split("  ")[0] for line in lines[3:]] == [
        "wording", "order of the options", "- in ask 0", "- in ask 1", "- in ask 2",
    ]  # fmt: skip
    page = Page(write_report([run], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.faults == []
    first, *_ = page.table("In percent", "flips averaged")[1:]
    assert text.replace("(", "").rstrip(")") in first


def test_average_costs_the_prompts_of_all_orders(tmp_path):
    run = made_run(tmp_path / "run", [2, 2, 1], [0.6, 0.2, 0, 0])
    lengths = [10.0 + number for number in range(12)]
    run.metrics["prompt_tokens_per_template"] = dict(zip(run.template_names, lengths, strict=True))
    frame = run.to_pandas("axes").set_index(["axis", "form"]).loc["wording"]
    assert frame.loc[["raw", "calibrated", "average", "calibrated average"], "tokens"].tolist() == [15.5, 15.5, 62, 62]
    frame = run.to_pandas("axes").set_index(["wording", "form"])
    assert frame.loc[[("ask 1", "raw"), ("ask 1", "average")], "tokens"].tolist() == [15.5, 62]
    first, *_ = axis_table(run).text(300).splitlines()[4:]
    assert [*first.split()[-2:]] == ["16", "62"]


def test_wording_is_not_dropped_for_its_demonstrations(tmp_path):
    run = made_run(tmp_path / "run", [2, 2, 2], [0.1, 0, 0, 0], is_calibrated=False)
    scores = run.scores.copy()
    scores[:, 1:4] = [0, -9, -9, -9]
    levels = []
    for number in range(12):
        wording, turn = divmod(number, 4)
        own = {"wording": f"ask {wording}", "examples": "none", "typos": "original"}
        if turn:
            own |= {"examples": f"set {turn}"} if wording == 0 else {"typos": f"0.{turn}"}
        levels.append(own)
    data = replace(run.data, values=scores, design=replace(run.data.design, levels=levels))
    by_examples = replace(run, data=data).decision.sentences
    assert by_examples[1].startswith("Adding examples or changing their set changes the answer most: ")
    assert "Drop the wording" not in " ".join(by_examples)
    scores[:, 0] = [0, -9, -9, -9]
    data = replace(data, values=scores)
    assert "Drop the wording ask 0, which is worse" in replace(run, data=data).decision.text


def test_legend_explains_the_table_of_axes(tmp_path):
    run = made_run(tmp_path / "run", [2, 2], [0.6, 0.2, 0, 0])
    assert [*legend([run])][-len(LEGEND) :] == [*LEGEND]
    data = replace(run.data, design=replace(run.data.design, levels=()))
    assert not {*LEGEND} & {*legend([replace(run, data=data)])}


def test_size_of_a_report_is_linear_in_the_number_of_templates(tmp_path):
    sizes = []
    for number in (50, 100, 200):
        run = wide_run(tmp_path / str(number), num_templates=number)
        sizes.append(len(write_report([run], tmp_path / "report.html").read_bytes()))
    assert sizes[2] - sizes[1] == pytest.approx(2 * (sizes[1] - sizes[0]), rel=0.1)
    text = " ".join(Page((tmp_path / "report.html").read_text(encoding="utf-8")).text.split())
    assert "The first 40 of 200 are shown." in text
