import base64
import gzip
import html
import json
import os
import re
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from flip_flop import compare, load_run, write_report
from flip_flop.prompts import OpenAnswers
from flip_flop.report.compare import comparison_blocks, group_runs, require_comparable, what_differs
from flip_flop.report.sections import caveats
from tests.refused import refused
from tests.report.made_runs import TEMPLATES
from tests.report.pages import Page


def change_json(path, **changes):
    value = json.loads(path.read_text())
    value.update(changes)
    path.write_text(json.dumps({key: part for key, part in value.items() if part != "absent"}))


def rejected(code, path, file):
    line = refused(f"^{code}: ", lambda: list(load_run(path).instances))
    assert str(path) in line
    assert file in line


@pytest.mark.parametrize("name", ["run.json", "metrics.json", "scores.npz"])
def test_a_missing_folder_or_file_is_named(make_run, tmp_path, name):
    rejected("E-RUN-MISSING", tmp_path / "nowhere", "nowhere")
    run = make_run()
    (run / name).unlink()
    rejected("E-RUN-MISSING", run, name)


def cut_or(content):
    return lambda path: path.write_bytes(content or path.read_bytes()[:-9])


def change(**changes):
    return lambda path: change_json(path, **changes)


def change_arrays(**changes):
    return lambda path: np.savez_compressed(path, **dict(np.load(path)) | changes)


def change_lines(changes):
    def damage(path):
        lines = gzip.decompress(path.read_bytes()).splitlines(keepends=True)
        path.write_bytes(gzip.compress(b"".join(changes(lines))))

    return damage


def make_long(path):
    path.touch()
    os.truncate(path, 2**30)


FILES = ("run.json", "metrics.json", "scores.npz", "instances.jsonl.gz")
CODE = np.array([{"run": "code"}] * 40, dtype=object)  # opening it would run code
WRONG_METRICS = [
    {"mean_f1": "<b>"},
    {"observed_agreement": True},
    {"f1_std": [0.1]},
    {"label_shares": [0.5]},
    {"label_shares_per_template": {"plain": [0.5, 0.5]}},
    {"f1_per_template": None},
    {"intervals": {"mean_f1": [0.1]}},
    {"own_label_mass_per_template": {"plain": 0.1}},
    {"preferred_tokens_per_template": {"plain": [1]}},
    {"preferred_tokens_per_template": {"other": ["a"]}},
]
WRONG_RECORDS = [{"task": "absent"}, {"model": "absent"}, {"scoring": "absent"}, {"task": {"name": "x"}}]
NAN = np.full((40, 8, 2), np.nan, np.float32)
WRONG_ARRAYS = [{"gold": CODE}, {"scores": NAN}, {"scores": np.zeros((40, 8), np.float32)}]


@pytest.fixture
def assert_broken(make_run):
    """Check that a run with this file damaged is refused as broken."""

    def check(file, damage):
        run = make_run()
        damage(run / file)
        rejected("E-RUN-BROKEN", run, file)

    return check


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"text"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_cut_short_or_another_is_broken(assert_broken, file, content):
    assert_broken(file, cut_or(content))


@pytest.mark.slow
@pytest.mark.parametrize("changes", WRONG_METRICS, ids=json.dumps)
def test_a_metric_of_another_form_is_broken(assert_broken, changes):
    assert_broken("metrics.json", change(**changes))


@pytest.mark.slow
@pytest.mark.parametrize("changes", WRONG_RECORDS, ids=json.dumps)
def test_a_record_without_its_parts_is_broken(assert_broken, changes):
    assert_broken("run.json", change(**changes))


@pytest.mark.slow
@pytest.mark.parametrize("arrays", WRONG_ARRAYS)
def test_arrays_of_another_form_are_broken(assert_broken, arrays):
    assert_broken("scores.npz", change_arrays(**arrays))


