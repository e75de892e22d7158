"""`predict --with` and `export` as a user types them: files of any size, merged weights that give the same answers."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch
from peft import LoraConfig, LoraModel, get_peft_model
from transformers.utils import logging as transformers_logging

from flip_flop import audit, load_classifier, load_model, load_run
from flip_flop.classifier.export import export
from flip_flop.classifier.stream import predict_file
from tests.evaluation.conftest import make_rows, make_task
from tests.refused import refused
from tests.tiny import save_tiny
from tests.training.conftest import run as train_tiny


def write_csv(path, rows):
    pd.DataFrame(rows).to_csv(path, index=False)
    return path


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_command_of_the_decision_predicts_all_rows(decided, rows, tmp_path, flip_flop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "rows.csv", rows)
    decision = load_run(decided).decision
    assert decision.command == f"flip-flop predict --with {decided} --input rows.csv --out predictions.csv"
    assert decision.text.endswith(f" Apply it: `{decision.command}`.")
    assert "--calibrate" not in decision.text
    assert flip_flop(*decision.command.split()[1:]).code == 0
    table = read_csv(tmp_path / "predictions.csv")
    assert [int(row["vote"]) for row in table] == [row["mood"] for row in rows]
    assert [row["text"] for row in table] == [row["text"] for row in rows]
    assert list(table[0])[-5:] == ["consensus", "truth: p(0)", "truth: p(1)", "truth: p(2)", "note"]


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "xlsx"])
@pytest.mark.parametrize("source", ["rows.csv", "rows.jsonl", "rows.parquet"])
def test_parts_of_a_file_give_the_table_of_the_whole(decided, rows, tmp_path, monkeypatch, source, suffix):
    frame = pd.DataFrame(rows[:20])
    write = {"csv": frame.to_csv, "parquet": frame.to_parquet}.get(source[5:])
    if write:
        write(tmp_path / source, index=False)
    else:
        frame.to_json(tmp_path / source, orient="records", lines=True)
    classify, outs = load_classifier(decided), []
    for size in (3, 1000):
        monkeypatch.setattr("flip_flop.classifier.stream.CHUNK", size)
        outs.append(tmp_path / f"{size}.{suffix}")
        tally = predict_file(classify, tmp_path / source, outs[-1], quiet=True)
    votes = [row["mood"] for row in rows[:20]]
    assert str(tally).startswith(f"20 rows (0: {votes.count(0)}, 1: {votes.count(1)}, 2: {votes.count(2)}")
    if suffix == "xlsx":
        frames = [pd.read_excel(out) for out in outs]
        assert frames[0].columns.equals(frames[1].columns)
        assert [frame["vote"].tolist() for frame in frames] == [votes, votes]
        return
    first, second = (out.read_text().splitlines() for out in outs)
    assert len(first) == len(second) == 20 + (suffix == "csv")
    read = read_csv if suffix == "csv" else lambda out: [json.loads(line) for line in out.read_text().splitlines()]
    for one, other, vote in zip(*map(read, outs), votes, strict=True):
        assert int(one["vote"]) == int(other["vote"]) == vote
        assert one.keys() == other.keys()


def test_rows_with_different_fields_have_one_header(decided, tmp_path):
    lines = [{"text": "one"}, {"text": "long " * 400, "more": "x"}, {"text": "three", "vote": "=1"}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    classify = load_classifier(decided)
    predict_file(classify, tmp_path / "rows.jsonl", tmp_path / "out.csv", quiet=True)
    table = read_csv(tmp_path / "out.csv")
    assert [row["more"] for row in table] == ["", "x", ""]
    assert [row["input: vote"] for row in table] == ["", "", "'=1"]
    assert [bool(row["note"]) for row in table] == [False, True, False]
    assert [row["vote"] == "" for row in table] == [False, True, False]


def test_error_in_a_late_row_comes_before_the_model_and_leaves_no_file(decided, tmp_path, monkeypatch):
    monkeypatch.setattr("flip_flop.classifier.stream.CHUNK", 2)
    (tmp_path / "rows.csv").write_text("text\none\ntwo\nthree\nfour,4\n")
    classify = load_classifier(decided, tmp_path / "no model")
    refused("E-DATA-PARSE: .*line 5: 2 cells", predict_file, classify, tmp_path / "rows.csv", tmp_path / "out.csv")
    (tmp_path / "other.csv").write_text("name\none\n")
    refused("E-TPL-RENDER", predict_file, classify, tmp_path / "other.csv", tmp_path / "out.csv")
    (tmp_path / "latin.csv").write_bytes(b"text\n" + b"caf\xe9\n")
    refused("E-DATA-ENCODING", predict_file, classify, tmp_path / "latin.csv", tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*")) + list(tmp_path.glob(".out*"))


def test_missing_folder_is_refused_before_torch_is_imported(tmp_path):
    write_csv(tmp_path / "rows.csv", [{"text": "one"}])
    code = """
