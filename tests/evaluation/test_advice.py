"""Which template to use and when to abstain: tables and sentences of an audit."""

import itertools
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from benchmarks.coverage import LABELS as LABEL_SHARES
from benchmarks.coverage import wrong_decisions

from flip_flop import compare, load_run, write_report
from flip_flop.console import point_interval, points
from flip_flop.evaluation.decision import Decision
from flip_flop.metrics import METRICS, Design, Scores, batch_offsets, predicted, summarise
from tests.cases import read_cases
from tests.metrics import oracle
from tests.report.made_runs import HOSTILE, TEMPLATES, make_scores, write_run
from tests.report.pages import Page

LABELS = ("negative", "positive")
TABLES = ("templates", "instances", "coverage")


def make_audit(folder, scores, gold, templates=TEMPLATES, **options):
    return load_run(write_run(folder, "base", scores, gold, templates, labels=LABELS, **options))


@pytest.fixture
def scores():
    return make_scores(1, 120, 8, 2, 0.4)


@pytest.fixture
def run(tmp_path, scores):
    return make_audit(tmp_path / "run", *scores)


def without_gold(run):
    return replace(run, data=replace(run.data, gold=np.full(len(run.gold), -1)))


def with_offsets(run, offsets):
    """The audit with the metrics of calibrated scores."""
    shifted = (run.scores + offsets).astype(np.float32)
    metrics = {
        **summarise(
            shifted, run.gold, run.template_names, intervals=False, **run.record.task.design(run.template_names)
        ),
        **{"method": "batch", "label_prior": [0.5, 0.5], "votes_changed": 0.0, "vote_share_drift": 0.0},
        "offsets": dict(zip(run.template_names, offsets.tolist(), strict=True)),
    }
    return replace(run, metrics={**run.metrics, "calibrated": metrics})


def report_of(run, tmp_path):
    page = Page(write_report([run.path], tmp_path / "report.html").read_text(encoding="utf-8"))
    assert page.faults == []
    return page


def test_templates_are_a_table_best_first(run):
    table = run.to_pandas("templates")
    assert table["template"].tolist() == [run.template_names[index] for index in run.template_ranking.order]
    macro = [macro_f1(answers, run.gold) for answers in run.predictions.T]
    assert table["macro_f1"].tolist() == pytest.approx([macro[index] for index in run.template_ranking.order])
    assert table["macro_f1"].is_monotonic_decreasing
    assert table["rank"].tolist() == list(range(1, 9))
    assert table["difference"].isna().tolist() == [True] + [False] * 7
    assert table["ece"].between(0, 1).all()
    assert table["prompt_tokens"].isna().all()  # the run is older than the value
    free = without_gold(run).to_pandas("templates")
    assert free["agreement"].is_monotonic_decreasing
    assert free[["macro_f1", "ece"]].isna().all(axis=None)


def test_decision_names_the_best_template_and_what_to_fix(tmp_path, scores):
    values, gold = scores
    values[:, 2] = np.log([0.9, 0.1])
    run = make_audit(tmp_path / "run", values, gold)
    macro = [macro_f1(answers, gold) for answers in run.predictions.T]
    best = max(range(8), key=macro.__getitem__)
    decision = run.decision
    assert best != 0
    assert (decision.template, decision.is_calibrated) == (TEMPLATES[0][0], False), "the first of the tied ones"
    assert decision.macro_f1 == pytest.approx(macro[0])
    low, high = decision.interval
    first = Scores(values[:, [0]], gold, design=Design("macro"))
    single = METRICS["macro_f1"].interval(first)
    assert low < single[0] < macro[0] < single[1] < high, "it accounts for the choice among eight templates"
    vote = macro_f1(run.data.votes, gold)
    close = [name for name, _ in decision.close]
    assert close[0] == TEMPLATES[best][0]
    gain = METRICS["macro_f1"].change_interval(first, run.data.voted)
    use, tie, voting, fix = decision.sentences
    assert use == (
        f"Use {TEMPLATES[0][0]}: macro-F1 {100 * macro[0]:.1f} (95% interval for the choice among 8: "
        f"{100 * low:.1f} to {100 * high:.1f}), chance 50.0, on 120 labelled rows."
    )
    assert tie == (
        f"{TEMPLATES[0][0]} is not clearly worse than the best, {close[0]} ({100 * macro[best]:.1f}). "
        "Ties go to the first template, then to raw scores, then to short prompts."
    )
    change = f"{points(vote - macro[0])}, 95% interval: {point_interval(gain)}"
    assert voting == f"The vote over 8 templates, 8 passes per answer, has {100 * vote:.1f} ({change})."
    assert fix == "Fix first: good_bad (constant: one label for every row)."
    assert "good_bad" not in close
    assert without_gold(run).decision == Decision(
        (
            "It takes labels to choose a template; at least 50 are needed.",
            "Fix first: good_bad (constant: one label for every row).",
        )
    )
    assert without_gold(run).abstention_advice == ""


