"""``flip-flop tasks``, and the datasets by name in the other verbs."""

import json

import pytest

from tests.paper.made_datasets import templates_yaml


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
    ten = [(f"t{number}", f"{number} {{{{sentence1}}}} {{{{sentence2}}}}", "No ||| Yes", True) for number in range(10)]
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
