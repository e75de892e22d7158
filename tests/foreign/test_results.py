"""Results of other tools, compared with plain loops over their files.

The samples are of lm-eval 0.4.13 with SmolLM2 on four tasks, and the logs of Inspect 0.3 with ``mockllm/model``.
"""

import csv
import json
import math
import random
import subprocess
import sys
from itertools import combinations
from operator import eq
from pathlib import Path
from statistics import fmean

import pandas as pd
import pytest

from flip_flop import Audit, compare, load_run
from tests.cases import read_list
from tests.refused import refused
from tests.report.pages import Page

HERE = Path(__file__).parent
VARIANTS = ("formal", "long", "short")
# What `inspect view` shows: the answers to r0, ..., r3, of which one is not read, and the right ones.
INSPECT = {"pick": ["A", "B", "B", "B"], "plain": ["A", "", "A", "B"]}
INSPECT_GOLD = ["A", "A", "B", "B"]


def loop_agreement(lines):
    """The share of pairs of variants with the same readable answer, averaged over rows."""
    shares = []
    for line in lines:
        pairs = list(combinations(line, 2))
        shares.append(sum(one == other != "" for one, other in pairs) / len(pairs))
    return fmean(shares)


def loop_f1(answers, gold):
    """The mean over labels of F1."""
    values = []
    for label in sorted(set(gold)):
        hits = sum(answer == right == label for answer, right in zip(answers, gold, strict=True))
        values.append(2 * hits / (answers.count(label) + gold.count(label)))
    return fmean(values)


def samples_of(task):
    """The samples after the first filter of a task."""
    (file,) = (HERE / "lm_eval").glob(f"samples_{task}_2*.jsonl")
    samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [sample for sample in samples if sample["filter"] == samples[0]["filter"]]


def write_csv(path, rows):
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def make_rows(seed, accuracy, number=60):
    """Answers to the same rows in each call; each 40th answer is no label."""
    gold, noise = random.Random(1), random.Random(seed)
    rows = []
    for place in range(number):
        right = gold.choice(["no", "yes"])
        for variant in VARIANTS:
            wrong = "yes" if right == "no" else "no"
            answer = right if noise.random() < accuracy else wrong
            answer = "maybe" if len(rows) % 40 == 9 else answer
            rows.append({"id": place, "variant": variant, "answer": answer, "gold": right})
    return rows


@pytest.fixture
def tables(tmp_path):
    return write_csv(tmp_path / "base.csv", make_rows(2, 0.6)), write_csv(tmp_path / "tuned.csv", make_rows(3, 0.9))


def test_multiple_choice_of_lm_eval_equals_a_loop():
    run = load_run(HERE / "lm_eval" / "samples_reviews_*.jsonl")
    assert run.name == "lm_eval"
    tasks = ["reviews_recommend", "reviews_satisfied"]
    columns = []
    for task in tasks:
        column = []
        for row, sample in enumerate(samples_of(task)):
            scores = [float(score) for score, _ in sample["filtered_resps"]]
            column.append(str(scores.index(max(scores))))
            total = math.log(sum(map(math.exp, scores)))
            found = run.data.values[row, tasks.index(task)]
            assert found == pytest.approx([score - total for score in scores], abs=1e-5)
        columns.append(column)
        assert run.metrics["accuracy_per_template"][task] == fmean(sample["acc"] for sample in samples_of(task))
    gold = [sample["target"] for sample in samples_of(tasks[0])]
    assert run.template_names == tuple(tasks)
    assert run.label_names == ("0", "1")
    assert run.value("agreement") == pytest.approx(loop_agreement(zip(*columns, strict=True)))
    assert run.value("macro_f1") == pytest.approx(fmean(loop_f1(column, gold) for column in columns))


def test_generated_texts_of_lm_eval_are_right_as_exact_match_counts_them():
    run = load_run(HERE / "lm_eval" / "samples_sums_*.jsonl")
    columns = []
    for task in ("sums_symbols", "sums_words"):
        columns.append([sample["filtered_resps"][0] for sample in samples_of(task)])
        expected = fmean(sample["exact_match"] for sample in samples_of(task))
        assert run.metrics["accuracy_per_template"][task] == expected
    assert run.value("agreement") == loop_agreement(zip(*columns, strict=True))
    assert run.value("accuracy") == pytest.approx(5 / 12)
    assert run.value("mean_f1") is None  # answers are open
    assert run.label_name(int(run.predictions[1, 0]), 1) == "8"


def test_log_of_inspect_equals_what_its_viewer_shows():
    run = load_run(HERE / "inspect")
    assert run.template_names == ("pick", "plain")
    for found, column in zip(run.predictions.T.tolist(), INSPECT.values(), strict=True):
        assert [run.label_name(label) for label in found] == [answer or "no label" for answer in column]
    assert run.value("agreement") == loop_agreement(zip(*INSPECT.values(), strict=True)) == 0.5
    assert run.value("macro_f1") == pytest.approx(fmean(loop_f1(column, INSPECT_GOLD) for column in INSPECT.values()))
    assert run.value("unmapped_share") == 1 / 8
    assert run.record.model.name == "mockllm/model"