TIES = read_cases("evaluation/ties.yaml")


@pytest.mark.parametrize("case", TIES.values(), ids=TIES)
def test_ties_go_to_the_first_template_then_to_raw_scores_then_to_short_prompts(case, tmp_path):
    raw, after = case["raw"], case["after"]
    gold = np.repeat([0, 1], 100)
    margins = np.repeat(2.0 - 4.0 * gold[:, None], 3, axis=1)
    for template in range(3):
        margins[: after[template], template] = -2
        margins[200 - (raw[template] - after[template]) :, template] = -0.5  # the preference for label 0 is 1
    values = np.stack([margins + 1, np.zeros_like(margins)], axis=2)
    run = make_audit(tmp_path / "run", values.astype(np.float32), gold, TEMPLATES[:3])
    run.metrics["prompt_tokens_per_template"] = {"plain": 9.0, "true_false": 8.0, "good_bad": 7.0}
    run = with_offsets(run, np.tile([-1.0, 0.0], (3, 1)))
    assert (run.predictions != gold[:, None]).sum(axis=0).tolist() == raw
    assert (run.calibrated.predictions != gold[:, None]).sum(axis=0).tolist() == after
    assert (run.decision.template, run.decision.is_calibrated) == (case["template"], case["is_calibrated"])
    answers = np.concatenate([run.predictions, run.calibrated.predictions], axis=1).T
    is_best = run.decision.macro_f1 == max(macro_f1(each, gold) for each in answers)
    assert ("not clearly worse than the best, " in run.decision.text) != is_best


def macro_f1(answers, gold):
    return fmean(oracle.f1_of_label(answers, gold, label) for label in (0, 1))


def test_decision_after_training_names_what_the_base_has_without_it(tmp_path):
    def audits(folder, gold=None):
        for name, method, pull in (("base", None, 0.0), ("f2c", "f2c", 0.7)):
            scores, labels = make_scores(1, 120, 8, 2, pull)
            for _ in range(50 if method else 0):  # until batch calibration changes nothing
                scores = (scores + batch_offsets(scores)).astype(np.float32)
            gold = labels if gold is None else gold
            yield load_run(write_run(folder / name, name, scores, gold, TEMPLATES, labels=LABELS, method=method))

    base, trained = audits(tmp_path / "labelled")
    base, gold = with_offsets(base, np.linspace(-1, 1, 16).reshape(8, 2)), base.gold
    values = []
    for run in (base, trained, base.calibrated):
        pairs = [(left == right).mean() for left, right in itertools.combinations(run.predictions.T, 2)]
        values.append((fmean(pairs), fmean(macro_f1(answers, gold) for answers in run.predictions.T)))
    (agreement, f1), (new_agreement, new_f1), free = [[f"{100 * value:.1f}" for value in pair] for pair in values]
    vote = macro_f1(base.calibrated.data.votes, gold)
    verdict, change, reached, free_vote = compare(base, trained).decision
    assert verdict.startswith(
        f"Training helped: a template has on average macro-F1 {free[1]} calibrated, without training, "
        f"{new_f1} with f2c (+"
    )
    assert change.startswith(f"f2c, not calibrated: agreement {agreement} to {new_agreement} (+")
    assert f", macro-F1 {f1} to {new_f1} (+" in change
    assert reached == f"Without training, base (calibrated) has agreement {free[0]}."
    begins = (
        f"The majority vote of base (calibrated) has macro-F1 {100 * vote:.1f} for 8 passes per answer. With one pass,"
    )
    assert free_vote.startswith(f"{begins} f2c is not clearly different from it (+{100 * (values[1][1] - vote):.1f}, ")
    (agreement_alone,) = compare(*audits(tmp_path / "unlabelled", np.full(120, -1))).decision
    assert agreement_alone == f"{change.replace(', not calibrated', '').split('), ')[0]})."
    calibrated = with_offsets(trained, np.linspace(-1, 1, 16).reshape(8, 2))
    verdict, _, _, free_vote = compare(base, calibrated).decision
    reached = 100 * fmean(macro_f1(answers, gold) for answers in calibrated.calibrated.predictions.T)
    assert f"macro-F1 {free[1]} calibrated, without training, {reached:.1f} with f2c (calibrated) (" in verdict
    assert "With one pass, f2c (calibrated) is " in free_vote


