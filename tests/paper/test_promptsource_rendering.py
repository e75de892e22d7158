"""A development test against PromptSource's own code, run from its archive: its text, byte for byte, on real rows."""

import functools
import sys
import tarfile
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from flip_flop.files import generator, sha256_file
from flip_flop.paper.data.catalog import catalog_entry, catalog_names
from flip_flop.paper.data.promptsource import ARCHIVE_NAME, ARCHIVE_SHA256, VERSION, filter_templates, read_promptsource
from flip_flop.tasks import TaskRequest

REAL = [name for name in catalog_names() if name != "storycloze"]  # has real rows


def official_rows(name, hub_mirror):
    """The rows of a dataset's two official splits."""
    entry = catalog_entry(name)
    return [
        [row.fields for row in entry.source(split, TaskRequest(name=name, hub_mirror=hub_mirror)).load().rows]
        for split in (entry.train_from, entry.test_from)
    ]


def promptsource_source(folder):
    """Read ``templates.py`` of PromptSource from the archive or the folder."""
    archive, beside = folder / ARCHIVE_NAME, folder.parent / "templates.py"
    if archive.is_file():
        assert sha256_file(archive) == ARCHIVE_SHA256
        with tarfile.open(archive) as tar:
            member = tar.extractfile(f"promptsource-{VERSION}/promptsource/templates.py")
            assert member is not None
            return member.read().decode()
    if beside.is_file():
        return beside.read_text(encoding="utf-8")
    pytest.skip("PromptSource's archive is not beside its templates")


class Reference:
    """PromptSource's ``Template.apply``, with its ``choice`` drawing from a generator that the test gives."""

    def __init__(self, folder):
        self.module = ModuleType("promptsource_templates")
        resources = SimpleNamespace(resource_filename=lambda *names: str(folder))
        with pytest.MonkeyPatch.context() as patch:  # imports that rendering does not use
            patch.setitem(sys.modules, "pandas", ModuleType("pandas"))
            patch.setitem(sys.modules, "pkg_resources", resources)
            exec(compile(promptsource_source(folder), "promptsource/templates.py", "exec"), self.module.__dict__)
        # It leaves its files open, which the tests' settings count as a fault.
        self.module.__dict__["open"] = lambda path, mode: StringIO(Path(path).read_text(encoding="utf-8"))
        # It compiles a template for every row.
        environment = self.module.__dict__["env"]
        environment.from_string = functools.cache(environment.from_string)
        self.generator = np.random.default_rng(0)
        self.module.__dict__["random"] = SimpleNamespace(choice=self._draw)

    def _draw(self, items):
        return items[int(self.generator.integers(len(items)))]

    def render(self, ours, row, draws):
        """Prompt and target, and answer choices, of one row."""
        self.generator = draws
        template = self.module.__dict__["Template"](ours.name, ours.jinja, "", answer_choices=ours.answer_choices)
        parts = template.apply(row, truncate=False)
        return parts, template.get_answer_choices_list(row)


@pytest.fixture(scope="module")
def reference(promptsource_folder):
    return Reference(promptsource_folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_templates_render_like_promptsource(name, promptsource_folder, hub_mirror, reference):
    entry = catalog_entry(name)
    rows = [row for split in official_rows(name, hub_mirror) for row in split]
    rows = rows[:: len(rows) // 100][:100]
    settings = {"label_field": entry.label_field, "num_labels": len(entry.labels)}
    kept = filter_templates(read_promptsource(promptsource_folder, entry.templates), rows, **settings).kept
    assert len(kept) == entry.paper["templates"]
    for number, row in enumerate(rows):
        targets = set()
        for template in kept:
            prompt, choices = template.render(row, entry.label_field, instance_id=str(number), seed=3)
            draws = generator(3, "prompt", str(number), template.name)
            (theirs, target), their_choices = reference.render(template, row, draws)
            assert prompt == theirs, template.name
            assert list(choices) == their_choices, template.name
            assert prompt
            targets.add(choices.index(target))
        assert len(targets) == 1, "the templates do not agree on which answer is right"
