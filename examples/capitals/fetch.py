"""Download facts about capitals, for a task with open answers.

    python examples/capitals/fetch.py examples/capitals

The data are a relation of ParaRel (Elazar et al., TACL 2021; MIT). Its facts come from T-REx (CC BY-SA). Its patterns
that end with the answer are the templates of task.yaml. The three files have different facts.
"""

import argparse
import hashlib
import json
import urllib.request
from pathlib import Path

from flip_flop.files import write_text

COMMIT = "cb5554678457beb5ac163d888f1ce8cf174b3f0b"
URL = f"https://raw.githubusercontent.com/yanaiela/pararel/{COMMIT}/data/trex_lms_vocab/P36.jsonl"
DIGEST = "23632ee03b23422c9840960f9c65c98c12c172f5bb87d2fec20e16b12b17f92e"
SIZES = {"test": 150, "validation": 60}  # train has the others


def write_splits(content: bytes, folder: Path) -> None:
    """Write the facts in a fixed order, without answers for training."""
    facts = [json.loads(line) for line in content.decode().splitlines()]
    facts.sort(key=lambda fact: hashlib.sha256(fact["uuid"].encode()).digest())
    start = 0
    for split in ("test", "validation", "train"):
        part = facts[start : start + SIZES.get(split, len(facts))]
        start += len(part)
        rows = [{"id": fact["uuid"], "place": fact["sub_label"], "capital": fact["obj_label"]} for fact in part]
        if split == "train":
            rows = [{**row, "capital": None} for row in rows]
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", default=URL, help="a copy of P36.jsonl")
    args = parser.parse_args()
    source = args.file if "://" in args.file else Path(args.file).resolve().as_uri()
    content = urllib.request.urlopen(source).read()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise SystemExit(f"The SHA-256 of {args.file} is not {DIGEST}.")
    write_splits(content, args.folder)
