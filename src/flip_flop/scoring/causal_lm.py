"""The parts of a causal language model of transformers, with an adapter or without."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast

from torch import nn
from transformers import PreTrainedModel

from flip_flop.errors import InputError


def unwrap(model: nn.Module) -> PreTrainedModel:
    """The causal LM inside a ``PeftModel``, its adapter still in effect; any other model itself."""
    get_base_model = getattr(model, "get_base_model", None)
    return cast(PreTrainedModel, get_base_model() if get_base_model else model)


def decoder_of(model: nn.Module) -> nn.Module:
    """The model without its head.

    Raises:
        InputError: ``E-MODEL-KIND`` where it does not come apart.
    """
    causal_lm = unwrap(model)
    decoder = getattr(causal_lm, causal_lm.base_model_prefix, None)
    if not isinstance(decoder, nn.Module) or causal_lm.get_output_embeddings() is None:
        raise InputError(
            "E-MODEL-KIND",
            f"{type(causal_lm).__name__} has no separate decoder and head.",
            "Use a causal language model of the transformers library.",
        )
    return decoder


def decoder_weights(model: nn.Module) -> int:
    """The number of a decoder's weights that every token is multiplied with: all but the embeddings."""
    decoder = decoder_of(model)
    embeddings = {id(module.weight) for module in decoder.modules() if isinstance(module, nn.Embedding)}
    return sum(parameter.numel() for parameter in decoder.parameters() if id(parameter) not in embeddings)


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Without dropout; afterwards the model is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
