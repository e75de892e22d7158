"""Download the rows of the tasks with open answers, capitals and word problems.

    python examples/open_answers/fetch.py capitals
    python examples/open_answers/fetch.py svamp

capitals: a relation of ParaRel (Elazar et al., TACL 2021; MIT). Its facts come from T-REx (CC BY-SA). Its patterns that
end with the answer are the templates of capitals.yaml. svamp: arithmetic word problems (Patel et al., NAACL 2021; MIT).
The three files of a task have different rows, and the training rows have no answers.
"""

import argparse
import hashlib
import json
import urllib.request
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path
from typing import Any

from flip_flop.files import write_text

# The address of the rows, and the SHA-256 of the file.
SOURCES = {
    "capitals": (
        "https://raw.githubusercontent.com/yanaiela/pararel/cb5554678457beb5ac163d888f1ce8cf174b3f0b/data/trex_lms_vocab/P36.jsonl",
        "23632ee03b23422c9840960f9c65c98c12c172f5bb87d2fec20e16b12b17f92e",
    ),
    "svamp": (
        "https://raw.githubusercontent.com/arkilpatel/SVAMP/689d7ccac74b9983a2ac7cc3b264f441b99e7c53/SVAMP.json",
        "5be77703a6d891ae476d7c082787ad361392aa02453b132516cdd5f4e7934e3e",
    ),
}
LABELS = {"capitals": "capital", "svamp": "answer"}
SIZES = {"test": 150, "validation": 60, "train": 257}


def read_rows(name: str, content: bytes) -> Iterable[dict[str, Any]]:
    """Read the rows of a task from its source."""
    if name == "capitals":
        for fact in map(json.loads, content.decode().splitlines()):
            yield {"id": fact["uuid"], "place": fact["sub_label"], "capital": fact["obj_label"]}
    else:
        for problem in json.loads(content):
            body = problem["Body"].strip().rstrip(".") + "."
            answer = f"{Decimal(str(problem['Answer'])).normalize():f}"
            yield {"id": problem["ID"], "body": body, "question": problem["Question"].strip(), "answer": answer}


def write_splits(name: str, content: bytes, folder: Path) -> None:
    """Write the rows in a fixed order, without answers for training."""
    rows = sorted(read_rows(name, content), key=lambda row: hashlib.sha256(row["id"].encode()).digest())
    for split, size in SIZES.items():
        part, rows = rows[:size], rows[size:]
        if split == "train":
            part = [{**row, LABELS[name]: None} for row in part]
        write_text(folder / f"{split}.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in part))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=SOURCES)
    parser.add_argument("--folder", type=Path, help="by default a folder of this name next to the task file")
    parser.add_argument("--file", help="a copy of the source")
    args = parser.parse_args()
    url, digest = SOURCES[args.task]
    content = Path(args.file).read_bytes() if args.file else urllib.request.urlopen(url).read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise SystemExit(f"The SHA-256 of {args.file or url} is not {digest}.")
    write_splits(args.task, content, args.folder or Path(__file__).parent / args.task)
