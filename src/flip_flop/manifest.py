"""The manifest of a folder: the digest of each file that is loaded from it, to find a file that has changed."""

from collections.abc import Container
from pathlib import Path

from flip_flop.files import config_digest, flush, fsync_folder, read_object, sha256_file, write_json

MANIFEST = "MANIFEST.json"
ADAPTER_WEIGHTS, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
# The beginnings of the names of files that are never loaded: hidden ones, model card, tokenizer and manifest.
UNREAD = (".", "README.md", "tokenizer", "special_tokens", "added_tokens", "chat_template", "vocab", "merges", MANIFEST)


def loaded_files(folder: Path) -> list[str]:
    """List the files of a folder and of its adapter, without those that are never loaded."""
    files = (file for file in (*folder.glob("*"), *folder.glob("adapter/*")) if file.is_file())
    return sorted(str(file.relative_to(folder)) for file in files if not file.name.startswith(UNREAD))


def write_manifest(folder: Path) -> None:
    """Flush every file of a folder to disk, then write its manifest.

    The parent folder is flushed too, so that a new checkpoint is on disk before an older one is deleted.
    """
    flush(folder)
    write_json(folder / MANIFEST, {name: _digest(folder / name) for name in loaded_files(folder)})
    fsync_folder(folder.parent)


def _digest(file: Path) -> str:
    """Return the SHA-256 of a file. Notes of libraries in an adapter's configuration do not change it."""
    return config_digest(file) if file.name == ADAPTER_CONFIG else sha256_file(file)


def find_corruption(folder: Path, only: Container[str] = ()) -> str | None:
    """Return the damage of a folder's files, or ``only`` of these; ``None`` if they match the manifest."""
    if not (folder / MANIFEST).exists():
        return "it was not finished"
    manifest, present = read_object(folder / MANIFEST), loaded_files(folder)
    if not manifest:
        return "its manifest cannot be read"
    for name, expected in manifest.items():
        if Path(name).name.startswith(UNREAD) or (only and name not in only):
            continue
        if name not in present:
            return f"{name} is missing"
        if expected != _digest(folder / name):
            return f"{name} is damaged"
    return None


def find_change(folder: Path, only: Container[str] = ()) -> str | None:
    """Return the damage of a folder that an earlier version may have written, which wrote no manifest."""
    return find_corruption(folder, only) if (folder / MANIFEST).exists() else None
