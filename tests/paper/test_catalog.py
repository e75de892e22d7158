"""The paper's datasets by name and `flip-flop tasks`, on made rows in the hub's schemas: these tests run anywhere."""

import json

import pytest

from flip_flop.metrics import resolve_average
from flip_flop.paper.data.catalog import catalog_data, catalog_entry, catalog_names
from flip_flop.tasks import TaskRequest, load_task
from tests.paper.made_datasets import CSV_FILES, change_rows, templates_yaml, write_story_cloze
from tests.refused import refused

NAMES = catalog_names()


def load(made, name, seed=0):
    return load_task(name, hub_mirror=made.mirror, story_cloze_dir=made.stories, seed=seed)


def load_data(made, name):
    return catalog_data(TaskRequest(name=name, hub_mirror=made.mirror))


@pytest.mark.parametrize("name", NAMES)
def test_sizes_follow_from_official_splits_or_have_a_note(name):
    entry = catalog_entry(name)
    policy, train, test = entry.policy, entry.train_from.rows, entry.test_from.rows
    held_out = policy.held_out(train, test)
    sizes = [min(train - held_out, policy.max_train), held_out, min(test, policy.max_test or test)]
    paper = [entry.paper[split] for split in ("train", "validation", "test")]
    assert (sizes == paper) == (not entry.table_note)
    assert entry.paper["labels"] == len(entry.labels) == len(entry.label_names)
    assert list(entry.published("release")) == ["train", "validation", "test", "templates", "labels"]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_dataset_has_disjoint_splits_that_depend_on_the_seed(name, made):
    task, labels = load(made, name), catalog_entry(name).labels
    splits = {split: task.instances(split) for split in ("train", "validation", "test")}
    for instances in splits.values():
        assert {instance.label for instance in instances} == set(range(len(labels)))
        assert all(len(choices) == len(labels) for item in instances for choices in item.choices)
        assert len({instance.id for instance in instances}) == len(instances)
    prompts = [{(instance.prompts, instance.choices) for instance in instances} for instances in splits.values()]
    assert sum(map(len, prompts)) == len(set.union(*prompts)) == 60 + 23
    assert len(prompts[2]) == 23
    assert resolve_average(task.f1, len(labels)) == ("binary" if len(labels) == 2 else "macro")
    again, other = load(made, name), load(made, name, seed=1)
    assert all(task.rows(split) == again.rows(split) for split in splits)
    assert task.rows("validation").ids != other.rows("validation").ids
    assert task.rows("test").ids == other.rows("test").ids


def test_the_gold_label_is_the_index_of_the_row_and_never_in_the_prompt(made):
    for name, answers in (("winogrande", ("Ann", "Bob")), ("copa", None), ("storycloze", None)):
        task = load(made, name)
        rows, instances = task.rows("test"), task.instances("test")
        for row, instance in zip(rows.rows, instances, strict=True):
            gold = int(row.fields[task.label_field or ""])
            assert instance.label == gold - (0 if name == "copa" else 1)
            assert answers is None or instance.choices[0] == answers


def test_a_row_that_renders_like_a_test_row_is_left_out_of_train(made):
    (row,) = load(made, "rte").rows("test").rows[4:5]
    # Its idx and its label differ, which are not rendered.
    other = row.fields | {"idx": 500, "label": 1 - row.fields["label"]}
    change_rows(made, "aps/super_glue/rte/train", lambda rows: [*rows, other])
    data = load_data(made, "rte")
    assert data.duplicates.in_test == (60,)
    assert not any("train-500" in (data.task.rows(split).ids or ()) for split in ("train", "validation"))
    assert len(data.task.rows("test")) == 23
    assert data.task.rows("train").provenance["left_out"] == 1


