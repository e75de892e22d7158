"""The scores of an unfinished run, by forward pass, in a file of the user's cache. The same run continues with them."""

import contextlib
import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from flip_flop.console import echo
from flip_flop.errors import InputError
from flip_flop.files import Json, discard, discard_after_command, read_answers, sha256_json, write_answer
from flip_flop.scoring.trie import TokenTrie

SECONDS = 0.25  # between two copies from the device, which finishes its work first
DOUBTED = ("E-NONFINITE", "E-SELF-CHECK")  # errors after which the scores are computed again


class Parts:
    """The scores of forward passes, by the digest of their inputs: ``[instances, templates, labels]`` in float32.

    ``stored`` are those of an earlier run that was stopped. Without a file, none are stored.
    """

    def __init__(self, file: Path | None = None):
        self.file, self.stored = file, Json()
        with contextlib.suppress(OSError):  # without a cache
            self.stored = read_answers(file)
        self.scores = dict(self.stored)
        self._new: dict[str, Tensor] = {}
        self._copied = time.monotonic()

    def key(self, trie: TokenTrie, *settings: Any) -> str:
        """Return the digest of all that a forward pass reads. The name of the file is the digest of model and run."""
        digests = [hashlib.sha256(array).hexdigest() for array in vars(trie).values()]
        return sha256_json([self.file and self.file.name, settings, digests])

    def add(self, key: str, scores: Tensor) -> None:
        """Add the scores of a forward pass, which may not be computed yet, and store them from time to time."""
        self._new[key] = scores
        if self.file is not None and time.monotonic() - self._copied > SECONDS:
            self.store()

    def store(self) -> None:
        """Copy new scores to the CPU, all at once, and append them to the file."""
        if self._new:
            sizes = list(map(len, self._new.values()))
            copied = torch.cat([*self._new.values()]).float().cpu().split(sizes)
            for key, scores in zip(self._new, copied, strict=True):
                self.scores[key] = scores
                with contextlib.suppress(OSError):
                    write_answer(self.file, key, scores.tolist())
        self._new, self._copied = {}, time.monotonic()

    @contextlib.contextmanager
    def of_run(self) -> Iterator[None]:
        """Remove the file after the command that completes the run, or if its scores are wrong."""
        if self.file is None:
            yield
            return
        try:
            yield
        except KeyboardInterrupt:
            if self.scores:
                echo("\nThe scores so far are stored. Run the command again to continue.", err=True)
            raise
        except InputError as error:
            if error.code in DOUBTED:
                discard(self.file)
            raise
        discard_after_command(self.file)
