"""Audits of all kinds of models and rows: metrics by slow loops over naive scores, a complete record, label mass."""

import json
import logging
import re
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from peft import LoraConfig, get_peft_model

from flip_flop import (
    PromptEncoder,
    ScoringOptions,
    Task,
    audit,
    compare,
    load_model,
    load_run,
    predict,
    write_predictions,
    write_report,
)
from flip_flop.errors import require_whole
from flip_flop.metrics import METRICS, Metric, mean_statistic, summarise
from flip_flop.prompts import Template, TemplateSet
from flip_flop.prompts import template as templates
from flip_flop.record import RunRecord, TaskRecord
from tests.evaluation.conftest import TEMPLATES, change_metrics, make_rows, make_task
from tests.refused import refused
from tests.report.pages import Page
from tests.scoring.oracle import naive_scores
from tests.tiny import byte_bpe, tiny_model


def test_scores_match_naive_scores_in_order(loaded, audited):
    encoder = PromptEncoder(byte_bpe())
    naive = naive_scores(loaded.model, [encoder.encode(row) for row in make_task().instances("test")])
    assert audited.scores.shape == (5, 4, 3)
    assert audited.scores.dtype == np.float32
    np.testing.assert_allclose(audited.scores, naive, rtol=0, atol=2e-6)
    assert audited.gold.tolist() == [0, 1, 2, 0, 1]
    assert audited.template_names == ("plain", "truth", "long", "terse")


def test_metrics_match_scores(audited):
    others = [f"{name}_per_template" for name in ("own_label_mass", "preferred_tokens", "prompt_tokens")]
    expected = summarise(audited.scores, audited.gold, audited.template_names)
    assert audited.metrics == expected | {name: audited.metrics[name] for name in others}


def test_prompt_tokens_are_counted_by_the_tokenizer(audited):
    tokenizer, rows = byte_bpe(), make_task().instances("test")
    table = audited.to_pandas("templates").set_index("template")["prompt_tokens"]
    assert table.to_dict() == audited.metrics["prompt_tokens_per_template"]
    for at, name in enumerate(audited.template_names):
        lengths = [len(tokenizer(row.prompts[at])["input_ids"]) for row in rows]
        assert audited.metrics["prompt_tokens_per_template"][name] == pytest.approx(sum(lengths) / len(lengths))


@pytest.mark.parametrize("limit", [1, 100])
def test_an_audit_renders_each_prompt_once(loaded, monkeypatch, limit):
    rendered, render_text = [], templates.render_text

    def counted(source, *arguments, **settings):
        rendered.append(source)
        return render_text(source, *arguments, **settings)

    texts = {name: f"{name} {{{{ text }}}}: a choice at random?" for name in ("one", "two", "three", "four")}
    rows = [{"text": f"Tea {number}", "label": "no"} for number in range(120)]
    task = Task("drinks", texts, {"test": rows}, labels=("no", "yes"), label_field="label")
    monkeypatch.setattr(templates, "render_text", counted)
    audit(loaded, task, limit=limit, quiet=True)
    assert Counter(rendered) == dict.fromkeys(texts.values(), limit)


def test_copies_of_rows_change_no_number(loaded, audited):
    rows = [row for row in make_rows() for _ in range(3)]
    tripled = audit(loaded, make_task().with_rows(rows), quiet=True)
    assert tripled.metrics == audited.metrics
    assert tripled.record.task.num_instances == 5
    assert len(predict(loaded, make_task().with_rows(rows), quiet=True)) == 15


def test_record_suffices_to_repeat_audit(loaded, audited):
    record = audited.record.to_json()
    assert (record["kind"], record["name"], record["adapter"], record["training"]) == ("audit", "base", None, None)
    assert record["flip_flop_version"] == record["versions"]["flip_flop"]
    assert audited.record.model == loaded.record
    task = record["task"]
    assert (task["name"], task["labels"], task["split"], task["f1"]) == ("moods", [0, 1, 2], "test", "macro")
    assert (task["num_instances"], task["has_gold"]) == (5, True)
    assert [template["name"] for template in task["templates"]] == list(audited.template_names)
    assert task["templates"][1]["jinja"] == "True, false or maybe: {{ text }}"
    assert {"source", "sha256"} <= task["data"].keys()
    assert {"delimiter", "chat_template", "backend", "boundary_merged", "bos"} <= record["scoring"].keys()
    assert {"python", "torch", "transformers", "peft"} <= record["versions"].keys()
    assert {"machine", "processor", "cpu_count", "gpu"} <= record["hardware"].keys()
    json.dumps(record, allow_nan=False)
    json.dumps(audited.metrics, allow_nan=False)


