"""GGUF files, converted once to safetensors and a tokenizer in the user's cache."""

import logging
import tempfile
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors import SafetensorError
from transformers import AutoConfig, AutoTokenizer
from transformers.utils import cached_file, extract_commit_hash

from flip_flop.errors import InputError
from flip_flop.files import lock_output, new_folder, read_object, sha256_file, user_cache, write_failure, write_json
from flip_flop.hub import gguf_name
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.scoring.loading import ModelSource, in_one_line, load_weights, refuse_tensors

log = logging.getLogger("flip_flop")

DIGESTS = "digests.json"  # of the other files of its folder


def converted(name: str, revision: str | None, part: Literal["weights", "tokenizer"]) -> ModelSource:
    """Return the folder of a GGUF file's weights or tokenizer, which is converted once.

    Raises:
        InputError: ``E-MODEL-FILE``: the file is damaged, or transformers does not read its architecture.
    """
    gguf = gguf_name(name)
    assert gguf is not None
    file = Path(in_one_line("file", name, cached_file, *gguf, **ModelSource(name, gguf.place, revision).hub))
    digest = sha256_file(file)
    # Another version of transformers may convert the file in another way.
    folder = user_cache() / "gguf" / f"{digest}-{transformers.__version__}" / part
    if read_object(folder / DIGESTS) != _digests(folder):
        with lock_output(folder, wait=True):
            # Another process may have converted the file meanwhile.
            if read_object(folder / DIGESTS) != _digests(folder):
                _convert(name, file, folder)
    return ModelSource(name, str(folder), extract_commit_hash(str(file), None), digest)


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: sha256_file(file) for file in sorted(folder.glob("*")) if file.name != DIGESTS}


def _convert(name: str, file: Path, folder: Path) -> None:
    log.info("converting %s once, to %s", name, folder)
    what, hint = f"{name} is damaged or not supported", "Check the file, or use the model's safetensors."
    # Next to the file, transformers would also read a config.json or an adapter.
    with tempfile.TemporaryDirectory() as alone, new_folder(folder) as fresh:
        link = Path(alone) / "model.gguf"
        link.symlink_to(file.resolve())
        with as_input_error("E-MODEL-FILE", what, hint, Exception):
            header = _check_header(name, link)
            is_tokenizer = folder.name == "tokenizer"
            found = (
                AutoTokenizer.from_pretrained(alone, gguf_file=link.name)
                if is_tokenizer
                else _read_weights(name, link, *header)
            )
        try:
            found.save_pretrained(fresh)
            write_json(fresh / DIGESTS, _digests(fresh))
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
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and torch.equal(head.weight, embeddings.weight):  # tied, but stored twice
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model
