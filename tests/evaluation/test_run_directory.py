"""A run directory is complete or absent."""

import gzip
import json
import os
from dataclasses import replace

import numpy as np
import pytest

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.metrics import METRICS
from flip_flop.report import load_run
from flip_flop.scoring import load_model
from tests.evaluation.conftest import TEMPLATES, make_task

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
    wordings, orders = ("plain", "plain", "long", "long"), ("first", "swapped", "first", "swapped")
    templates = [
        replace(template, wording=wording, order=order)
        for template, wording, order in zip(TEMPLATES, wordings, orders, strict=True)
    ]
    run = load_run(audit(loaded, make_task(templates=templates, scale=True), quiet=True).write(tmp_path / "run"))
    flips = {"wording": [(0, 2), (1, 3)], "order": [(0, 1), (2, 3)]}
    for factor, pairs in flips.items():
        differ = [run.predictions[:, u] != run.predictions[:, v] for u, v in pairs]
        assert run.value(f"{factor}_flips") == pytest.approx(np.mean(differ))
        assert METRICS[f"{factor}_flips"].value(run.data) == run.value(f"{factor}_flips")
    assert METRICS["cohen_kappa"].value(run.data) == run.value("cohen_kappa")
    assert run.data.is_scale


def test_run_replaces_previous_run(audited, tmp_path):
    out = tmp_path / "base"
    audited.write(out)
    (out / "notes.txt").write_text("of the old run")
    audited.write(out)
    assert names(out) == FILES
    with pytest.raises(InputError, match=r"E-OUT-USED: .* is not empty\."):
        audited.write(out, overwrite=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("not of a run")
    with pytest.raises(InputError, match=r"E-OUT-USED: .* is not empty\. Give another --out\.$"):
        audited.write(tmp_path / "mine", overwrite=True)
    assert names(tmp_path) == ["base", "mine"]