def test_runs_that_are_calibrated_differently_are_compared_without_calibration(tmp_path):
    scores, gold = make_scores(1, 120, 4, 2, 0.3)
    base, same = (
        load_run(write_run(tmp_path / name, name, scores, gold, TEMPLATES[:4], labels=LABELS, method=method))
        for name, method in (("base", None), ("f2c", "f2c"))
    )
    alike = "The runs are not calibrated in the same way, so they are compared without calibration."
    offsets = batch_offsets(scores)
    assert not np.array_equal(predicted(scores + offsets), predicted(scores))
    with_prior = with_offsets(same, batch_offsets(scores, [0.1, 0.9]))
    with_prior.metrics["calibrated"]["label_prior"] = [0.1, 0.9]
    base = with_offsets(base, offsets)
    for other in (with_prior, same):  # the second one as with --calibrate none
        verdict, _, sentence, *_ = compare(base, other).decision
        assert verdict.startswith("Training did not clearly help: a template has on average macro-F1 ")
        assert " with f2c (±0.0, 95% CI " in verdict
        assert "calibrated" not in verdict
        assert sentence == alike
    assert alike not in compare(base, with_offsets(same, offsets)).decision


def test_comparison_with_a_trained_baseline_names_the_run_to_give_first(tmp_path):
    values = make_scores(1, 60, 4, 2, 0.4)
    base, trained = (
        load_run(write_run(tmp_path / name, name, *values, TEMPLATES[:4], labels=LABELS, method=method))
        for name, method in (("base", None), ("f2c", "f2c"))
    )
    note = "The baseline, f2c, is trained. To compare with base, give it first."
    assert note in compare(trained, base).decision
    assert note not in compare(base, trained).decision


def test_trained_baseline_is_not_called_untrained(tmp_path):
    runs = []
    for name, pull in (("swarm", 0.2), ("f2c", 0.8)):
        values = make_scores(1, 60, 4, 2, pull)
        run = load_run(write_run(tmp_path / name, name, *values, TEMPLATES[:4], labels=LABELS, method=name))
        runs.append(with_offsets(run, batch_offsets(run.scores)))
    (change,) = compare(*runs).decision
    assert change.startswith("f2c, not calibrated: agreement ")


def test_collapse_is_reported_without_labels(tmp_path):
    scores, _ = make_scores(1, 60, 4, 2, 0.4)
    base, collapsed = (
        load_run(write_run(tmp_path / name, name, values, np.full(60, -1), TEMPLATES[:4], labels=LABELS, method=method))
        for name, values, method in (("base", scores, None), ("f2c", scores + 9 * np.arange(2), "f2c"))
    )
    assert compare(base, collapsed).decision[-1] == "f2c has collapsed."
    assert collapsed.decision.sentences[1] == "f2c has collapsed."
    assert "has collapsed" not in base.decision.text


BOTH_ORDERS = [{"wording": wording, "order": order} for wording in "ab" for order in ("given", "swapped")]
# A verdict is content plus the preference for the first option, which is label 0 in the given order.
PREFERENCE = np.array([1, -1, 1, -1])


