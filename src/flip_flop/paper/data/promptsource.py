"""PromptSource's templates: their download, their files, and the templates that a dataset uses.

The project ships no text of PromptSource (Apache-2.0). The user's pip downloads its source archive, pinned by SHA-256.
Only the YAML files matter.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from flip_flop.errors import InputError, first_repeated, log, require_known
from flip_flop.files import Json, new_folder, sha256_file, user_cache, write_json
from flip_flop.prompts import Fields, Template, TemplateSet, check_rendering
from flip_flop.strict_yaml import StrictLoader, StrictModel, read_yaml, validate
from flip_flop.tasks import HubSource, Label, Rows, Task, TaskRequest

VERSION = "0.2.3"
ARCHIVE_NAME = f"promptsource-{VERSION}.tar.gz"
ARCHIVE_SHA256 = "f106c889778a0fe5590e7183904bf964e1a01691c8a29451e44f3df5ddef05f5"
FOLDER_VARIABLE = "FLIP_FLOP_PROMPTSOURCE"
FETCH_COMMAND = "flip-flop templates fetch"
FILE_NAME = "templates.yaml"
MANIFEST_NAME = "manifest.json"
UNLABELLED = "-1"  # the hub's label of an unlabelled row

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)?"
_MEMBER = re.compile(rf"promptsource-[0-9.]+/promptsource/templates/({_NAME})/{re.escape(FILE_NAME)}")
_WITHOUT_NETWORK = (
    f"Download {ARCHIVE_NAME} where pip works (pip download --no-deps --no-binary promptsource "
    f"--ignore-requires-python promptsource=={VERSION}), unpack it, and set {FOLDER_VARIABLE} to its folder."
)


def cache_folder() -> Path:
    """Return ``flip-flop/promptsource-0.2.3`` in the user's cache."""
    return user_cache() / f"promptsource-{VERSION}"


def templates_folder() -> Path:
    """Return the folder that ``FLIP_FLOP_PROMPTSOURCE`` names, or the user's cache.

    Raises:
        InputError: ``E-TPL-FETCH``: it has no templates.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    folder = cache_folder()
    if named:
        for inside in (f"promptsource-{VERSION}/promptsource/templates", "promptsource/templates", "templates", ""):
            if promptsource_names(Path(named) / inside):
                return Path(named) / inside
        raise InputError(
            "E-TPL-FETCH",
            f"{FOLDER_VARIABLE} is {named}, which holds no <dataset>/{FILE_NAME}.",
            f"Correct it, or unset it and run `{FETCH_COMMAND}`.",
        )
    if not folder.is_dir():
        raise InputError("E-TPL-FETCH", f"PromptSource's templates are not in {folder}.", f"Run `{FETCH_COMMAND}`.")
    return folder


def fetch() -> Path:
    """Store PromptSource's template files in the user's cache. pip downloads the archive and checks its SHA-256.

    Raises:
        InputError: ``E-TPL-FETCH``: it is not available or not PromptSource 0.2.3.
    """
    cache = cache_folder()
    digests = {}
    with tempfile.TemporaryDirectory(prefix="flip-flop-") as folder:
        archive = _download(Path(folder))
        with new_folder(cache) as fresh, tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = _MEMBER.fullmatch(member.name)
                content = tar.extractfile(member) if member.isreg() else None
                if name is not None and content is not None:
                    path = fresh / name[1] / FILE_NAME
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(content.read())
                    digests[name[1]] = sha256_file(path)
            shutil.copyfile(archive, fresh / ARCHIVE_NAME)  # it holds the licence
            write_json(fresh / MANIFEST_NAME, {"promptsource": VERSION, "source": ARCHIVE_NAME, "files": digests})
    return cache


def _download(folder: Path) -> Path:
    # pip runs setup.py to learn the version, so pip checks the digest.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"promptsource=={VERSION} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--no-binary", "promptsource", "--ignore-requires-python", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    archive = folder / ARCHIVE_NAME
    if done.returncode != 0 or not archive.is_file():
        lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["it wrote no archive"]
        raise InputError(
            "E-TPL-FETCH",
            f"pip could not download promptsource {VERSION}: {reasons[-1][:200].rstrip('.')}.",
            _WITHOUT_NETWORK,
        )
    return archive


def promptsource_names(folder: Path) -> tuple[str, ...]:
    """Return the names of the datasets that have templates, such as ``anli`` and ``super_glue/rte``."""
    paths = sorted([*folder.glob(f"*/{FILE_NAME}"), *folder.glob(f"*/*/{FILE_NAME}")])
    names = (path.parent.relative_to(folder).as_posix() for path in paths)
    return tuple(name for name in names if re.fullmatch(_NAME, name))


@dataclass(frozen=True)
class SourceTemplate:
    """A template in PromptSource's files. ``template`` is its compiled form, or the reason why it is refused."""

    name: str
    jinja: str
    answer_choices: str | None
    original_task: bool
    template: Template | InputError

    @property
    def fault(self) -> str:
        """Why the dataset cannot use it, or an empty text. Rows may show more problems."""
        if not self.original_task:
            return "it does not ask for the dataset's own task"
        if isinstance(self.template, InputError):
            return _reason(self.template, self.name)
        if not (self.answer_choices or "").strip():
            return "it has no answer choices"
        return ""


