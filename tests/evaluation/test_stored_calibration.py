"""Offsets stored with an adapter, and predictions and audits that apply them."""

import json
import shutil

import numpy as np
import pytest
from peft import LoraConfig, get_peft_model

from flip_flop import audit, predict
from flip_flop.errors import InputError
from flip_flop.metrics import batch_offsets
from flip_flop.prompts import Template
from flip_flop.scoring import load_model, score, store_calibration
from tests.evaluation.conftest import TEMPLATES, make_rows, make_task

TASK = make_task(make_rows(60))
PRIOR = (0.2, 0.3, 0.5)


@pytest.fixture(scope="module")
def saved(folder, tmp_path_factory):
    base, adapter = load_model(str(folder)), tmp_path_factory.mktemp("run") / "adapter"
    config = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(base.model, config).save_pretrained(adapter)
    return adapter


@pytest.fixture
def adapter(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "adapter")


@pytest.fixture
def trained(folder, adapter):
    return load_model(str(folder), adapter=adapter)


def store(trained, adapter, prior=None):
    table = score(trained, TASK.instances("test"))
    store_calibration(adapter, table, TASK.templates, prior)
    return table


def test_audit_and_predict_apply_the_stored_offsets_by_template(trained, adapter):
    table = store(trained, adapter, PRIOR)
    few = make_task(make_rows(5), templates=TEMPLATES[::-1][:3])
    found = audit(trained, few, quiet=True, calibrate="stored")
    after = found.metrics["calibrated"]
    offsets = dict(zip(TASK.templates.names, batch_offsets(table.scores, PRIOR), strict=True))
    assert after["method"] == "stored"
    assert after["label_prior"] == pytest.approx(PRIOR)
    for name in few.templates.names:
        np.testing.assert_allclose(after["offsets"][name], offsets[name], atol=1e-9)
    rows = predict(trained, few, quiet=True, calibrate="stored")
    assert [row["vote"] for row in rows] == found.calibrated.data.votes.tolist()


def test_file_has_method_prior_and_template_digests(trained, adapter):
    store(trained, adapter)
    found = json.loads((adapter / "calibration.json").read_text())
    assert (found["method"], found["num_instances"], found["chat_template"]) == ("batch", 60, False)
    assert found["label_prior"] == [1 / 3] * 3
    assert [(each["name"], each["digest"]) for each in found["templates"]] == [
        (each.name, each.digest()) for each in TASK.templates
    ]


def rejected(trained, words, task=TASK, **options):
    for function in (audit, predict):
        with pytest.raises(InputError, match=rf"E-CALIBRATION: .*{words}"):
            function(trained, task, quiet=True, calibrate="stored", **options)


def test_no_adapter_and_an_adapter_without_offsets_are_rejected(trained, loaded):
    rejected(trained, "calibration.json")
    rejected(loaded, "no adapter")


def test_edited_template_is_rejected_by_name(trained, adapter):
    store(trained, adapter)
    edited = Template("terse", "{{ text }} So?", "No ||| Yes ||| So")
    rejected(trained, "'terse'", make_task(templates=(*TEMPLATES[:3], edited)))


def test_another_chat_template_setting_is_rejected(trained, adapter):
    store(trained, adapter)
    path = adapter / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"chat_template": True}))
    rejected(trained, "chat template")


@pytest.mark.parametrize(
    "change",
    [
        {"label_prior": [1.0]},
        {"label_prior": None},
        {"templates": 1},
        {"templates": [{"digest": "x"}]},
        {"templates": [{"digest": each.digest(), "offsets": [0, 0]} for each in TEMPLATES]},
        {"templates": [{"digest": each.digest(), "offsets": [0, 0, float("nan")]} for each in TEMPLATES]},
        {"templates": [{"digest": each.digest(), "offsets": "abc"} for each in TEMPLATES]},
    ],
)
def test_an_invalid_file_is_rejected(trained, adapter, change):
    store(trained, adapter)
    path = adapter / "calibration.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    rejected(trained, "calibration.json")
    path.write_text("[" * 100_000)
    rejected(trained, "calibration.json")


def test_a_label_prior_has_no_effect_on_stored_offsets_and_is_rejected(trained, adapter):
    store(trained, adapter)
    with pytest.raises(InputError, match=r"E-LABEL-PRIOR: .*--calibrate stored"):
        predict(trained, TASK, quiet=True, calibrate="stored", label_prior=PRIOR)
