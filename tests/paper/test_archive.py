"""Download of PromptSource templates, with a replacement of pip and made archives."""

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.data import promptsource
from flip_flop.paper.data.promptsource import (
    ARCHIVE_NAME,
    fetch,
    promptsource_names,
    read_promptsource,
    templates_folder,
)

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


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLIP_FLOP_PROMPTSOURCE", raising=False)
    return tmp_path / "cache" / "flip-flop" / "promptsource-0.2.3"


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """An archive, and the pin moved to it."""

    def make(files=FILES):
        path = write_archive(tmp_path / "downloads" / ARCHIVE_NAME, files)
        monkeypatch.setattr(promptsource, "ARCHIVE_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
        return path

    return make


def test_pip_downloads_the_pinned_archive_and_only_its_yaml_files_are_unpacked(pinned, monkeypatch, cache):
    path = pinned()
    calls = []
    asked = []

    def download(command, **more):
        calls.append(command)
        asked.append(Path(command[command.index("--requirement") + 1]).read_text())
        (Path(command[command.index("--dest") + 1]) / ARCHIVE_NAME).write_bytes(path.read_bytes())
        return SimpleNamespace(returncode=0, stdout="", stderr="")

    monkeypatch.setattr(subprocess, "run", download)
    fetch()
    (command,) = calls
    assert command[1:3] == ["-m", "pip"]
    assert {"--no-deps", "--no-binary", "--ignore-requires-python", "--require-hashes"} <= set(command)
    assert asked == [f"promptsource==0.2.3 --hash=sha256:{promptsource.ARCHIVE_SHA256}\n"]
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
        (
            ["ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM", 1],
            "E-TPL-FETCH",
            "another promptsource-0.2.3.tar.gz",
        ),
        (FileNotFoundError("python"), "E-TPL-FETCH", "FileNotFoundError"),
        (subprocess.TimeoutExpired("pip", 600), "E-TPL-FETCH", "TimeoutExpired"),
    ],
)
def test_a_failure_of_pip_is_reported_with_an_alternative(answer, code, words, monkeypatch, cache):
    def fail(command, **more):
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(stdout="", stderr=answer[0], returncode=answer[1])

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(InputError) as refusal:
        fetch()
    assert refusal.value.code == code
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not cache.exists()


def test_members_elsewhere_are_not_read(pinned, cache, tmp_path):
    inside = ("../../../evil", "../evil", "evil/a/b", ".evil")
    names = [f"{TEMPLATES}/{each}/templates.yaml" for each in inside]
    names += [f"/{TEMPLATES}/evil/templates.yaml", f"{TEMPLATES}/evil/templates.yaml.py"]
    fetch(pinned(FILES | dict.fromkeys(names, YAML)))
    assert promptsource_names(cache) == ("drinks", "food/hot")
    assert not [path for path in tmp_path.rglob("*") if "evil" in path.name]


def unpack(folder):
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("inside", ["", "promptsource-0.2.3", "promptsource-0.2.3/promptsource", TEMPLATES])
def test_templates_are_found_inside_a_folder(inside, tmp_path, monkeypatch, cache):
    folder = unpack(tmp_path / "unpacked") / inside
    with pytest.raises(InputError, match=r"E-TPL-FETCH: the 2 template files in .* are not those of PromptSource"):
        fetch(folder)
    assert not cache.exists()
    digest = hashlib.sha256(YAML.encode()).hexdigest()
    monkeypatch.setattr(promptsource, "FILES_SHA256", promptsource.sha256_json({"drinks": digest, "food/hot": digest}))
    assert fetch(folder) == templates_folder() == cache
    assert promptsource_names(cache) == ("drinks", "food/hot")
    assert not (cache / ARCHIVE_NAME).exists()


def test_other_files_than_promptsources_are_refused(pinned, tmp_path, monkeypatch, cache):
    with pytest.raises(InputError, match=r"E-TPL-FETCH: .* Run `flip-flop templates fetch`\."):
        templates_folder()
    with pytest.raises(InputError, match=r"E-TPL-FETCH: .* is not promptsource-0.2.3.tar.gz: its SHA-256 is"):
        fetch(write_archive(tmp_path / "other.tar.gz"))
    assert not cache.exists()
    for folder in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(InputError, match="E-TPL-FETCH"):
            fetch(folder)
    fetch(pinned())
    (cache / "drinks" / "templates.yaml").write_text(YAML.replace("No", "Nope"))
    with pytest.raises(InputError, match=r"E-TPL-FETCH: .*drinks/templates.yaml has changed"):
        read_promptsource(cache, "drinks")
    assert read_promptsource(cache, "food/hot")
    monkeypatch.setenv("FLIP_FLOP_PROMPTSOURCE", str(unpack(tmp_path / "mine")))
    assert templates_folder() == tmp_path / "mine" / TEMPLATES
