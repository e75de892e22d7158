"""The decoder and the head of a causal language model of transformers, with or without an adapter.

The head computes only the rows that predict a token of an answer. The logits of whole sequences over a vocabulary of
151,936 would be the largest tensor of an audit.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast
from weakref import WeakSet

import torch
import transformers
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformers import PreTrainedConfig, PreTrainedModel

from flip_flop.errors import InputError
from flip_flop.method.divergences import at_least_float32, to_device

# Rows of one pass through the head without gradient: 39 MB of logits at 64 rows of 151,936.
HEAD_ROWS = 64
HALF = (torch.bfloat16, torch.float16)
# Architectures with exact packed scores, from benchmarks/architectures.py.
# Options without effect on positions and attention.
HARMLESS = {
    *("tie_word_embeddings", "use_cache", "attention_bias", "mlp_bias", "hidden_act", "hidden_activation"),
    *("activation_function", "dtype", "model_type", "_name_or_path", "transformers_version"),
}
TESTED = json.loads(Path(__file__).with_name("tested.json").read_text(encoding="utf-8"))


def unwrap(model: nn.Module) -> PreTrainedModel:
    """Return the causal LM of a ``PeftModel``, with its adapter active, or the model itself."""
    get_base_model = getattr(model, "get_base_model", None)
    return cast(PreTrainedModel, get_base_model() if get_base_model else model)


def decoder_of(model: nn.Module) -> nn.Module:
    """Return the model without its head; raises ``E-MODEL-KIND`` if they cannot be separated."""
    causal_lm = unwrap(model)
    named = (getattr(causal_lm, name, None) for name in (causal_lm.base_model_prefix, "model"))  # Llama 4's differ
    decoder = next((part for part in named if isinstance(part, nn.Module)), None)
    if decoder is None or causal_lm.get_output_embeddings() is None:
        raise _unknown_kind(causal_lm, "has no separate decoder and head")
    return decoder


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode, without dropout, and restore the mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def as_input_error(code: str, what: str, hint: str = "", kind: type[Exception] = RuntimeError) -> Iterator[None]:
    """Convert a library's exception of this kind to an InputError, unless memory has run out.

    Raises:
        InputError: With this ``code``; its message is ``what`` and the reason.
    """
    try:
        yield
    except (InputError, torch.OutOfMemoryError):
        raise
    except kind as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise InputError(code, f"{what}: {reason}.", hint) from error


@contextmanager
def without_adapter(model: nn.Module) -> Iterator[None]:
    """Disable the adapter, and enable it afterwards."""
    disable = getattr(model, "disable_adapter", None)
    if disable is None:
        yield
        return
    trained = [parameter.requires_grad for parameter in model.parameters()]
    with disable():
        yield
    for parameter, requires_grad in zip(model.parameters(), trained, strict=True):
        parameter.requires_grad_(requires_grad)


class InFloat32(TorchDispatchMode):
    """Compute models of half precision in float32, so that rounding cannot hide the result of a check.

    The stored weights do not change. Each is converted for the operation that uses it. Callers disable adapters,
    because adapters of fused experts require the dtype of the weights.
    """

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not torch.ops.aten.embedding.default:  # converting the whole table would be slow
            args, kwargs = tree_map(_in_float32, (args, kwargs or {}))
        return function(*args, **(kwargs or {}))


def _in_float32(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF else value
    return torch.float32 if isinstance(value, torch.dtype) and value in HALF else value


def head_logits(model: nn.Module, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocab"]:
    """Return the model's logits of these rows in float32, with its soft cap or scale if it has one."""
    causal_lm = unwrap(model)
    head = causal_lm.get_output_embeddings()
    if head.weight.dtype in HALF:  # Mamba's states are always float32
        hidden = hidden.to(head.weight.dtype)
    logits = at_least_float32(head(hidden))
    config = causal_lm.config.get_text_config()
    if scale := getattr(config, "logit_scale", None):  # Cohere
        logits = logits * scale
    if scaling := getattr(config, "logits_scaling", None):  # Granite
        logits = logits / scaling
    # Gemma 2 and 3; RecurrentGemma
    if cap := getattr(config, "final_logit_softcapping", None) or getattr(config, "logits_soft_cap", None):
        logits = cap * torch.tanh(logits / cap)
    return logits.to(hidden.device)  # a tied head may lie on another device


def token_log_probs(
    model: nn.Module,
    hidden: Float[Tensor, "nodes width"],
    token_node: Int[Tensor, " tokens"],
    token_target: Int[Tensor, " tokens"],
) -> Float[Tensor, " tokens"]:
    """Return the log-probability of each target at its node, in nats. The head computes each named node once.

    Nodes and targets are on the CPU, the states on any device. Without gradient, the head computes the nodes in chunks,
    and the logits of a chunk are released after it.
    """
    device = hidden.device
    nodes, row = token_node.unique(return_inverse=True)
    size = max(nodes.numel(), 1) if torch.is_grad_enabled() else HEAD_ROWS
    picked, order = [], []
    for start in range(0, nodes.numel(), size):
        tokens = ((row >= start) & (row < start + size)).nonzero().squeeze(1)
        logits = head_logits(model, hidden[to_device(nodes[start : start + size], device)])
        local, target = (to_device(part, device) for part in (row[tokens] - start, token_target[tokens]))
        picked.append(logits[local, target] - logits.logsumexp(dim=-1)[local])
        order.append(tokens)
    return torch.cat(picked)[to_device(torch.argsort(torch.cat(order)), device)]


