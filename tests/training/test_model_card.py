"""The model card of an adapter matches the run's record, has no local path, and is sent to the hub."""

import ast
import json
import re
import shutil
from pathlib import Path

import pytest
from huggingface_hub import HfApi, ModelCard

from flip_flop import audit, load_model
from flip_flop.record import RunRecord
from flip_flop.training.card import model_card
from tests.refused import refused
from tests.tiny import save_tiny
from tests.training.conftest import make_task, make_trainer, run, training_rows

pytestmark = pytest.mark.xdist_group("card")
GOLDEN = Path(__file__).parents[1] / "golden" / "card.md"
# Metrics, digests and versions, which depend on the machine.
NUMBERS = r"[−+±]?\b\d+\.[\d.]+\S*|[0-9a-f]{64}|value: .*"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("models") / "tiny-lm")


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "f2c"
    run(out, model=str(base))
    return out


def test_card_matches_the_golden_one(finished):
    """After an intended change, copy the card from the folder in the failure message."""
    text = (finished / "adapter" / "README.md").read_text()
    data = ModelCard(text).data
    assert (data.library_name, data.base_model, data.pipeline_tag) == ("peft", "tiny-lm", "text-generation")
    assert {result.metric_type for result in data.eval_results} == {"observed_agreement", "f1"}
    assert re.sub(NUMBERS, "#", text) == re.sub(NUMBERS, "#", GOLDEN.read_text()), finished


def test_metrics_before_and_after_match_audits(finished, base):
    card, record = (finished / "adapter" / "README.md").read_text(), RunRecord.read(finished)
    change = record.training["validation"]
    agreement = change["observed_agreement"]
    assert f"| P_o | {100 * agreement['before']:.1f} | {100 * agreement['after']:.1f} | " in card
    assert all(template.jinja in card for template in record.task.templates)
    task = make_task().with_templates(["plain", "truth", "long", "terse"])
    split = task.render("validation")
    for when, loaded in (("before", load_model(base)), ("after", load_model(base, adapter=finished / "adapter"))):
        audited = audit(loaded, split, quiet=True)
        assert change["observed_agreement"][when] == audited.value("observed_agreement")
        assert change["mean_f1"][when] == audited.value("mean_f1")


def test_card_has_no_local_path(finished, base, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "good", "label": 1}\n')
    record = RunRecord.read(finished)
    assert str(base) in json.dumps(record.to_json())
    moved = record.to_json()
    moved["task"]["data"] = {"source": str(tmp_path / "rows.jsonl"), "mirror": str(tmp_path)}
    card = model_card(RunRecord(**moved))
    assert "`rows.jsonl`" in card
    assert not [line for line in card.splitlines() if str(base.parent) in line or str(tmp_path) in line]


def test_names_and_labels_are_escaped(finished):
    moved = RunRecord.read(finished).to_json()
    moved["task"]["label_names"] = ["<b>no</b>", "![x](y)"]
    moved["model"] |= {"name": '/models/tiny`<b>"\n# now', "revision": 'a"b'}
    card = model_card(RunRecord(**moved))
    assert "makes `tiny'<b>\"\\n# now` give the same answer" in card
    assert "<b>no" not in card
    assert "![x]" not in card
    blocks = card.split("```python\n")[1:]
    assert len(blocks) == 3
    for block in blocks:
        compile(block.partition("\n```\n")[0], "card", "exec")
    assert r'from_pretrained(base, revision="a\"b")' in blocks[1]


def test_code_of_the_card_runs_as_printed(finished, capsys):
    """The classifier and the code without it give the same probabilities, with the offsets."""
    adapter = finished / "adapter"
    content = json.loads((adapter / "classifier.json").read_text())
    offsets = {template["name"]: [0.3, -0.3] for template in content["task"]["templates"]}
    moved = Path(shutil.copytree(adapter, finished.parent / "moved"))
    (moved / "classifier.json").write_text(json.dumps(content | {"offsets": offsets}))
    for block in (adapter / "README.md").read_text().split("```python\n")[1:3]:
        code = block.partition("\n```\n")[0].replace("path/to/this/folder", str(moved))
        exec(compile(code.replace("...", "The room was good"), "card", "exec"), {})
    predicted, printed = map(ast.literal_eval, capsys.readouterr().out.strip().splitlines())
    plain = predicted[0]["templates"]["plain"]
    assert [*printed.values()] == pytest.approx(plain["probs"], abs=1e-5)
    assert max(printed, key=printed.get) == plain["label"]


PUSHED = {"push_to_hub": True, "hub_model_id": "someone/tiny-f2c", "num_train_epochs": 1}


@pytest.fixture
def hub(monkeypatch):
    """The files that were sent to the hub, by repository. A second upload to one fails."""
    sent = {}

    def upload(self, *, repo_id, folder_path, **keywords):
        if repo_id in sent:
            raise ConnectionError("no route")
        sent[repo_id] = {path.name: path.read_bytes() for path in folder_path.iterdir()}

    repository = type("Repository", (), {"repo_id": "someone/tiny-f2c"})()
    monkeypatch.setattr(HfApi, "create_repo", lambda self, *arguments, **keywords: repository)
    monkeypatch.setattr(HfApi, "upload_folder", upload)
    return sent


@pytest.mark.slow
def test_hub_gets_the_adapter_folder_without_local_paths(base, tmp_path, hub):
    done = run(tmp_path / "run", model=base, **PUSHED)
    ((name, files),) = hub.items()
    assert name == "someone/tiny-f2c"
    assert set(files) == {path.name for path in done.adapter.iterdir()}
    assert b"## Before and after" in files["README.md"]
    assert not any(str(base.parent).encode() in content for content in files.values())


def test_push_without_network_is_refused_before_training(tmp_path):
    refused(r"E-CONFIG: push_to_hub: .* Connect to the hub .*hf upload", run, tmp_path / "run", **PUSHED)


@pytest.mark.slow
def test_failed_push_leaves_a_complete_run(tmp_path, hub, caplog):
    hub["someone/tiny-f2c"] = None
    done = run(tmp_path / "run", **PUSHED)
    assert RunRecord.read(done.out).kind == "train"
    assert "W-PUSH" in caplog.text


@pytest.mark.slow
def test_trainer_writes_a_card_without_a_task(tmp_path):
    trainer = make_trainer(tmp_path / "out", eval_rows=training_rows(count=6))
    trainer.train()
    trainer.save_model(str(tmp_path / "adapter"))
    trainer.create_model_card(license="apache-2.0", model_name="mine")
    assert not (tmp_path / "adapter" / "training_args.bin").exists()
    written = ModelCard.load(tmp_path / "out" / "README.md")
    assert (written.data.license, written.data.model_name) == ("apache-2.0", "mine")
    for text in (written.text, (tmp_path / "adapter" / "README.md").read_text()):
        assert "unknown dataset" not in text
        assert "Trained on 8 instances of `rows in memory`" in text
        assert "| P_o |" in text
