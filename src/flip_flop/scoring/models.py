"""Load a causal language model from safetensors or GGUF, its tokenizer and an adapter, and record them."""

import contextlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable
from unittest.mock import patch

import torch
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file, extract_commit_hash
from transformers.utils import logging as transformers_logging
from transformers.utils.quantization_config import QuantizationConfigMixin

from flip_flop.console import versions
from flip_flop.errors import InputError, log, require_package
from flip_flop.files import (
    Json,
    StrPath,
    lock_output,
    new_folder,
    read_object,
    sha256_file,
    sha256_json,
    user_cache,
    write_failure,
    write_json,
)
from flip_flop.hub import DEMO, GGUFName, check_model_name, check_shard, gguf_name, is_local_name, why_unreachable
from flip_flop.record import ADAPTER_CONFIG, AdapterRecord, Facts, ModelRecord, check_adapter_folder
from flip_flop.scoring.adapters import identify_adapter, load_adapter
from flip_flop.scoring.causal_lm import as_input_error, check_model, one_at_a_time, unwrap
from flip_flop.scoring.distributed import join_processes, sharding_arguments, sharding_of
from flip_flop.scoring.encode import PromptEncoder
from flip_flop.scoring.options import ChatTemplate, DeviceMap, LoadIn, Shard
from flip_flop.scoring.parts import Parts

# Behind the name of a module: the scale of its quantized weights.
SCALE = re.compile(r"\.(weight_scale|scale|qscale|SCB|weight\.absmax)")
# Where transformers keeps the head of a classifier, a reward model or a reader.
OTHER_HEADS = {"score", "classifier", "qa_outputs"}
# Constant tables and masks that older versions stored, scales of a cache in 8 bits, and towers for images and sound.
LEFTOVERS = re.compile(
    r"(inv_freq|masked_bias|attn\.attention\.bias|causal_mask|\b[qkv]_scale)$|^model\.(vision|visual|audio|multi_modal|vq)"
)


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
        offline = not is_local_name(self.place) and bool(why_unreachable())
        return {"revision": self.revision, "local_files_only": offline}


def load_pretrained(factory: Any, source: ModelSource, **arguments: Any) -> Any:
    """Call ``factory.from_pretrained``; raises ``E-MODEL-FILE``."""
    part = {"AutoConfig": "model", "AutoTokenizer": "tokenizer"}.get(factory.__name__, "weights")
    arguments |= source.hub | {"trust_remote_code": False}
    return in_one_line(part, source.name, factory.from_pretrained, source.place, **arguments)


def in_one_line(part: str, name: str, build: Any, *arguments: Any, **keywords: Any) -> Any:
    """Call ``build``; any exception becomes ``E-MODEL-FILE``."""
    with as_input_error(
        "E-MODEL-FILE",
        f"Cannot load the {part} of {name}",
        "Give a folder with config.json, safetensors weights and a tokenizer, a GGUF file, or a name on the hub.",
        Exception,
    ):
        return build(*arguments, **keywords)


def load_weights(source: ModelSource, **arguments: Any) -> Any:
    """Load a causal LM from files that have all of its tensors and no others.

    Raises:
        InputError: ``E-MODEL-FILE`` for missing and unexpected tensors, ``E-MODEL-KIND`` for another head.
    """
    model, loading = load_pretrained(
        AutoModelForCausalLM,
        source,
        **arguments,
        use_safetensors=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # they are rejected here, by name
    )
    # transformers only warns about missing weights, and would use random ones.
    missing = loading["missing_keys"] | {key for key, *_ in loading["mismatched_keys"]}
    refuse_tensors(source.name, missing, "lack, or hold in another shape,")
    # With tied embeddings, no weights are missing if the model has another head instead.
    heads = sorted(key for key in loading["unexpected_keys"] if key.split(".")[0] in OTHER_HEADS)
    if heads:
        raise _other_head(source.name, f"its weights hold {heads[0]}")
    # Tensors of other modules, such as a value head, have no effect. GGUF's names of layers begin with "blk".
    parts = {"blk", *dict(model.named_children()), *dict(model.base_model.named_children())}
    unexpected = [key for key in loading["unexpected_keys"] if key.split(".")[0] in parts and not LEFTOVERS.search(key)]
    refuse_tensors(source.name, unexpected, "hold, without a place in the model,")
    return model