class _Metadata(StrictModel):
    original_task: bool = False
    choices_in_prompt: Any = None
    metrics: Any = None


class _Entry(StrictModel):
    name: str
    jinja: str
    answer_choices: str | None = None
    metadata: Json
    id: Any = None
    reference: Any = None
    task_template: Any = None


class _PromptSourceLoader(StrictLoader):
    """The strict loader with PromptSource's two tags."""


for tag in ("!Template", "!TemplateMetadata"):
    _PromptSourceLoader.add_constructor(tag, lambda loader, node: loader.construct_mapping(cast(Any, node), deep=True))


def read_promptsource(folder: Path, name: str) -> list[SourceTemplate]:
    """Read the templates of a dataset, sorted by name.

    Raises:
        InputError: ``E-TASK-FILE``, ``E-TASK-UNKNOWN``, ``E-TPL-DUP``, or ``E-TPL-FETCH`` for a changed file in
            the cache.
    """
    path = folder / name / FILE_NAME
    manifest = folder / MANIFEST_NAME
    require_known([name], promptsource_names(folder), "E-TASK-UNKNOWN", "PromptSource has no templates for")
    # The text is enough, and an invalid manifest has no digest.
    if manifest.is_file() and f'"{name}": "{sha256_file(path)}"' not in manifest.read_text(errors="replace"):
        raise InputError("E-TPL-FETCH", f"{path} has changed since it was downloaded.", f"Run `{FETCH_COMMAND}` again.")
    document = read_yaml(path, loader=_PromptSourceLoader)
    templates = document.get("templates") if isinstance(document, dict) else None
    if not isinstance(templates, dict):
        raise InputError("E-TASK-FILE", f"{path} holds no templates.", "Write templates: with a !Template for each id.")
    sources = [_source_template(entry, f"{path}, template {key}") for key, entry in templates.items()]
    if (twice := first_repeated(source.name for source in sources)) is not None:
        raise InputError("E-TPL-DUP", f"{path}: two templates are named {twice!r}.", "Rename one of them.")
    return sorted(sources, key=lambda source: source.name)


def _source_template(content: Any, where: str) -> SourceTemplate:
    entry = validate(_Entry, content, where, code="E-TASK-FILE")
    metadata = validate(_Metadata, entry.metadata, f"{where}, metadata", code="E-TASK-FILE")
    texts = (entry.name, entry.jinja, entry.answer_choices)
    try:
        return SourceTemplate(*texts, metadata.original_task, Template(*texts))
    except InputError as refusal:
        return SourceTemplate(*texts, metadata.original_task, refusal)


@dataclass(frozen=True)
class TemplateFilter:
    """The used templates in the order of the candidates, and name and reason of each other candidate."""

    kept: TemplateSet
    dropped: tuple[tuple[str, str], ...]


def usable_templates(candidates: Sequence[SourceTemplate]) -> list[Template]:
    """Return the templates without a fault."""
    return [source.template for source in candidates if isinstance(source.template, Template) and not source.fault]


def filter_templates(
    candidates: Sequence[SourceTemplate],
    rows: Iterable[Fields],
    *,
    label_field: str | None,
    num_labels: int | None = None,
    advance: Callable[[int], object] = lambda done: None,
) -> TemplateFilter:
    """Keep the templates that ask for the dataset's task and render for every row.

    A template renders if its prompt is not empty and every label has an answer. A template that fails on a row is not
    rendered for the next row. Without ``num_labels``, any number of at least two is accepted. ``advance`` is called
    with 1 after each row.
    """
    reasons = {candidate.name: candidate.fault for candidate in candidates if candidate.fault}
    left = usable_templates(candidates)
    for number, row in enumerate(rows, start=1):
        for template in left:
            try:
                prompt, choices = template.render(row, label_field, instance_id=f"row {number}", row=f"row {number}")
                check_rendering(template, prompt, choices, num_labels or max(len(choices), 2), f"row {number}")
            except InputError as error:
                # Two equal answers are a problem of the row: every template has it.
                if error.code != "E-LABEL-DUP":
                    reasons[template.name] = _reason(error, template.name)
        left = [template for template in left if template.name not in reasons]
        advance(1)
        if not left:
            break
    dropped = tuple((candidate.name, reasons[candidate.name]) for candidate in candidates if candidate.name in reasons)
    return TemplateFilter(TemplateSet(tuple(left)), dropped)


