"""Readers of results: rows with ``id``, ``variant``, ``answer``, and if known ``gold`` and probabilities.

``right`` is the judgement of a tool that does not only compare the answer with ``gold``. ``model`` is a name.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZIP_STORED, BadZipFile, ZipFile

import numpy as np
import pyarrow as pa

from flip_flop.errors import InputError, reason_of
from flip_flop.files import Json
from flip_flop.tasks import DELIMITERS, Rows, cell_text, load_file

# Around the name of the task in the name of a file of lm-eval.
AROUND_TASK = re.compile(r"\Asamples_|_\d{4}-\d\d-\d\dT[\d.:-]+\Z")
NO_MATCH = "[invalid]"  # the answer of lm-eval if a filter finds none
ZSTANDARD = 93  # the compression of logs, which zipfile reads from Python 3.14 on
RIGHT = ("C", "1", "1.0", "True")  # values of Inspect


def read_file(path: Path) -> list[Json]:
    """Read a table, samples of lm-eval or a log of Inspect (``E-DATA-PARSE``, and the errors of tables)."""
    try:
        if path.suffix == ".eval":
            with ZipFile(path) as archive:
                facts = _member(archive, "header.json")["eval"]
                names = [name for name in archive.namelist() if name.startswith("samples/")]
                return [_sample(facts, _member(archive, name)) for name in names]
        if path.suffix == ".json":
            log = json.loads(path.read_bytes())
            return [_sample(log["eval"], sample) for sample in log["samples"]]
        rows = load_file(path, DELIMITERS)
        return [*(_task(rows) if "filtered_resps" in rows.columns() else table(rows, path.stem))]
    except InputError:
        raise
    except (BadZipFile, OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError("E-DATA-PARSE", f"{path} is not a file of results ({reason_of(error)}).") from None


def table(rows: Rows, variant: str) -> Iterator[Json]:
    """Yield the rows of a table; ``variant`` is that of rows without one (``E-DATA-COLUMN``)."""
    rows.require_columns(("id", "answer"), "which results have")
    for row in rows.rows:
        cells = {name: cell_text(value).strip() for name, value in row.fields.items()}
        yield cells | {"variant": cells.get("variant") or variant}


def _task(rows: Rows) -> Iterator[Json]:
    """Yield samples of lm-eval, of one task: multiple choice as ``acc`` counts it, or texts after the first filter.

    Labels of multiple choice are numbers, because variants may name their choices in different words.
    """
    variant = AROUND_TASK.sub("", Path(rows.source).stem)
    for row in rows.rows:
        sample = row.fields
        if sample["filter"] != rows.rows[0].fields["filter"]:
            continue
        gold = sample["target"].strip()
        read = {"id": str(sample["doc_id"]), "variant": variant, "gold": gold}
        responses = sample["filtered_resps"]
        if isinstance(responses[0], str):
            answer = responses[0].replace(NO_MATCH, "").strip()
            yield read | {"answer": answer, "right": sample.get("exact_match")}
            continue
        requests = sample["arguments"].values()
        choices = [request["arg_1"].strip() for request in requests if request["arg_0"]]  # not the unconditional ones
        scores = np.array([float(score) for score, _ in responses[: len(choices)]])
        if gold in choices and not gold.isdecimal():
            read["gold"] = str(choices.index(gold))
        answer = str(scores.argmax())
        is_right = answer == read["gold"]
        if sample.get("acc", is_right) != is_right:
            raise ValueError(f"acc of doc_id {read['id']} does not follow from its target")
        probs = np.exp(scores - np.logaddexp.reduce(scores))
        read |= {f"p({label})": prob for label, prob in enumerate(probs)}
        yield read | {"answer": answer}


def _sample(facts: Json, sample: Json) -> Json:
    """Return a sample of Inspect as its first scorer read it. Its task, arguments and epoch are the variant."""
    parts = [facts["task"], *(f"{name}={value}" for name, value in (facts.get("task_args") or {}).items())]
    if sample["epoch"] > 1:
        parts.append(f"epoch {sample['epoch']}")
    target = sample["target"]
    read = {
        "id": str(sample["id"]),
        "variant": ", ".join(parts),
        "answer": sample["output"].get("completion", "").strip(),
        "gold": target if isinstance(target, str) else target[0],
        "model": facts["model"],
    }
    for scorer, score in (sample.get("scores") or {}).items():
        if score.get("answer") is not None:
            read["answer"] = str(score["answer"]).strip()
        if scorer != "choice":
            read["right"] = str(score["value"]) in RIGHT
        break
    return read


def _member(archive: ZipFile, name: str) -> Any:
    """Return the JSON of a file in an archive."""
    info = archive.getinfo(name)
    if info.compress_type != ZSTANDARD:
        return json.loads(archive.read(info))
    size = info.file_size
    info.file_size = info.compress_size
    info.compress_type = ZIP_STORED
    del info.CRC  # of the content
    return json.loads(pa.decompress(archive.read(info), size, "zstd", asbytes=True))
