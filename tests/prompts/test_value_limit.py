"""``prompt_value_limit`` shortens printed values like PromptSource."""

from pathlib import Path
from typing import Any

import pytest

from flip_flop.errors import InputError
from flip_flop.files import generator
from flip_flop.paper.data.catalog import catalog_entry
from flip_flop.paper.data.promptsource import filter_templates, read_promptsource
from flip_flop.prompts import Template, TemplateSet, render_instance
from flip_flop.tasks import load_task
from tests.paper.test_promptsource_rendering import Reference, official_rows

LIMIT = 2048


def prompt_of(jinja: str, fields: dict[str, Any], limit: int | None) -> str:
    templates = TemplateSet((Template("one", jinja, "{{ text }} ||| no"),), limit)
    found = render_instance(fields, templates, id="row", label=None, num_labels=2, label_field=None)
    assert found.choices == ((fields["text"], "no"),)  # an answer is never cut
    return found.prompts[0]


@pytest.mark.parametrize(
    ("limit", "text", "cut"),
    [
        (20, "twenty letters, never", "twenty letters, never"),  # five more are let through, as Jinja does
        (20, "one two three four five six", "one two three..."),
        (20, "x" * 26, "x" * 17 + "..."),
        (None, "one two three four five six", "one two three four five six"),
    ],
)
def test_a_long_value_ends_at_a_space_with_three_dots(limit: int | None, text: str, cut: str) -> None:
    assert prompt_of("A long text of the template itself: {{ text }} {{ text }}", {"text": text}, limit) == (
        f"A long text of the template itself: {cut} {cut}"
    )


def task_file(tmp_path: Path, line: str) -> Path:
    (tmp_path / "test.csv").write_text(f"text\n{'tea ' * 9}\n")
    path = tmp_path / "task.yaml"
    template = "- {name: plain, jinja: '{{ text }}', answer_choices: 'No ||| Yes'}"
    path.write_text(f"name: drinks\ndata: {{test: test.csv}}\n{line}\ntemplates:\n  {template}\n")
    return path


def test_the_limit_of_a_task_file_takes_precedence(tmp_path: Path) -> None:
    path = task_file(tmp_path, "prompt_value_limit: 20")
    for protocol in ("paper", "release"):
        rendered = load_task(path, protocol=protocol).render("test", need_labels=False)
        assert rendered.instances[0].prompts == ("tea tea tea tea...",)
        assert rendered.record["data"]["prompt_value_limit"] == 20


@pytest.mark.parametrize("value", ["'20'", "true", "2.5", "0", "15"])
def test_an_invalid_limit_is_rejected_with_its_file(value: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"E-TASK-KEY: .*task.yaml: prompt_value_limit is .* It should be"):
        load_task(task_file(tmp_path, f"prompt_value_limit: {value}"))


@pytest.fixture(scope="module")
def reference(promptsource_folder: Path) -> Reference:
    return Reference(promptsource_folder)


@pytest.mark.parametrize("name", ["rte", "wsc", "copa", "hellaswag"])
def test_shortened_prompts_equal_those_of_promptsource(
    name: str, promptsource_folder: Path, hub_mirror: Path, reference: Reference
) -> None:
    entry, rows = catalog_entry(name), official_rows(name, hub_mirror)[1][:7]
    label_field = entry.label_field
    kept = filter_templates(
        read_promptsource(promptsource_folder, entry.templates),
        rows,
        label_field=label_field,
        num_labels=len(entry.labels),
    ).kept
    assert len(kept) == entry.paper["templates"]
    cut = 0
    for number, row in enumerate(rows):
        # Real rows are shorter than this: each text is repeated until it is not.
        long = {key: " ".join([value] * 150) if isinstance(value, str) else value for key, value in row.items()}
        fields = long | {key: row[key] for key in ("question", label_field) if key in row}
        for template in kept:
            prompt, _ = template.render(fields, label_field, instance_id=str(number), value_limit=LIMIT)
            draws = generator(0, "prompt", str(number), template.name)
            reference.generator = draws
            theirs = reference.module.__dict__["Template"](
                template.name, template.jinja, "", answer_choices=template.answer_choices
            )
            assert prompt == theirs.apply(fields, truncate=True)[0], template.name
            cut += prompt.count("...")
    assert cut > len(rows)