def weight_files(source: str, config: PreTrainedConfig, **hub: Any) -> Collection[str]:
    """Return the names of the files from which transformers loads a model's weights.

    Args:
        source: A folder, or a name on the hub.
        config: The model's configuration, which may name the file.
        hub: ``revision`` and ``local_files_only``.

    Raises:
        ValueError: A file is not a safetensors file, or is outside the model's folder.
    """
    hub |= {"_raise_exceptions_for_missing_entries": False}
    if other := cached_file(source, ADAPTER_CONFIG, **hub) or next(Path(source).glob("shard-*-model-*"), None):
        raise ValueError(f"{Path(other).name} makes it an adapter (see --adapter) or a distributed checkpoint")
    first = getattr(config, "transformers_weights", None) or SAFE_WEIGHTS_NAME
    is_index = first.endswith(".json") or not (Path(source) / first).is_file()
    index = is_index and cached_file(source, first if first.endswith(".json") else SAFE_WEIGHTS_INDEX_NAME, **hub)
    if index:
        names = set(json.loads(Path(index).read_bytes())["weight_map"].values())
    else:
        names = {first}
    if wrong := [name for name in names if Path(name).name != name or not name.endswith(".safetensors")]:
        raise ValueError(f"{wrong[0]!r} is not a safetensors file in the model's folder")
    return names


def refuse_unscaled(name: str, folder: Path, files: Collection[str]) -> None:
    """Refuse quantized weights of a folder without their scale, which would be read as numbers (``E-MODEL-FILE``)."""
    codes = set()
    scaled = set()
    for file in files if folder.is_dir() else ():
        with safe_open(folder / file, "pt") as tensors:
            for key in tensors.keys():  # noqa: SIM118 - no mapping
                scaled.add(f"{SCALE.split(key)[0]}.weight")
                if key.endswith(".weight") and tensors.get_slice(key).get_dtype()[:2] in ("I8", "U8", "F8"):
                    codes.add(key)
    refuse_tensors(name, codes - scaled, "hold, without the scale of its quantization,")


def refuse_tensors(name: str, tensors: Collection[str], what: str) -> None:
    """Refuse a model because of these tensors (``E-MODEL-FILE``)."""
    if tensors:
        raise InputError(
            "E-MODEL-FILE",
            f"The weights of {name} {what} {min(tensors)}; {len(tensors)} such tensors in all.",
            "Give the complete weights of a causal language model, with the configuration that belongs to them.",
        )


def check_kind(name: str, config: PreTrainedConfig) -> None:
    """Reject models that are not causal, by their configuration (``E-MODEL-KIND``)."""
    if config.is_encoder_decoder:
        raise InputError("E-MODEL-KIND", f"{name} is an encoder-decoder model.", "Use a causal language model.")
    for architecture in config.architectures or ():
        if architecture.endswith(("Classification", "QuestionAnswering")):
            raise _other_head(name, f"its config.json says {architecture}")


def _other_head(name: str, why: str) -> InputError:
    return InputError(
        "E-MODEL-KIND",
        f"{name} has another head than a language model's: {why}.",
        "Use the causal language model that it was made from, or another.",
    )


EMBEDDED_MODEL = Path(__file__).parent / "embedded_model"


