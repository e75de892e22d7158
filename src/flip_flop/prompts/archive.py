"""PromptSource's template files in the user's cache: downloaded once, checked, and none of its code imported.

The project holds no text of PromptSource's (Apache-2.0). Its source archive comes through the user's own pip and is
pinned by its SHA-256; only its YAML files are read out of it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

from flip_flop.errors import InputError
from flip_flop.files import new_folder, sha256_file, sha256_json, user_cache, write_json

VERSION = "0.2.3"
ARCHIVE_NAME = f"promptsource-{VERSION}.tar.gz"
ARCHIVE_SHA256 = "f106c889778a0fe5590e7183904bf964e1a01691c8a29451e44f3df5ddef05f5"
# The digest of the files' digests, for a folder that is given instead of the archive.
FILES_SHA256 = "1338a05d6b03ca4da5efd7b1953038fbacd7d5668ea652783f227ca9630ffdcb"
FOLDER_VARIABLE = "FLIP_FLOP_PROMPTSOURCE"
FETCH_COMMAND = "flip-flop templates fetch"
FILE_NAME = "templates.yaml"
MANIFEST_NAME = "manifest.json"

_PIP_SECONDS = 600
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*(?:/[A-Za-z0-9_][A-Za-z0-9_.-]*)?"
_MEMBER = re.compile(rf"promptsource-[0-9.]+/promptsource/templates/({_NAME})/{re.escape(FILE_NAME)}")
_WITHOUT_NETWORK = (
    f"Download {ARCHIVE_NAME} where pip works (pip download --no-deps --no-binary promptsource "
    f"--ignore-requires-python promptsource=={VERSION}) and run `{FETCH_COMMAND} --from {ARCHIVE_NAME}`."
)
_GIVE_ARCHIVE = f"Give --from {ARCHIVE_NAME}, or the folder that it unpacks to."


def cache_folder() -> Path:
    """``flip-flop/promptsource-0.2.3`` in the user's cache."""
    return user_cache() / f"promptsource-{VERSION}"


def templates_folder() -> Path:
    """The folder of PromptSource's templates: what ``FLIP_FLOP_PROMPTSOURCE`` names, or the user's cache.

    Raises:
        InputError: ``E-TPL-FETCH``: it is not available.
    """
    named = os.environ.get(FOLDER_VARIABLE)
    if named:
        found = _find_templates(Path(named))
        if found is None:
            message = f"{FOLDER_VARIABLE} is {named}, which holds no <dataset>/{FILE_NAME}."
            raise InputError("E-TPL-FETCH", message, f"Correct it, or unset it and run `{FETCH_COMMAND}`.")
        return found
    folder = cache_folder()
    if not (folder / MANIFEST_NAME).is_file():
        raise InputError("E-TPL-FETCH", f"PromptSource's templates are not in {folder}.", f"Run `{FETCH_COMMAND}`.")
    return folder


def fetch(source: Path | None = None) -> Path:
    """Put PromptSource's template files into the user's cache, from the archive, its unpacked folder, or with pip.

    Raises:
        InputError: ``E-TPL-FETCH``: nothing is available. ``E-TPL-ARCHIVE``: it is not PromptSource 0.2.3.
    """
    if source is None:
        with tempfile.TemporaryDirectory(prefix="flip-flop-") as folder:
            return fetch(_download(Path(folder)))
    if source.is_dir():
        return _store(_read_folder(source), source)
    if not source.is_file():
        raise InputError("E-TPL-FETCH", f"there is no file or folder {source}.", _GIVE_ARCHIVE)
    return _store(_read_archive(source), source)