def test_gold_labels_are_optional_and_change_no_score(loaded, audited):
    rows = [row | {"mood": (row["mood"] + 1) % 3} for row in make_rows()]
    assert np.array_equal(audit(loaded, make_task(rows), quiet=True).scores, audited.scores)
    rows = [{"text": row["text"]} for row in make_rows()]
    unlabelled = audit(loaded, make_task(rows, labels=None, label_field=None), quiet=True)
    assert np.array_equal(unlabelled.scores, audited.scores)
    assert unlabelled.metrics["mean_f1"] is None
    assert unlabelled.gold.tolist() == [-1] * 5
    assert unlabelled.record.task.has_gold is False


@pytest.mark.slow
def test_adapter_audit_has_name_of_method_and_training(loaded, folder, tmp_path):
    adapted = get_peft_model(load_model(str(folder)).model, LoraConfig(task_type="CAUSAL_LM", r=2))
    adapted.save_pretrained(tmp_path / "run" / "adapter")
    task = TaskRecord(**make_task().render("test").record)
    settings, more = {"method": "swarm", "lora_r": 2}, {"seconds": 4.5, "command": "flip-flop train"}
    RunRecord(kind="train", task=task, model=loaded.record, training=settings, **more).write(tmp_path / "run")
    with_adapter = load_model(str(folder), adapter=tmp_path / "run" / "adapter")
    record = audit(with_adapter, make_task(), quiet=True).record
    assert (record.name, record.adapter.method) == ("swarm", "swarm")
    assert record.training == settings | more
    assert audit(with_adapter, make_task(), name="mine", quiet=True).record.name == "mine"
    (tmp_path / "run" / "run.json").unlink()
    alone = audit(load_model(str(folder), adapter=tmp_path / "run" / "adapter"), make_task(), quiet=True).record
    assert (alone.name, alone.training) == ("adapter", None)


TASK_FILE = """\
name: moods
data: {test: rows.jsonl}
label_field: mood
labels: [0, 1, 2]
templates:
"""


@pytest.fixture(scope="module")
def task_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in make_rows()))
    templates = "".join(f"  - {json.dumps(asdict(template))}\n" for template in TEMPLATES)
    (folder / "task.yaml").write_text(TASK_FILE + templates)
    return folder / "task.yaml"


@pytest.mark.slow
def test_all_kinds_of_models_are_accepted(loaded, folder, audited):
    task, model, tokenizer = make_task(), loaded.model, loaded.tokenizer
    trainer = SimpleNamespace(model=model, processing_class=tokenizer)
    for given in (str(folder), Path(folder), (model, tokenizer), model, trainer):
        assert np.array_equal(audit(given, task, quiet=True).scores, audited.scores)
    assert np.array_equal(audit(model, tokenizer, task, quiet=True).scores, audited.scores)


def test_rendered_rows_have_no_inputs_without_content(loaded):
    rows = [asdict(instance) for instance in make_task().instances("test")]
    refused("E-CALIBRATION", audit, loaded, rows, quiet=True, calibrate="contextual")


def test_predictions_are_not_written_with_other_rows(loaded, tmp_path):
    split = make_task().render("test")
    rows = predict(loaded, split, quiet=True)
    for suffix in ("csv", "jsonl"):
        refused(
            "E-DATA-ROWS: There are 4 predictions and 5 rows",
            write_predictions,
            rows[1:],
            [0, 1, 2],
            tmp_path / f"out.{suffix}",
            split.rows,
        )


@pytest.mark.slow
def test_all_kinds_of_rows_are_accepted(loaded, audited, task_file):
    task = make_task()
    rows = [asdict(instance) for instance in task.instances("test")]
    for given in (task, task_file, str(task_file), task.render("test"), rows, datasets.Dataset.from_list(rows)):
        run = audit(loaded, given, quiet=True)
        assert np.array_equal(run.scores, audited.scores)
        assert run.value("mean_f1") == audited.value("mean_f1")
        assert run.record.task.num_instances == 5


