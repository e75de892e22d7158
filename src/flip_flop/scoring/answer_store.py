"""What a served model has answered, by content: an audit that was interrupted goes on where it was."""

import contextlib
import json
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from flip_flop.errors import InputError


class AnswerStore:
    """Answers by the digest of their question, in a file of SQLite's; each is on disk when it is put."""

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
        """The answers that are there, by key."""
        with self._in_one_line():
            rows = (self._file.execute("SELECT key, answer FROM answers WHERE key = ?", (key,)) for key in keys)
            return {key: json.loads(answer) for row in rows for key, answer in row}

    def put(self, key: str, answer: Any) -> None:
        """Keep an answer."""
        with self._in_one_line():
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, json.dumps(answer)))

    @contextlib.contextmanager
    def _in_one_line(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, ValueError) as error:
            message = f"{self.path}, which keeps a served model's answers, cannot be used: {error}."
            raise InputError("E-ENDPOINT-STORE", message) from error