@pytest.mark.slow
@pytest.mark.parametrize("changes", [lambda lines: lines[::-1], lambda lines: [*lines[:3], b"x" * 100]])
def test_instances_in_another_order_or_form_are_broken(assert_broken, changes):
    assert_broken("instances.jsonl.gz", change_lines(changes))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "expand"),
    [
        ("instances.jsonl.gz", lambda path: path.write_bytes(gzip.compress(b"\n" * 2**23))),
        ("scores.npz", lambda path: change_arrays(more=np.zeros(70 * 2**20, np.float32))(path)),
        ("run.json", change(command="x" * 2**24)),
        ("run.json", change(name="x" * 2**18)),
        ("metrics.json", change(other="x" * 2**24)),
        ("MANIFEST.json", lambda path: path.symlink_to("/dev/zero")),
        ("MANIFEST.json", os.mkfifo),
        ("MANIFEST.json", make_long),
        ("too_long.csv", make_long),
    ],
)
def test_untrusted_run_is_rejected_before_it_fills_memory(make_run, file, expand, tmp_path):
    run = make_run()
    expand(run / file)
    tracemalloc.start()
    try:
        refused(rf"^E-RUN-BROKEN: .*{file} ", write_report, [run], tmp_path / "report.html")
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


def test_runs_are_compared_on_the_same_split_labels_and_instances(make_run):
    others = [
        make_run("few", labels=("bad", "good")),
        make_run("held", held_out=[template[0] for template in TEMPLATES]),
        make_run("split", split="validation"),
    ]
    groups = group_runs([load_run(path) for path in [make_run(), make_run("f2c", pull=0.9), *others]])
    names = [[run.name for run in group.runs] for group in groups]
    assert names == [["base", "f2c"], ["few"], ["held"], ["split"]]
    require_comparable(groups)
    differences = "differ in their labels, F1 or scale and held-out templates"
    refused(rf"E-RUN-MISMATCH.*{differences}", require_comparable, groups[1:])


def test_runs_on_another_scale_are_not_compared(make_run):
    run = load_run(make_run())
    graded = replace(run, record=replace(run.record, task=replace(run.record.task, scale=True)))
    refused("E-RUN-MISMATCH.*differ in their labels, F1 or scale", compare, run, graded)


def test_the_runs_that_differ_are_named(make_run):
    same = [make_run(folder=name) for name in ("a", "b")]
    other = make_run(seed=2, folder="c")
    line = refused("^E-RUN-MISMATCH: ", compare, *same, other)
    labels = "gold labels (test-0000, test-0005, test-0006, ...)"
    assert f"{same[0]} and {other} cannot be compared: they differ in their {labels}." in line


@pytest.mark.parametrize("kind", ["html", "txt", "csv", "md"])
def test_runs_that_cannot_be_compared_have_no_report(flip_flop, make_run, tmp_path, kind):
    runs = [make_run(folder=f"{seed}", seed=seed) for seed in (1, 2)]
    result = flip_flop("report", *runs, "--out", tmp_path / f"report.{kind}")
    assert (result.code, result.err.split(": ")[0]) == (2, "E-RUN-MISMATCH")
    assert not (tmp_path / f"report.{kind}").exists()


def test_a_report_of_one_row_has_no_plural(make_run, tmp_path):
    report = write_report([make_run(num_instances=1)], tmp_path / "report.html")
    assert "1 rows" not in Page(report.read_text(encoding="utf-8")).text


def test_a_run_compared_with_itself_has_two_names(make_run):
    run = load_run(make_run())
    assert [each.name for each in compare(run, run).runs] == ["base (1)", "base (2)"]


def test_runs_on_other_rows_have_a_table_of_their_own(make_run):
    runs = [load_run(make_run(folder=f"{seed}", seed=seed)) for seed in (1, 2)]
    heading = "demo_reviews, test, 8 templates, 40 instances"
    assert {name: len(block) for name, block in comparison_blocks(runs).items()} == {heading: 1, f"{heading} (2)": 1}


@pytest.mark.parametrize(("suffix", "of"), [("", ""), ("_release", " (release)")])
def test_a_method_that_is_not_clearly_better_is_said_to_be_so(make_run, suffix, of):
    base, *trained = (load_run(make_run(name, method=name)) for name in ("base", f"f2c{suffix}", f"cce{suffix}"))
    (base,) = (replace(base, record=replace(base.record, adapter=None)) for base in [base])
    (caveat,) = (text for text in caveats(compare(base, *trained)) if text.startswith("CCE"))
    assert caveat.startswith(f"CCE{of} is not clearly different from F2C{of} here: ")