def test_all_kinds_of_task_data_are_accepted(loaded, audited, task_file):
    rows = make_rows()
    for given in (rows, datasets.Dataset.from_list(rows), task_file.with_name("rows.jsonl"), iter(rows)):
        task = Task("moods", TemplateSet(TEMPLATES), {"test": given}, labels=[0, 1, 2], label_field="mood")
        assert np.array_equal(audit(loaded, task, quiet=True).scores, audited.scores)
        assert task.digest() == make_task().digest()
    by_split = datasets.DatasetDict({"test": datasets.Dataset.from_list(rows)})
    listed = Task("moods", list(TEMPLATES), by_split, labels=(0, 1, 2), label_field="mood")
    assert listed.digest() == make_task().digest()
    assert listed.instances("test") == make_task().instances("test")


def test_model_object_has_no_digests_or_training(loaded, folder, tmp_path, monkeypatch):
    adapted = get_peft_model(load_model(folder).model, LoraConfig(task_type="CAUSAL_LM", r=2))
    (tmp_path / "run.json").write_text("{}")  # next to a folder without an adapter
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    record = audit(adapted, make_task(), quiet=True).record
    assert (record.name, record.training, record.model.digest) == ("adapter", None, None)
    assert (record.model.name, record.model.num_parameters) == (str(folder), loaded.record.num_parameters)


ROW = asdict(make_task().instances("test")[0])


@pytest.mark.parametrize(
    "change",
    [
        datasets.Dataset.from_list,
        lambda rows: datasets.Dataset.from_list(rows).with_format("numpy"),
        pd.DataFrame,
        lambda rows: [row | {"prompts": np.array(row["prompts"]), "label": np.int64(row["label"])} for row in rows],
        lambda rows: pd.read_parquet(BytesIO(pd.DataFrame(rows).to_parquet())).to_dict("records"),
        lambda rows: pd.read_parquet(BytesIO(pd.DataFrame(rows).to_parquet())),
    ],
    ids=["dataset", "dataset of arrays", "table", "arrays", "records of parquet", "parquet"],
)
def test_rendered_rows_may_be_a_table_or_have_arrays(untyped, loaded, change):
    keys = ("id", "prompts", "choices", "label")
    rows = [{key: asdict(row)[key] for key in keys} for row in make_task().instances("test")]
    expected, found = (audit(loaded, given, quiet=True) for given in (rows, change(rows)))
    assert found.record.task.instances_digest == expected.record.task.instances_digest
    assert (found.instance_ids, found.gold.tolist()) == (expected.instance_ids, expected.gold.tolist())
    assert [row.texts for row in found.instances] == [row.texts for row in expected.instances]
    assert (found.scores == expected.scores).all()


def test_a_table_of_rendered_rows_may_lack_labels(untyped, loaded):
    rows = [asdict(row) for row in make_task().instances("test")]
    table = pd.DataFrame([*rows[:4], rows[4] | {"label": None}])
    assert audit(loaded, table, quiet=True).gold.tolist() == [0, 1, 2, 0, -1]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"prompts": "ab", "choices": [["a", "b"], ["c", "d"]]}], "E-DATA-ROWS"),
        ([{"prompts": ["x", "y"], "choices": ["bad", "fun"]}], "E-DATA-ROWS"),
        ([{"prompts": ["x", None], "choices": [["a", "b"]] * 2}], "E-DATA-ROWS"),
        ([{"prompts": ["x"], "choices": [[1, 2]]}], "E-DATA-ROWS"),
        (ROW, "E-DATA-ROWS: rows is of type dict. Give a list"),
        ([ROW | {"label": 0.5}], "E-DATA-ROWS"),
        (make_rows(), r"E-DATA-ROWS: .*task\.with_rows\(rows\)"),
        ([ROW, ROW], "E-DATA-ROWS"),
        ([ROW | {"label": 3}], "E-DATA-ROWS"),
        ([], "E-DATA-ROWS"),
        (
            [*(ROW | {"id": number} for number in range(101)), ROW | {"id": "late", "prompts": ["a\ud800"] * 4}],
            r"E-TPL-SYNTAX: row 'late', line 1, column 2: .* is half of a character",
        ),
    ],
)
def test_unsupported_rows_are_rejected(untyped, loaded, rows, words):
    refused(words, audit, loaded, rows, quiet=True)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (tiny_model("qwen2"), r"E-MODEL-FILE: .*Give the tokenizer too\."),
        ((torch.nn.Linear(2, 2), byte_bpe()), "E-MODEL-KIND"),
    ],
)
def test_unsupported_models_are_rejected(model, words):
    refused(words, audit, model, make_task(), quiet=True)
    with pytest.raises(TypeError, match="0 follow the model"):
        audit(model)