@dataclass(frozen=True)
class LoadedModel:
    """A loaded causal LM with its tokenizer and their records. ``model`` may be a ``PeftModel``.

    ``allowed_changes`` is ``("weights",)`` if the adapter was trained on other weights. ``store`` is a file of its
    generated answers, and beside it are the scores of its unfinished runs.
    """

    model: nn.Module
    tokenizer: PreTrainedTokenizerBase
    record: ModelRecord
    adapter: AdapterRecord | None = None
    allowed_changes: tuple[str, ...] = ()
    store: Path | None = None

    def keep_answers(self) -> "LoadedModel":
        """Return the model with a file of its generated answers, which is right as long as its weights do not change.

        The file is in the user's cache. If a run ends early, the same command continues it.
        """
        model = unwrap(self.model)
        adapter = self.adapter
        if adapter:
            trained = [adapter.digest, (adapter.folder / ADAPTER_CONFIG).read_text("utf-8")]
        else:
            trained = []
        parts = [asdict(self.record), trained, model.config.to_json_string(), model.device.type, versions()]
        # The processes of a divided model compute together, and may not find the same file.
        is_whole = self.record.digest is not None and sharding_of(model) is None
        with contextlib.suppress(InputError):  # without a home directory, answers are not stored
            store = user_cache() / "answers" / f"{sha256_json(parts)[:16]}.jsonl"
            return replace(self, store=store if is_whole else None)
        return self

    def parts(self, *content: Any) -> Parts:
        """Return the scores that a stopped run with this content has stored."""
        if self.store is None:
            return Parts()
        digest = sha256_json([self.store.name, *content])
        return Parts(self.store.with_name(f"{digest[:16]}.scores.jsonl"))

    def encoder(self, chat_template: ChatTemplate = "auto", date: str = "") -> PromptEncoder:
        """Return the encoder for this model. ``auto`` uses a chat template if the adapter's training did."""
        trained_with = self.adapter.chat_template if self.adapter else None
        if chat_template == "auto" and trained_with is not None:
            chat_template = "on" if trained_with else "off"
        encoder = PromptEncoder.of(self.model, self.tokenizer, chat_template, date)
        if self.adapter and trained_with:
            return replace(encoder, trained_chat=self.adapter.chat or {})
        return encoder


@contextlib.contextmanager
def silent_library() -> Iterator[None]:
    """Silence transformers, but keep the progress bars of downloads, which its own function would disable."""
    level = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns of a cast at each product
    try:
        with patch.object(transformers_logging, "_tqdm_active", False, create=True):
            yield
    finally:
        transformers_logging.set_verbosity(level)


@one_at_a_time()
@silent_library()
@as_input_error("E-MODEL-FILE", "A file of the model is invalid", kind=Exception)
def load_model(
    name: StrPath,
    *,
    adapter: StrPath | None = None,
    revision: str | None = None,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    device_map: DeviceMap | None = None,
    quantization_config: QuantizationConfigMixin | LoadIn | None = None,
    shard: Shard | None = None,
) -> LoadedModel:
    """Load a causal LM, its tokenizer and an adapter; from safetensors or GGUF, no remote code.

    Args:
        name: A hub name, a folder, a GGUF file, or ``demo`` for the embedded model.
        adapter: A folder in PEFT's format, made for this very model.
        revision: A commit, branch or tag on the hub.
        dtype: ``float32``, ``bfloat16``, ``float16``; ``auto`` is bfloat16 on a GPU and float32 on a CPU.
        device: ``cpu``, ``cuda``, ...; ``auto`` uses a GPU if available.
        device_map: ``auto`` distributes the layers over all GPUs, then the CPU's memory. It replaces ``device``.
        quantization_config: ``4bit`` (NF4, double quantization) or ``8bit``, by bitsandbytes; or one of transformers.
        shard: ``fsdp`` divides the weights between the processes of a launcher, all of which call this.

    Raises:
        InputError: ``E-MODEL-...`` and ``E-ADAPTER-...``; ``E-DISTRIBUTED`` for a model that cannot be sharded.
    """
    name = os.fspath(name)
    dtype = str(dtype).removeprefix("torch.")
    device = str(device)
    check_model_name(name, revision, dtype=dtype, device=device)
    if shard is not None:
        check_shard(name, quantization_config, device_map)
        join_processes(device)
    if device == "auto":
        # A launcher of several processes numbers those of one machine.
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device.startswith("cuda") else "float32"
    with as_input_error(
        "E-MODEL-DEVICE", f"Device {device!r} cannot be used", "Use cpu, or cuda with a GPU.", Exception
    ):
        torch.empty(0, device=device)
    if adapter is not None:
        check_adapter_folder(Path(adapter))
    source = _find_source(name, revision, "weights")
    config = load_pretrained(AutoConfig, source)
    check_kind(name, config)
    files = in_one_line("weights", name, weight_files, source.place, config, **source.hub)
    in_one_line("weights", name, refuse_unscaled, name, Path(source.place), files)
    tokenizer = load_tokenizer(name, revision)
    stored = getattr(config, "quantization_config", None)
    if stored and stored.get("load_in_4bit"):
        stored["bnb_4bit_compute_dtype"] = dtype  # instead of its author's
    # Not all kinds of quantized weights can be moved, so they are loaded onto their device.
    how = {"config": config, "dtype": getattr(torch, dtype), "device_map": device_map or {"": device}}
    if stored and stored.get(f"load_in_{quantization_config}"):
        quantization_config = None  # the weights are in 4 or 8 bits already
    if quantization_config is not None:  # with None, transformers would read the codes of quantized weights as numbers
        quantization = how["quantization_config"] = _quantization(quantization_config, dtype)
        if stored and isinstance(quantization, BitsAndBytesConfig):
            raise InputError("E-MODEL-DEVICE", f"The weights of {name} are quantized already.", "Leave --load-in out.")
    if shard is not None:
        how |= sharding_arguments(name, config, device)
    if shard is not None or (quantization_config is not None and not stored):
        # transformers does not check shapes while it divides or quantizes the weights.
        load_weights(source, config=config, device_map={"": "meta"})
    model = load_weights(source, **how)
    if shard is not None:
        model._tp_size = None  # PEFT would gather all weights to read or write an adapter
    if source.gguf_digest:
        model.config.name_or_path = name  # PEFT looks for a folder in model.name_or_path
    model.requires_grad_(False)  # only an adapter is trained
    compute_in_its_dtype(model)
    check_model(model)
    record = ModelRecord(
        name=name,
        revision=getattr(config, "_commit_hash", None) or source.revision,
        digest=source.gguf_digest or _weights_digest(source.place, files, model),
        is_demo=name == DEMO,
        **describe_weights(model, dtype, stored),
    )
    if adapter is None:
        return LoadedModel(model, tokenizer, record)
    adapter_record, changed = identify_adapter(Path(adapter), record)
    return LoadedModel(load_adapter(model, Path(adapter)), tokenizer, record, adapter_record, changed)


