"""A classifier predicts what its audit decided, and refuses another model."""

import json
import shutil

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from flip_flop import audit, load_classifier, load_model, load_run
from flip_flop.record import CLASSIFIER_FILE, Classifier
from flip_flop.scoring import ScoringOptions
from tests.evaluation.conftest import make_rows, make_task
from tests.refused import refused
from tests.tiny import byte_bpe, save_tiny, with_chat_template
from tests.training.conftest import make_task as make_training_task
from tests.training.conftest import rows as training_rows
from tests.training.conftest import run as train_tiny


def votes(predictions):
    return [row["vote"] for row in predictions]


def test_predictions_equal_the_calibrated_ones_of_the_audit_on_all_rows(decided, rows):
    run, classify = load_run(decided), load_classifier(decided)
    assert classify.task.templates.names == ("truth",)
    expected = run.calibrated
    place = run.template_names.index("truth")
    predictions = classify(rows)
    assert votes(predictions) == expected.predictions[:, place].tolist() == [row["mood"] for row in rows]
    for row, scores in zip(predictions, expected.scores[:, place].astype(np.float64), strict=True):
        probs = np.exp(scores) / np.exp(scores).sum()
        assert row["templates"]["truth"]["probs"] == pytest.approx(probs.tolist(), abs=2e-6)
        assert row["confidence"] == max(row["templates"]["truth"]["probs"])


def test_new_rows_one_by_one_use_the_stored_offsets(decided, rows):
    classify = load_classifier(decided)
    new = [{"text": "The wifi was slow."}, {"text": "The staff was kind."}, {"text": "Is it?"}]
    together = classify(new)
    assert [row["id"] for row in together] == ["input-1", "input-2", "input-3"]
    alone = [classify([row])[0] for row in new]
    for one, other in zip(alone, together, strict=True):
        assert one["vote"] == other["vote"]
        assert one["confidence"] == pytest.approx(other["confidence"], abs=1e-5)


def test_stream_reads_rows_in_chunks(decided, rows, monkeypatch):
    monkeypatch.setattr("flip_flop.classifier.load.CHUNK", 16)
    classify, taken = load_classifier(decided), []

    def endless():
        number = 0
        while True:
            taken.append(number)
            yield rows[number % len(rows)]
            number += 1

    stream = classify.stream(endless())
    assert [next(stream)["vote"] for _ in range(33)] == [row["mood"] for row in rows[:33]]
    assert len(taken) == 48


def test_audit_without_a_chosen_template_gives_the_calibrated_vote(folder, tmp_path):
    rows = [{"text": row["text"]} for row in make_rows(60)]
    run = audit(load_model(folder), make_task(rows, labels=None, label_field=None), quiet=True)
    run.write(tmp_path / "run")
    classify = load_classifier(tmp_path / "run")
    assert "It takes labels" in classify.classifier.decision
    assert "calibrated vote" in classify.classifier.decision
    predictions = classify(rows)
    assert votes(predictions) == run.calibrated.data.votes.tolist()
    shares = [list(row["templates"].values()) for row in predictions]
    for row, answers in zip(predictions, shares, strict=True):
        assert row["confidence"] == sum(answer["label"] == row["vote"] for answer in answers) / 4


def test_other_templates_can_be_selected(decided, rows):
    run, classify = load_run(decided), load_classifier(decided, templates=["all"])
    assert votes(classify(rows)) == run.calibrated.data.votes.tolist()
    assert load_classifier(decided, templates=["terse", "plain"]).task.templates.names == ("terse", "plain")
    refused("E-TASK-UNKNOWN: there is no template 'short'", load_classifier, decided, templates=["short"])


def test_model_may_move_but_not_change(decided, folder, rows, tmp_path):
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert votes(load_classifier(decided, moved)(rows[:3])) == [row["mood"] for row in rows[:3]]
    other = save_tiny(tmp_path / "other", seed=4)
    refused("E-CLASSIFIER: the model of .*other is not the one", load_classifier(decided, other), rows)


