"""How many workers there are, and what each of them sees."""

import pytest
import torch

from flip_flop.studies.local import worker_environments


def seen(*arguments):
    return [environment["CUDA_VISIBLE_DEVICES"] for environment in worker_environments(*arguments)]


@pytest.fixture
def three_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_a_worker_per_gpu(three_gpus):
    assert seen("auto") == ["0", "1", "2"]
    assert seen("cuda", 4) == ["0", "1", "2", "0"]
    assert seen("cuda", 2) == ["0", "1"]


def test_one_worker_on_the_cpu(three_gpus, monkeypatch):
    assert seen("cpu") == [""]
    assert seen("cpu", 2) == ["", ""]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert seen("auto") == [""]


def test_a_gpu_that_the_user_named_keeps_its_name(three_gpus, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, GPU-1a2b,7")
    assert seen("auto") == ["5", "GPU-1a2b", "7"]
