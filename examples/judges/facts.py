"""Write questions about facts with a right or a wrong answer, the rows of facts.yaml.

    python examples/judges/facts.py

The facts are those of six relations of ParaRel (Elazar et al., TACL 2021; MIT), from T-REx (CC BY-SA). Half of the
answers are right, the others are the answer to another question of the relation. The three files have different
questions, and train.jsonl no verdicts.
"""

import argparse
import hashlib
import json
import urllib.request
from pathlib import Path

from flip_flop.files import write_text

URL = "https://raw.githubusercontent.com/yanaiela/pararel/cb5554678457beb5ac163d888f1ce8cf174b3f0b/data/trex_lms_vocab"
# The question of a relation, and the SHA-256 of its file.
RELATIONS = {
    "P36": ("What is the capital of {}?", "23632ee03b23422c9840960f9c65c98c12c172f5bb87d2fec20e16b12b17f92e"),
    "P37": ("What is the official language of {}?", "a12f9d791d3705bc7e5851e63ad58586493ee2d22a4428841251353db8f84186"),
    "P30": ("On which continent is {}?", "a6ca14c63fc329a615b8356fa10800ab29697c02642fe4d982b9c5d2848d9f76"),
    "P176": ("Which company makes {}?", "170dfb30709338cfeea8134cf988bbaf91228a7008b283b291d9bd3429ce5315"),
    "P103": ("What is the native language of {}?", "cef912becd5286900e7c437923cf4ed1c6793b27501aa0a5220db99486b0ce93"),
    "P159": (
        "In which city is the headquarters of {}?",
        "073da626910a00ee7b48378f53e63bbb304fe1888ff76497d7d6dfabcf8d9b5e",
    ),
}
SIZES = {"test": 400, "validation": 100, "train": 256}


def read_facts(content: bytes) -> dict[str, str]:
    """Return the first object of each subject of a relation."""
    facts: dict[str, str] = {}
    for fact in map(json.loads, content.decode().splitlines()):
        facts.setdefault(fact["sub_label"], fact["obj_label"])
    return facts


def judged(relation: str, subject: str, facts: dict[str, str]) -> dict[str, str]:
    """Ask about a subject, with its object or that of another subject as the answer."""
    name, right = f"{relation}-{subject}", facts[subject]
    wrong = [other for other in facts.values() if other != right]
    is_right = bool(number(f"{name}-side") % 2)
    answer = right if is_right else wrong[number(f"{name}-wrong") % len(wrong)]
    question = RELATIONS[relation][0].format(subject)
    return {"id": name, "question": question, "answer": answer, "verdict": "pass" if is_right else "fail"}


def number(text: str) -> int:
    """Return a number that looks random and depends only on the text."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def write_splits(facts: dict[str, dict[str, str]], folder: Path) -> None:
    """Write the rows in a fixed order, without verdicts for training."""
    rows = [judged(relation, subject, known) for relation, known in facts.items() for subject in known]
    rows.sort(key=lambda row: number(row["id"]))
    for split, size in SIZES.items():
        part, rows = rows[:size], rows[size:]
        hidden = {"verdict": None} if split == "train" else {}
        lines = [json.dumps({**row, **hidden}, ensure_ascii=False) + "\n" for row in part]
        write_text(folder / f"{split}.jsonl", "".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent / "facts", help="where the rows go")
    parser.add_argument("--files", default=URL, help="a folder with copies of the files")
    args = parser.parse_args()
    source = args.files if "://" in args.files else Path(args.files).resolve().as_uri()
    facts = {}
    for relation, (_, digest) in RELATIONS.items():
        content = urllib.request.urlopen(f"{source}/{relation}.jsonl").read()
        if hashlib.sha256(content).hexdigest() != digest:
            raise SystemExit(f"The SHA-256 of {args.files}/{relation}.jsonl is not {digest}.")
        facts[relation] = read_facts(content)
    write_splits(facts, args.folder)