def test_a_limit_takes_the_same_sample_of_a_task_a_split_and_rows(loaded):
    task = make_task()
    split = task.render("test")
    rows = [asdict(instance) for instance in split.instances]
    ids = [each.id for each in task.instances("test", limit=3, seed=5)]
    for given in (task, split, rows):
        assert list(audit(loaded, given, limit=3, seed=5, quiet=True).instance_ids) == ids
    for wrong in ({"limit": 0}, {"limit": True}, {"seed": True}):
        ((name, value),) = wrong.items()
        for given in (task, split, rows):
            refused(rf"\AE-CONFIG: {name} is {value}\. Give a whole number", audit, loaded, given, **wrong)


def test_arguments_of_other_types_are_no_whole_numbers():
    for value in ("3", 3.0, None, True, [3]):  # the tests check the types of a call before the function does
        refused(r"\AE-CONFIG: limit is .*\. Give a whole number, at least 1\.", require_whole, "limit", value, 1)
    require_whole("limit", np.int64(1), 1)
    require_whole("seed", -1)


def test_audit_has_line_table_and_frames(audited, tmp_path):
    assert repr(audited).startswith("Audit(base, ")
    assert len(repr(audited)) < 400
    assert "95% interval" in audited._repr_html_()
    record = replace(audited.record, name="<script>")
    assert "<script" not in replace(audited, record=record)._repr_html_()
    metrics = audited.to_pandas().set_index("metric")
    assert metrics.value["observed_agreement"] == audited.value("observed_agreement")
    assert (metrics.low["mean_f1"], metrics.high["mean_f1"]) == audited.interval("mean_f1")
    scores = audited.to_pandas("scores")
    assert len(scores) == audited.scores.size
    row = scores[(scores.id == "test-2") & (scores.template == "long") & (scores.label == "1")].iloc[0]
    assert row.score == audited.scores[1, 2, 1]
    assert scores.groupby(["id", "template"]).probability.sum().to_numpy() == pytest.approx(1)


def test_flips_are_answers_outside_majority(audited, tmp_path):
    flips = audited.to_pandas("flips")
    slow = []
    for row, name in enumerate(audited.instance_ids):
        answers = [max(range(3), key=lambda label: audited.scores[row, column][label]) for column in range(4)]
        vote = max(range(3), key=lambda label: (answers.count(label), audited.data.votes[row] == label))
        slow += [(name, audited.template_names[column]) for column in range(4) if answers[column] != vote]
    assert list(zip(flips.id, flips.template, strict=True)) == slow
    assert slow
    assert (flips.margin >= 0).all()
    prompts = {row.id: row.prompts for row in audited.instances}
    assert flips.prompt[0] == prompts[flips.id[0]][audited.template_names.index(flips.template[0])]
    assert load_run(str(audited.write(str(tmp_path / "run")))).to_pandas("flips").equals(flips)


TWO_ROWS = make_task(make_rows(2))


@pytest.fixture
def found(loaded, caplog):
    caplog.set_level(logging.WARNING)
    return audit(loaded, TWO_ROWS, quiet=True)


@torch.no_grad()
def next_token_probs(loaded, template):
    """Mean over the rows of the distribution after the context of the first label."""
    encoder = loaded.encoder("auto")
    contexts = [encoder.encode(each).answers[template][0].context for each in TWO_ROWS.instances("test")]
    logits = [loaded.model(torch.tensor([list(each)])).logits[0, -1] for each in contexts]
    return torch.stack(logits).softmax(dim=-1).mean(dim=0)


def test_mass_is_sum_of_label_probabilities_with_preferred_tokens(loaded, found, caplog):
    mass = np.exp(found.scores.astype(float) * found.token_counts).sum(axis=2).mean(axis=0)
    assert found.metrics["own_label_mass_per_template"] == pytest.approx(
        dict(zip(found.template_names, mass, strict=True))
    )
    assert mass.max() < 0.1, "the weights are random"
    for template, name in enumerate(found.template_names):
        top = next_token_probs(loaded, template).topk(5).indices.tolist()
        words = [loaded.tokenizer.decode([each]) for each in top]
        assert found.metrics["preferred_tokens_per_template"][name] == words
    audit(loaded, TWO_ROWS, quiet=True)
    (line,) = [record.getMessage() for record in caplog.records if "W-LABEL-MASS" in record.getMessage()]
    assert line.startswith("W-LABEL-MASS: under 4 of 4 templates")
    assert "plain (" in line
    assert "prefers 'r', 'the', '\\x07'" in line


