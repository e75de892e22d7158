"""PromptSource sets as tasks, with labels from the targets of their templates."""

import pandas as pd
import pytest

from flip_flop import load_task
from flip_flop.errors import InputError

TEMPLATE = """  {id}: !Template
    answer_choices: {choices}
    id: {id}
    jinja: "{{{{text}}}}? ||| {{{{ {target} }}}}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [], original_task: {original}}}
    name: {id}
    reference: ''
"""


@pytest.fixture
def task_of(tmp_path, monkeypatch):
    """A function that reads a task file of a set with two templates, of which one asks for the set's own task."""
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / "templates"))

    def read(choices, target, rows, more=""):
        folder = tmp_path / "templates" / "tea"
        folder.mkdir(parents=True)
        both = (("plain", "true"), ("other", "false"))
        text = "".join(TEMPLATE.format(id=name, choices=choices, target=target, original=own) for name, own in both)
        (folder / "templates.yaml").write_text(f"dataset: tea\ntemplates:\n{text}")
        (tmp_path / "rows.csv").write_text(rows)
        (tmp_path / "tea.yaml").write_text(f"data: {{train: rows.csv}}\ntemplates: {{promptsource: tea}}\n{more}")
        return load_task(tmp_path / "tea.yaml")

    return read


@pytest.mark.parametrize(
    ("choices", "target", "rows", "label_field", "labels"),
    [
        ("No ||| Yes", "answer_choices[label]", "text,label\nx,1\ny,0", "label", ("0", "1")),
        ("No ||| Yes", "answer_choices[label - 1]", "text,label\nx,2\ny,1", "label", ("1", "2")),
        ("No ||| Yes", "answer_choices[label]", "text,label\nx,True\ny,False", "label", ("False", "True")),
        ("No ||| Yes", "{'p': 'Yes', 'n': 'No'}[label]", "text,label\nx,p\ny,n", "label", ("n", "p")),
        ("No ||| Yes", "answer_choices[label]", "text,label\nx,yes\ny,no", "label", ("no", "yes")),
        ("'{{a}} ||| {{b}}'", "right", "text,a,b,right\nx,p,q,q\ny,r,s,r\nz,q,t,q", "target_index", (0, 1)),
    ],
)
def test_labels_and_their_order_come_from_the_targets(
    choices, target, rows, label_field, labels, task_of, tmp_path, flip_flop
):
    task = task_of(choices, target, rows)
    assert (task.templates.names, task.label_field, task.labels) == (("plain",), label_field, labels)
    assert [each.label for each in task.instances("train")][:2] == [1, 0]
    varied = flip_flop("templates", "vary", tmp_path / "tea.yaml", "--out", tmp_path / "more.yaml")
    if label_field == "target_index":  # no field of the rows
        assert varied.err.startswith("E-TASK-FILE: ")
    else:
        again = load_task(tmp_path / "more.yaml")
        assert (again.label_field, again.labels) == (label_field, labels)
        assert again.gold_labels(again.rows("train"))[:2] == [1, 0]


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ("text,label,mine\nx,0,1\ny,1,1\nz,0,0", "label_field: mine", "do not map the values of 'mine' to answers"),
        ("text,label\nx,0\ny,1", "label_field: lable", "no field 'lable'. Did you mean 'label'?"),
        ("text,label\nx,1\ny,2", "", "no answer for '2' of the field 'label'. Write label_field: and labels:"),
        ("text,label\nx,0\ny,1", "chat_template_kwargs: {day: 2020-01-01}", "not JSON serializable"),
    ],
)
def test_undetermined_labels_are_rejected(rows, more, words, task_of):
    with pytest.raises(InputError, match="E-TASK-KEY") as error:
        task_of("No ||| Yes", "answer_choices[label]", rows, more)
    assert words in str(error.value)


def test_a_damaged_split_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / "templates"))
    folder, mirror = tmp_path / "templates" / "tea", tmp_path / "mirror" / "tea" / "default"
    folder.mkdir(parents=True)
    mirror.mkdir(parents=True)
    text = TEMPLATE.format(id="plain", choices="No ||| Yes", target="answer_choices[label]", original="true")
    (folder / "templates.yaml").write_text(f"dataset: tea\ntemplates:\n{text}")
    rows = pd.DataFrame({"text": ["x", "y"], "label": [1, 0]})
    rows.to_parquet(mirror / "validation.parquet")
    assert set(load_task("promptsource:tea", hub_mirror=tmp_path / "mirror").data) == {"test"}
    (mirror / "test.parquet").write_bytes((mirror / "validation.parquet").read_bytes()[:-40])
    with pytest.raises(InputError, match=r"test\.parquet"):
        load_task("promptsource:tea", hub_mirror=tmp_path / "mirror")