def _download(folder: Path) -> Path:
    # The hash is given to pip too, because pip runs setup.py for the version.
    requirements = folder / "requirements.txt"
    requirements.write_text(f"promptsource=={VERSION} --hash=sha256:{ARCHIVE_SHA256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download"]
    command += ["--no-deps", "--no-binary", "promptsource", "--ignore-requires-python", "--require-hashes"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_PIP_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InputError("E-TPL-FETCH", f"pip did not run: {type(error).__name__}.", _WITHOUT_NETWORK) from None
    output = f"{done.stdout}\n{done.stderr}"
    if "DO NOT MATCH THE HASHES" in output:
        message = f"the package index gives another {ARCHIVE_NAME} than the one published."
        raise InputError("E-TPL-ARCHIVE", message, f"Its SHA-256 must be {ARCHIVE_SHA256}.")
    archive = folder / ARCHIVE_NAME
    if done.returncode != 0 or not archive.is_file():
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reasons = [line for line in lines if line.startswith("ERROR")] or lines or ["it wrote no archive"]
        message = f"pip could not download promptsource {VERSION}: {reasons[-1][:200].rstrip('.')}."
        raise InputError("E-TPL-FETCH", message, _WITHOUT_NETWORK)
    return archive


def _read_archive(archive: Path) -> dict[str, bytes]:
    digest = sha256_file(archive)
    if digest != ARCHIVE_SHA256:
        message = f"{archive} is not {ARCHIVE_NAME}: its SHA-256 is {digest}."
        raise InputError("E-TPL-ARCHIVE", message, f"It must be {ARCHIVE_SHA256}.")
    files: dict[str, bytes] = {}
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            name, content = _MEMBER.fullmatch(member.name), tar.extractfile(member) if member.isreg() else None
            if name is not None and content is not None:
                files[name[1]] = content.read()
    return files


def _read_folder(folder: Path) -> dict[str, bytes]:
    root = _find_templates(folder)
    if root is None:
        raise InputError("E-TPL-FETCH", f"{folder} holds no <dataset>/{FILE_NAME}.", _GIVE_ARCHIVE)
    files = {name: path.read_bytes() for name, path in dataset_files(root)}
    if sha256_json({name: sha256(content).hexdigest() for name, content in files.items()}) != FILES_SHA256:
        message = f"the {len(files)} template files in {root} are not those of PromptSource {VERSION}."
        raise InputError("E-TPL-ARCHIVE", message, f"Give the archive, or set {FOLDER_VARIABLE} to use them anyway.")
    return files


def _find_templates(folder: Path) -> Path | None:
    """The folder of dataset folders: the one given, or where it lies in the unpacked archive."""
    inside = (f"promptsource-{VERSION}/promptsource/templates", "promptsource/templates", "templates", "")
    return next((root for name in inside if any(dataset_files(root := folder / name))), None)


def dataset_files(root: Path) -> Iterator[tuple[str, Path]]:
    """Each dataset's name, such as ``anli`` or ``super_glue/rte``, and its file, by name."""
    for path in sorted([*root.glob(f"*/{FILE_NAME}"), *root.glob(f"*/*/{FILE_NAME}")]):
        name = path.parent.relative_to(root).as_posix()
        if re.fullmatch(_NAME, name):
            yield name, path


def has_dataset(root: Path, name: str) -> bool:
    """Whether a dataset of this name is there; others need not be looked at."""
    return bool(re.fullmatch(_NAME, name)) and (root / name / FILE_NAME).is_file()


def _store(files: Mapping[str, bytes], source: Path) -> Path:
    folder = cache_folder()
    digests = {name: sha256(content).hexdigest() for name, content in sorted(files.items())}
    with new_folder(folder) as fresh:
        for name, content in files.items():
            (fresh / name).mkdir(parents=True, exist_ok=True)
            (fresh / name / FILE_NAME).write_bytes(content)
        if source.is_file():  # the archive, with its licence
            shutil.copyfile(source, fresh / ARCHIVE_NAME)
        manifest = {"promptsource": VERSION, "source": source.name, "sha256": sha256_json(digests), "files": digests}
        write_json(fresh / MANIFEST_NAME, manifest)
    return folder


def check_unchanged(root: Path, name: str) -> None:
    """Refuse a file that differs from the manifest beside it, where there is one (``E-TPL-ARCHIVE``)."""
    manifest = root / MANIFEST_NAME
    if not manifest.is_file():
        return
    try:
        expected = json.loads(manifest.read_bytes())["files"].get(name)
    except (ValueError, KeyError, AttributeError, TypeError):
        expected = None
    if expected != sha256_file(root / name / FILE_NAME):
        message = f"{root / name / FILE_NAME} has changed since it was downloaded."
        raise InputError("E-TPL-ARCHIVE", message, f"Run `{FETCH_COMMAND}` again.")