def test_high_mass_has_no_warning(caplog):
    caplog.set_level(logging.WARNING)
    metrics = audit("demo", "demo", limit=40, quiet=True).metrics
    assert min(metrics["own_label_mass_per_template"].values()) > 0.5
    assert metrics["preferred_tokens_per_template"] == {}
    assert "W-LABEL-MASS" not in caplog.text


@pytest.mark.slow
def test_served_model_has_mass_without_tokens(served, found, caplog):
    pytest.importorskip("openai", reason="the package openai is not installed")
    caplog.clear()
    scored = audit(served[1], TWO_ROWS, quiet=True).metrics
    generated = audit(served[1], TWO_ROWS, quiet=True, scoring=ScoringOptions(by="generation")).metrics
    mass = found.metrics["own_label_mass_per_template"]
    assert scored["own_label_mass_per_template"] == pytest.approx(mass, rel=1e-3)
    assert caplog.text.count("W-LABEL-MASS") == 1
    assert scored["preferred_tokens_per_template"] == {}
    assert not [key for key in generated if "label_mass" in key]


@pytest.mark.slow
def test_the_report_shows_mass_and_escapes_tokens(found, tmp_path):
    tokens = found.metrics["preferred_tokens_per_template"] | {"plain": ["<b>\x1b[31m\u202e\n"]}
    change_metrics(found.write(tmp_path / "run"), preferred_tokens_per_template=tokens)
    page = Page(write_report([tmp_path / "run"], tmp_path / "report.html").read_text())
    assert page.faults == []
    assert "'<b>\\x1b[31m\\u202e\\n'" in page.text
    share = 100 * found.metrics["own_label_mass_per_template"]["truth"]
    assert f"own labels {share:.1f}%" in page.text


def test_unknown_metrics_and_calibrations_are_refused_and_aliases_work(loaded, audited):
    for ask in (audited.value, audited.interval):
        refused("E-CONFIG: there is no metric 'acuracy'. Did you mean 'accuracy'?", ask, "acuracy")
        assert ask("agreement") == ask("observed_agreement") is not None
    assert audited.value("repeat_flips") is audited.interval("wording_flips") is None


@pytest.mark.parametrize(("calibrate", "hint"), [("btch", "Did you mean 'batch'?"), (None, "Did you mean 'none'?")])
def test_unknown_calibrations_are_refused(untyped, loaded, calibrate, hint):
    words = f"E-CONFIG: calibrate: there is no method '{calibrate}'. {re.escape(hint)}"
    refused(words, audit, loaded, make_task(), calibrate=calibrate)


def test_a_notebook_shows_custom_metrics(loaded, monkeypatch):
    monkeypatch.setitem(METRICS.data, "rows", Metric("rows", "number of rows", len, in_percent=False))
    shown = audit(loaded, make_task(), quiet=True)._repr_html_()
    assert re.search(r"<td>number of rows</td>\s*<td>5.00</td>", shown)


def test_a_custom_metric_of_an_older_audit_or_with_other_code_is_computed_again(loaded, tmp_path, monkeypatch):
    audit(loaded, make_task(), calibrate="batch", quiet=True).write(tmp_path / "old")

    def first_label(data):
        return (data.predictions == 0).mean(axis=1)

    for statistic in (first_label, lambda data: 1 - first_label(data)):
        monkeypatch.setitem(METRICS.data, "mine", Metric("mine", "mine", mean_statistic(statistic, bounds=(0.0, 1.0))))
        run = load_run(tmp_path / "old")
        for view in (run, run.calibrated):
            value = float(statistic(view).mean())
            low, high = view.interval("mine")
            assert view.value("mine") == pytest.approx(value)
            assert low <= value <= high
        run.write(tmp_path / "old")


@pytest.mark.parametrize("runs", [lambda run: (), lambda run: ([run, run],), lambda run: (run, None)])
def test_compare_takes_audits_and_folders_only(audited, runs):
    with pytest.raises(TypeError, match=r"path|before"):
        compare(*runs(audited))