@runtime_checkable
class TrainerLike(Protocol):
    """A ``transformers.Trainer``, whose import takes seconds."""

    model: Any
    processing_class: Any


ModelGiven = LoadedModel | nn.Module | tuple[nn.Module, PreTrainedTokenizerBase] | TrainerLike | StrPath


def as_loaded(model: ModelGiven, tokenizer: PreTrainedTokenizerBase | None = None) -> LoadedModel:
    """Return a :class:`LoadedModel` for a name, a folder, a model of transformers or PEFT, or a trainer.

    Without a tokenizer, the tokenizer of the model's name is loaded. The weights of
    models that are not loaded from files have no digest, so a change since an adapter's training is not detected.

    Raises:
        InputError: ``E-MODEL-FILE`` without a tokenizer, ``E-MODEL-KIND`` for another kind of model, or as
            :func:`load_model`.
    """
    if isinstance(model, tuple):
        return as_loaded(*model)
    if isinstance(model, TrainerLike):
        loaded = as_loaded(model.model, tokenizer or model.processing_class)  # type: ignore[arg-type]  # as modules have both
        return replace(loaded, adapter=getattr(model, "adapter_record", loaded.adapter))  # of an F2CTrainer
    if isinstance(model, str | os.PathLike):
        model = load_model(model)
    loaded = model if isinstance(model, LoadedModel) else _describe(model, tokenizer)
    # A trainer adds its adapter to the model.
    adapter = AdapterRecord() if hasattr(loaded.model, "peft_config") else None
    return replace(loaded, tokenizer=tokenizer or loaded.tokenizer, adapter=loaded.adapter or adapter)


