"""All kinds of models and rows give the same scores in Python."""

import copy
import json
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from flip_flop import Task, audit, load_model, load_run, predict, write_predictions
from flip_flop.errors import InputError
from flip_flop.prompts import TemplateSet
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.tiny import byte_bpe, tiny_model

TASK_FILE = """\
name: moods
data: {test: rows.jsonl}
label_field: mood
labels: [0, 1, 2]
templates:
"""


@pytest.fixture(scope="module")
def expected(loaded):
    return audit(loaded, make_task(), quiet=True)


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows()))
    templates = "".join(f"  - {json.dumps(asdict(template))}\n" for template in TEMPLATES)
    (folder / "task.yaml").write_text(TASK_FILE + templates)
    return folder / "task.yaml"


def test_all_kinds_of_models_are_accepted(loaded, folder, expected):
    task, model, tokenizer = make_task(), loaded.model, loaded.tokenizer
    trainer = SimpleNamespace(model=model, processing_class=tokenizer)
    for given in (str(folder), Path(folder), (model, tokenizer), model, trainer):
        assert np.array_equal(audit(given, task, quiet=True).scores, expected.scores)
    assert np.array_equal(audit(model, tokenizer, task, quiet=True).scores, expected.scores)


@pytest.mark.parametrize(
    ("prompts", "choices"),
    [
        ("ab", [["a", "b"], ["c", "d"]]),
        (["x", "y"], ["bad", "fun"]),
        (["x", None], [["a", "b"]] * 2),
        (["x"], [[1, 2]]),
    ],
)
def test_rows_without_texts_are_rejected(loaded, prompts, choices):
    with pytest.raises(InputError, match="E-DATA-ROWS"):
        audit(loaded, [{"prompts": prompts, "choices": choices}], quiet=True)


def test_rendered_rows_have_no_inputs_without_content(loaded):
    rows = [asdict(instance) for instance in make_task().instances("test")]
    with pytest.raises(InputError, match="E-CALIBRATION"):
        audit(loaded, rows, quiet=True, calibrate="contextual")


def test_predictions_are_not_written_with_other_rows(loaded, tmp_path):
    task = make_task()
    split = task.render("test")
    found = predict(loaded, split, quiet=True)
    for suffix in ("csv", "jsonl"):
        with pytest.raises(InputError, match="E-DATA-ROWS: There are 4 predictions and 5 rows"):
            write_predictions(found[1:], [0, 1, 2], tmp_path / f"out.{suffix}", split.rows)


def test_other_tokenizer_is_used(loaded):
    other = copy.deepcopy(loaded.tokenizer)
    other.chat_template = "{% for message in messages %}<{{ message.content }}>{% endfor %}"
    assert audit(loaded, other, make_task(), quiet=True).record.scoring["chat_template"] is True


def test_all_kinds_of_rows_are_accepted(loaded, expected, task_file):
    task = make_task()
    rows = [asdict(instance) for instance in task.instances("test")]
    for given in (task, task_file, str(task_file), task.render("test"), rows, datasets.Dataset.from_list(rows)):
        found = audit(loaded, given, quiet=True)
        assert np.array_equal(found.scores, expected.scores)
        assert found.value("mean_f1") == expected.value("mean_f1")
        assert found.record.task.num_instances == 5


def test_all_kinds_of_task_data_are_accepted(loaded, expected, task_file):
    rows = make_rows()
    for given in (rows, datasets.Dataset.from_list(rows), task_file.with_name("rows.jsonl"), iter(rows)):
        task = Task("moods", TemplateSet(TEMPLATES), {"test": given}, labels=[0, 1, 2], label_field="mood")
        assert np.array_equal(audit(loaded, task, quiet=True).scores, expected.scores)
        assert task.digest() == make_task().digest()
    by_split = datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})
    listed = Task("moods", list(TEMPLATES), by_split, labels=(0, 1, 2), label_field="mood")
    assert listed.digest() == make_task().digest()
    assert listed.instances("test") == make_task().instances("test")


