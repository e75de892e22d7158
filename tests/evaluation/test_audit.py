"""Metrics of an audit match slow loops over naive scores, and its record is complete."""

import json

import numpy as np
import pytest
from peft import LoraConfig, get_peft_model

from flip_flop.evaluation.audit import audit
from flip_flop.metrics import summarise
from flip_flop.record import RunRecord, TaskRecord
from flip_flop.scoring import PromptEncoder, load_model
from tests.evaluation.conftest import make_rows, make_task
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe


@pytest.fixture(scope="module")
def found(loaded):
    return audit(loaded, make_task(), quiet=True)


@pytest.fixture(scope="module")
def naive(loaded):
    encoder = PromptEncoder(byte_bpe())
    return naive_scores(loaded.model, [encoder.encode(row) for row in make_task().instances("test")])


def test_scores_match_naive_scores_in_order(found, naive):
    assert found.scores.shape == (5, 4, 3)
    assert found.scores.dtype == np.float32
    np.testing.assert_allclose(found.scores, naive, rtol=0, atol=2e-6)
    assert found.gold.tolist() == [0, 1, 2, 0, 1]
    assert found.template_names == ("plain", "truth", "long", "terse")


def test_metrics_match_scores(found):
    mass = {
        name: found.metrics[f"{name}_per_template"] for name in ("own_label_mass", "preferred_tokens", "prompt_tokens")
    }
    expected = summarise(found.scores, found.gold, found.template_names)
    assert found.metrics == expected | {f"{name}_per_template": values for name, values in mass.items()}


def test_prompt_tokens_are_counted_by_the_tokenizer(found):
    tokenizer, rows = byte_bpe(), make_task().instances("test")
    for at, name in enumerate(found.template_names):
        lengths = [len(tokenizer(row.prompts[at])["input_ids"]) for row in rows]
        assert found.metrics["prompt_tokens_per_template"][name] == pytest.approx(sum(lengths) / len(lengths))


def test_record_suffices_to_repeat_audit(found, loaded):
    record = found.record.to_json()
    assert (record["kind"], record["name"], record["adapter"], record["training"]) == ("audit", "base", None, None)
    assert record["flip_flop_version"] == record["versions"]["flip_flop"]
    assert found.record.model == loaded.record
    task = record["task"]
    assert (task["name"], task["labels"], task["split"], task["f1"]) == ("moods", [0, 1, 2], "test", "macro")
    assert (task["num_instances"], task["has_gold"]) == (5, True)
    assert [template["name"] for template in task["templates"]] == list(found.template_names)
    assert task["templates"][1]["jinja"] == "True, false or maybe: {{ text }}"
    assert {"source", "sha256"} <= task["data"].keys()
    assert {"delimiter", "chat_template", "backend", "boundary_merged", "bos"} <= record["scoring"].keys()
    assert {"python", "torch", "transformers", "peft"} <= record["versions"].keys()
    assert {"machine", "processor", "cpu_count", "gpu"} <= record["hardware"].keys()
    json.dumps(record, allow_nan=False)
    json.dumps(found.metrics, allow_nan=False)


def test_gold_labels_are_optional_and_change_no_score(loaded, found):
    rows = [row | {"mood": (row["mood"] + 1) % 3} for row in make_rows()]
    assert np.array_equal(audit(loaded, make_task(rows), quiet=True).scores, found.scores)
    rows = [{"text": row["text"]} for row in make_rows()]
    unlabelled = audit(loaded, make_task(rows, labels=None, label_field=None), quiet=True)
    assert np.array_equal(unlabelled.scores, found.scores)
    assert unlabelled.metrics["mean_f1"] is None
    assert unlabelled.gold.tolist() == [-1] * 5
    assert unlabelled.record.task.has_gold is False


def test_adapter_audit_has_name_of_method_and_training(loaded, folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)).model, LoraConfig(task_type="CAUSAL_LM", r=2))
    adapted.save_pretrained(tmp_path / "run" / "adapter")
    task = TaskRecord.from_json(make_task().render("test").record)
    settings = {"method": "swarm", "lora_r": 2}
    RunRecord(
        kind="train", task=task, model=loaded.record, training=settings, seconds=4.5, command="flip-flop train"
    ).write(tmp_path / "run")
    with_adapter = load_model(str(folder), adapter=tmp_path / "run" / "adapter")
    found = audit(with_adapter, make_task(), quiet=True).record
    assert (found.name, found.adapter.method) == ("swarm", "swarm")
    assert found.training == settings | {"seconds": 4.5, "command": "flip-flop train"}
    assert audit(with_adapter, make_task(), name="mine", quiet=True).record.name == "mine"
    (tmp_path / "run" / "run.json").unlink()
    alone = audit(load_model(str(folder), adapter=tmp_path / "run" / "adapter"), make_task(), quiet=True).record
    assert (alone.name, alone.training) == ("adapter", None)