def test_errors_of_templates_and_of_rendered_rows_stop_an_audit(loaded):
    twins = TemplateSet(tuple(Template(name, "{{ text }}?", "No ||| Yes") for name in ("one", "two")))
    task = Task("twins", twins, {"test": [{"text": "Tea"}, {"text": "Milk"}]})
    refused("E-TPL-DUP: twins, template two: it renders every row as the template 'one' does", audit, loaded, task)
    one_row = task.with_rows([{"text": "Tea"}])
    assert len(predict(loaded, one_row, quiet=True)) == 1, "two templates may read alike on one row"
    for choices, code in ((["", "y"], "E-TPL-EMPTY"), (["y", " y"], "E-LABEL-DUP")):
        rows = [{"prompts": ["a", "b"], "choices": [choices] * 2}]
        refused(rf"{code}: rows, template template_1( and 1 more)?: ", audit, loaded, rows)


@pytest.mark.parametrize("choices", ["Yes", "Yes || No", "{{ text }}"])
def test_a_single_answer_is_no_choice(loaded, choices):
    templates = TemplateSet(tuple(Template(name, f"{name} {{{{ text }}}}", choices) for name in ("one", "two")))
    task = Task("single", templates, {"test": [{"text": "Tea"}, {"text": "Milk"}]})
    words = r"E-TPL-LABELS: template 'one', .*row 1: '[^']+' is the only answer choice\. .*separated by \|\|\|"
    refused(words, audit, loaded, task)


def test_audits_in_memory_are_named_and_reported_like_folders(loaded, monkeypatch, tmp_path):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    names = ("one", "two")
    runs = [
        audit(loaded, make_task(make_rows(size)), name=name, quiet=True)
        for size, name in zip((5, 4), names, strict=True)
    ]
    refused(r"E-RUN-MISMATCH: one and two cannot be compared: they differ in their instances", compare, *runs)
    same = [runs[0], audit(loaded, make_task(), name="two", quiet=True)]
    folders = [run.write(tmp_path / run.name) for run in same]
    pages = [Page(write_report(given, "page.html").read_text()).text for given in (iter(same), folders)]
    for folder in names:
        pages[1] = pages[1].replace(f"Folder {folder}", "")
    assert pages[0].split() == pages[1].split()
    one = [write_report(given, "page.html").read_text() for given in (runs[0], [runs[0]])]
    assert one[0] == one[1]
    assert "page.html" in write_report(str(folders[0]), "page.html").name
    mixed = compare(runs[0], load_run(folders[0]), load_run(shutil.copytree(folders[0], tmp_path / "copy")))
    assert [run.name for run in mixed.runs] == ["one (1)", "one (2)", "one (3)"]
    monkeypatch.chdir(folders[0])
    assert [run.name for run in compare(".", tmp_path / "copy").runs] == ["one (one)", "one (copy)"]
    with pytest.raises(TypeError, match="PathLike"):
        write_report([runs[0], None], "page.html")


def test_rows_with_labels_instead_of_a_label_are_refused(loaded):
    rows = [{"prompts": ["a", "b"], "choices": [["x", "y"]] * 2, "labels": 1}]
    refused("E-DATA-ROWS: Row '0' has the key 'labels'. Did you mean 'label'?", audit, loaded, rows)


def test_whole_numbers_of_numpy_are_recorded_as_plain_numbers(untyped, loaded, tmp_path):
    numbers = {"seed": 3, "limit": 4}
    records = []
    for kind in (int, np.int64, np.uint8):
        scoring = ScoringOptions(batch_tokens=kind(64), concurrency=kind(2))
        given = {name: kind(number) for name, number in numbers.items()}
        run = audit(loaded, make_task(), **given, scoring=scoring, quiet=True)
        record = load_run(run.write(tmp_path / kind.__name__)).record
        records.append((record.seed, record.scoring, record.task))
    assert records[0] == records[1] == records[2]


def test_threads_that_share_a_model_score_as_one_after_the_other(loaded, task):
    alone = audit(loaded, task, quiet=True).scores
    with ThreadPoolExecutor(3) as threads:
        for run in threads.map(lambda _: audit(loaded, task, quiet=True), range(6)):
            np.testing.assert_array_equal(run.scores, alone)


@pytest.mark.usefixtures("untyped")
def test_a_name_that_is_no_text_is_refused_before_scoring():
    refused("^E-CONFIG: name is 3", audit, "no-model", [], name=3)


def test_a_table_without_flips_has_columns_of_text(loaded):
    flips = audit(loaded, make_task(templates=TEMPLATES[:1]), quiet=True).to_pandas("flips")
    assert len(flips) == 0
    assert flips["margin"].dtype == float
    assert len(flips[flips["prompt"].str.contains("room")]) == 0
