"""An audit's figures are those of slow loops over naive scores, and its record says what was measured."""

import json
import statistics

import numpy as np
import pytest
from peft import LoraConfig, get_peft_model

from flip_flop.errors import InputError
from flip_flop.evaluation.audit import audit
from flip_flop.options import ScoringOptions
from flip_flop.prompts import Template
from flip_flop.run_record import RunRecord, TaskRecord
from flip_flop.scoring import PromptEncoder, load_model
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task
from tests.evaluation.saved import save_tiny
from tests.metrics import oracle
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe


@pytest.fixture(scope="module")
def found(loaded):
    return audit(loaded, make_task(), quiet=True)


@pytest.fixture(scope="module")
def naive(loaded):
    encoder = PromptEncoder(byte_bpe())
    return naive_scores(loaded.model, [encoder.encode(row) for row in make_task().instances("test")])


def test_the_scores_are_the_naive_ones_in_the_order_of_rows_templates_and_labels(found, naive):
    assert found.scores.shape == (5, 4, 3)
    assert found.scores.dtype == np.float32
    np.testing.assert_allclose(found.scores, naive, rtol=0, atol=2e-6)
    assert found.gold.tolist() == [0, 1, 2, 0, 1]
    assert found.template_names == ("plain", "truth", "long", "terse")


def test_every_metric_is_that_of_a_slow_loop_over_naive_scores(found, naive):
    gold, metrics = [0, 1, 2, 0, 1], found.metrics
    predictions = [[row.index(max(row)) for row in instance] for instance in naive]
    by_template = [list(column) for column in zip(*predictions, strict=True)]
    f1 = [oracle.f1(column, gold, 3) for column in by_template]
    accuracy = [sum(p == g for p, g in zip(column, gold, strict=True)) / 5 for column in by_template]
    votes = [oracle.majority_vote(instance) for instance in naive]
    names = ["plain", "truth", "long", "terse"]
    assert metrics["observed_agreement"] == pytest.approx(oracle.observed_agreement(predictions))
    assert metrics["no_consensus_share"] == pytest.approx(oracle.no_consensus_share(predictions))
    assert metrics["f1_per_template"] == pytest.approx(dict(zip(names, f1, strict=True)))
    assert metrics["mean_f1"] == metrics["macro_f1"] == pytest.approx(statistics.mean(f1))
    assert metrics["f1_std"] == pytest.approx(statistics.pstdev(f1))
    assert metrics["accuracy_per_template"] == pytest.approx(dict(zip(names, accuracy, strict=True)))
    assert metrics["accuracy"] == pytest.approx(statistics.mean(accuracy))
    assert metrics["vote_f1"] == pytest.approx(oracle.f1(votes, gold, 3))
    assert metrics["vote_accuracy"] == pytest.approx(sum(map(int.__eq__, votes, gold)) / 5)
    assert metrics["label_shares"] == pytest.approx([oracle.share(predictions, label) for label in range(3)])
    assert (metrics["num_instances"], metrics["num_templates"], metrics["num_labels"]) == (5, 4, 3)


def test_the_record_has_what_it_takes_to_measure_again(found, loaded):
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


def test_a_digest_changes_with_what_it_is_of_and_with_nothing_else(loaded, found, tmp_path):
    def differ(other):
        pairs = zip(found.record.task.templates, other.record.task.templates, strict=True)
        (mine, model), (theirs, its) = ((each.record.task, each.record.model) for each in (found, other))
        return {
            "task": mine.digest != theirs.digest,
            "templates": [a.digest != b.digest for a, b in pairs],
            "data": mine.data["sha256"] != theirs.data["sha256"],
            "instances": mine.instances_digest != theirs.instances_digest,
            "model": model.digest != its.digest,
        }

    same = {"task": False, "templates": [False] * 4, "data": False, "instances": False, "model": False}
    changed = Template("truth", "True, false or maybe? {{ text }}", "False ||| True ||| Maybe")
    other = audit(loaded, make_task(templates=(TEMPLATES[0], changed, *TEMPLATES[2:])), quiet=True)
    assert differ(other) == same | {"task": True, "templates": [False, True, False, False], "instances": True}
    rows = make_rows()
    rows[3]["text"] += " Very."
    assert differ(audit(loaded, make_task(rows), quiet=True)) == same | {"data": True, "instances": True}
    model = load_model(str(save_tiny(tmp_path / "other", seed=4)))
    assert differ(audit(model, make_task(), quiet=True)) == same | {"model": True}


def test_without_labels_there_is_agreement_and_no_f1(loaded, found):
    rows = [{"text": row["text"]} for row in make_rows()]
    unlabelled = audit(loaded, make_task(rows, labels=None, label_field=None), quiet=True)
    metrics = unlabelled.metrics
    for name in ("mean_f1", "f1_std", "macro_f1", "accuracy", "f1_per_template", "vote_f1", "vote_accuracy"):
        assert metrics[name] is None
    assert metrics["observed_agreement"] == found.metrics["observed_agreement"]
    assert metrics["intervals"]["mean_f1"] is None
    assert len(metrics["intervals"]["observed_agreement"]) == 2
    assert unlabelled.gold.tolist() == [-1] * 5
    assert unlabelled.record.task.has_gold is False


def test_gold_labels_change_no_score(loaded, found):
    rows = [row | {"mood": (row["mood"] + 1) % 3} for row in make_rows()]
    assert np.array_equal(audit(loaded, make_task(rows), quiet=True).scores, found.scores)


def test_of_one_template_there_is_no_agreement_but_an_f1(loaded, found):
    alone = audit(loaded, make_task().with_templates(["long"]), quiet=True).metrics
    assert alone["observed_agreement"] is None
    assert alone["mean_f1"] == found.metrics["f1_per_template"]["long"]
    assert alone["intervals"]["observed_agreement"] is None


def test_a_limit_takes_the_same_instances_each_time_and_scores_them_alike(loaded, found):
    first, second = (audit(loaded, make_task().render("test", limit=3, seed=1), seed=1, quiet=True) for _ in range(2))
    assert first.instance_ids == second.instance_ids
    assert np.array_equal(first.scores, second.scores)
    assert first.metrics == second.metrics
    rows = [int(name.removeprefix("test-")) - 1 for name in first.instance_ids]
    np.testing.assert_allclose(first.scores, found.scores[rows], atol=2e-6)
    samples = {tuple(row.id for row in make_task().instances("test", limit=3, seed=seed)) for seed in range(20)}
    assert len(samples) > 1


def test_the_batch_size_does_not_change_the_scores(loaded, found):
    small = audit(loaded, make_task(), ScoringOptions(batch_tokens=32), quiet=True)
    np.testing.assert_allclose(small.scores, found.scores, rtol=0, atol=2e-6)


def test_a_prompt_longer_than_the_context_is_refused(loaded):
    rows = [*make_rows(), {"text": "good " * 300, "mood": 1}]
    with pytest.raises(InputError, match="E-TOO-LONG: Instance 'test-6'"):
        audit(loaded, make_task(rows), quiet=True)


def test_an_adapters_audit_takes_its_methods_name_and_its_training(loaded, folder, tmp_path):
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
