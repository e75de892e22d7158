"""On a device that is not the CPU: the same numbers, no operation of two devices, and hardly a wait for it.

No GPU computes here. ``main`` runs in a process whose tensors PyTorch takes for those of another
device. It reads ``instances.pt``; it writes results and waits for the device to ``results.pt``.
"""

import traceback

import numpy as np
import pytest
import torch
from accelerate import PartialState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import TrainingArguments

from flip_flop import audit
from flip_flop.scoring.packed import pack
from flip_flop.scoring.scores import score_instances
from tests.exact import float32_bound
from tests.processes import end, start
from tests.tiny import tiny_model
from tests.training.conftest import adapter_weights, load_tiny, make_task, training_rows
from tests.training.naive_step import LOSSES, distance, made_instances, made_trainer, step

NAME = "other"
PACKAGE = "/src/flip_flop/"
# Operations whose result's shape, or whose value, is known only when the device has computed it.
READS = {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class Runtime:
    """What PyTorch asks of the module of a device."""

    is_available = is_initialized = staticmethod(lambda: True)
    device_count = staticmethod(lambda: 1)
    current_device = staticmethod(lambda: 0)
    _is_in_bad_fork = staticmethod(lambda: False)
    manual_seed_all = staticmethod(lambda seed: None)  # it draws from the CPU's generator
    get_rng_state = staticmethod(lambda device=None: torch.zeros(1, dtype=torch.uint8))
    set_rng_state = staticmethod(lambda state, device=None: None)


def make_known():
    """Give this process the device, for good and as its default."""
    _setup_privateuseone_for_python_backend(NAME, backend_module=Runtime())
    device, tensor = torch.device(NAME, 0), torch.tensor
    PartialState.default_device = property(lambda self: device)
    TrainingArguments.device = property(lambda self: self._setup_devices and device)
    # torch.tensor makes a tensor below the level of modes.
    torch.tensor = lambda data, *, device="cpu", **options: tensor(data, **options).to(device)
    return device


class OnOther(torch.Tensor):
    """A tensor of the device; ``raw`` is the CPU's."""

    @staticmethod
    def __new__(cls, raw):
        layout = {"strides": raw.stride(), "storage_offset": raw.storage_offset(), "dtype": raw.dtype}
        return torch.Tensor._make_wrapper_subclass(cls, raw.size(), device=torch.device(NAME, 0), **layout)

    def __init__(self, raw):
        self.raw = raw

    def tolist(self):
        return self.cpu().tolist()

    def __repr__(self, **_):
        return f"OnOther({self.raw!r})"

    @classmethod
    def __torch_dispatch__(cls, function, types, given=(), named=None):
        raise RuntimeError(f"{function} outside of a Device()")


class Device(TorchDispatchMode):
    """While it is open there is the device. ``waits`` are the functions of this project that waited for it."""

    def __init__(self):
        super().__init__()
        self.waits = []

    def __torch_dispatch__(self, function, types, given=(), named=None):
        named = named or {}
        leaves = tree_leaves((given, named))
        ours = [leaf for leaf in leaves if isinstance(leaf, OnOther)]
        others = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and not isinstance(leaf, OnOther)]
        operation = function.__name__.split(".")[0]
        copies = operation in ("_to_copy", "copy_")
        if ours and not copies and operation not in INDEXING and any(other.dim() for other in others):
            raise RuntimeError(f"{function} was given tensors of two devices")
        if ours and operation in INDEXING and not isinstance(given[0], OnOther):
            raise RuntimeError(f"{function}: a tensor of the CPU was indexed by the device's")
        target = named.get("device")
        is_ours = bool(ours) if target is None else torch.device(target).type == NAME
        if self._waits(operation, leaves, ours, others, is_ours, named):
            frames = [frame for frame in traceback.extract_stack() if PACKAGE in frame.filename]
            self.waits += [f"{each.filename.rpartition(PACKAGE)[2]}: {each.name}" for each in frames[-1:]]
        found = function(*tree_map(_raw, given), **tree_map(_raw, named))
        if not is_ours or operation == "_local_scalar_dense":
            return found
        return tree_map(lambda leaf: _wrapped(leaf, ours), found)

    @staticmethod
    def _waits(operation, leaves, ours, others, is_ours, named):
        if operation == "_to_copy":
            return bool(ours) != is_ours and not (is_ours and named.get("non_blocking"))
        if not ours:
            return False
        masks = any(isinstance(leaf, torch.Tensor) and leaf.dtype == torch.bool for leaf in leaves)
        return (
            operation in READS
            or (operation == "copy_" and bool(others))
            or (operation in INDEXING and (masks or any(other.dim() for other in others)))
            or (operation == "repeat_interleave" and named.get("output_size") is None)
        )


