"""Files are written completely or not at all. A record describes the run and stores no secret."""

import errno
import json
import os
import shlex
import stat
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from flip_flop.console import command
from flip_flop.errors import InputError
from flip_flop.files import (
    lock_output,
    new_folder,
    read_arrays,
    user_cache,
    write_arrays,
    write_bytes,
    write_json,
    write_text,
)


def names(folder):
    return sorted(os.listdir(folder))


def test_a_write_is_whole_in_new_folders_or_leaves_the_old_file_and_no_other(tmp_path, monkeypatch):
    file = tmp_path / "a" / "b" / "text.txt"
    write_text(file, "naïve\n")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space") as caught:
        write_bytes(file, b"new")
    assert caught.value.filename == str(file)
    assert file.read_bytes() == "naïve\n".encode()
    assert names(file.parent) == ["text.txt"]


def test_json_holds_no_nan(tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "metrics.json", {"mean_f1": float("nan")})
    assert names(tmp_path) == []
    write_json(tmp_path / "metrics.json", {"name": "ü", "mean_f1": None})
    assert json.loads((tmp_path / "metrics.json").read_text(encoding="utf-8")) == {"name": "ü", "mean_f1": None}


@pytest.mark.parametrize("interrupt", [RuntimeError, KeyboardInterrupt])
def test_a_new_folder_is_complete_or_not_there(tmp_path, interrupt):
    out = tmp_path / "run"

    def write_half():
        with new_folder(out) as folder:
            (folder / "half").touch()
            assert not out.exists()
            raise interrupt

    with pytest.raises(interrupt):
        write_half()
    assert names(tmp_path) == []
    with new_folder(out) as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "whole").touch()
    assert (out / "deep" / "whole").is_file()
    assert names(tmp_path) == ["run"]


def test_a_folder_that_cannot_be_renamed_gives_the_old_one_back(tmp_path, monkeypatch):
    out = tmp_path / "run"
    with new_folder(out) as folder:
        (folder / "old").touch()
    rename = type(out).rename

    def fail(self, target):
        if self.name.endswith(".tmp"):
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(type(out), "rename", fail)
    with pytest.raises(OSError, match="Input/output"), new_folder(out) as folder:
        (folder / "new").touch()
    assert names(tmp_path) == ["run"]
    assert names(out) == ["old"]


def test_a_folder_that_was_moved_away_by_a_killed_writer_comes_back(tmp_path):
    (tmp_path / ".run.1234abcd.old").mkdir()
    (tmp_path / ".run.1234abcd.tmp").mkdir()
    with lock_output(tmp_path / "run"):
        assert names(tmp_path) == [".run.lock", "run"]
    assert names(tmp_path) == ["run"]


def test_a_folder_that_cannot_be_replaced_is_refused_before_the_work(tmp_path, monkeypatch):
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(type(tmp_path), "is_mount", lambda path: path.name == "run")
    with pytest.raises(InputError, match=r"E-OUT-PATH: .*run cannot be replaced: it is a mount point.*run/run"):
        lock_output(tmp_path / "run").__enter__()
    monkeypatch.undo()
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(InputError, match=r"E-OUT-PATH: .*run cannot be replaced: .* cannot be written"):
        lock_output(tmp_path / "run").__enter__()
    assert names(tmp_path) == ["run"]


def test_a_file_that_a_container_mounts_is_written_in_place(tmp_path, monkeypatch):
    def busy(path, target):
        raise OSError(errno.EBUSY, "Device or resource busy")

    (tmp_path / "table.csv").write_text("old")
    place = (tmp_path / "table.csv").stat().st_ino
    monkeypatch.setattr(type(tmp_path), "replace", busy)
    write_text(tmp_path / "table.csv", "new")
    assert (tmp_path / "table.csv").read_text() == "new"
    assert (tmp_path / "table.csv").stat().st_ino == place
    assert names(tmp_path) == ["table.csv"]


def test_all_files_of_a_folder_have_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        with new_folder(tmp_path / "run") as folder:
            save_file({"weight": torch.zeros(2)}, folder / "model.safetensors")  # it ignores the umask
            (folder / "run.json").touch()
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / "run" / name).stat().st_mode) for name in ("model.safetensors", "run.json")]
    assert modes == [0o640, 0o640]


def test_a_user_without_a_home_has_no_cache_and_no_traceback(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user who is not in the password file
    with pytest.raises(InputError, match=r"E-OS: This user has no home directory\. Set XDG_CACHE_HOME"):
        user_cache()


SECRETS = ("hf_abcDEF123456789", "sk-proj-abc_DEF-123456", "0123456789" * 4)


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        *(([secret], ["***"]) for secret in SECRETS),
        *(([f"--hub-token={secret}"], ["--hub-token=***"]) for secret in SECRETS),
        *(([f"a {secret}"], ["a ***"]) for secret in SECRETS),
        (["--hub-token", "any words"], ["--hub-token", "***"]),
        (["--hub_token=any=words"], ["--hub_token=***"]),
        (["--api-key", "x"], ["--api-key", "***"]),
        (["https://me:word@host/a", "--tokens", "3"], ["https://***@host/a", "--tokens", "3"]),
    ],
)
def test_the_command_of_a_record_keeps_no_secret(monkeypatch, typed, shown):
    monkeypatch.setattr(sys, "argv", ["/home/me/.venv/bin/flip-flop", "audit", *typed, "--quiet"])
    assert shlex.split(command()) == ["flip-flop", "audit", *shown, "--quiet"]


@pytest.mark.slow
def test_arrays_with_a_flipped_bit_are_refused_or_are_what_was_written(tmp_path):
    path, arrays = tmp_path / "a.npz", {"ids": np.array(["a", "b"]), "scores": np.arange(24.0).reshape(2, 3, 4)}
    write_arrays(path, **arrays)
    whole, refused = path.read_bytes(), 0
    bits = range(0, 8 * len(whole), 7)
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        try:
            damage = read_arrays(path)
        except ValueError:
            refused += 1
        else:
            assert all(np.array_equal(damage[name], arrays[name]) for name in damage.keys() & arrays.keys())
    assert refused > len(bits) / 2
    path.write_bytes(whole)
    np.testing.assert_equal(read_arrays(path), arrays)