def judge(folder, content, preference, gold, **options):
    """The audit of a judge of pairs whose label 0 has the margin ``content`` plus or minus ``preference``."""
    margins = content[:, None] + preference * PREFERENCE
    scores = np.stack([margins, np.zeros_like(margins)], axis=2)
    scores = scores - np.log(np.exp(scores).sum(axis=2, keepdims=True))
    return make_audit(folder, scores.astype(np.float32), gold, TEMPLATES[:4], levels=BOTH_ORDERS, **options)


def with_batch_calibration(run):
    return with_offsets(run, batch_offsets(run.scores))


def test_judge_that_answers_by_position_is_not_used(tmp_path):
    random = np.random.default_rng(0)
    content, gold = random.normal(size=60), np.arange(60) % 2
    run = judge(tmp_path / "run", 0.1 * content, 1.0, gold)
    assert run.value("order_flips") == 1.0
    low = 0.025 ** (1 / 60)
    assert run.decision == Decision(
        (
            "The model answers by position, not by content: the order of the options changes 100.0 % of "
            f"120 pairs of answers (95% interval: {100 * low:.1f} to 100.0).",
            "Use a stronger model, or let it grade one answer at a time.",
            f"The wording changes 0.0 % of 120 pairs of answers (95% interval: 0.0 to {100 - 100 * low:.1f}).",
        )
    )
    page = report_of(run, tmp_path)
    assert "The model answers by position, not by content" in page.text
    order, *wordings, wording = page.table("In percent", "flips one pass")[1:]
    assert [each[0] for each in (order, *wordings, wording)] == ["order of the options", "- in a", "- in b", "wording"]
    assert (order[2], wording[2]) == (f"100.0 {100 * low:.1f} to 100.0", f"0.0 0.0 to {100 - 100 * low:.1f}")
    assert {row[0].split()[1] for row in page.table("Template", "Cohen's κ")[1:]} == set(run.template_names)


def test_stable_answers_are_of_all_rows_though_few_have_a_verdict(tmp_path):
    content, gold = np.random.default_rng(0).normal(size=80), np.full(80, -1)
    gold[np.argsort(np.abs(content))[-3:]] = [0, 1, 0]  # the clearest ones
    run = judge(tmp_path / "run", content, 1.0, gold)
    stable = (run.predictions == run.predictions[:, :1]).all(axis=1)
    text = report_of(run, tmp_path).text
    assert f"the same under all templates {100 * stable.mean():.1f} " in " ".join(text.split())


def test_judge_with_a_preference_for_a_position_is_used_after_calibration(tmp_path):
    content = np.random.default_rng(0).normal(size=120)
    run = with_batch_calibration(judge(tmp_path / "run", content, 1.5, (content < 0).astype(int)))
    first, *others = run.decision.sentences
    assert first.startswith("The model answers by position, not by content: the order of the options changes ")
    assert first.endswith("; 16.7 after calibration).")
    assert run.decision.is_calibrated
    assert others[0].startswith(f"Use {run.decision.template}, calibrated: ")
    assert all(is_calibrated for _, is_calibrated in run.decision.close)


def test_judge_that_no_calibration_helps_has_one_hint(tmp_path):
    content, gold = np.random.default_rng(0).normal(size=60), np.arange(60) % 2
    run = with_batch_calibration(judge(tmp_path / "run", content, 9.0, gold))
    assert "None of these templates is clearly above chance: the best, " in run.decision.sentences[1]
    assert run.decision.text.casefold().count("use a stronger model") == 1


def test_judge_is_told_which_calibrated_templates_are_constant(tmp_path):
    content = np.random.default_rng(0).normal(size=120)
    run = judge(tmp_path / "run", content, 1.5, (content < 0).astype(int))
    offsets = batch_offsets(run.scores)
    offsets[3] = [-9, 9]
    fixes = with_offsets(run, offsets).decision.sentences[-2]
    assert fixes == "Fix first: polarity (constant after calibration: one label for every row)."


