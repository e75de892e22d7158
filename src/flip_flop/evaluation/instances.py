"""The instances of a run directory: prompts as the model read them, with a single instance in memory."""

import gzip
import io
import json
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from flip_flop.files import compress, write_bytes
from flip_flop.prompts import RenderedInstance
from flip_flop.record import reading

INSTANCES_FILE = "instances.jsonl.gz"
MAX_LINE = 2**26  # the maximum number of bytes of an instance


def write_instances(folder: Path, instances: Iterable[RenderedInstance]) -> None:
    """Write :data:`INSTANCES_FILE`: a JSON object per line, with ``id``, ``prompts``, ``choices``, ``written``."""
    lines = (
        {"id": instance.id, "prompts": instance.prompts, "choices": instance.choices}
        | ({"written": instance.written} if instance.written else {})
        for instance in instances
    )
    write_bytes(folder / INSTANCES_FILE, compress(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


@dataclass(frozen=True)
class StoredInstances:
    """The instances of a folder. Each iteration loads them from disk. A folder without the file has no instances.

    Attributes:
        ids: The ids of the scores, whose order the file has.
        shape: The numbers of templates and labels.
    """

    folder: Path
    ids: tuple[str, ...]
    shape: tuple[int, int]

    def __iter__(self) -> Iterator[RenderedInstance]:
        return (instance for _, instance in self.chosen(range(len(self.ids))))

    def chosen(self, wanted: Container[int]) -> Iterator[tuple[int, RenderedInstance]]:
        """Yield the instances at these places of the scores, with their places, in order.

        Raises:
            InputError: ``E-RUN-BROKEN``.
        """
        if not self._path.exists():  # reports work without prompts
            return
        with reading(self._path, "readable JSON Lines of the instances in scores.npz"):
            for index, line in enumerate(self._lines()):
                if index in wanted:
                    yield index, self._read(line, self.ids[index])

    @property
    def _path(self) -> Path:
        return self.folder / INSTANCES_FILE

    def _lines(self) -> Iterator[bytes]:
        with gzip.open(self._path) as raw:
            file = io.BufferedReader(raw, 2**20)  # faster at reading lines
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                if number == len(self.ids) or not line.endswith(b"\n"):
                    raise ValueError("more lines than instances, or a line without an end")
                yield line

    def _read(self, line: bytes, name: str) -> RenderedInstance:
        row = json.loads(line)
        prompts = tuple(map(str, row["prompts"]))
        choices = tuple(tuple(map(str, group)) for group in row["choices"])
        written = tuple(map(str, row.get("written", ())))
        if (row["id"], len(prompts), len(choices), {len(group) for group in choices}) != (
            name, self.shape[0], self.shape[0], {self.shape[1]},
        ) or len(written) not in (0, self.shape[0]):  # fmt: skip
            raise ValueError(name)
        return RenderedInstance(name, prompts, choices, label=None, written=written)