def is_tested(model: nn.Module) -> bool:
    """Return whether ``benchmarks/architectures.py`` found packed scores exact for this kind of model.

    The test is valid for the same version of transformers, for unmodified classes on one device, and for the default
    options of the architecture. Sizes may differ.
    """
    causal_lm = unwrap(model)
    config = causal_lm.config
    return (
        config.model_type in TESTED["packed"]
        and transformers.__version__.startswith(f"{TESTED['transformers']}.")
        and not changed_options(config)
        and len(set(getattr(causal_lm, "hf_device_map", {}).values())) <= 1
        and all(type(each).__module__.startswith(("transformers.", "torch.", "peft.")) for each in model.modules())
    )


def changed_options(config: PreTrainedConfig) -> list[str]:
    """Return the options that differ from the architecture's defaults and may change its attention."""
    given, default = config.to_dict(), type(config)().to_dict()
    options = (name for name, value in given.items() if isinstance(value, bool | str) or "softcap" in name)
    changed = [name for name in options if name not in HARMLESS and given[name] != default.get(name)]
    return changed + [name for name in ("quantization_config",) if name in given]


_CHECKED: "WeakSet[nn.Module]" = WeakSet()  # decoders that passed check_head


@torch.no_grad()
def check_head(model: nn.Module) -> None:
    """Compare the decoder and head, called separately, with the forward pass of the whole model on three tokens.

    Each model is checked once. Models that are not :func:`is_tested` must also be causal.

    Raises:
        InputError: ``E-NONFINITE``, or ``E-MODEL-KIND`` if the logits differ or a state depends on a later token.
    """
    causal_lm, decoder = unwrap(model), decoder_of(model)
    if decoder in _CHECKED:
        return
    device = next(causal_lm.parameters()).device
    ids = torch.arange(3, device=device)[None] % causal_lm.config.get_text_config().vocab_size
    what = f"{type(causal_lm).__name__} cannot read three tokens in {causal_lm.dtype}"
    # Dropout would be drawn twice.
    with as_input_error("E-MODEL-KIND", what, "Try --dtype float32.", Exception), evaluation_mode(causal_lm):
        own = at_least_float32(causal_lm(input_ids=ids, use_cache=False).logits[0])
        hidden = decoder(input_ids=ids, use_cache=False).last_hidden_state[0]
    try:
        ours = head_logits(model, hidden).to(own.device)
    except RuntimeError as error:  # something between the two changes the width
        raise _unknown_kind(causal_lm, "gives its head other states than its decoder's") from error
    if not bool(own.isfinite().all()):
        raise not_finite(f"{type(causal_lm).__name__}: its logits")
    tolerance = float(own.abs().max().clamp(min=1.0)) * (2e-2 if hidden.dtype in HALF else 1e-3)
    if ours.shape != own.shape or not torch.allclose(ours, own, rtol=0.0, atol=tolerance):
        raise _unknown_kind(causal_lm, "gives other logits than its decoder and head, called apart")
    if not is_tested(model):
        # Kernels that need half precision (FlashAttention, some quantized weights) cannot be checked.
        with evaluation_mode(causal_lm), without_adapter(model), suppress(RuntimeError), InFloat32():
            other_end = torch.cat([ids[:, :-1], ids[:, -1:] + 1], dim=1) % causal_lm.config.get_text_config().vocab_size
            states = decoder(input_ids=torch.cat([ids, other_end]), use_cache=False).last_hidden_state[:, :-1]
            if bool((states[0] - states[1]).abs().max() > 1e-5 * states.abs().max()):
                raise _unknown_kind(causal_lm, "is not causal: a token's state changes with later tokens")
    _CHECKED.add(decoder)


def require_finite(
    scores: Float[Tensor, "instances templates labels"], ids: Sequence[str], what: str = "The model's scores"
) -> Float[Tensor, "instances templates labels"]:
    """Return the scores, which are on the CPU, if all are finite.

    Raises:
        InputError: ``E-NONFINITE`` with the id of the first instance that has another score.
    """
    for each, is_finite in zip(ids, scores.isfinite().flatten(1).all(dim=1).tolist(), strict=True):
        if not is_finite:
            raise not_finite(f"{what} of instance {each!r}")
    return scores


def not_finite(what: str) -> InputError:
    """Return the error for numbers of a model that are not finite."""
    hint = (
        "Check the weights and the dtype (bfloat16 or float32 instead of float16); in training, lower --learning-rate."
    )
    return InputError("E-NONFINITE", f"{what} are not finite.", hint)


def _unknown_kind(causal_lm: nn.Module, what: str) -> InputError:
    hint = "Use a causal language model of the transformers library."
    return InputError("E-MODEL-KIND", f"{type(causal_lm).__name__} {what}.", hint)