def _describe(model: nn.Module, tokenizer: PreTrainedTokenizerBase | None) -> LoadedModel:
    if not isinstance(model, PreTrainedModel) and not hasattr(model, "get_base_model"):
        raise InputError(
            "E-MODEL-KIND",
            f"{type(model).__name__} is not a model of transformers.",
            "Give a causal language model of transformers, its name, or a pair of model and tokenizer.",
        )
    causal_lm = unwrap(model)
    compute_in_its_dtype(causal_lm)
    check_model(causal_lm)
    name = causal_lm.config._name_or_path
    if tokenizer is None:
        if not name:
            raise InputError(
                "E-MODEL-FILE",
                f"{type(causal_lm).__name__} comes without a tokenizer, and without a name to find one by.",
                "Give the tokenizer too.",
            )
        tokenizer = load_tokenizer(name, getattr(causal_lm.config, "_commit_hash", None))
    is_demo = Path(name) == EMBEDDED_MODEL
    record = ModelRecord(
        name=DEMO if is_demo else name or type(causal_lm).__name__,
        revision=getattr(causal_lm.config, "_commit_hash", None),
        is_demo=is_demo,
        **describe_weights(causal_lm, str(causal_lm.dtype).removeprefix("torch.")),
    )
    return LoadedModel(model, tokenizer, record)


def compute_in_its_dtype(model: nn.Module) -> None:
    """Keep bitsandbytes from computing 4-bit weights in bfloat16 on CPUs that support it."""
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False  # type: ignore[assignment]


def describe_weights(model: PreTrainedModel, dtype: str, stored: Facts | None = None) -> Json:
    """Return ``num_parameters``, ``dtype`` and ``quantization`` of a base model, without its adapter.

    ``stored`` is the quantization of the model's files. It is recorded if loading has dequantized them.
    """
    # Not parameters of the base: an adapter, and what belongs to a quantized weight, such as weight_scale.
    others = sum(
        parameter.numel() for name, parameter in model.named_parameters() if "lora_" in name or ".weight_" in name
    )
    used = getattr(model.config, "quantization_config", None)
    quantization = stored and {**stored, "dequantize": True}
    if used:
        quantization = json.loads(used.to_json_string(use_diff=False))
    if quantization:
        bits = [bits for bits in get_args(LoadIn) if quantization.get(f"load_in_{bits}")]
        dtype = f"{bits[0] if bits else quantization.get('quant_method')}, {dtype}"
    return {"num_parameters": model.num_parameters() - others, "dtype": dtype, "quantization": quantization}


def _quantization(quantization: QuantizationConfigMixin | LoadIn, dtype: str) -> QuantizationConfigMixin:
    """Return the configuration for transformers; raises ``E-MODEL-DEVICE``."""
    if not isinstance(quantization, str):
        return quantization
    if quantization not in get_args(LoadIn):
        raise InputError(
            "E-MODEL-DEVICE", f"Unknown quantization {quantization!r}.", f"Use {' or '.join(get_args(LoadIn))}."
        )
    require_package("bitsandbytes", "quantized", "E-MODEL-DEVICE", f"Loading in {quantization}")
    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    nf4 = {"bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
    return BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=getattr(torch, dtype), **nf4)