@pytest.mark.slow
def test_adapter_and_chat_template_are_those_of_the_audit(tmp_path):
    base = save_tiny(tmp_path / "base", tokenizer=with_chat_template(byte_bpe()))
    train_tiny(tmp_path / "f2c", model=str(base))
    loaded = load_model(base, adapter=tmp_path / "f2c" / "adapter")
    run = audit(loaded, make_training_task(), scoring=ScoringOptions(chat_template="on"), quiet=True)
    run.write(tmp_path / "audit")
    classify = load_classifier(tmp_path / "audit", templates=["all"])
    assert votes(classify(training_rows(9, 200))) == run.voting.data.votes.tolist()
    assert classify.scoring.chat_template == "on"
    weights = tmp_path / "f2c" / "adapter" / "adapter_model.safetensors"
    train_tiny(tmp_path / "again", model=str(base), learning_rate=3e-2)
    shutil.copy(tmp_path / "again" / "adapter" / weights.name, weights)
    (tmp_path / "f2c" / "run.json").unlink()
    refused("E-CLASSIFIER: the adapter of .* is not the one", load_classifier(tmp_path / "audit"), training_rows(1))


@pytest.mark.slow
def test_training_writes_the_vote_with_its_stored_offsets(tmp_path):
    base = save_tiny(tmp_path / "base")
    train_tiny(tmp_path / "f2c", model=str(base), task=make_training_task(60), vote_calibration="batch", votes="frozen")
    adapter = shutil.move(tmp_path / "f2c" / "adapter", tmp_path / "moved")
    classify = load_classifier(adapter)
    assert classify.task.templates.names == ("plain", "truth", "long", "terse")
    stored = json.loads((adapter / "classifier.json").read_text())["offsets"]
    rows = training_rows(9, 200)
    task = make_training_task().with_templates(classify.task.templates.names)
    run = audit(load_model(base, adapter=adapter), task, quiet=True)
    moved = run.scores + np.array([stored[name] for name in task.templates.names])
    predictions = classify(rows)
    for row, answers in zip(predictions, moved.argmax(axis=2).tolist(), strict=True):
        assert [answer["label"] for answer in row["templates"].values()] == answers


def edited(decided, tmp_path, **changes):
    content = load_run(decided).decision.classifier.to_json() | changes
    (tmp_path / CLASSIFIER_FILE).write_text(json.dumps(content))
    return tmp_path / CLASSIFIER_FILE


def test_file_is_complete_and_refuses_what_was_not_measured(decided, rows, tmp_path):
    file = edited(decided, tmp_path)
    assert Classifier.read(file) == load_run(decided).decision.classifier
    assert votes(load_classifier(file)(rows[:2])) == [row["mood"] for row in rows[:2]]
    strict = load_classifier(edited(decided, tmp_path, abstain_below=0.9999))
    assert votes(strict(rows[:2])) == [None, None]
    task = json.loads(file.read_text())["task"]
    other = task | {"templates": [task["templates"][0] | {"jinja": "Is it? {{ text }}"}]}
    refused("E-CLASSIFIER: .*text of template 'truth' has", load_classifier, edited(decided, tmp_path, task=other))
    for offsets in ({"truth": [0.0, 1.0]}, {"plain": [0.0, 1.0, 2.0]}, {"truth": [0.0, 1.0, float("nan")]}):
        refused("E-RUN-BROKEN: .*offsets", load_classifier, edited(decided, tmp_path, offsets=offsets))
    refused("E-RUN-BROKEN: .*abstain_below", load_classifier, edited(decided, tmp_path, abstain_below=2.0))
    refused("E-RUN-MISSING", load_classifier, tmp_path / "nowhere")


def test_errors_name_the_row_of_the_stream(decided, monkeypatch):
    monkeypatch.setattr("flip_flop.classifier.load.CHUNK", 2)
    classify = load_classifier(decided)
    fine = [{"text": "a"}] * 4
    words = r"E-TPL-RENDER: template 'truth', rows row 5: there is no field 'text'. Known: name\."
    refused(words, classify, [*fine, {"name": "a"}])
    refused("E-DATA-ROWS: rows row 5 is of type int", classify, [*fine, 5])


@pytest.mark.slow
def test_base_whose_files_are_in_4_bits(tmp_path):
    pytest.importorskip("bitsandbytes")
    base = save_tiny(tmp_path / "base")
    model = AutoModelForCausalLM.from_pretrained(base, quantization_config=BitsAndBytesConfig(load_in_4bit=True))
    model.save_pretrained(base)
    rows = make_rows(9)
    run = audit(load_model(base), make_task(rows), quiet=True)
    assert run.record.model.dtype == "4bit, float32"
    classify = load_classifier(run.write(tmp_path / "audit"), templates=["all"])
    assert votes(classify(rows)) == run.voting.data.votes.tolist()


def test_row_that_exceeds_the_context_has_a_note(decided):
    predictions = load_classifier(decided)([{"text": "short"}, {"text": "long " * 400}])
    assert [row["vote"] is None for row in predictions] == [False, True]
    assert predictions[1]["note"].startswith("too long: ")
