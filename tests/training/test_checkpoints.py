"""A checkpoint's files by themselves: its manifest, its state without pickles, which ones are kept."""

import copy
import os
import pickle
import random

import numpy as np
import pytest
import torch
from flip_flop.training.saved_state import random_state, read_state, restore_random_state, write_state

from flip_flop.errors import InputError
from flip_flop.training.checkpoints import latest_valid, rotate, write_manifest
from tests.training.conftest import settings


def test_settings_lose_their_token_when_they_are_pickled_and_not_when_they_are_copied():
    config = settings(hub_token="a token")
    assert copy.copy(config).hub_token == "a token"
    assert b"a token" not in pickle.dumps(config)


def test_a_random_state_is_restored_from_its_files(tmp_path):
    random.gauss(0, 1), np.random.standard_normal()  # half of what each has drawn is kept
    python = random.getstate()
    write_state(tmp_path, "random_state_0", random_state() | {"python": python})  # the tests' type checker draws
    expected = [np.random.standard_normal(), float(torch.rand(()))]
    restore_random_state(read_state(tmp_path, "random_state_0"))
    assert random.getstate() == python
    assert [np.random.standard_normal(), float(torch.rand(()))] == expected


def test_a_state_is_read_as_it_was_written(tmp_path):
    shared = torch.arange(3.0)
    state = {
        "state": {
            0: {"step": torch.tensor(3.0), "twice": shared},
            11: {"twice": shared, "bits": torch.tensor([255, 0], dtype=torch.uint8)},
        },
        "param_groups": [{"lr": 0.1 + 0.2, "betas": [0.9, 0.999], "foreach": None, "fused": True, "params": [0, 11]}],
        "best": float("-inf"),
    }
    write_state(tmp_path, "optimizer", state)
    found = read_state(tmp_path, "optimizer")
    tensors = [[each.pop(name) for name in sorted(each)] for kept in (state, found) for each in kept["state"].values()]
    assert found == state
    for written, read in zip(tensors[:2], tensors[2:], strict=True):
        assert all(torch.equal(*pair) and pair[0].dtype == pair[1].dtype for pair in zip(written, read, strict=True))
    with pytest.raises(InputError, match=r"E-CONFIG-VALUE: .*a object \(state.0\)"):
        write_state(tmp_path, "optimizer", {"state": [object()]})


def test_a_checkpoint_is_in_its_folder_for_certain_before_an_older_one_is_deleted(tmp_path, monkeypatch):
    (tmp_path / "checkpoint-1").mkdir()
    flushed, flush = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda file: (flushed.append(os.readlink(f"/proc/self/fd/{file}")), flush(file)))
    write_manifest(tmp_path / "checkpoint-1")
    assert flushed[-1] == str(tmp_path)


@pytest.mark.parametrize(
    "manifest",
    [
        "{",
        "null",
        "[]",
        "{}",
        '{"weights": 3}',
        '{"weights": {"size": 1}}',
        '{"\\u0000": {}}',
        '{"%s": {}}' % ("x" * 300),
    ],
)
def test_a_manifest_that_is_not_one_is_corruption_and_what_is_no_checkpoint_is_passed_over(tmp_path, manifest):
    for name in ("checkpoint-2", "checkpoint-\u00b2", "checkpoint-3"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text("1")
        write_manifest(tmp_path / name)
    (tmp_path / "checkpoint-99").write_text("a file")
    (tmp_path / "checkpoint-3" / "MANIFEST.json").write_text(manifest)
    valid, corrupt = latest_valid(tmp_path)
    assert (valid, list(corrupt)) == (tmp_path / "checkpoint-2", [tmp_path / "checkpoint-3"])


def test_rotation_keeps_the_newest_and_the_best(tmp_path):
    for step in (1, 2, 3, 4):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "weights").write_text(str(step))
        write_manifest(folder)
    rotate(tmp_path, 2, best=str(tmp_path / "checkpoint-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-1", "checkpoint-4"]


def test_nothing_valid_is_deleted_for_a_checkpoint_without_a_manifest(tmp_path):
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "checkpoint-1" / "weights").write_text("1")
    write_manifest(tmp_path / "checkpoint-1")
    rotate(tmp_path, 1, best=None)
    valid, corrupt = latest_valid(tmp_path)
    assert valid == tmp_path / "checkpoint-1"
    assert corrupt == {tmp_path / "checkpoint-2": "it was not finished"}
