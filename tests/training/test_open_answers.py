"""Training on open answers: generated answers as candidates, the files of a run, and what is refused."""

from collections import Counter

import pytest
from peft import PeftModel

from flip_flop import audit
from flip_flop.errors import InputError
from flip_flop.prompts import AnswerFormat, Template
from flip_flop.scoring.open_answers import as_choices
from flip_flop.tasks import RowsSource, Task
from flip_flop.training import make_config, train
from tests.evaluation.test_open_answers import grouped
from tests.tiny import byte_bpe
from tests.training.conftest import load_tiny, record_of, rows, signal_in

TEMPLATES = tuple(Template(name, f"{name} {{{{ text }}}}", None) for name in ("one", "two", "three"))
SETTINGS = {"max_steps": 3, "per_device_train_batch_size": 4, "lora_r": 4, "use_cpu": True, "learning_rate": 1e-2}


def open_task(count=12, **form):
    data = {"train": RowsSource(rows(count), "made rows"), "validation": RowsSource(rows(7, 100), "more rows")}
    data["test"] = RowsSource(rows(9, 200), "other rows")
    return Task("open", TEMPLATES, data, answer=AnswerFormat(**({"kind": "text", "max_tokens": 3} | form)))


def answered(texts, references=()):
    return as_choices(grouped(texts, references), seed=0)


def test_candidates_are_the_shortest_texts_of_each_key():
    texts = [["It is 4", "4.0", "no", "5"], ["?", "??", "-", "x"], ["7", "7", "7", "7 or 8"]]
    first, last = answered(texts, ["5"])
    assert (first.id, last.id) == ("0", "2")  # no answer of the second can be read
    assert Counter(first.choices[0]) == Counter({"4.0": 1, "5": 1, "": 3})
    assert len(set(first.choices)) == 1
    assert first.written == ("4.0", "4.0", "", "5")
    assert first.choices[0][first.label] == "5"
    assert last.choices[0][last.label] == ""  # no template answers with the reference
    assert last.written == ("7", "7", "7", "7 or 8")
    assert answered(texts)[0].label is None
    several = answered(texts, ["4", "5"])[0]
    assert several.choices[0][several.label] == "5"  # the shortest right answer
    with pytest.raises(InputError, match="No generated answer can be read"):
        answered([["?", "no"]])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("open") / "run"
    run = train(load_tiny(), open_task(), make_config(SETTINGS), out, quiet=True, keep_worse=True)
    return run, out


def test_a_run_is_complete_and_its_answers_were_measured(trained):
    run, out = trained
    record = record_of(out)
    assert record["training"]["vote_calibration"] == "none"
    assert record["training"]["selected_by"] == "last"
    assert record["training"]["survey"]["vote_label_shares"] == []
    change = record["training"]["validation"]
    assert change["num_instances"] == 7
    assert "Task `open`, open answers. Trained without labels" in (out / "adapter" / "README.md").read_text(
        encoding="utf-8"
    )
    task = open_task()
    on_validation = Task("open", TEMPLATES, {"test": task.data["validation"]}, answer=task.answer)
    digests = set()
    adapted = PeftModel.from_pretrained(load_tiny().model, run.adapter)
    for model, when in ((load_tiny().model, "before"), (adapted, "after")):
        measured = audit(model, byte_bpe(), on_validation, quiet=True)
        digests.add(measured.record.scoring["prompts_digest"])
        for name in ("observed_agreement", "unmapped_share", "answer_length"):
            assert change[name][when] == pytest.approx(measured.value(name)), (name, when)
    assert len(digests) == 1  # the prompts are the same, whatever the answers


def test_a_run_that_was_stopped_and_resumed_gives_the_same_adapter(trained, tmp_path, monkeypatch):
    out, config = tmp_path / "run", make_config(SETTINGS)
    with monkeypatch.context() as patch:
        signal_in(patch, 2)
        assert train(load_tiny(), open_task(), config, out, quiet=True, keep_worse=True).stopped_by is not None
    again = train(load_tiny(), open_task(), config, out, quiet=True, keep_worse=True, resume=True)
    first = trained[0].adapter / "adapter_model.safetensors"
    assert (again.adapter / "adapter_model.safetensors").read_bytes() == first.read_bytes()
    assert record_of(out)["training"]["votes_digest"] == record_of(trained[1])["training"]["votes_digest"]


@pytest.mark.parametrize("method", ["bct", "opct", "ssd", "swarm"])
def test_other_methods_train_on_open_answers(method, tmp_path):
    config = make_config(SETTINGS | {"method": method})
    assert train(load_tiny(), open_task(), config, tmp_path / "run", quiet=True, keep_worse=True).adapter


@pytest.mark.parametrize(
    ("changes", "form", "words"),
    [
        ({"protocol": "paper"}, {}, "E-OPEN-ANSWER: votes are online"),
        ({}, {"extract": "never"}, "E-DATA-ROWS: No generated answer can be read"),
        ({"vote_calibration": "contextual"}, {}, "E-OPEN-ANSWER"),
    ],
)
def test_what_open_answers_do_not_support_is_one_line(tmp_path, changes, form, words):
    config = make_config(SETTINGS | changes)
    with pytest.raises(InputError, match=words):
        train(load_tiny(), open_task(**form), config, tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "run.json").exists()
