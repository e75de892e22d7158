"""A run directory is complete or absent, and its record is read as it was written."""

import gzip
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from flip_flop import load_model
from flip_flop.evaluation.audit import audit
from flip_flop.evaluation.run_directory import load_run
from flip_flop.metrics import METRICS
from flip_flop.record import RunRecord
from flip_flop.scoring import ScoringOptions
from tests.cases import read_cases
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.refused import refused

FILES = ["MANIFEST.json", "instances.jsonl.gz", "metrics.json", "run.json", "scores.npz"]


def names(folder):
    return sorted(os.listdir(folder))


def test_written_run_is_loaded(audited, tmp_path):
    out = audited.write(tmp_path / "runs" / "base")
    assert names(out) == FILES
    assert names(tmp_path / "runs") == ["base"]
    assert json.loads((out / "run.json").read_text()) == json.loads(json.dumps(audited.record.to_json()))
    assert json.loads((out / "metrics.json").read_text()) == json.loads(json.dumps(audited.metrics))
    assert np.array_equal(load_run(out).scores, audited.scores)
    with np.load(out / "scores.npz", allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    described = {name: (array.dtype.str[1:], array.shape) for name, array in arrays.items() if array.dtype.kind != "U"}
    assert described == {"scores": ("f4", (5, 4, 3)), "token_counts": ("i8", (5, 4, 3)), "gold": ("i8", (5,))}
    assert arrays["instance_ids"].tolist() == [f"test-{number}" for number in range(1, 6)]
    assert arrays["template_names"].tolist() == ["plain", "truth", "long", "terse"]
    assert (arrays["token_counts"] >= 1).all()


def test_instances_are_stored_in_chat_template(audited, folder, tmp_path):
    out = audited.write(tmp_path / "base")
    with gzip.open(out / "instances.jsonl.gz", "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    assert [line["id"] for line in lines] == [f"test-{number}" for number in range(1, 6)]
    assert lines[0]["prompts"][3] == "The room was good 0."
    assert np.array(lines[0]["choices"]).shape == (4, 3)
    assert list(load_run(out).instances) == [replace(each, label=None) for each in audited.instances]
    chat = load_model(str(folder))
    chat.tokenizer.chat_template = "{% for turn in messages %}<user>{{ turn.content }}</user>{% endfor %}"
    read = load_run(audit(chat, make_task(), quiet=True).write(tmp_path / "chat"))
    assert next(iter(read.instances)).prompts[3] == "<user>The room was good 0.</user>"


def test_flip_rates_of_a_stored_run_are_computed_again_from_its_scores(loaded, tmp_path):
    levels = [{"wording": wording, "order": order} for wording in ("plain", "long") for order in ("first", "swapped")]
    templates = [replace(template, levels=each) for template, each in zip(TEMPLATES, levels, strict=True)]
    run = load_run(audit(loaded, make_task(templates=templates, scale=True), quiet=True).write(tmp_path / "run"))
    flips = {"wording": [(0, 2), (1, 3)], "order": [(0, 1), (2, 3)]}
    for axis, pairs in flips.items():
        differ = [run.predictions[:, u] != run.predictions[:, v] for u, v in pairs]
        assert run.value(f"{axis}_flips") == pytest.approx(np.mean(differ))
        assert METRICS[f"{axis}_flips"].value(run.data) == run.value(f"{axis}_flips")
    assert METRICS["cohen_kappa"].value(run.data) == run.value("cohen_kappa")
    assert run.data.design.is_scale


def test_run_replaces_previous_run(audited, tmp_path):
    out = tmp_path / "base"
    audited.write(out)
    (out / "notes.txt").write_text("of the old run")
    audited.write(out)
    assert names(out) == FILES
    refused(r"E-OUT-USED: .* is not empty\.", audited.write, out, overwrite=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not of a run")
    refused(r"E-OUT-USED: .* is not empty\. Give another --out\.$", audited.write, tmp_path / "mine", overwrite=True)
    assert names(tmp_path) == ["base", "mine"]


# ---- the record ----


RECORDS = read_cases("evaluation/records.yaml")
AUDIT = RECORDS["audit"]
TASK = AUDIT["task"]
MODEL = AUDIT["model"]
TRAINING = RECORDS["training"]
ADAPTED = AUDIT | {"adapter": {"path": "a", "digest": "23", "method": None, "digests": {}, "chat_template": False}}
WITH_OPTIONS = AUDIT | {
    "task": TASK | {"system": "Be brief.", "chat_template_kwargs": {"enable_thinking": False}, "num_too_long": 1},
    "model": MODEL | {"endpoint": "http://127.0.0.1", "quantization": {"load_in_4bit": True}},
}


def write(folder, content):
    (folder / "run.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return folder


@pytest.mark.parametrize("content", [AUDIT, TRAINING, ADAPTED, WITH_OPTIONS])
def test_read_and_written_records_are_equal(content, tmp_path):
    record = RunRecord.read(write(tmp_path, content))
    (tmp_path / "again").mkdir()
    record.write(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "run.json").read_text()) == content


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "is not readable JSON of at most 16 MB (JSONDecodeError)"),
        pytest.param("[" * 100_000, "is not readable JSON of at most 16 MB (RecursionError)", id="deep"),
        ("[]", "is invalid: Input should be an object"),
        ("{}", "is invalid at kind: Field required"),
        (AUDIT | {"kind": "walk"}, "is invalid at kind: Input should be 'audit' or 'train'"),
        ({"kind": "audit", "model": {}}, "is invalid at task: Field required"),
        (AUDIT | {"model": [1]}, "is invalid at model: Input should be an object"),
        (AUDIT | {"scoring": None}, "is invalid at scoring: Input should be an object"),
        (AUDIT | {"seconds": "long"}, "is invalid at seconds: Input should be a valid number"),
        (AUDIT | {"seed": True}, "is invalid at seed: Input should be a valid integer"),
        (AUDIT | {"note": 1}, "is invalid at note: Unexpected keyword argument"),
        (
            AUDIT | {"task": TASK | {"f1": "micro"}},
            "is invalid at task.f1: Input should be 'auto', 'binary' or 'macro'",
        ),
        (AUDIT | {"task": TASK | {"labels": 3}}, "is invalid at task.labels: Input should be a valid array"),
        (AUDIT | {"task": {"name": "moods"}}, "is invalid at task.labels: Field required"),
        (AUDIT | {"task": TASK | {"templates": [{}]}}, "is invalid at task.templates.0.name: Field required"),
    ],
)
def test_a_broken_record_says_where_and_what(content, why, tmp_path):
    line = refused("^E-", RunRecord.read, write(tmp_path, content))
    assert line.startswith(f"E-RUN-BROKEN: {tmp_path / 'run.json'} {why}")
    assert line.endswith("Restore it, or run it again into a new folder.")