def record_templates(splits: Mapping[str, Rows], folder: Path, name: str) -> dict[str, Rows]:
    """Add the name and the digest of a template file to the provenance of the rows."""
    source = {"promptsource": name, "sha256": sha256_file(folder / name / FILE_NAME)}
    return {split: replace(rows, provenance={**rows.provenance, "templates": source}) for split, rows in splits.items()}


def _reason(error: InputError, name: str) -> str:
    """Describe an error without the template's name, which has its own column in tables."""
    return f"{error.message.removeprefix(f'template {name!r}, ').rstrip('.')} ({error.code})"


# ---- a set as a task ----


def load_set(request: TaskRequest) -> Task:
    """Load a set: the entry point ``promptsource``. Rows come from a task file, or from the hub's dataset of this name.

    Without ``label_field`` and ``labels``, which a task file gives, the rows have no gold labels.

    Raises:
        InputError: ``E-TPL-FETCH``, ``E-TASK-UNKNOWN``, ``E-TPL-EMPTY``, ``E-TASK-KEY`` (a field without labels), or an
            error of the data.
    """
    folder = templates_folder()
    name = request.name
    fields = dict(request.fields)
    candidates = read_promptsource(folder, name)
    sources = fields.pop("data", None)
    label_field = fields.get("label_field")
    labels = fields.get("labels")
    if sources:
        splits = {split: source.load() for split, source in sources.items()}
    else:
        splits = _hub_rows(name, request.hub_mirror)
    if label_field is None:
        log.warning("W-NO-GOLD: %s has no gold labels. Write label_field: and labels: in a task file.", name)
    else:
        splits = {split: _without_hub_label(rows, label_field, labels or ()) for split, rows in splits.items()}
    if not sources:
        splits = _labelled_test(splits, label_field)
    rows = [row.fields for split in splits.values() for row in split.rows]
    usable = usable_templates(candidates)
    num_labels = len(labels) if labels is not None else _num_answers(usable, rows)
    selection = filter_templates(candidates, rows, label_field=label_field, num_labels=num_labels)
    if not len(selection.kept):
        reasons = dict(selection.dropped)
        reason = next((reasons[template.name] for template in usable), "none asks for the dataset's own task")
        raise InputError(
            "E-TPL-EMPTY",
            f"{name}: no PromptSource template can be used; {reason}.",
            "Name the columns as the templates do, or write your own templates.",
        )
    return Task(
        **{"name": name.replace("/", "_"), **fields},
        data=record_templates(splits, folder, name),
        templates=replace(selection.kept, value_limit=request.value_limit),
        dropped_templates=selection.dropped,
    )


def _hub_rows(name: str, mirror: Path | None) -> dict[str, Rows]:
    """Load the splits of the hub's dataset of this name; a mirror may have it under any owner."""
    repository, _, config = name.partition("/")
    errors = []
    for place in dict.fromkeys([(repository, config or None), (name, None)]):
        splits = {}
        for split in ("train", "validation", "test"):
            try:
                splits[split] = HubSource(place[0], place[1], split, mirror=mirror).of_any_owner().load()
            except InputError as error:
                errors.append(error)
                if splits and error.code != "E-DATA-FILE":  # damaged, not missing
                    raise
        if splits:
            return splits
    raise InputError(
        errors[0].code,
        errors[0].message,
        f"Name your rows in a task file: data:, and templates: {{promptsource: {name}}}.",
    )


def _without_hub_label(rows: Rows, field: str, labels: Sequence[Label]) -> Rows:
    """Replace the hub's label of unlabelled rows by None."""
    if UNLABELLED in map(str, labels):
        return rows
    found = (
        row._replace(fields={**row.fields, field: None}) if str(row.fields.get(field)) == UNLABELLED else row
        for row in rows.rows
    )
    return replace(rows, rows=tuple(found))


def _labelled_test(splits: dict[str, Rows], field: str | None) -> dict[str, Rows]:
    """Use validation as the test split if the test split is missing or has no labels."""

    def is_labelled(split: str) -> bool:
        return field is not None and any(row.fields.get(field) is not None for row in splits[split].rows)

    if "validation" not in splits or ("test" in splits and (is_labelled("test") or not is_labelled("validation"))):
        return splits
    log.info("the test split is the official validation split")
    return {"test": splits["validation"]} | {key: rows for key, rows in splits.items() if key == "train"}


def _num_answers(templates: Sequence[Template], rows: Sequence[Fields]) -> int | None:
    """Return the most frequent number of answers in the first rows; None if no template renders."""
    sizes: Counter[int] = Counter()
    for row in rows[:200]:
        for template in templates:
            with contextlib.suppress(InputError):
                sizes[len(template.render(row, None)[1])] += 1
    return sizes.most_common(1)[0][0] if sizes else None
