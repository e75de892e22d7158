"""A causal language model of transformers, with or without an adapter, and the errors that it causes."""

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from flip_flop.errors import OTHER_ENDED, InputError, is_of_communication
from flip_flop.method.divergences import at_least_float32

HALF = (torch.bfloat16, torch.float16)
# Architectures with exact packed scores, and with exact answers in batches, from benchmarks/architectures.py.
TESTED = json.loads(Path(__file__).with_name("tested.json").read_text(encoding="utf-8"))


def unwrap(model: nn.Module) -> PreTrainedModel:
    """Return the causal LM of a ``PeftModel``, with its adapter active, or the model itself."""
    get_base_model = getattr(model, "get_base_model", None)
    return cast(PreTrainedModel, get_base_model() if get_base_model else model)


_LOCK = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Make other threads wait, because the model's modes, the random state or the library change for a while."""
    with _LOCK:
        yield


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, without dropout and autocast, and restore the mode of each module afterwards."""
    in_training = [module for module in model.modules() if module.training]
    devices = {parameter.device.type for parameter in model.parameters()} - {"meta"}
    model.eval()
    try:
        with ExitStack() as stack:
            for device in filter(torch.is_autocast_enabled, devices):
                stack.enter_context(torch.autocast(device, enabled=False))
            yield
    finally:
        for module in in_training:
            module.training = True


@contextmanager
def as_input_error(
    code: str, what: str, hint: str = "", kind: type[Exception] | tuple[type[Exception], ...] = RuntimeError
) -> Iterator[None]:
    """Convert a library's exception of this kind to an InputError, unless memory has run out.

    Raises:
        InputError: With this ``code``; its message is ``what`` and the reason. ``E-DISTRIBUTED`` if another process has
            ended.
    """
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except kind as error:
        if is_of_communication(error):
            code, what, hint = OTHER_ENDED
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(code, f"{what}: {reason}.", hint) from error


@torch.no_grad()
def check_model(model: nn.Module) -> None:
    """Read two sequences of three tokens that differ in their last token.

    Raises:
        InputError: ``E-NONFINITE``, or ``E-MODEL-KIND`` if the model fails, or if a token's logits depend on a later
            token.
    """
    causal_lm = unwrap(model)
    kind = type(causal_lm).__name__
    size = causal_lm.config.get_text_config().vocab_size
    ids = torch.tensor([[0, 1, 2], [0, 1, 3]], device=causal_lm.device) % size
    with (
        as_input_error(
            "E-MODEL-KIND",
            f"{kind} cannot read three tokens in {causal_lm.dtype}",
            "Try --dtype float32.",
            Exception,
        ),
        evaluation_mode(causal_lm),
    ):
        logits = at_least_float32(causal_lm(input_ids=ids, use_cache=False).logits)
    if not bool(logits.isfinite().all()):
        raise not_finite(f"{kind}: its logits")
    earlier = logits[:, :-1]
    tolerance = (2e-2 if causal_lm.dtype in HALF else 1e-5) * earlier.abs().max()
    if bool((earlier[0] - earlier[1]).abs().max() > tolerance):
        raise InputError(
            "E-MODEL-KIND",
            f"{kind} is not causal: a token's logits change with later tokens.",
            "Use a causal language model of the transformers library.",
        )


def require_finite(
    scores: Float[Tensor, "instances templates labels"],
    token_counts: Int[Tensor, "instances templates labels"],
    ids: Sequence[str],
    what: str = "The model's scores",
) -> Float[Tensor, "instances templates labels"]:
    """Return the scores, which are on the CPU, if those of answers with tokens are finite.

    Raises:
        InputError: ``E-NONFINITE`` with the id of the first instance that has another score.
    """
    are_finite = (scores.isfinite() | (token_counts == 0)).flatten(1).all(dim=1).tolist()
    if not all(are_finite):
        raise not_finite(f"{what} of instance {ids[are_finite.index(False)]!r}")
    return scores


def not_finite(what: str) -> InputError:
    """Return the error for numbers of a model that are not finite."""
    return InputError(
        "E-NONFINITE",
        f"{what} are not finite.",
        "Check the weights and the dtype (bfloat16 or float32 instead of float16); in training, lower --learning-rate.",
    )
