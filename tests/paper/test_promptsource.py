"""PromptSource: its download, its YAML, which templates are used, sets as tasks, and the text of its own code."""

import functools
import io
import subprocess
import sys
import tarfile
from io import StringIO
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from flip_flop.errors import InputError
from flip_flop.files import generator, sha256_file
from flip_flop.paper.data import promptsource
from flip_flop.paper.data.catalog import catalog_entry, catalog_names
from flip_flop.paper.data.promptsource import (
    ARCHIVE_NAME,
    ARCHIVE_SHA256,
    VERSION,
    SourceTemplate,
    fetch,
    filter_templates,
    promptsource_names,
    read_promptsource,
    templates_folder,
)
from flip_flop.prompts import Template, TemplateSet, render_instance
from flip_flop.tasks import TaskRequest, load_task
from tests.refused import refused

TEMPLATES = "promptsource-0.2.3/promptsource/templates"
YAML = """\
dataset: drinks
templates:
  1a: !Template
    answer_choices: No ||| Yes
    id: 1a
    jinja: '{{ drink }}? ||| {{ answer_choices[label] }}'
    metadata: !TemplateMetadata
      choices_in_prompt: null
      metrics: [Accuracy]
      original_task: true
    name: plain
    reference: ''
"""
FILES = {
    f"{TEMPLATES}/drinks/templates.yaml": YAML,
    f"{TEMPLATES}/food/hot/templates.yaml": YAML,
    "promptsource-0.2.3/promptsource/templates.py": "raise SystemExit",
    "promptsource-0.2.3/setup.py": "raise SystemExit",
}


def write_archive(path, files=FILES):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLIP_FLOP_PROMPTSOURCE", raising=False)
    return tmp_path / "cache" / "flip-flop" / "promptsource-0.2.3"


@pytest.fixture
def pip(cache, monkeypatch):
    """A pip that downloads an archive of ``pip.files``, and its commands and requirements."""
    state = SimpleNamespace(files=FILES, commands=[], requirements=[])

    def download(command, **more):
        state.commands.append(command)
        state.requirements.append(Path(command[command.index("--requirement") + 1]).read_text())
        write_archive(Path(command[command.index("--dest") + 1]) / ARCHIVE_NAME, state.files)
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", download)
    return state


def test_pip_downloads_the_pinned_archive_and_only_its_yaml_files_are_unpacked(pip, cache):
    fetch()
    (command,) = pip.commands
    assert command[1:3] == ["-m", "pip"]
    assert {"--no-deps", "--no-binary", "--ignore-requires-python", "--require-hashes"} <= set(command)
    assert pip.requirements == [f"promptsource==0.2.3 --hash=sha256:{promptsource.ARCHIVE_SHA256}\n"]
    assert templates_folder() == cache
    files = sorted(file.relative_to(cache).as_posix() for file in cache.rglob("*") if file.is_file())
    assert files == ["drinks/templates.yaml", "food/hot/templates.yaml", "manifest.json", ARCHIVE_NAME]
    assert promptsource_names(cache) == ("drinks", "food/hot")
    assert [source.name for source in read_promptsource(cache, "food/hot")] == ["plain"]


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (["/usr/bin/python: No module named pip", 1], "E-TPL-FETCH", "pip"),
        (["x\nERROR: no route\nhint", 1], "E-TPL-FETCH", "no route"),
        (["", 0], "E-TPL-FETCH", "it wrote no archive"),
        (["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", 1], "E-TPL-FETCH", "DO NOT MATCH THE HASHES"),
    ],
)
def test_a_failure_of_pip_is_reported_with_an_alternative(answer, code, words, monkeypatch, cache):
    def fail(command, **more):
        return SimpleNamespace(stdout="", stderr=answer[0], returncode=answer[1])

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(InputError) as refusal:
        fetch()
    assert refusal.value.code == code
    assert words in str(refusal.value)
    assert not cache.exists()


def test_members_elsewhere_are_not_read(pip, cache, tmp_path):
    inside = ("../../../evil", "../evil", "evil/a/b", ".evil")
    names = [f"{TEMPLATES}/{each}/templates.yaml" for each in inside]
    names += [f"/{TEMPLATES}/evil/templates.yaml", f"{TEMPLATES}/evil/templates.yaml.py"]
    pip.files = FILES | dict.fromkeys(names, YAML)
    fetch()
    assert promptsource_names(cache) == ("drinks", "food/hot")
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


@pytest.mark.parametrize("inside", ["", "promptsource-0.2.3", "promptsource-0.2.3/promptsource", TEMPLATES])
def test_templates_are_read_from_inside_the_named_folder(inside, tmp_path, monkeypatch):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / inside))
    assert promptsource_names(templates_folder()) == ("drinks", "food/hot")
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(tmp_path / "nowhere"))
    refused(r"E-TPL-FETCH: FLIP_FLOP_PROMPTSOURCE is .*nowhere", templates_folder)