import sys
from flip_flop.cli.main import main
sys.argv = ["flip-flop", "predict", "--with", "nothing", "--input", "rows.csv", "--out", "out.csv"]
try:
    main()
finally:
    print("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "False\n")
    assert done.stderr == "E-RUN-MISSING: nothing is not a folder. Give the folder of a finished run.\n"


def test_options_that_the_classifier_decides_are_refused(decided, rows, tmp_path, flip_flop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "rows.csv", rows[:2])
    files = ("--input", "rows.csv", "--out", "out.csv")
    for options in (("--task", "demo"), ("--calibrate", "batch"), ("--chat-template", "on"), ("--dtype", "float16")):
        result = flip_flop("predict", "--with", decided, *files, *options)
        assert result.code == 2
        assert f"E-CLASSIFIER: {options[0]} and --with are both given." in result.err
    assert "Give --with, or --model and --task." in flip_flop("predict", *files).err


def test_rows_that_are_all_too_long_get_notes(decided, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("flip_flop.classifier.stream.CHUNK", 2)
    texts = ["long " * 400, "long " * 500, "short", "brief", "fair", "long " * 600]
    write_csv(tmp_path / "rows.csv", [{"text": text} for text in texts])
    numbers = predict_file(load_classifier(decided), tmp_path / "rows.csv", tmp_path / "out.csv", quiet=True)
    assert numbers.endswith("; 3 too long)")
    assert "W-TOO-LONG" not in caplog.text  # which would be a line for each chunk
    table = read_csv(tmp_path / "out.csv")
    assert [bool(row["note"]) for row in table] == [True, True, False, False, False, True]
    assert [row["truth: p(0)"] == "" for row in table] == [True, True, False, False, False, True]


@pytest.mark.slow
def test_killed_prediction_leaves_no_output(decided, rows, tmp_path, flip_flop):
    source, out = write_csv(tmp_path / "rows.csv", rows * 200), tmp_path / "out.csv"
    words = ("predict", "--with", decided, "--input", source, "--out", out, "--quiet")
    process = subprocess.Popen([sys.executable, "-m", "flip_flop", *map(str, words)], env=os.environ)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".out.csv.*.tmp")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    assert not out.exists()
    write_csv(source, rows[:3])
    assert flip_flop(*words).code == 0
    assert len(read_csv(out)) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "rows.csv"]


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """An audit of a trained adapter, with stored offsets."""
    folder = tmp_path_factory.mktemp("adapted")
    base = save_tiny(folder / "base", seed=3)
    train_tiny(folder / "f2c", model=str(base), learning_rate=5e-2)
    loaded = load_model(base, adapter=folder / "f2c" / "adapter")
    return audit(loaded, make_task(make_rows(60)), quiet=True).write(folder / "audit")


