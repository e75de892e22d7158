"""A device for tests that computes on the CPU and refuses most operations that a GPU refuses.

PyTorch sees tensors of another device: it refuses two devices in one operation, and numbers without a copy.
It records each operation that would make the CPU wait for a GPU, with the function that calls it.
"""

import traceback

import torch
from accelerate import PartialState
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import TrainingArguments

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