def test_the_check_of_all_rows_is_cached(made, monkeypatch, tmp_path):
    first = load_data(made, "copa")
    assert first.task.templates.names == ("other", "which")
    assert [name for name, _ in first.task.dropped_templates] == ["causes"]
    with monkeypatch.context() as patch:
        patch.setattr("flip_flop.paper.data.catalog.filter_templates", lambda *_, **__: pytest.fail("again"))
        assert load_data(made, "copa") == first
    (file,) = (tmp_path / "cache").rglob("copa-*.json")
    for damaged in ("", "[]", '{"kept": ["gone"], "dropped": [], "duplicates": {}}', '{"kept": ['):
        file.write_text(damaged)
        assert load_data(made, "copa") == first


def test_changed_rows_and_templates_are_checked_again(made, tmp_path):
    load(made, "copa")
    for split in ("train", "validation"):
        change_rows(made, f"aps/super_glue/copa/{split}", lambda rows: [{**row, "question": "cause"} for row in rows])
    assert load(made, "copa").templates.names == ("causes", "other", "which")
    file = made.promptsource / "super_glue/copa/templates.yaml"
    file.write_text(file.read_text().replace("Why?", "{{ label }}"))
    assert load(made, "copa").templates.names == ("other", "which")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda rows: [{key.removesuffix("e"): value for key, value in row.items()} for row in rows],
            r"E-DATA-COLUMN: .*no column 'premise', which rte has\. Did you mean 'premis'",
        ),
        (lambda rows: [{**row, "label": -1} for row in rows], r"E-LABEL: .*train\.parquet row 1"),
        (lambda rows: [*rows[:2], {**rows[2], "label": None}], r"E-LABEL: .*train\.parquet row 3: 'label' is empty"),
        (lambda rows: rows[:1], "E-DATA-ROWS"),
    ],
)
def test_rows_of_another_shape_or_too_few_are_refused(change, words, made):
    change_rows(made, "aps/super_glue/rte/train", change)
    refused(words, load, made, "rte")


def test_story_cloze_explains_registration_and_reads_its_folder(made, tmp_path, monkeypatch):
    refused(r"\AE-DATA-FILE: .* Register at https://.*--story-cloze-dir[^\n]*\Z", load_task, "storycloze")
    refused(r"E-DATA-FILE: there is no file .*cloze_test_val", load_task, "storycloze", story_cloze_dir=tmp_path)
    monkeypatch.setenv("FLIP_FLOP_STORY_CLOZE", str(made.stories))
    task = load_task("storycloze")
    row = task.rows("test").rows[0].fields
    assert tuple(row) == catalog_entry("storycloze").fields
    assert row["input_sentence_1"] == 'Sentence 1, "of 1000".'
    assert task.instances("test")[0].choices[0] == ("Ending 1 of 1000.", "Ending 2 of 1000.")


def test_other_story_cloze_files_are_rejected(made):
    path = made.stories / CSV_FILES[1]
    path.write_text(path.read_text().replace("AnswerRightEnding", "Answer"))
    refused(r"E-DATA-COLUMN: .* has no column 'AnswerRightEnding'", load, made, "storycloze")
    write_story_cloze(made.stories)
    path.write_text(path.read_text().removesuffix("1\n").removesuffix("1\r\n") + "3\n")
    refused(r"E-LABEL: .* line 24: 'answer_right_ending' is 3", load, made, "storycloze")
    path.write_text(path.read_text().removesuffix("3\n") + "\n")
    refused(r"E-DATA-PARSE: .* line 24: 'AnswerRightEnding' is empty", load, made, "storycloze")


# ---- the command ----


def test_list_shows_the_papers_table_without_reading_anything(flip_flop, monkeypatch):
    monkeypatch.setenv("FLIP_FLOP_HUB_MIRROR", "/nowhere")
    result = flip_flop("tasks", "list")
    assert result.code == 0
    lines = {line.split()[0]: line.split()[1:6] for line in result.out.splitlines() if line}
    assert lines["hellaswag"] == ["10000", "600", "600", "4", "4"]
    assert lines["anli_r3"] == ["10000", "1000", "1200", "15", "3"]
    assert len(lines.keys() - {"task", "next:"}) == 11


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (
            ["copa"],
            [
                "aps/super_glue (copa): train (400 rows), validation (100 rows)",
                "labels:    label: 0 choice1, 1 choice2",
                "  which\n",
                "  not causes: row 1: the prompt is empty",
            ],
        ),
        # Without rows.
        (["storycloze"], ["labels:    answer_right_ending: 1 sentence_quiz1, 2 sentence_quiz2", "E-DATA-FILE"]),
        (["rte", "--protocol", "release"], ["in each official split, rows that repeat a prompt are excluded"]),
    ],
)
def test_show_prints_source_labels_splits_and_templates(flip_flop, made, arguments, texts):
    result = flip_flop("tasks", "show", *arguments, "--hub-mirror", made.mirror)
    assert (result.code, [text for text in texts if text not in result.out]) == (0, [])


