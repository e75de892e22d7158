"""A development test against PromptSource's own code: its text, byte for byte, on real rows."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from flip_flop.prompts.promptsource import filter_templates, read_promptsource
from flip_flop.randomness import generator
from tests.prompts.promptsource_reference import REAL, Reference

ROWS = 100


@pytest.fixture(scope="module")
def reference(promptsource_folder: Path) -> Reference:
    return Reference(promptsource_folder)


def real_rows(hub_mirror: Path, name: str) -> list[dict[str, Any]]:
    _, path, splits, *_ = REAL[name]
    return [row for split in splits for row in pq.read_table(hub_mirror / path / f"{split}.parquet").to_pylist()]


@pytest.mark.parametrize("name", REAL)
def test_the_selected_templates_render_as_promptsource_renders_them(
    name: str, promptsource_folder: Path, hub_mirror: Path, reference: Reference
) -> None:
    dataset, _, _, label_field, num_labels, count = REAL[name]
    rows = real_rows(hub_mirror, name)
    rows = rows[:: len(rows) // ROWS][:ROWS]
    sources = {source.name: source for source in read_promptsource(promptsource_folder, dataset)}
    kept = filter_templates(list(sources.values()), rows, label_field=label_field, num_labels=num_labels).kept
    assert len(kept) == count
    for number, row in enumerate(rows):
        targets = set()
        for template in kept:
            prompt, choices = template.render(row, label_field, instance_id=str(number), seed=3)
            draws = generator(3, "prompt", str(number), template.name)
            (theirs, target), their_choices = reference.render(template, row, draws)
            assert prompt == theirs, template.name
            assert list(choices) == their_choices, template.name
            assert prompt
            targets.add(choices.index(target))
        assert len(targets) == 1, "the templates do not agree on which answer is right"


@pytest.mark.parametrize("dataset", sorted({entry[0] for entry in REAL.values()}))
def test_a_datasets_templates_are_those_that_promptsource_lists_in_its_order(
    dataset: str, promptsource_folder: Path, reference: Reference
) -> None:
    theirs = reference.read(dataset)
    ours = read_promptsource(promptsource_folder, dataset)
    assert [source.name for source in ours] == theirs.all_template_names
    for source in ours:
        other = theirs[source.name]
        assert (source.jinja, source.answer_choices) == (other.jinja, other.answer_choices)
        assert source.original_task == bool(other.metadata.original_task)


def test_the_randomized_template_of_hellaswag_is_a_draw_of_promptsources_made_repeatable(
    promptsource_folder: Path, hub_mirror: Path
) -> None:
    sources = read_promptsource(promptsource_folder, "hellaswag")
    (template,) = (each.template for each in sources if "Randomized" in each.name)
    assert template is not None
    rows = real_rows(hub_mirror, "hellaswag")[:30]

    def texts(seed: int) -> list[str]:
        return [template.render(row, "label", instance_id=str(number), seed=seed)[0] for number, row in enumerate(rows)]

    assert texts(0) == texts(0) != texts(1)
