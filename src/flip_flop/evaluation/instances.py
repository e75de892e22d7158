"""A run directory's instances: every prompt as the model read it, one at a time in memory."""

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
FIRST_INSTANCES_FILE = "examples.jsonl"  # what 0.1.0 wrote: the first 200
MAX_LINE = 2**26  # bytes of one instance, which a stranger's file must not exceed


def write_instances(folder: Path, instances: Iterable[RenderedInstance]) -> None:
    """Write :data:`INSTANCES_FILE`: a JSON object per line, with ``id``, ``prompts`` and ``choices``."""
    lines = ({"id": each.id, "prompts": each.prompts, "choices": each.choices} for each in instances)
    write_bytes(folder / INSTANCES_FILE, compress(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


@dataclass(frozen=True)
class StoredInstances:
    """The instances of a folder, read anew whenever they are asked for; an old folder has the first ones, or none.

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
        """The instances with these places in the scores, each with its place, in order.

        Raises:
            InputError: ``E-RUN-BROKEN``.
        """
        if not self._path.exists():  # a report without the prompts is still a report
            return
        with reading(self._path, "readable JSON Lines of the instances in scores.npz"):
            for index, line in enumerate(self._lines()):
                if index in wanted:
                    yield index, self._read(line, self.ids[index])

    def sizes(self) -> list[int]:
        """The bytes of each instance that is there, by its place (``E-RUN-BROKEN``)."""
        if not self._path.exists():
            return []
        with reading(self._path, "readable JSON Lines"):
            return [len(line) for line in self._lines()]

    @property
    def _path(self) -> Path:
        new, old = self.folder / INSTANCES_FILE, self.folder / FIRST_INSTANCES_FILE
        return old if old.exists() and not new.exists() else new

    def _lines(self) -> Iterator[bytes]:
        path = self._path
        with gzip.open(path) if path.name == INSTANCES_FILE else path.open("rb") as raw:
            file = io.BufferedReader(raw, 2**20)  # whose lines are read faster
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b"")):
                if number == len(self.ids) or not line.endswith(b"\n"):
                    raise ValueError("more lines than instances, or a line without an end")
                yield line

    def _read(self, line: bytes, name: str) -> RenderedInstance:
        row = json.loads(line)
        prompts = tuple(map(str, row["prompts"]))
        choices = tuple(tuple(map(str, group)) for group in row["choices"])
        if (row["id"], len(prompts), len(choices), {len(group) for group in choices}) != (
            name, self.shape[0], self.shape[0], {self.shape[1]},
        ):  # fmt: skip
            raise ValueError(name)
        return RenderedInstance(name, prompts, choices, label=None)