@as_input_error("E-MODEL-FILE", "A file of the tokenizer is invalid", kind=Exception)
def load_tokenizer(name: str, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; raises ``E-MODEL-FILE``."""
    check_model_name(name, revision)
    source = _find_source(name, revision, "tokenizer")
    tokenizer: PreTrainedTokenizerBase = load_pretrained(AutoTokenizer, source)
    # For a folder without a tokenizer, transformers creates one that has only special tokens.
    ids = tokenizer("No, yes", add_special_tokens=False)["input_ids"]
    if not ids or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
        raise InputError(
            "E-MODEL-FILE",
            f"{name} has no tokenizer, or one without a vocabulary.",
            "Save the model's tokenizer in the folder of its weights.",
        )
    return tokenizer


def _find_source(name: str, revision: str | None, part: Literal["weights", "tokenizer"]) -> ModelSource:
    if (gguf := gguf_name(name)) is not None:
        return converted(name, gguf, revision, part)
    return ModelSource(name, str(EMBEDDED_MODEL) if name == DEMO else name, revision)


def _weights_digest(name: str, files: Collection[str], model: PreTrainedModel) -> str:
    """Return the digest of a folder's weight files, or of a model's name and commit on the hub."""
    if Path(name).is_dir():
        return sha256_json({file: sha256_file(Path(name) / file) for file in files})
    return sha256_json({"name": name, "commit": getattr(model.config, "_commit_hash", None)})


DIGESTS = "digests.json"  # of the other files of its folder


def converted(name: str, gguf: GGUFName, revision: str | None, part: Literal["weights", "tokenizer"]) -> ModelSource:
    """Return the folder of a GGUF file's weights or tokenizer, which is converted once.

    Raises:
        InputError: ``E-MODEL-FILE``: the file is damaged, or transformers does not read its architecture.
    """
    file = Path(in_one_line("file", name, cached_file, *gguf, **ModelSource(name, gguf.place, revision).hub))
    digest = sha256_file(file)
    # Another version of transformers may convert the file in another way.
    folder = user_cache() / "gguf" / f"{digest}-{transformers.__version__}" / part
    if read_object(folder / DIGESTS) != _file_digests(folder):
        with lock_output(folder, wait=True):
            # Another process may have converted the file meanwhile.
            if read_object(folder / DIGESTS) != _file_digests(folder):
                _convert(name, file, folder)
    return ModelSource(name, str(folder), extract_commit_hash(str(file), None), digest)


def _file_digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256_file(file) for file in sorted(folder.glob("*")) if file.name != DIGESTS}


def _convert(name: str, file: Path, folder: Path) -> None:
    log.info("converting %s once, to %s", name, folder)
    # Next to the file, transformers would also read a config.json or an adapter.
    with tempfile.TemporaryDirectory() as alone, new_folder(folder) as fresh:
        link = Path(alone) / "model.gguf"
        link.symlink_to(file.resolve())
        with as_input_error(
            "E-MODEL-FILE",
            f"{name} is damaged or not supported",
            "Check the file, or use the model's safetensors.",
            Exception,
        ):
            header = _check_header(name, link)
            if folder.name == "tokenizer":
                loaded = AutoTokenizer.from_pretrained(alone, gguf_file=link.name)
            else:
                loaded = _read_weights(name, link, *header)
        try:
            loaded.save_pretrained(fresh)
            write_json(fresh / DIGESTS, _file_digests(fresh))
        except (OSError, SafetensorError) as error:
            raise write_failure(error, folder, "Free some space, or set XDG_CACHE_HOME.") from error


def _check_header(name: str, file: Path) -> tuple[str, tuple[str, ...]]:
    """Return the architecture and the names of the tensors.

    Raises:
        InputError: ``E-MODEL-FILE``: the file is damaged, or scales its rotary embeddings.
    """
    from transformers.integrations.gguf import read_gguf_metadata  # since transformers 5.23

    metadata, tensors = read_gguf_metadata(str(file))
    scaled = [key for key in (*metadata, *tensors) if ".rope.scaling." in key or key.startswith("rope_")]
    if scaled:
        raise InputError(
            "E-MODEL-FILE",
            f"{name} scales its rotary embeddings ({scaled[0]}), which transformers does not read from GGUF.",
            "Use the model's safetensors.",
        )
    return metadata["general.architecture"], tensors


def _read_weights(name: str, file: Path, architecture: str, tensors: tuple[str, ...]) -> Any:
    from transformers.integrations.gguf import is_gguf_arch_supported

    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    dense = {"quantization_config": transformers.GgufConfig(dequantize=True), "dtype": torch.float32}
    model = load_weights(ModelSource(name, str(file.parent)), config=config, gguf_file=file.name, **dense)
    if not is_gguf_arch_supported(architecture):  # then transformers drops unexpected tensors without a report
        from transformers.modeling_gguf_pytorch_utils import TENSOR_PROCESSORS, TensorProcessor, get_gguf_hf_weights_map

        names = get_gguf_hf_weights_map(model, TENSOR_PROCESSORS.get(architecture, TensorProcessor)())
        loaded = {key.removesuffix(".weight") for key in names}
        dropped = [key for key in tensors if key.removesuffix(".weight") not in loaded]
        refuse_tensors(name, dropped, "hold, without a place in the model,")
    head = model.get_output_embeddings()
    embeddings = model.get_input_embeddings()
    if head is not None and torch.equal(head.weight, embeddings.weight):  # tied, but stored twice
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model
