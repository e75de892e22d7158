"""Stored answers of served models. An interrupted audit continues with them."""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError
from flip_flop.files import sha256_json


class AnswerStore:
    """Answers by the digest of their question, in an SQLite file.

    A row has the digest of key and answer before the answer. Rows without the right digest are ignored and later
    replaced. Older versions wrote no digest, so their rows are replaced too.
    """

    def __init__(self, path: Path):
        self.path = path
        with self._in_one_line():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(path, timeout=60.0, isolation_level=None)  # several processes may share it
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, answer TEXT) WITHOUT ROWID")

    def __enter__(self) -> "AnswerStore":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def found(self, keys: Iterable[str]) -> dict[str, Any]:
        """Return the stored answers by key."""
        with self._in_one_line():
            rows = (self._file.execute("SELECT key, answer FROM answers WHERE key = ?", (key,)) for key in keys)
            split = ((key, *str(stored).partition(" ")) for row in rows for key, stored in row)
            return {key: json.loads(answer) for key, digest, _, answer in split if digest == sha256_json([key, answer])}

    def put(self, key: str, answer: Any) -> None:
        """Store an answer on disk."""
        text = json.dumps(answer)
        with self._in_one_line():
            row = (key, f"{sha256_json([key, text])} {text}")
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", row)

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            message = f"cannot use {self.path}, which stores a served model's answers: {error}."
            raise InputError("E-ENDPOINT-STORE", message) from error