def test_missing_and_changed_templates_are_refused(pip, cache):
    refused(r"E-TPL-FETCH: .* Run `flip-flop templates fetch`\.", templates_folder)
    fetch()
    (cache / "drinks" / "templates.yaml").write_text(YAML.replace("No", "Nope"))
    refused(r"E-TPL-FETCH: .*drinks/templates.yaml has changed", read_promptsource, cache, "drinks")
    assert read_promptsource(cache, "food/hot")


# ---- the files ----


def write(folder, text, name="drinks"):
    path = folder / name / "templates.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def second(name):
    """A second template behind the first."""
    return YAML.split("templates:\n")[1].replace("1a", "2b").replace("name: plain", f"name: {name}")


def test_read_a_template_and_its_metadata(tmp_path):
    (source,) = read_promptsource(write(tmp_path, YAML), "drinks")
    assert (source.name, source.original_task) == ("plain", True)
    assert source.template.render({"drink": "Tea", "label": 1}, "label") == ("Tea?", ("No", "Yes"))


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("No ||| Yes", "no", ", template 1a", "answer_choices is False"),
        ("No ||| Yes", "[No, Yes]", ", template 1a", r"answer_choices is \[False, True\]"),
        ("name: plain", "name: 3", ", template 1a", "name is 3"),
        ("name: plain", "nom: plain", ", template 1a", "has an unknown key 'nom'"),
        ("    name: plain\n", "", ", template 1a", "has no name"),
        ("id: 1a", "name: plain", " line 11", "duplicate key 'name'"),
        ("original_task: true", "original_task: 1", ", template 1a, metadata", "original_task is 1"),
        ("original_task: true", "task: true", ", template 1a, metadata", "has an unknown key 'task'"),
        ("!TemplateMetadata", "!Metadata", " line 7", "could not determine a constructor for the tag '!Metadata'"),
        (
            "!TemplateMetadata",
            "!!python/name:os.system",
            " line 7",
            "the tag tag:yaml.org",
        ),
        ("[Accuracy]", "!!python/object/apply:os.system [id]", " line 9", "the tag "),
        ("[Accuracy]", "&a [Accuracy]\n      choices: *a", " line 10", "an alias"),
    ],
)
def test_wrong_content_is_refused_with_its_place(old, new, place, words, tmp_path):
    folder = write(tmp_path, YAML.replace(old, new, 1))
    refused(rf"E-TASK-FILE: .*drinks/templates.yaml{place}:? .*{words}", read_promptsource, folder, "drinks")


@pytest.mark.parametrize("text", ["", "templates: []", "- a", "dataset: drinks"])
def test_a_file_that_holds_no_templates_is_refused(text, tmp_path):
    refused(r"E-TASK-FILE: .*holds no templates", read_promptsource, write(tmp_path, text), "drinks")


@pytest.mark.parametrize(
    ("jinja", "code"),
    [
        ("{{ x|unknown_filter }}", "E-TPL-SYNTAX"),
        ("{% if x %}", "E-TPL-SYNTAX"),
        ("a ||| b ||| c", "E-TPL-SYNTAX"),
    ],
)
def test_an_invalid_template_does_not_affect_the_others(jinja, code, tmp_path):
    odd = second("odd").replace("{{ drink }}? ||| {{ answer_choices[label] }}", jinja)
    odd_source, plain = read_promptsource(write(tmp_path, YAML + odd), "drinks")
    assert odd_source.template.code == code
    assert "'odd'" in odd_source.template.message
    assert isinstance(plain.template, Template)


def test_two_templates_of_one_name_are_refused(tmp_path):
    refused(r"E-TPL-DUP: .*'plain'", read_promptsource, write(tmp_path, YAML + second("plain")), "drinks")


def test_an_unknown_dataset_is_named_with_its_nearest(tmp_path):
    folder = write(write(tmp_path, YAML), YAML, "food/hot")
    assert promptsource_names(folder) == ("drinks", "food/hot")
    refused(r"E-TASK-UNKNOWN: .*'drink'. Did you mean 'drinks'\?", read_promptsource, folder, "drink")
    refused("E-TASK-UNKNOWN", read_promptsource, folder, "food/../drinks")


@pytest.mark.slow
def test_each_of_the_2085_templates_is_read_but_those_of_one_file(promptsource_folder):
    names = promptsource_names(promptsource_folder)
    if len(names) != 279:
        pytest.skip("FLIP_FLOP_PROMPTSOURCE names another folder than PromptSource 0.2.3")
    with pytest.raises(InputError, match=r"E-TASK-FILE: .* line 243: an alias \(\*name\) is not allowed"):
        read_promptsource(promptsource_folder, "squad_v2")  # of 12 templates
    readable = [name for name in names if name != "squad_v2"]
    templates = [source.template for name in readable for source in read_promptsource(promptsource_folder, name)]
    assert len(templates) == 2073
    assert all(isinstance(template, Template) for template in templates)


