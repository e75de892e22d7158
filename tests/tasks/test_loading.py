"""A task by its name or its file, with the templates that are asked for."""

from pathlib import Path

import pytest

from flip_flop.errors import InputError
from flip_flop.tasks import load_task

TASK = """\
data: {test: rows.csv}
templates:
  - {name: a, jinja: "{{ text }}?", answer_choices: "No ||| Yes"}
  - {name: b, jinja: "{{ text }}!", answer_choices: "No ||| Yes"}
  - {name: c, jinja: "{{ text }}:", answer_choices: "No ||| Yes"}
held_out_templates: [b]
"""


@pytest.mark.parametrize(
    ("templates", "names", "held_out"),
    [(None, "ac", ()), ("all", "abc", ("b",)), ("held_out", "b", ("b",)), ("c, b", "cb", ())],
)
def test_templates_are_all_but_the_held_out_ones_unless_others_are_asked_for(
    tmp_path: Path, templates: str | None, names: str, held_out: tuple[str, ...]
) -> None:
    (tmp_path / "mine.yaml").write_text(TASK)
    task = load_task(tmp_path / "mine.yaml", templates=templates)
    assert task.name == "mine"
    assert task.templates.names == tuple(names)
    assert task.held_out_templates == held_out


def test_templates_that_the_task_does_not_have_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(TASK.replace("held_out_templates: [b]", ""))
    with pytest.raises(InputError, match="E-TPL-UNKNOWN: task 'mine' has no held_out_templates"):
        load_task(tmp_path / "mine.yaml", templates="held_out")
    with pytest.raises(InputError, match="E-TPL-UNKNOWN: there is no template 'd'"):
        load_task(tmp_path / "mine.yaml", templates="a,d")


def test_an_unknown_name_is_named_with_its_nearest_and_all_names() -> None:
    words = r"E-TASK-UNKNOWN: .*'rtee'.*Did you mean 'rte'\? Known: anli_r1.*demo, .*winogrande, wsc\."
    with pytest.raises(InputError, match=words):
        load_task("rtee")
    with pytest.raises(InputError, match=r"E-TASK-FILE: there is no task file rtee\.yaml"):
        load_task("rtee.yaml")
