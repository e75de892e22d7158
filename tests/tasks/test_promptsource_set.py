"""A set of PromptSource's as a task: its labels are what its templates' targets say."""

import pytest

from flip_flop import load_task

TEMPLATE = """  {id}: !Template
    answer_choices: {choices}
    id: {id}
    jinja: "{{{{text}}}}? ||| {{{{ {target} }}}}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [], original_task: {original}}}
    name: {id}
    reference: ''
"""


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
    choices, target, rows, label_field, labels, tmp_path, monkeypatch
):
    folder = tmp_path / "templates" / "tea"
    folder.mkdir(parents=True)
    both = (("plain", "true"), ("other", "false"))
    text = "".join(TEMPLATE.format(id=name, choices=choices, target=target, original=own) for name, own in both)
    (folder / "templates.yaml").write_text(f"dataset: tea\ntemplates:\n{text}")
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / "templates"))
    (tmp_path / "rows.csv").write_text(rows)
    (tmp_path / "tea.yaml").write_text("data: {train: rows.csv}\ntemplates: {promptsource: tea}\n")
    task = load_task(tmp_path / "tea.yaml")
    assert (task.templates.names, task.label_field, task.labels) == (("plain",), label_field, labels)
    assert [each.label for each in task.instances("train")][:2] == [1, 0]