def test_predictions_take_rows_without_labels(loaded, task_file):
    rows = [{"text": row["text"]} for row in make_rows()]
    answers = predict(loaded, make_task().with_rows(rows), quiet=True)
    assert [row["id"] for row in answers] == [f"test-{number}" for number in range(1, 6)]
    from_file = predict((loaded.model, loaded.tokenizer), make_task().with_rows(str(task_file.with_name("rows.jsonl"))))
    assert [row["vote"] for row in from_file] == [row["vote"] for row in answers]


def test_model_object_has_no_digests_or_training(loaded, folder, tmp_path, monkeypatch):
    adapted = get_peft_model(load_model(folder).model, LoraConfig(task_type="CAUSAL_LM", r=2))
    (tmp_path / "run.json").write_text("{}")  # next to a folder without an adapter
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    record = audit(adapted, make_task(), quiet=True).record
    assert (record.name, record.training, record.model.digest) == ("adapter", None, None)
    assert (record.model.name, record.model.num_parameters) == (str(folder), loaded.record.num_parameters)


def refused(code, *arguments):
    with pytest.raises(InputError, match=code) as caught:
        audit(*arguments, quiet=True)
    return str(caught.value)


def test_unsupported_models_and_rows_are_rejected(loaded):
    task, rows = make_task(), [asdict(instance) for instance in make_task().instances("test")]
    assert "task.with_rows(rows)" in refused("E-DATA-ROWS", loaded, make_rows())
    refused("E-DATA-ROWS", loaded, [rows[0], rows[0]])
    refused("E-DATA-ROWS", loaded, [rows[0] | {"label": 3}])
    refused("E-DATA-ROWS", loaded, [])
    assert "Give the tokenizer too." in refused("E-MODEL-FILE", tiny_model("qwen2"), task)
    refused("E-MODEL-KIND", (torch.nn.Linear(2, 2), byte_bpe()), task)
    with pytest.raises(TypeError, match="0 follow the model"):
        audit(loaded)


def test_a_limit_takes_the_same_sample_of_a_task_a_split_and_rows(loaded):
    task = make_task()
    split = task.render("test")
    rows = [asdict(instance) for instance in split.instances]
    ids = [each.id for each in task.instances("test", limit=3, seed=5)]
    for given in (task, split, rows):
        assert list(audit(loaded, given, limit=3, seed=5, quiet=True).instance_ids) == ids
    with pytest.raises(InputError, match=r"E-TASK-KEY: the limit is 0\."):
        audit(loaded, rows, limit=0)


def test_audit_has_line_table_and_frames(expected, tmp_path):
    assert repr(expected).startswith("Audit(base, ")
    assert len(repr(expected)) < 400
    assert "95% interval" in expected._repr_html_()
    record = replace(expected.record, name="<script>")
    assert "<script" not in replace(expected, record=record)._repr_html_()
    metrics = expected.to_pandas().set_index("metric")
    assert metrics.value["observed_agreement"] == expected.value("observed_agreement")
    assert (metrics.low["mean_f1"], metrics.high["mean_f1"]) == expected.interval("mean_f1")
    scores = expected.to_pandas("scores")
    assert len(scores) == expected.scores.size
    row = scores[(scores.id == "test-2") & (scores.template == "long") & (scores.label == "1")].iloc[0]
    assert row.score == expected.scores[1, 2, 1]
    assert scores.groupby(["id", "template"]).probability.sum().to_numpy() == pytest.approx(1)


def test_flips_are_answers_outside_majority(expected, tmp_path):
    flips = expected.to_pandas("flips")
    slow = []
    for row, name in enumerate(expected.instance_ids):
        own = [max(range(3), key=lambda label: expected.scores[row, column][label]) for column in range(4)]
        vote = max(range(3), key=lambda label: (own.count(label), expected.data.votes[row] == label))
        slow += [(name, expected.template_names[column]) for column in range(4) if own[column] != vote]
    assert list(zip(flips.id, flips.template, strict=True)) == slow
    assert slow
    assert (flips.margin >= 0).all()
    texts = {each.id: each for each in expected.instances}
    assert flips.prompt[0] == texts[flips.id[0]].prompts[expected.template_names.index(flips.template[0])]
    read = load_run(str(expected.write(str(tmp_path / "run"))))
    assert read.to_pandas("flips").equals(flips)
