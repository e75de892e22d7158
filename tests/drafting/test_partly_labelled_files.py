"""`flip-flop init` on files in which some rows have no label."""

import pytest

from flip_flop.tasks import load_task
from tests.drafting.files import csv, text


@pytest.mark.parametrize(("values", "labels"), [(("no", "yes"), ["no", "yes"]), (("0.0", "1.0"), [0, 1])])
def test_unlabelled_rows_of_a_file_are_for_training(values, labels, flip_flop, folder):
    rows = csv("text,urgent", lambda n: f"{text(n)},{'' if n % 8 == 7 else values[n % 2]}", 120)
    (folder / "a.csv").write_text(rows)  # pandas writes integers with missing values as 0.0 and 1.0
    result = flip_flop("init", "a.csv", "--kind", "yes_no")
    assert (result.code, result.err) == (0, "")
    task = load_task("task.yaml")
    assert list(task.labels) == labels
    train, test = task.render("train").gold.tolist(), task.render("test").gold.tolist()
    assert train.count(-1) == 15
    assert -1 not in test
    assert f"  rows    train {len(train)} (15 unlabelled), test {len(test)}\n" in result.out
    assert "# A file without splits is divided into half of the labelled rows for testing and all" in drafted(folder)
    assert "whose labels choose the checkpoint" in drafted(folder)


def test_a_missing_word_is_a_label_if_it_is_named(flip_flop, folder):
    words = ("None", "Mild", "Severe", "NA")
    (folder / "a.csv").write_text(csv("text,pain", lambda n: f"{text(n)},{words[n % 4]}", 60))
    shown = flip_flop("init", "a.csv").out
    assert "  labels  pain: Mild, Severe (NA, None: unlabelled unless --labels has them)\n" in shown
    shown = flip_flop("init", "a.csv", "--labels", "None,Mild,Severe", "--overwrite").out
    assert "  labels  pain: None, Mild, Severe (NA: unlabelled unless --labels has them)\n" in shown
    assert "(15 unlabelled)" in shown
    task = load_task("task.yaml")
    assert task.labels == words[:3]
    gold = [*task.render("train").gold.tolist(), *task.render("test").gold.tolist()]
    assert [gold.count(label) for label in (0, 1, 2, -1)] == [15] * 4


def drafted(folder):
    return (folder / "task.yaml").read_text()


def test_all_labelled_rows_are_for_testing_if_most_rows_have_no_label(flip_flop, folder):
    (folder / "a.csv").write_text(csv("text,urgent", lambda n: f"{text(n)},{n % 2 if n < 10 else ''}", 60))
    result = flip_flop("init", "a.csv")
    assert "  rows    train 50 (50 unlabelled), test 10\n" in result.out
    assert "is divided into the labelled rows for testing and all others for training. Training rows are" in drafted(
        folder
    )
    assert "a tenth of the training rows is held out, on which the checkpoint is chosen." in drafted(folder)
    assert len(load_task("task.yaml").instances("test")) == 10