ROWS = [{"x": "tea", "y": 1, "extra": "a"}, {"x": "", "y": 0, "extra": "b"}]


def source(name, jinja, choices="No ||| Yes", *, original=True):
    return SourceTemplate(name, jinja, choices, original, Template(name, jinja, choices))


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (source("t", "{{ x }}?", original=False), "it does not ask for the dataset's own task"),
        (source("t", "{{ x }}?", None), "it has no answer choices"),
        (source("t", "{{ x }}?", "  "), "it has no answer choices"),
        (source("t", "{% if x %}{{ x }}{% endif %}"), "row 2: the prompt is empty (E-TPL-EMPTY)"),
        (source("t", "{{ z }}?"), "row 1: there is no field 'z' (E-TPL-RENDER)"),
        (source("t", "{{ y }}?"), "row 1: the prompt reads the label field 'y' (E-TPL-LABEL-LEAK)"),
        (source("t", "{{ x }}?", "No ||| {{ x }}"), "row 2: answer choice 2 is empty (E-TPL-EMPTY)"),
        (source("t", "{{ x }}?", "No"), "row 1: 1 answer choices for 2 labels (E-TPL-LABELS)"),
        (source("t", "{{ x }}?", "a ||| b ||| c"), "row 1: 3 answer choices for 2 labels (E-TPL-LABELS)"),
    ],
)
def test_a_template_is_dropped_with_its_reason(candidate, reason):
    plain, other = source("plain", "{{ x }}?"), source("another", "{{ x }}!")
    found = filter_templates([plain, candidate, other], ROWS, label_field="y", num_labels=2)
    assert found.kept.names == ("plain", "another")
    assert found.dropped == (("t", reason),)


def test_a_template_that_has_failed_is_not_rendered_again():
    rows = iter([{"x": "tea"}, {"x": "tea"}, {"x": ""}, *[{"x": "tea"}] * 9])
    assert len(filter_templates([source("t", "{{ x }}")], rows, label_field=None).kept) == 0
    assert len(list(rows)) == 9


def test_storycloze_has_five_templates(promptsource_folder):
    sentences = {f"input_sentence_{index}": f"Sentence {index}." for index in range(1, 5)}
    endings = {"sentence_quiz1": "Ending 3.", "sentence_quiz2": "Another ending 3.", "answer_right_ending": 1}
    rows = [{**sentences, **endings, "story_id": "3"}]
    candidates = read_promptsource(promptsource_folder, "story_cloze/2016")
    kept = filter_templates(candidates, rows, label_field="answer_right_ending", num_labels=2).kept
    assert len(kept) == 5
    assert kept[0].render(rows[0], "answer_right_ending")[1] == ("Ending 3.", "Another ending 3.")


# ---- a set as a task ----

TEMPLATE = """  {id}: !Template
    answer_choices: {choices}
    id: {id}
    jinja: "{{{{text}}}}? ||| {{{{ answer_choices[label] }}}}"
    metadata: !TemplateMetadata {{choices_in_prompt: false, metrics: [], original_task: {original}}}
    name: {id}
    reference: ''
"""


@pytest.fixture
def tea(tmp_path, monkeypatch):
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
def test_labels_are_those_of_the_task_file(tea, caplog, more, gold):
    task = load(tea, more)
    assert task.templates.names == ("plain",)
    assert [name for name, _ in task.dropped_templates] == ["other", "three"]
    assert [instance.label for instance in task.instances("train")] == gold
    assert ("W-NO-GOLD" in caplog.text) == (not more)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("label_field: label", "E-TASK-KEY: .*has a label_field but no labels"),
        ("label_field: label\nlabels: [0, 1, 2, 3]", "E-TPL-EMPTY: .*no PromptSource template can be used"),
        ("label_field: text\nlabels: [x, y]", "E-TPL-EMPTY: .*E-TPL-LABEL-LEAK"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tea, more, words):
    with pytest.raises(InputError, match=words):
        load(tea, more).instances("train")


def test_a_damaged_split_is_an_error(tea):
    mirror = tea / "mirror" / "tea" / "default"
    mirror.mkdir(parents=True)
    pd.DataFrame({"text": ["x", "y"], "label": [1, 0]}).to_parquet(mirror / "validation.parquet")
    assert set(load_task("promptsource:tea", hub_mirror=tea / "mirror").data) == {"test"}
    (mirror / "test.parquet").write_bytes((mirror / "validation.parquet").read_bytes()[:-40])
    refused(r"test\.parquet", load_task, "promptsource:tea", hub_mirror=tea / "mirror")


# ---- PromptSource's own code ----


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


# ---- shortened values ----


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
    refused(
        r"E-TASK-KEY: .*task.yaml: prompt_value_limit is .* It should be",
        load_task,
        task_file(tmp_path, f"prompt_value_limit: {value}"),
    )


@pytest.mark.slow
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
