"""`study plan`: cells, sizes, tokens and time, by arithmetic that can be done by hand."""

import re
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.studies.estimate import estimate, estimate_lines
from flip_flop.studies.grid import expand
from flip_flop.studies.plan import Openers, Setup
from flip_flop.studies.sizes import ASSUMED_TOKENS, count_characters
from flip_flop.studies.study import Settings, Subsets, load_study, narrow
from flip_flop.tasks.catalog import catalog_entry, catalog_names
from tests.cli.conftest import flip_flop  # noqa: F401 - a fixture
from tests.studies.plans import DEMO, small, write_task

QWEN = Setup("Qwen/Qwen2.5-3B-Instruct")


def opened():
    from flip_flop.cli.study import openers

    return openers()


@pytest.fixture
def no_rows(monkeypatch, tmp_path):
    """Nothing at hand: no templates, no data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("FLIP_FLOP_PROMPTSOURCE", "FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)


def test_the_papers_sizes_where_no_row_is_at_hand(no_rows):
    study = load_study("study1")
    found = estimate(study, QWEN, opened())
    assert len(found.cells) == 33 + 44
    assert found.parameters == 3e9
    for cell, planned in zip(found.cells, expand(study).trainings, strict=False):
        assert cell.rows == catalog_entry(planned.task).paper["train"]
        assert not cell.at_hand


def test_the_arithmetic_of_a_training_and_of_an_audit(no_rows):
    study = narrow(load_study("study1"), tasks=["cb"], methods=["base", "f2c"])
    found = estimate(study, QWEN, opened())
    training, base = found.cells[0], found.cells[1]
    tokens = ASSUMED_TOKENS["cb"][1]
    trained, scored = 3 * 193 * tokens, (193 + 4 * 57) * tokens
    assert training.tokens == trained + scored
    assert training.operations_per_parameter == 4 * trained + 2 * scored
    assert base.tokens == 57 * tokens
    assert found.seconds(base, 100.0) == pytest.approx(2 * 57 * tokens * 3e9 / 1e14)


def test_fewer_templates_and_steps_cost_less(no_rows):
    study = narrow(load_study("study3"), tasks=["rte"])
    five, ten = estimate(study, QWEN, opened()).cells[:2]
    assert (five.templates, ten.templates) == (5, 10)
    assert five.tokens == ten.tokens / 2
    short = narrow(study, settings={"max_steps": "10", "per_device_train_batch_size": "4"})
    tokens, found = ASSUMED_TOKENS["rte"][1], estimate(short, QWEN, opened()).cells[1]
    epochs = 40 / 1490
    assert found.tokens == pytest.approx(tokens * (40 + 1490 + 1000 * (1 + epochs)))


def test_the_limit_is_one_of_the_validation_split_too(no_rows, tmp_path):
    papers = estimate(narrow(load_study("study1"), tasks=["cb"], limit=22), QWEN, opened()).sizes["cb"]
    assert (papers.train, papers.validation, papers.test) == (22, 22, 22)
    sizes = estimate(small(limit=22), DEMO, opened()).sizes["demo_clear"]
    assert (sizes.train, sizes.validation, sizes.test) == (22, 22, 22)
    path = str(write_task(tmp_path / "task"))  # no validation split: a tenth of the sample is held out
    sizes = estimate(small(tasks=(path,), limit=10), DEMO, opened()).sizes[path]
    assert (sizes.train, sizes.validation, sizes.test) == (9, 1, 9)


@pytest.mark.parametrize("name", ["num_train_epochs", "max_steps", "gradient_accumulation_steps", "logging_steps"])
@pytest.mark.parametrize("value", [None, [3], {"a": 3}])
def test_a_setting_without_a_number_is_refused(name, value):
    study = small(settings=Settings({name: value}))
    with pytest.raises(InputError, match=f"E-CONFIG-VALUE: {name} .*It must be"):
        estimate(study, DEMO, opened())


def test_a_setting_that_may_be_none_may_be_none():
    assert estimate(small(settings=Settings({"save_total_limit": None})), DEMO, opened()).cells


def test_a_task_of_ones_own_whose_rows_are_gone_is_no_task_of_the_paper(tmp_path):
    path = write_task(tmp_path / "task")
    (tmp_path / "task" / "train.csv").unlink()
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*train\.csv"):
        estimate(small(tasks=(str(path),)), DEMO, opened())


@pytest.mark.parametrize("subsets", [Subsets((99,), 2), Subsets((2,), 99), Subsets((4,), 5)])
def test_templates_that_the_run_would_refuse_are_refused(subsets):
    assert estimate(small(template_subsets={"demo_clear": Subsets((3,), 2)}), DEMO, opened()).cells
    with pytest.raises(InputError, match="E-STUDY-TEMPLATES"):
        estimate(small(template_subsets={"demo_clear": subsets}), DEMO, opened())


def test_templates_that_the_paper_does_not_count_are_refused_without_rows(no_rows):
    study = narrow(load_study("study3"), tasks=["rte"])
    for subsets in (Subsets((11,), 5), Subsets((5,), 11)):
        with pytest.raises(InputError, match="E-STUDY-TEMPLATES: task 'rte' has 10 templates, fewer than the 11"):
            estimate(replace(study, template_subsets={"rte": subsets}), QWEN, opened())


def test_every_dataset_of_the_paper_has_a_length():
    assert set(ASSUMED_TOKENS) == set(catalog_names())


def test_rows_at_hand_are_counted():
    found = estimate(small(methods=("base", "cce"), limit=None), DEMO, opened())
    sizes = found.sizes["demo_clear"]
    assert (sizes.train, sizes.validation, sizes.test, sizes.templates, sizes.at_hand) == (500, 200, 300, 5, True)
    assert 150_000 < found.parameters < 170_000
    assert 50 < sizes.tokens / sizes.templates < 120


def test_tokens_by_characters_are_those_of_the_prompts(tmp_path):
    path = write_task(tmp_path / "task")
    study = small(tasks=(str(path),), methods=("base", "cce"), limit=None, settings=Settings())
    found = estimate(study, Setup("owner/none-7b"), opened())
    sizes = found.sizes[str(path)]
    assert (sizes.train, sizes.validation, sizes.test) == (11, 1, 9)  # a tenth of 12 is held out
    # "0 number 3 of test?": 19 characters and 5 tokens for each of 4 templates; No and Yes are one token each.
    assert sizes.tokens == 4 * count_characters("0 number 3 of test?") == 20
    assert found.parameters == 7e9


@pytest.mark.parametrize(
    ("model", "parameters"),
    [
        ("Qwen/Qwen2.5-3B-Instruct", 3e9),
        ("Qwen/Qwen2.5-0.5B", 5e8),
        ("EleutherAI/pythia-70m", 7e7),
        ("gpt2", None),
        ("a7b/b2b-model", None),
    ],
)
def test_parameters_by_name(no_rows, model, parameters):
    study = narrow(load_study("base_spread"), tasks=["rte"])
    found = estimate(study, Setup(model), opened())
    assert found.parameters == parameters
    assert (found.seconds(found.cells[0], 100.0) is None) == (parameters is None)
    assert "there is no time" in found.assumptions[-1] or parameters


def test_nothing_loads_a_model(no_rows):
    def never(*arguments):
        raise AssertionError("a model was loaded")

    real = opened()
    estimate(small(), DEMO, Openers(real.task, never, real.model_folder))


def test_the_lines_list_every_cell_and_what_was_assumed(no_rows):
    study = load_study("study1")
    lines = list(estimate_lines(study, estimate(study, QWEN, opened()), 140.0))
    assert sum(line.startswith("train ") for line in lines) == 33
    assert sum(line.startswith("audit ") for line in lines) == 44
    assert re.search(r"^train  f2c on rte, seed 0 +1,490\* +10 +12\.7 M +13\.1 min$", "\n".join(lines), re.M)
    assert any("140 TFLOP/s" in line for line in lines)
    assert any("paper's table" in line for line in lines)


def test_plan_from_the_command_line(flip_flop, no_rows):  # noqa: F811 - the fixture
    shown = flip_flop("study", "plan", "study2", "--model", QWEN.model)
    assert shown.code == 0
    assert "8 trainings" in shown.out
    assert "91 audits" in shown.out
    for arguments, code in (
        (("plan", "study1"), "E-STUDY-MODEL"),
        (("plan", "study1", "-m", "m", "--set", "x"), "E-CONFIG-KEY"),
        (("plan", "study1", "-m", "m", "--tflops", "0"), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--device", "tpu"), "E-MODEL-DEVICE"),
        (("plan", "study1", "-m", "m", "--tasks", ""), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--methods", " , "), "E-STUDY-VALUE"),
        (("plan", "study1", "-m", "m", "--seeds", "-1"), "E-STUDY-VALUE"),
        (("plan", "study2", "-m", "m", "--tasks", "rte"), "E-STUDY-VALUE"),
        (("status", "study1", "--out", "nowhere"), "E-STUDY-MISSING"),
        (("run", "nothing"), "E-STUDY-UNKNOWN"),
    ):
        shown = flip_flop("study", *arguments)
        assert (shown.code, shown.err.partition(":")[0]) == (2, code)
        assert shown.err.count("\n") == 1