def test_other_judges_have_the_axis_that_changes_most_in_the_second_sentence(tmp_path):
    content = np.random.default_rng(0).normal(size=120)
    run = judge(tmp_path / "run", content, 0.1, (content < 0).astype(int))
    repeated = {"repeat_flips": 0.01, "intervals": {**run.metrics["intervals"], "repeat_flips": [0.0, 0.05]}}
    repeated["flip_pairs"] = {**run.metrics["flip_pairs"], "repeat_flips": 480}
    run = replace(run, metrics=run.metrics | repeated)
    _, order, *_, again = run.decision.sentences
    rate, (low, high) = 100 * run.value("order_flips"), run.interval("order_flips")
    assert 0 < rate < 20
    assert order == (
        f"The order of the options changes the answer most: {rate:.1f} % of 240 pairs of answers (95% interval: "
        f"{100 * low:.1f} to {100 * high:.1f})."
    )
    assert again == "Asking the same question again changes 1.0 % of 480 pairs of answers (95% interval: 0.0 to 5.0)."
    repetition = run.to_pandas("axes").set_index("axis").loc["again"]
    assert (repetition.flips, repetition.low, repetition.high, repetition.pairs) == (0.01, 0.0, 0.05, 480)
    assert run.decision.template
    table = run.to_pandas("instances")
    flips = run.predictions[:, 0] != run.predictions[:, 1]
    assert table["changed_by"].tolist() == ["order" if flip else "" for flip in flips]
    assert (table["confidence"] < 1).tolist() == flips.tolist()


def test_template_whose_label_words_the_model_does_not_say_is_fixed_first(run):
    names = run.template_names
    unsaid = replace(run, metrics={**run.metrics, "own_label_mass_per_template": dict.fromkeys(names, 0.012)})
    others = [name for name in names if name != unsaid.decision.template]
    listed = [f"{name} (label words have 1.2 % of the probability)" for name in others[:3]]
    assert unsaid.decision.sentences[-1] == f"Fix first: {', '.join(listed)} and 4 more."
    assert unsaid.decision.sentences[1] == (
        f"Score the labels of {unsaid.decision.template}, as predict does, instead of generating text: they have 1.2 % "
        "of the probability."
    )


def test_clearly_worse_template_is_not_close(tmp_path, scores):
    values, gold = scores
    values[:] = np.log([0.3, 0.7])
    values[:, 3] += 3 * (np.arange(2) == gold[:, None])
    decision = make_audit(tmp_path / "run", values, gold).decision
    assert (decision.template, decision.macro_f1, decision.close) == (TEMPLATES[3][0], 1.0, ())
    assert not [sentence for sentence in decision.sentences if "not clearly better" in sentence]


def test_abstention_has_the_numbers_of_the_coverage_table(run):
    table = run.to_pandas("coverage")
    shares = table[table["by"] == "vote share"]
    assert shares["coverage"].iloc[-1] == 1
    assert shares["accuracy"].iloc[-1] == pytest.approx(run.value("vote_accuracy"))
    point = min(shares[:-1].itertuples(), key=lambda row: abs(row.coverage - 0.8))
    assert f"Abstain on {100 * (1 - point.coverage):.1f} % " in run.abstention_advice
    assert (
        f"vote {100 * point.accuracy:.1f} instead of {100 * shares['accuracy'].iloc[-1]:.1f}" in run.abstention_advice
    )


def test_abstention_is_not_advised_without_a_clear_gain(tmp_path):
    gold = np.arange(60) % 2
    right = np.ones((60, 5), dtype=bool)
    right[:12, :2] = right[40:44] = False  # 12 uncertain votes are right, and 4 certain ones wrong
    right[:3, 2:4] = False  # 3 uncertain ones are wrong
    scores = np.where(right[:, :, None] == (np.arange(2) == gold[:, None, None]), -0.1, -2.0).astype(np.float32)
    run = make_audit(tmp_path / "run", scores, gold, TEMPLATES[:5])
    assert run.decision.template
    assert (
        run.abstention_advice
        == "Abstaining on 20.0 % does not clearly help: accuracy of the vote 91.7 instead of 88.3."
    )


