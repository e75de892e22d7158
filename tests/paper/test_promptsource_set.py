"""PromptSource sets as tasks, with the labels that a task file names."""

import pandas as pd
import pytest

from flip_flop import load_task
from flip_flop.errors import InputError

TEMPLATE = """  {id}: !Template
    answer_choices: {choices}
    id: {id}
    jinja: "{{{{text}}}}? ||| {{{{ answer_choices[label] }}}}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [], original_task: {original}}}
    name: {id}
    reference: ''
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The set `tea` of three templates: one of another task, and one with three answers."""
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / "templates"))
    (tmp_path / "templates" / "tea").mkdir(parents=True)
    templates = (("plain", "No ||| Yes", "true"), ("other", "No ||| Yes", "false"), ("three", "A ||| B ||| C", "true"))
    text = "".join(TEMPLATE.format(id=name, choices=choices, original=own) for name, choices, own in templates)
    (tmp_path / "templates" / "tea" / "templates.yaml").write_text(f"dataset: tea\ntemplates:\n{text}")
    return tmp_path


def load(folder, more):
    (folder / "rows.csv").write_text("text,label,word\nx,1,good\ny,0,bad\nz,-1,\n")
    (folder / "tea.yaml").write_text(f"data: {{train: rows.csv}}\ntemplates: {{promptsource: tea}}\n{more}")
    return load_task(folder / "tea.yaml")


@pytest.mark.parametrize(
    ("more", "gold"),
    [
        ("label_field: label\nlabels: [0, 1]", [1, 0, None]),  # -1 is the hub's label of an unlabelled row
        ("label_field: label\nlabels: [1, 0]", [0, 1, None]),
        ("label_field: word\nlabels: [bad, good]", [1, 0, None]),
        ("", [None] * 3),
    ],
)
def test_labels_are_those_of_the_task_file(folder, caplog, more, gold):
    task = load(folder, more)
    assert task.templates.names == ("plain",)
    assert [name for name, _ in task.dropped_templates] == ["other", "three"]
    assert [instance.label for instance in task.instances("train")] == gold
    assert ("W-NO-GOLD" in caplog.text) == (not more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("label_field: label", "E-TASK-KEY: .*label_field is 'label', and labels is missing"),
        ("label_field: label\nlabels: [0, 1, 2, 3]", "E-TPL-EMPTY: .*no PromptSource template can be used"),
        ("label_field: text\nlabels: [x, y]", "E-TPL-EMPTY: .*E-TPL-LABEL-LEAK"),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder, more, words):
    with pytest.raises(InputError, match=words):
        load(folder, more).instances("train")


def test_a_damaged_split_is_an_error(folder):
    mirror = folder / "mirror" / "tea" / "default"
    mirror.mkdir(parents=True)
    pd.DataFrame({"text": ["x", "y"], "label": [1, 0]}).to_parquet(mirror / "validation.parquet")
    assert set(load_task("promptsource:tea", hub_mirror=folder / "mirror").data) == {"test"}
    (mirror / "test.parquet").write_bytes((mirror / "validation.parquet").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"test\.parquet"):
        load_task("promptsource:tea", hub_mirror=folder / "mirror")
