"""Load models, configurations and tokenizers with transformers, and convert its errors."""

from typing import Any, NamedTuple

from transformers import AutoModelForCausalLM, PreTrainedConfig

from flip_flop.errors import InputError
from flip_flop.hub import hub_answers, is_local_name
from flip_flop.scoring.causal_lm import as_input_error

# Where transformers keeps the head of a classifier, a reward model or a reader.
OTHER_HEADS = {"score", "classifier", "qa_outputs"}


class ModelSource(NamedTuple):
    """A model's place: its folder, or its name and revision on the hub.

    Attributes:
        name: The model's name as the user gave it.
        place: The folder or the name on the hub.
        revision: A commit, branch or tag on the hub.
        gguf_digest: The SHA-256 of the GGUF file from which the folder was converted.
    """

    name: str
    place: str
    revision: str | None = None
    gguf_digest: str | None = None

    @property
    def hub(self) -> dict[str, Any]:
        """The arguments of transformers that belong to the hub."""
        # If the hub is unreachable, the library asks it for half a minute before it looks into the cache.
        offline = not is_local_name(self.place) and not hub_answers()
        return {"revision": self.revision, "local_files_only": offline}


def load_pretrained(factory: Any, source: ModelSource, **arguments: Any) -> Any:
    """Call ``factory.from_pretrained``; raises ``E-MODEL-FILE`` or ``E-MODEL-TOKENIZER``."""
    part = {"AutoConfig": "model", "AutoTokenizer": "tokenizer"}.get(factory.__name__, "weights")
    arguments |= source.hub | {"trust_remote_code": False}
    return in_one_line(part, source.name, factory.from_pretrained, source.place, **arguments)


def in_one_line(part: str, name: str, build: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call ``build``; any exception becomes an ``E-MODEL-TOKENIZER`` or ``E-MODEL-FILE``."""
    code = "E-MODEL-TOKENIZER" if part == "tokenizer" else "E-MODEL-FILE"
    hint = "Give a folder with config.json, safetensors weights and a tokenizer, a GGUF file, or a name on the hub."
    with as_input_error(code, f"Cannot load the {part} of {name}", hint, Exception):
        return build(*arguments, **keywords)


def load_weights(source: ModelSource, **arguments: Any) -> Any:
    """Load a causal LM; raises ``E-MODEL-FILE`` for missing tensors, ``E-MODEL-KIND`` for another head."""
    model, loading = load_pretrained(
        AutoModelForCausalLM,
        source,
        **arguments,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are rejected here, by name
    )
    # transformers only warns about missing weights, and would use random ones.
    missing = sorted({*loading["missing_keys"], *(key for key, *_ in loading["mismatched_keys"])})
    if missing:
        raise InputError(
            "E-MODEL-FILE",
            f"The weights of {source.name} lack {missing[0]} or hold it in another shape; "
            f"{len(missing)} such tensors in all.",
            "Give the complete weights of a causal language model, with the configuration that belongs to them.",
        )
    # With tied embeddings, no weights are missing if the model has another head instead.
    heads = sorted(key for key in loading["unexpected_keys"] if key.split(".")[0] in OTHER_HEADS)
    if heads:
        raise _other_head(source.name, f"its weights hold {heads[0]}")
    return model


def check_kind(name: str, config: PreTrainedConfig) -> None:
    """Reject models that are not causal, by their configuration (``E-MODEL-KIND``)."""
    if config.is_encoder_decoder:
        raise InputError("E-MODEL-KIND", f"{name} is an encoder-decoder model.", "Use a causal language model.")
    for architecture in config.architectures or ():
        if architecture.endswith(("Classification", "QuestionAnswering")):
            raise _other_head(name, f"its config.json says {architecture}")


def _other_head(name: str, why: str) -> InputError:
    hint = "Use the causal language model that it was made from, or another."
    return InputError("E-MODEL-KIND", f"{name} has another head than a language model's: {why}.", hint)