@pytest.mark.slow
def test_check_succeeds_if_differences_have_reasons(flip_flop, made):
    texts = [f"{number} {{{{sentence1}}}} {{{{sentence2}}}}" for number in range(10)]
    same = {"choices": "No ||| Yes", "original": True}
    ten = [{"name": f"t{number}", "text": text} | same for number, text in enumerate(texts)]
    (made.promptsource / "super_glue/wic/templates.yaml").write_text(templates_yaml("super_glue/wic", ten))
    result = flip_flop("tasks", "check", "wic", "storycloze", "--hub-mirror", made.mirror)
    assert (result.code, result.err) == (0, "")
    result = flip_flop("tasks", "check", "--hub-mirror", made.mirror, "--story-cloze-dir", made.stories)
    assert "storycloze: validation has 60 of its 1,871 rows here; test has 23" in result.out
    assert len(result.out.split("\n\n")[0].splitlines()) == 12


def test_a_dataset_by_name_is_audited_under_a_protocol(flip_flop, made, model, tmp_path):
    out = tmp_path / "run"
    options = ["--protocol", "release", "--hub-mirror", made.mirror, "--limit", 5, "-o", out, "-q"]
    result = flip_flop("audit", "-m", model, "-t", "hellaswag", *options)
    assert result.code == 0, result.err
    task = json.loads((out / "run.json").read_text())["task"]
    assert [template["name"] for template in task["templates"]] == ["drawn", "ends", "numbered"]
    assert task["num_instances"] == 5
    data = task["data"]
    assert data["split_sizes"] == {"train": 54, "validation": 6, "test": 23}
    assert len(data["split_ids_sha256"]["train"]) == 64
    assert (data["splits"], data["split_seed"], data["prompt_value_limit"]) == ("release", 42, 2048)
    assert data["templates"]["promptsource"] == "hellaswag"


def test_a_file_is_answered_with_a_datasets_templates(flip_flop, made, model, tmp_path):
    source, out = tmp_path / "mine.jsonl", tmp_path / "answers.jsonl"
    source.write_text(json.dumps({"premise": "Tea is hot.", "hypothesis": "Tea is warm.", "idx": 0}) + "\n")
    options = ["--hub-mirror", made.mirror, "--input", source, "--out", out]
    result = flip_flop("predict", "-m", model, "-t", "rte", *options)
    assert result.code == 0, result.err
    assert list(json.loads(out.read_text())["templates"]) == ["a truth", "b claim"]


def test_check_compares_both_protocols_with_their_sizes_and_names_reasons(flip_flop, made):
    result = flip_flop("tasks", "check", "rte", "storycloze", "--hub-mirror", made.mirror)
    tables = [line.split() for line in result.out.splitlines() if line.startswith("rte  ")]
    assert [table[1:] for table in tables] == [
        ["54", f"({train})", "6", "(1000)", "23", "(277)", "2", "(10)", "2"] for train in (1490, 1488)
    ]
    assert "rte: train has 60 of its 2,490 rows here; validation has 23 of its 277 rows here" in result.out
    assert "no known reason: templates" in result.out
    assert "storycloze: E-DATA-FILE: " in result.out
    assert result.code == 1
    result = flip_flop("tasks", "check", "rte", "--protocol", "release", "--hub-mirror", made.mirror)
    assert "protocol release: the authors' release" in result.out
    assert "protocol paper" not in result.out