@pytest.mark.slow
def test_merged_weights_equal_the_audit_on_all_rows(adapted, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(transformers_logging, "_tqdm_active", True)
    figures = export(adapted, tmp_path / "out", merge=True, templates=["all"])
    assert capsys.readouterr().err == ""
    assert figures.startswith("0 of 60 answers differ")
    shutil.move(tmp_path / "out", tmp_path / "moved")
    classify = load_classifier(tmp_path / "moved")
    assert classify.classifier.adapter is None
    run = load_run(adapted)
    assert [row["vote"] for row in classify(make_rows(60))] == run.voting.data.votes.tolist()
    names = {path.suffix for path in (tmp_path / "moved" / "model").iterdir()}
    assert ".safetensors" in names
    assert ".bin" not in names


@pytest.mark.slow
def test_parity_is_the_largest_difference_of_a_probability_under_any_template(adapted, tmp_path, monkeypatch):
    """The vote and its share are equal: only probabilities show that the merged weights are not the same."""
    merge = LoraModel.merge_and_unload

    def scaled(self, **how):
        model = merge(self, **how)
        with torch.no_grad():
            model.get_output_embeddings().weight.mul_(1.0001)  # changes no answer
        return model

    monkeypatch.setattr(LoraModel, "merge_and_unload", scaled)
    figures = export(adapted, tmp_path / "out", merge=True, templates=["all"])
    rows = make_rows(60)
    before, after = load_classifier(adapted, templates=["all"])(rows), load_classifier(tmp_path / "out")(rows)
    assert [row["confidence"] for row in before] == [row["confidence"] for row in after]
    largest = 0.0
    for one, other in zip(before, after, strict=True):
        for name in one["templates"]:
            for label in range(3):
                probs = [row["templates"][name]["probs"][label] for row in (one, other)]
                largest = max(largest, abs(probs[0] - probs[1]))
    words, shown = figures.rsplit(" ", 1)
    assert words == "0 of 60 answers differ; a probability differs by at most"
    assert float(shown) == pytest.approx(largest, rel=0.05, abs=2e-6)  # predictions have six digits
    assert largest > 1e-5


@pytest.mark.slow
def test_export_has_the_adapter_and_can_be_moved(adapted, tmp_path, flip_flop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flip_flop("export", adapted, "--out", "out").code == 0
    shutil.move(tmp_path / "out", tmp_path / "moved")
    classify = load_classifier(tmp_path / "moved")
    votes = [row["vote"] for row in classify(make_rows(9))]
    assert votes == [row["vote"] for row in load_classifier(adapted)(make_rows(9))]


@pytest.mark.slow
def test_wrong_merge_is_refused_and_writes_nothing(adapted, decided, tmp_path, monkeypatch):
    refused("E-MERGE: .* has no adapter", export, decided, tmp_path / "out", merge=True)
    refused("E-MERGE: .* has no rows", export, adapted.parent / "f2c", tmp_path / "out", merge=True)
    merge = LoraModel.merge_and_unload

    def flipped(self, **how):
        model = merge(self, **how)
        with torch.no_grad():
            model.get_input_embeddings().weight.neg_()
        return model

    monkeypatch.setattr(LoraModel, "merge_and_unload", flipped)
    refused("E-MERGE: merged weights give other answers", export, adapted, tmp_path / "out", merge=True)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_merge_is_not_compared_on_a_part_of_the_rows(adapted, tmp_path, flip_flop, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "rows.csv", [{"text": "short"}, {"text": "long " * 400}, {"text": "brief"}])
    done = flip_flop("export", adapted, "--merge", "--rows", "rows.csv", "--out", "out")
    assert done.code == 2
    assert done.err.startswith("E-TOO-LONG: ")
    assert "input-2" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]


def test_merge_into_a_quantized_base_is_refused(adapted, tmp_path):
    content = load_run(adapted).decision.classifier.to_json()
    content["model"] |= {"dtype": "4bit, float32", "quantization": {"load_in_4bit": True}}
    (tmp_path / "classifier.json").write_text(json.dumps(content))
    refused("E-MERGE: the base is quantized", export, tmp_path / "classifier.json", tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # of PEFT, for embeddings
def test_merge_of_an_adapter_on_tied_embeddings_is_refused(folder, tmp_path):
    config = LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["embed_tokens", "q_proj"])
    get_peft_model(load_model(folder).model, config).save_pretrained(tmp_path / "adapter")
    run = audit(load_model(folder, adapter=tmp_path / "adapter"), make_task(make_rows(9)), quiet=True)
    run.write(tmp_path / "audit")
    words = "E-MERGE: the adapter changes embeddings that are tied"
    refused(words, export, tmp_path / "audit", tmp_path / "out", merge=True)
    assert not (tmp_path / "out").exists()
