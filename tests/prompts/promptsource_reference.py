"""PromptSource's own rendering, run from its archive: for tests only, and never with a user's input."""

import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flip_flop.files import sha256_file
from flip_flop.prompts import Template
from flip_flop.prompts.archive import ARCHIVE_NAME, ARCHIVE_SHA256, VERSION

# Dataset of PromptSource's, rows of the hub mirror, label field: everything with real rows.
REAL = {
    "anli_r1": ("anli", "facebook/anli/plain_text", ("train_r1", "dev_r1"), "label", 3, 15),
    "anli_r2": ("anli", "facebook/anli/plain_text", ("train_r2", "dev_r2"), "label", 3, 15),
    "anli_r3": ("anli", "facebook/anli/plain_text", ("train_r3", "dev_r3"), "label", 3, 15),
    "cb": ("super_glue/cb", "aps/super_glue/cb", ("train", "validation"), "label", 3, 15),
    "rte": ("super_glue/rte", "aps/super_glue/rte", ("train", "validation"), "label", 2, 10),
    "wic": ("super_glue/wic", "aps/super_glue/wic", ("train", "validation"), "label", 2, 10),
    "wsc": ("super_glue/wsc.fixed", "aps/super_glue/wsc.fixed", ("train", "validation"), "label", 2, 10),
    "copa": ("super_glue/copa", "aps/super_glue/copa", ("train", "validation"), "label", 2, 8),
    "hellaswag": ("hellaswag", "Rowan/hellaswag/default", ("train", "validation"), "label", 4, 4),
    "winogrande": (
        "winogrande/winogrande_xl",
        "allenai/winogrande/winogrande_xl",
        ("train", "validation"),
        "answer",
        2,
        5,
    ),
}


def promptsource_source(folder: Path) -> str:
    """The text of PromptSource's ``templates.py``: from the archive kept with the templates, or beside them."""
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


@contextmanager
def _stubs(folder: Path) -> Iterator[None]:
    """What its module imports and its rendering does not use."""
    resources = SimpleNamespace(resource_filename=lambda *names: str(folder))
    stubs: dict[str, Any] = {"pandas": ModuleType("pandas"), "pkg_resources": resources}
    before = {name: sys.modules.get(name) for name in stubs}
    sys.modules.update(stubs)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


class Reference:
    """PromptSource's ``Template.apply``, with its ``choice`` drawing from a generator that the test gives."""

    def __init__(self, folder: Path):
        self.module = ModuleType("promptsource_templates")
        with _stubs(folder):
            exec(compile(promptsource_source(folder), "promptsource/templates.py", "exec"), self.module.__dict__)
        # It leaves its files open, which the tests' settings count as a fault.
        self.module.__dict__["open"] = lambda path, mode: StringIO(Path(path).read_text(encoding="utf-8"))
        self.generator = np.random.default_rng(0)
        self.module.__dict__["random"] = SimpleNamespace(choice=self._draw)

    def _draw(self, items: Any) -> Any:
        return items[int(self.generator.integers(len(items)))]

    def render(self, ours: Template, row: dict[str, Any], draws: np.random.Generator) -> tuple[Any, ...]:
        """Prompt and target, and answer choices, of one row."""
        self.generator = draws
        template = self.module.__dict__["Template"](
            ours.name, ours.jinja, reference="", answer_choices=ours.answer_choices
        )
        parts = template.apply(row, truncate=False)
        return parts, template.get_answer_choices_list(row)

    def read(self, name: str) -> Any:
        """The dataset's templates, as PromptSource reads them."""
        dataset, _, subset = name.partition("/")
        return self.module.__dict__["DatasetTemplates"](dataset, subset or None)