def test_epochs_of_a_json_log_are_variants_and_its_scorer_says_what_is_right(tmp_path):
    samples = []
    for number, (epoch, text, value) in enumerate([(1, "It is 4", "C"), (1, "7", "I"), (2, "4", "C"), (2, "7", "I")]):
        scores = {"includes": {"value": value, "answer": text}}
        target = ["4", "four"]
        sample = {"id": number % 2, "epoch": epoch, "target": target, "output": {"completion": text}, "scores": scores}
        samples.append(sample)
    samples[1]["scores"] = None  # not scored: the text counts
    facts = {"task": "sums", "task_args": {"shots": 2}, "model": "m"}
    (tmp_path / "log.json").write_text(json.dumps({"eval": facts, "samples": samples}))
    run = load_run(tmp_path / "log.json")
    assert run.template_names == ("sums, shots=2", "sums, shots=2, epoch 2")
    assert run.value("accuracy") == 0.5
    assert run.value("agreement") == 0.5


@pytest.mark.slow
def test_comparison_of_two_tables_equals_a_loop(tables):
    comparison = compare(*tables)
    expected = {}
    for name, rows in {"base": make_rows(2, 0.6), "tuned": make_rows(3, 0.9)}.items():
        read = ["" if row["answer"] == "maybe" else row["answer"] for row in rows]
        lines = [read[place : place + 3] for place in range(0, len(read), 3)]
        gold = [row["gold"] for row in rows]
        votes = [max(["no", "yes"], key=line.count) for line in lines]
        expected[name] = {
            "observed_agreement": loop_agreement(lines),
            "accuracy": fmean(map(eq, read, gold)),
            "macro_f1": fmean(loop_f1(read[column::3], gold[::3]) for column in range(3)),
            "vote_accuracy": fmean(map(eq, votes, gold[::3])),
        }
        flips = sum(answer not in ("", votes[place // 3]) for place, answer in enumerate(read))
        assert len(load_run(tables[name == "tuned"]).to_pandas("flips")) == flips  # an unread answer does not count
    table = comparison.to_pandas().set_index("metric")
    for metric, before in expected["base"].items():
        after = expected["tuned"][metric]
        found = table.loc[metric]
        assert found[["before", "after", "difference"]].tolist() == pytest.approx([before, after, after - before])
        assert found["low"] < after - before < found["high"]


def test_answers_that_are_no_label_are_reported(tables, caplog):
    run = load_run(tables[0])
    assert "W-RESULTS" in caplog.text
    assert "5 answers, such as 'maybe', are none of the labels no, yes, and count as unreadable" in caplog.text
    assert run.value("unmapped_share") == 5 / 180


def test_probabilities_give_the_calibration_error(caplog):
    rows = make_rows(4, 0.7)
    errors = dict.fromkeys([(variant, prob) for variant in VARIANTS for prob in (0.6, 0.9)], 0.0)
    for row in rows:
        row["answer"] = row["answer"].replace("maybe", "no")
        prob = 0.9 if row["id"] % 2 else 0.6
        errors[row["variant"], prob] += (row["answer"] == row["gold"]) - prob
        other = "yes" if row["answer"] == "no" else "no"
        row |= {f"p({row['answer']})": prob, f"p({other})": 1 - prob}
    expected = sum(map(abs, errors.values())) / len(rows)
    assert Audit.from_results(rows).value("ece") == pytest.approx(expected, abs=1e-6)
    assert not caplog.text
    rows[0] |= {"p(no)": 0.5, "p(yes)": ""}
    assert Audit.from_results(rows).value("ece") is None
    assert "no probabilities are used: an answer to '" in caplog.text


def test_frame_is_read_like_its_file_and_given_labels_decide(tables):
    stored, frame = load_run(tables[0]), pd.read_csv(tables[0])
    assert Audit.from_results(frame, name="base").metrics == stored.metrics
    run = Audit.from_results(frame, labels=["yes", "maybe", "no"])
    assert run.label_names == ("yes", "maybe", "no")
    assert run.value("unmapped_share") == 0


def test_files_of_a_pattern_are_the_variants_of_a_run(tmp_path, tables):
    folder = tmp_path / "gpt"
    folder.mkdir()
    for variant in VARIANTS:
        rows = [row for row in make_rows(2, 0.6) if row.pop("variant") == variant]
        write_csv(folder / f"{variant}.csv", rows)
    run = load_run(folder / "*.csv")
    assert run.template_names == VARIANTS
    assert run.name == "gpt"
    assert run.metrics == load_run(tables[0]).metrics


def test_runs_without_right_answers_have_agreement_only(tmp_path):
    rows = make_rows(2, 0.6)
    for row in rows:
        del row["gold"]
    first = load_run(write_csv(tmp_path / "a.csv", rows))
    other = load_run(
        write_csv(tmp_path / "b.csv", [row | {"answer": row["answer"].replace("maybe", "no")} for row in rows])
    )
    answers = [row["answer"] for row in rows]
    lines = [answers[place : place + 3] for place in range(0, len(rows), 3)]
    assert first.value("agreement") == pytest.approx(loop_agreement(lines))
    assert first.value("accuracy") is None
    change = compare(first, other).difference("agreement", other)
    assert change.value == pytest.approx(other.value("agreement") - first.value("agreement"))


@pytest.mark.parametrize("case", read_list("foreign/mistakes.yaml", "what"))
def test_mistake_in_a_table_is_named(tmp_path, case):
    (tmp_path / "answers.csv").write_text(case["table"])
    refused(case["error"], load_run, tmp_path / "answers.csv")


def test_other_files_are_refused_in_a_line(tmp_path):
    (tmp_path / "log.json").write_text('{"results": {}}')
    (tmp_path / "log.eval").write_text("not an archive")
    (tmp_path / "old.jsonl").write_text('{"doc_id": 0, "filtered_resps": []}\n')
    sample = samples_of("reviews_recommend")[0]
    sample["acc"] = 1 - sample["acc"]  # as for several right answers, or for choices that are numbers
    (tmp_path / "several.jsonl").write_text(json.dumps(sample))
    for name in ("log.json", "log.eval", "old.jsonl", "several.jsonl"):
        refused(f"E-DATA-PARSE: .*{name} is not a file of results", load_run, tmp_path / name)
    refused("E-DATA-FILE: there is no file .*logs.jsonl", load_run, tmp_path / "logs.jsonl")
    refused("E-RUN-MISSING: .*nothing is not a folder", load_run, tmp_path / "nothing")


@pytest.mark.slow
def test_page_shows_answers_and_says_that_there_are_no_prompts(flip_flop, tables, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert flip_flop("report", *tables, "--out", "labels.html").code == 0
    assert flip_flop("report", HERE / "lm_eval" / "samples_sums_*.jsonl", "--out", "open.html").code == 0
    texts = []
    for name in ("labels.html", "open.html"):
        page = Page((tmp_path / name).read_text(encoding="utf-8"))
        assert not page.faults
        texts.append(" ".join(page.words))
    assert "The runs hold no prompts" in texts[0]
    assert "The results hold no prompts" in texts[1]
    assert "Template texts" not in texts[0]


def test_stored_run_is_the_run(tables, tmp_path):
    run = load_run(tables[0])
    again = load_run(run.write(tmp_path / "stored"))
    assert again.metrics == run.metrics
    assert again.to_pandas("flips").equals(run.to_pandas("flips").assign(prompt=None))


def test_samples_of_one_model_are_compared_with_those_of_another(flip_flop, tmp_path):
    """The other model has the answers of the first one, but for each row that both wordings had wrong."""
    pattern = "samples_reviews_*.jsonl"
    for file in (HERE / "lm_eval").glob(pattern):
        samples = samples_of(file.name.removeprefix("samples_").rpartition("_2")[0])
        for sample in samples:
            sample["filtered_resps"] = [["-2.0", "False"], ["-1.0", "True"]]
            sample["acc"] = float(sample["target"] == "1")
        (tmp_path / file.name).write_text("\n".join(map(json.dumps, samples)))
    shown = flip_flop("compare", HERE / "lm_eval" / pattern, tmp_path / pattern)
    assert shown.code == 0
    before, after = load_run(HERE / "lm_eval" / pattern), load_run(tmp_path / pattern)
    assert after.value("agreement") == 1
    assert f"P_o {100 * before.value('agreement'):.1f} 100.0 (+" in " ".join(shown.out.split())
    assert "explain" not in shown.err


def test_tables_of_other_rows_are_refused_in_one_line(flip_flop, tables, tmp_path):
    rows = make_rows(3, 0.9)
    other = write_csv(tmp_path / "other.csv", [row | {"id": f"x{row['id']}"} for row in rows])
    result = flip_flop("compare", tables[0], other)
    assert result.code == 2
    differences = "they differ in their instances (0, 1, 10, ...)"
    assert f"E-RUN-MISMATCH: base and other cannot be compared: {differences}" in result.err
    more = write_csv(tmp_path / "more.csv", rows + [row | {"variant": "polite"} for row in rows[::3]])
    result = flip_flop("compare", tables[0], more, "--explain")
    assert result.code == 0
    assert "more: polite added, agreement " in result.out
    assert "P_o: how likely two templates give the same label" in result.out


@pytest.mark.slow
def test_comparison_imports_no_torch(tables):
    code = (
        "import sys; from flip_flop.cli.main import cli; cli.main(sys.argv[1:], standalone_mode=False);"
        "print('torch' in sys.modules)"
    )
    arguments = [sys.executable, "-c", code, "compare", *tables]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert "Differences from base" in done.stdout
    assert done.stdout.rstrip().endswith("\nFalse")