def test_one_wrong_row_is_no_clear_gain_of_abstention(tmp_path):
    gold = np.arange(100) % 2
    right = np.ones((100, 5), dtype=bool)
    right[:17, 0] = right[0] = False  # 17 uncertain rows, and one of them is wrong
    scores = np.where(right[:, :, None] == (np.arange(2) == gold[:, None, None]), -0.1, -2.0)
    scores[0, 0, :] = scores[0, 0, ::-1].copy()
    run = make_audit(tmp_path / "run", scores.astype(np.float32), gold, TEMPLATES[:5])
    assert run.abstention_advice == (
        "Abstaining on 17.0 % does not clearly help: accuracy of the vote 100.0 instead of 99.0."
    )
    assert run.decidable_advice.startswith("Auto-decidable: 100.0 % of the rows (--abstain-below 0.8). At most 5 %")
    assert run.decidable_advice in report_of(run, tmp_path).text


def test_threshold_of_many_templates_is_between_two_vote_shares(tmp_path):
    gold = np.arange(100) % 2
    right = np.ones((100, 150), dtype=bool)
    right[:20, :2] = False  # vote shares of 148 of 150
    right[:15] = ~right[:15]  # and wrong votes
    right[20:80, 0] = False  # 149 of 150
    templates = [(f"t{number}", "{{ text }}", "no ||| yes") for number in range(150)]
    scores = np.where(right[:, :, None] == (np.arange(2) == gold[:, None, None]), -0.1, -2.0).astype(np.float32)
    run = make_audit(tmp_path / "run", scores, gold, templates)
    command = f"predict --with {tmp_path / 'run'} --templates all --abstain-below 0.993"
    assert run.abstention_advice.startswith(f"Abstain on 20.0 % ({command}): ")
    assert "80.0 % of the rows (--abstain-below 0.993)" in run.decidable_advice


def test_vote_has_the_form_of_the_chosen_template(tmp_path):
    run = make_audit(tmp_path / "run", *make_scores(1, 120, 4, 2, 0.4), TEMPLATES[:4])
    both = with_offsets(run, np.tile([0.0, -1.0], (4, 1)))  # calibration does harm
    assert not both.decision.is_calibrated
    (vote,) = (sentence for sentence in run.decision.sentences if sentence.startswith("The vote over 4 templates"))
    assert vote.partition(" (")[0] in both.decision.text
    assert both.abstention_advice == run.abstention_advice
    page = report_of(load_run(both.write(tmp_path / "both")), tmp_path)
    expected = [
        f"{100 * row.accuracy:.1f}" for row in run.to_pandas("coverage").query("by == 'vote share'").itertuples()
    ]
    assert [row[2] for row in page.table("Vote share at least", "Accuracy")[1:]] == expected


def test_instances_have_a_confidence_and_their_worst_template(run):
    table = run.to_pandas("instances")
    for row, rows, predictions, vote in zip(
        table.itertuples(), run.scores.astype(float), run.predictions, run.data.votes, strict=True
    ):
        assert row.confidence == (predictions == vote).mean()
        assert row.vote == LABELS[vote]
        worst = min(range(8), key=lambda template: rows[template, vote] - rows[template, 1 - vote])
        assert (row.worst_template, row.worst_label) == (TEMPLATES[worst][0], LABELS[predictions[worst]])


def test_generated_answers_have_no_probabilities(tmp_path, scores):
    values, gold = scores
    certain = np.where(values == values.max(axis=2, keepdims=True), 0, -np.inf).astype(np.float32)
    certain[3, 1] = -np.inf
    run = make_audit(tmp_path / "run", certain, gold)
    templates, instances, coverage = (run.to_pandas(table) for table in TABLES)
    assert templates[["label_preference", "preferred_label", "ece"]].isna().all(axis=None)
    assert instances["margin"].isna().all()
    assert instances["worst_template"].isna().tolist() == (instances["confidence"] == 1).tolist()
    assert set(coverage["by"]) == {"vote share"}
    assert run.decision.template
    page = report_of(run, tmp_path)
    assert "Errors of the majority vote" in page.text
    assert "Reliability" not in page.text