def test_runs_with_different_prompts_are_not_compared_if_their_digests_are_known(make_run):
    digests = {"old": "", "rows": "a" * 64, "other": "b" * 64, "again": "a" * 64}
    runs = [load_run(make_run(name, instances_digest=digest)) for name, digest in digests.items()]
    assert [[run.name for run in group.runs] for group in group_runs(runs[1:])] == [["rows", "again"], ["other"]]
    assert [what_differs(runs[0], run) for run in runs] == [""] * 4
    refused(r"E-RUN-MISMATCH.*differ in their instances\.", require_comparable, group_runs(runs[1:3]))


def test_runs_of_two_models_or_data_types_are_not_before_and_after(make_run):
    changes = [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "model_digest": "0" * 64}]
    before, *after = (load_run(make_run(str(number), **change)) for number, change in enumerate([{}, *changes]))
    assert [what_differs(before, run) for run in after] == ["", "data type", "model's weights and data type"]
    require_comparable(group_runs([before, after[2]]))  # two models may be shown side by side


def embedded_prompts(page):
    """The prompts of each instance and template, with their runs and the written answers."""
    data = re.search(r'id="g1-data">([^<]+)<', page).group(1)
    instances = json.loads(gzip.decompress(base64.b64decode(data)))
    return [blocks for templates in instances["prompts"] for blocks in templates]


def with_texts(run, start, answer):
    """Write the run again, with other prompts, and with a generated answer to each of them."""
    stored, written = load_run(run), tuple(f"{answer} {index}" for index in range(8))
    instances = [
        replace(instance, prompts=tuple(start + prompt for prompt in instance.prompts), open=OpenAnswers(texts=written))
        for instance in stored.instances
    ]
    replace(stored, instances=instances).write(run)


@pytest.mark.slow
def test_a_report_of_two_runs_has_the_prompts_and_the_texts_of_both(make_run, tmp_path):
    base, trained = make_run(), make_run("f2c", pull=0.8)
    page = write_report([base, trained], tmp_path / "report.html").read_text(encoding="utf-8")
    assert all(names == written == [] for ((names, _, written),) in embedded_prompts(page))

    with_texts(base, "", "It is")
    with_texts(trained, "", "I say")
    page = write_report([base, trained], tmp_path / "report.html").read_text(encoding="utf-8")
    for ((names, prompt, written),) in embedded_prompts(page):
        assert "kettle" in prompt
        number = written[0][1][-1]
        assert (names, written) == ([], [["base", f"It is {number}"], ["f2c", f"I say {number}"]])
    assert "f2c wrote I say 3" in Page(page).text

    with_texts(trained, "<|user|>", "I say")
    page = write_report([base, trained], tmp_path / "report.html").read_text(encoding="utf-8")
    for first, second in embedded_prompts(page):
        assert (first[0], second[0]) == (["base"], ["f2c"])
        assert second[1] == "<|user|>" + first[1]
        assert [[name for name, _ in block[2]] for block in (first, second)] == [["base"], ["f2c"]]
    assert "Prompt of f2c <|user|>" in Page(page).text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "end"),
    [("", ""), ("Review: ", "\nIs this good?"), ("<|user|>\n", "\n<|end|>"), ("In one word, ", ".")],
)
def test_a_row_shows_its_text_without_what_all_prompts_have_in_common(make_run, tmp_path, start, end):
    run = make_run()
    texts = [f"{chr(97 + index % 7)}{index} of <b> {index}{chr(97 + index % 5)}" for index in range(40)]
    stored = load_run(run)
    instances = [
        replace(instance, prompts=(f"{start}{text}{end}",) * 8)
        for instance, text in zip(stored.instances, texts, strict=True)
    ]
    replace(stored, instances=instances).write(run)
    page = write_report([run], tmp_path / "report.html").read_text(encoding="utf-8")
    shown = [html.unescape(text) for text in re.findall(r'<span class="text">(.*?)</span>', page)]
    assert len(shown) > 3
    assert {text.rstrip(".") for text in shown} <= {*texts}
