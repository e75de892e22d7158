"""Download pairs of answers with human verdicts.

    python examples/judges/fetch.py examples/judges

The data are the test set of PandaLM (Wang et al., ICLR 2024; Apache-2.0): instructions, two answers of language models,
and the verdicts of three annotators. The verdict of a pair is that of two annotators or more. Pairs with a tie, an
empty answer or two equal answers are left out. The two files have different questions, and train.jsonl no verdicts.
"""

import argparse
import hashlib
import json
import urllib.request
from collections import Counter
from pathlib import Path

from flip_flop.files import write_text

URL = "https://raw.githubusercontent.com/WeOpenML/PandaLM/3871806e72b4832f815ecafd24d3503c73403f48/data/testset-v1.json"
DIGEST = "cc154f9067c7382d7ea86f8f246511a5e1ac87e1fddd845c5938d789505b07a4"
VERDICTS = {1: "first", 2: "second"}


def read_pairs(content: bytes) -> list[dict[str, str]]:
    """Convert the original file."""
    pairs = []
    for row in json.loads(content):
        texts = {key: value.strip() for key, value in row.items() if isinstance(value, str)}  # a blank one is NaN
        answers = [texts.get(key, "") for key in ("response1", "response2")]
        (verdict, votes), *_ = Counter(row[f"annotator{number}"] for number in (1, 2, 3)).most_common()
        if votes > 1 and verdict in VERDICTS and all(answers) and answers[0] != answers[1]:
            question = f"{texts['instruction']}\n{texts.get('input', '')}".strip()
            ids = {"id": f"{row['idx']}-{row['cmp_key']}", "question": question}
            pairs.append({**ids, "answer_a": answers[0], "answer_b": answers[1], "verdict": VERDICTS[verdict]})
    return pairs


def write_splits(pairs: list[dict[str, str]], folder: Path) -> None:
    """Write about half of the questions for training, and the others for tests."""
    splits: dict[str, list[str]] = {"train": [], "test": []}
    for pair in pairs:
        split = "train" if hashlib.sha256(pair["question"].encode()).digest()[0] < 128 else "test"
        splits[split].append(json.dumps(pair | ({"verdict": None} if split == "train" else {})) + "\n")
    for split, lines in splits.items():
        write_text(folder / f"{split}.jsonl", "".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--file", default=URL, help="a copy of testset-v1.json")
    args = parser.parse_args()
    source = args.file if "://" in args.file else Path(args.file).resolve().as_uri()
    content = urllib.request.urlopen(source).read()
    if hashlib.sha256(content).hexdigest() != DIGEST:
        raise SystemExit(f"The SHA-256 of {args.file} is not {DIGEST}.")
    write_splits(read_pairs(content), args.folder)