def _raw(leaf):
    if isinstance(leaf, torch.device) and leaf.type == NAME:
        return torch.device("cpu")
    return leaf.raw if isinstance(leaf, OnOther) else leaf


def _wrapped(leaf, ours):
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return next((each for each in ours if each.raw is leaf), OnOther(leaf))


# ---- tests ----


pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("other_device")]
SCORINGS = ("packed", "padded")
KINDS = ("f2c over both", "f2c, votes of a separate pass")
STEPS = {kind: LOSSES[kind] for kind in KINDS} | {"derangement": {"method": "swarm", "swarm_pairs": "derangement"}}
NOT_SAVED = {"save_strategy": "no", "select_by": "last"}
ROW_TOKENS = 60


def train(folder, **settings):
    """Two steps with dropout, and an evaluation after each."""
    trainer = made_trainer(
        folder, rows=training_rows(count=4), eval_rows=training_rows(count=3), lora_dropout=0.2, **NOT_SAVED, **settings
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def instances():
    return made_instances()


@pytest.fixture(scope="module")
def results(tmp_path_factory, instances):
    folder = tmp_path_factory.mktemp("other")
    torch.save(instances, folder / "instances.pt")
    assert end([start(main, folder, output=folder / "output.txt")]) == [0], (folder / "output.txt").read_text()[-3000:]
    return torch.load(folder / "results.pt", weights_only=False)


@pytest.mark.parametrize("backend", SCORINGS)
def test_scores_match_the_cpu_with_one_wait_per_window(results, instances, backend):
    model = tiny_model("qwen2")
    scores, waits = results[backend]
    expected = score_instances(model, instances, backend=backend, quiet=True).values
    np.testing.assert_allclose(scores, expected, rtol=float32_bound(model))
    if backend == "packed":  # transformers' own masks wait
        assert waits == ["scoring/parts.py: store"]


@pytest.mark.parametrize("name", STEPS)
def test_gradients_match_the_cpu_with_one_wait_per_row(tmp_path, results, instances, name):
    trainer = made_trainer(tmp_path, **STEPS[name])
    expected_loss, expected = step(trainer, instances)
    loss, gradients, waits = results[name]
    assert loss == pytest.approx(expected_loss, rel=float32_bound(trainer.adapted))
    assert distance(gradients, expected) < float32_bound(trainer.adapted, passes=3)
    rows = len(list(pack(trainer.adapted, instances, ROW_TOKENS)))
    assert waits == rows * ["training/trainer.py: _scores"]


def test_audit_matches_the_cpu(results):
    loaded = load_tiny()
    expected = audit(loaded, make_task(), quiet=True).scores
    np.testing.assert_allclose(results["audit"], expected, rtol=float32_bound(loaded.model))


def test_training_matches_the_cpu(tmp_path, results):
    adapter, evaluations = results["training"]
    trainer = train(tmp_path, method="f2c", divergence_space="both")
    # AdamW's first steps divide a gradient by its own size, which spreads what rounding leaves of the small ones.
    assert distance(adapter, adapter_weights(trainer)) < 0.01
    expected = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    for ours, theirs in zip(evaluations, expected, strict=True):
        assert ours["eval_loss"] == pytest.approx(theirs["eval_loss"], rel=0.01)


# ---- in the process ----


def main(folder):
    results, instances = {}, torch.load(folder / "instances.pt", weights_only=False)
    known = make_known()
    with Device() as device:
        model = tiny_model("qwen2").to(known)
        for backend in SCORINGS:
            device.waits.clear()
            table = score_instances(model, instances, backend=backend, batch_tokens=ROW_TOKENS, quiet=True)
            results[backend] = table.values, list(device.waits)
        for name, settings in STEPS.items():
            trainer = made_trainer(folder / name, eval_strategy="no", use_cpu=False, **NOT_SAVED, **settings)
            assert trainer.args.device == next(trainer.adapted.parameters()).device == known
            trainer._row_tokens = ROW_TOKENS
            device.waits.clear()
            loss, gradients = step(trainer, instances)
            results[name] = loss, raw(gradients), list(device.waits)
        trainer = train(folder / "training", use_cpu=False, method="f2c", divergence_space="both")
        loaded = load_tiny()
        loaded.model.to(known)
        results["audit"] = audit(loaded, make_task(), quiet=True).scores
        evaluations = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
        results["training"] = raw(adapter_weights(trainer)), evaluations
    torch.save(results, folder / "results.pt")


def raw(tensors):
    return {name: value.raw if isinstance(value, OnOther) else value for name, value in tensors.items()}