def test_one_template_is_used_or_not_and_has_a_table(tmp_path):
    values, gold = make_scores(1, 60, 1, 2, 0.4)
    run = make_audit(tmp_path / "run", values, gold, TEMPLATES[:1])
    assert run.decision.text.startswith(f"Use {TEMPLATES[0][0]}: macro-F1 ")
    assert (len(run.decision.sentences), run.abstention_advice) == (1, "")
    assert run.to_pandas("templates")["agreement"].isna().all()
    assert run.to_pandas("instances")["worst_template"].isna().all()
    page = report_of(run, tmp_path)
    assert "Which template?" not in page.text
    assert "Reliability" in page.text


def constant(gold):
    return np.tile(np.log([0.1, 0.9]), (len(gold), 3, 1))


def guesses(gold, num_labels=2):
    return np.log(np.random.default_rng(0).dirichlet(np.ones(num_labels), size=(len(gold), 8)))


GUESS = "None of these templates is clearly above chance: the best, "


@pytest.mark.parametrize(
    ("scores", "gold", "words"),
    [
        (constant, np.arange(60) % 2, "None of these templates works: every one is constant. List the labels"),
        (constant, (np.arange(99) % 11 > 0).astype(int), GUESS),  # binary F1 is 95.2
        (guesses, np.arange(60) % 2, GUESS),
        (lambda gold: guesses(gold, 5), np.arange(60) % 5, GUESS),
    ],
)
def test_templates_that_ignore_the_rows_are_not_recommended(tmp_path, scores, gold, words):
    values = scores(gold).astype(np.float32)
    labels = tuple("abcde"[: values.shape[2]])
    templates = [(f"t{number}", "{{ text }}", " ||| ".join(labels)) for number in range(values.shape[1])]
    run = load_run(write_run(tmp_path / "guess", "base", values, gold, templates, labels=labels))
    assert run.decision.template is None
    assert run.decision.text.startswith(words)
    assert words != GUESS or f"chance {100 / len(labels):.1f}. List the labels" in run.decision.text
    assert run.decision.text.endswith(" List the labels in the prompt or use a stronger model.")
    assert run.abstention_advice == ""
    listing = [(name, f"{answers} {jinja}", answers) for name, jinja, answers in templates]
    listed = load_run(write_run(tmp_path / "listed", "base", values, gold, listing, labels=labels))
    assert listed.decision.text.endswith(". Use a stronger model.")
    inside = [(name, f"cable {answers[1:]} {jinja}", answers) for name, jinja, answers in templates]
    parts = load_run(write_run(tmp_path / "parts", "base", values, gold, inside, labels=labels))
    assert "List the labels" in parts.decision.text, "cable does not list the label a"
    chat = replace(listed, record=replace(listed.record, scoring={"chat_template": True}))
    assert chat.decision.text.endswith(" Compare --chat-template on and off (--compare-chat) or use a stronger model.")
    compared = replace(chat, record=replace(chat.record, command="flip-flop audit --compare-chat"))
    assert compared.decision.text.endswith(". Use a stronger model.")
    right = values + 9 * (np.arange(len(labels)) == gold[:, None, None])
    run = load_run(write_run(tmp_path / "right", "base", right, gold, templates, labels=labels))
    number = len(templates)
    assert run.decision.text.startswith(f"Use t0: macro-F1 100.0 (95% interval for the choice among {number}: ")


@pytest.mark.parametrize("number", [1, 49])
def test_fewer_than_fifty_labels_recommend_no_template(tmp_path, scores, number):
    values, gold = scores
    gold[number:] = -1
    for rows in (slice(None), slice(number)):
        run = make_audit(tmp_path / "run", values[rows], gold[rows])
        assert run.decision.template is None
        few = "1 labelled row is" if number == 1 else f"{number} labelled rows are"
        assert run.decision.text == f"{few} too few to choose a template; at least 50 are needed."


def test_one_of_many_good_templates_is_used(tmp_path):
    gold = np.arange(60) % 2
    templates = [(f"t{number}", "{{ text }}", "no ||| yes") for number in range(120)]
    scores = np.tile(np.log(np.where(gold[:, None, None] == np.arange(2), 0.9, 0.1)), (1, 120, 1))
    assert make_audit(tmp_path / "run", scores.astype(np.float32), gold, templates).decision.template == "t0"


