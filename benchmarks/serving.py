"""``python -m benchmarks.serving``: load ``flip-flop serve`` with clients, and compare it with Python.

In each round the classifier predicts the rows, and then clients send the same rows to the server, each client one row
at a time on one connection. The first round is dropped. Answers are compared in every round.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flip_flop import load_classifier, load_run, load_task
from flip_flop.console import command, echo, hardware, now, versions
from flip_flop.files import write_json

COMMAND = [sys.executable, "-m", "flip_flop", "serve", "--port", "0", "--timeout", "600"]
LARGEST = 1e-4  # difference of probabilities


def ask(netloc: str, name: str, rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, Any]]:
    """Send rows as one client, and return the seconds and the answer of each, or an error."""
    found: list[tuple[float, Any]] = []
    with closing(http.client.HTTPConnection(netloc, timeout=600)) as connection:
        for row in rows:
            body = json.dumps({"model": name, "state": row, "questions": {name: {"type": "choice"}}})
            started = time.perf_counter()
            try:
                connection.request("POST", "/v1/systemone", body)
                reply = connection.getresponse()
                content = json.loads(reply.read())
                answer = content["answers"][name] if reply.status == 200 else reply.status
            except (OSError, http.client.HTTPException, ValueError) as error:
                answer = repr(error)
            found.append((time.perf_counter() - started, answer))
    return found


def measure_round(netloc: str, classify: Any, rows: Sequence[Mapping[str, Any]], clients: int) -> dict[str, Any]:
    """Predict and serve the rows once, and compare."""
    name = classify.task.name
    started = time.perf_counter()
    predicted = classify(rows)
    predict_seconds = time.perf_counter() - started
    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as threads:
        parts = [*threads.map(lambda number: ask(netloc, name, rows[number::clients]), range(clients))]
    serve_seconds = time.perf_counter() - started
    errors, changed, largest = 0, 0, 0.0
    seconds = sorted(taken for part in parts for taken, _ in part)
    for number, part in enumerate(parts):
        for (_, answer), row in zip(part, predicted[number::clients], strict=True):
            if not isinstance(answer, dict):
                errors += 1
                continue
            templates = [template["probs"] for template in row["templates"].values()]
            means = [statistics.fmean(probs) for probs in zip(*templates, strict=True)]
            pairs = zip(answer["probabilities"].values(), means, strict=True)
            largest = max(largest, *(abs(one - other) for one, other in pairs))
            changed += answer["choice"] != str(row["vote"])
    return {
        "predict_rows_per_second": len(rows) / predict_seconds,
        "served_rows_per_second": len(rows) / serve_seconds,
        "ratio": predict_seconds / serve_seconds,
        "latency_p50": seconds[len(seconds) // 2],
        "latency_p95": seconds[int(0.95 * len(seconds))],
        "errors": errors,
        "changed": changed,
        "largest_difference": largest,
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the folder of an audit")
    parser.add_argument("--task", required=True, help="the audit's task, for its test rows")
    parser.add_argument("--rows", type=int, default=512, help="rows of a round; the task's are repeated")
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds; one more is dropped")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file")
    return parser.parse_args(arguments)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure, and write the file."""
    task = load_task(options.task)
    fields = [dict(row.fields) for row in task.rows("test").rows]
    rows = [*islice(cycle(fields), options.rows)]
    classify = load_classifier(options.run)
    with subprocess.Popen([*COMMAND, str(options.run)], stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = re.search(r"http://\S+", server.stdout.readline())
            assert url is not None, "the server has not started"
            netloc = urlsplit(url[0]).netloc
            measured = [measure_round(netloc, classify, rows, options.clients) for _ in range(options.rounds + 1)][1:]
        finally:
            server.terminate()
    record = {
        "settings": {name: str(value) for name, value in vars(options).items() if name != "out"},
        "model": load_run(options.run).record.model.name,
        "templates": classify.task.templates.names,
        "machine": hardware(),
        "versions": versions(),
        "command": command(),
        "started": now(),
        "rounds": measured,
    }
    write_json(options.out, record)
    for name in measured[0]:
        values = [entry[name] for entry in measured]
        echo(f"{name}: {statistics.median(values):.4g} ({min(values):.4g} to {max(values):.4g})")
    return record


def main() -> int:
    """The command."""
    rounds = run(parse())["rounds"]
    return int(any(entry["errors"] or entry["changed"] or entry["largest_difference"] > LARGEST for entry in rounds))


if __name__ == "__main__":
    sys.exit(main())