def test_a_run_that_is_not_there_and_a_run_of_another_kind_are_missing(tmp_path):
    for folder, words in ((tmp_path / "nowhere", "is not a folder"), (tmp_path, "has no run.json")):
        refused(f"E-RUN-MISSING: {folder} {words}", RunRecord.read, folder)
    write(tmp_path, TRAINING)
    assert RunRecord.read(tmp_path, "train").kind == "train"
    refused(r"E-RUN-MISSING: .* of kind 'train', not 'audit'\. Give the folder", RunRecord.read, tmp_path, "audit")


@pytest.mark.parametrize("content", [None, "[]", '{"mine": 1}', '{"kind": "audit", "model": 3}', AUDIT])
def test_an_adapter_without_a_trainings_record_has_none(content, tmp_path):
    if content is not None:
        write(tmp_path, content)
    assert RunRecord.of_adapter(tmp_path / "adapter") is None


def test_an_adapters_training_is_found_beside_it(tmp_path):
    assert RunRecord.of_adapter(write(tmp_path, TRAINING) / "adapter").training["method"] == "f2c"
    for broken in ("{", {"kind": "train"}):
        write(tmp_path, broken)
        refused("E-RUN-BROKEN", RunRecord.of_adapter, tmp_path / "adapter")


def test_loaded_run_keeps_its_prompts_in_another_folder_and_its_list_of_long_ones(loaded, tmp_path, monkeypatch):
    rows = [*make_rows(), {"text": "word " * 10_000, "mood": 0}]
    run = audit(loaded, make_task(rows), scoring=ScoringOptions(too_long="skip"), quiet=True)
    out = run.write(tmp_path / "runs" / "base")
    monkeypatch.chdir(out.parent)
    read = load_run("base")
    monkeypatch.chdir(tmp_path)
    assert len(list(read.instances)) == 5
    again = read.write("again")
    assert (again / "too_long.csv").read_bytes() == (out / "too_long.csv").read_bytes()
    (out / "instances.jsonl.gz").unlink()
    refused("^E-RUN-MISSING: .*base has no instances", list, read.instances)
    refused("^E-RUN-MISSING", read.write, "third")