def test_labels_of_one_kind_choose_no_template(tmp_path, scores):
    run = make_audit(tmp_path / "run", scores[0], np.zeros(120, int))
    assert run.decision == Decision(
        ("All labelled rows have one label. To choose a template, rows of the other labels are needed.",)
    )


def test_calibrated_form_is_chosen_if_its_answers_are_better(tmp_path):
    values, gold = make_scores(1, 300, 4, 2, 0.8)
    values[..., 1] += 0.8  # all templates prefer one label
    run = make_audit(tmp_path / "run", values, gold, TEMPLATES[:4])
    assert not run.decision.is_calibrated
    both = with_offsets(run, np.tile([0.0, -0.8], (4, 1)))
    assert both.decision.is_calibrated
    assert both.decision.macro_f1 > run.decision.macro_f1
    assert f"(predict --with {tmp_path / 'run'} --templates all --abstain-below" in both.abstention_advice
    assert both.decision.text.startswith(f"Use {both.decision.template}, calibrated: ")
    assert "The calibrated vote over 4 templates, 4 passes per answer, has " in both.decision.text
    assert both.decision.classifier.offsets == {both.decision.template: (0.0, -0.8)}
    assert run.decision.classifier.offsets == {}


def test_report_has_the_order_and_the_large_numbers_of_the_recommended_form(tmp_path):
    values, gold = make_scores(1, 300, 4, 2, 0.8)
    preferences = np.array([0.9, 1.0, 1.1, 1.2])[:, None] * [0.0, 1.0]
    run = make_audit(tmp_path / "run", values + preferences, gold, TEMPLATES[:4])
    both = with_offsets(run, -preferences - [[0.3, 0.0], [0.2, 0.0], [0.1, 0.0], [0.0, 0.0]])
    for form, audited in ((run, run), (both.calibrated, both)):
        assert audited.decision.is_calibrated == (audited is both)
        page = Page(write_report([audited], tmp_path / "report.html").read_text(encoding="utf-8"))
        f1 = [macro_f1(answers, gold) for answers in form.predictions.T]
        ranks = sorted(range(4), key=lambda index: -f1[index])
        rows = page.table("Template", "Chart")[1:]
        assert [row[0].split()[-1] for row in rows[:4]] == [run.template_names[index] for index in ranks]
        agreement, vote = (f"{100 * form.value(name):.1f}" for name in ("observed_agreement", "vote_f1"))
        text = " ".join(page.text.split())
        assert f"Agreement Pₒ {agreement} " in text
        assert f"Majority vote F1 {vote} {form.name}, 4 passes" in text
        assert ("the form that the result recommends" in text) == (audited is both)


def test_names_are_escaped_in_sentences(tmp_path, scores):
    templates = [(f"{HOSTILE}{number}", "{{ text }}", "no ||| yes") for number in range(8)]
    run = make_audit(tmp_path / "run", *scores, templates)
    texts = run.decision.text + without_gold(run).decision.text
    assert not {"\u202e", "\x1b", "\n"} & {*texts}


@pytest.mark.slow
@pytest.mark.parametrize("title", LABEL_SHARES)
def test_few_decisions_about_simulated_templates_are_wrong(title):
    wrong = wrong_decisions(60, LABEL_SHARES[title], 20)
    assert max(wrong.values()) <= 0.05, wrong


@pytest.mark.slow
def test_report_shows_ranking_and_coverage(run, tmp_path):
    page = report_of(run, tmp_path)
    assert f"{' '.join(run.decision.sentences)} Apply it: {run.decision.command}" in page.text
    assert run.abstention_advice in page.text
    ranking = [row[0].split()[1] for row in page.table("Template", "Label preference")[1:]]
    assert ranking == run.to_pandas("templates")["template"].tolist()
    assert run.decision.text.count(f"the best, {ranking[0]} (") == 1, "both rank by macro-F1"
    assert "sorted by macro-F1, constant templates last" in page.text
    shares = run.to_pandas("coverage").query("by == 'vote share'")
    expected = [f"{100 * value:.1f}" for value in shares["accuracy"]]
    assert [row[2] for row in page.table("Vote share at least", "Accuracy")[1:]] == expected
