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
from flip_flop.files import lock_output, new_folder, sha256_file, user_cache, write_failure
from flip_flop.hub import gguf_name
from flip_flop.scoring.bounds import check_model_size, check_num_layers
from flip_flop.scoring.causal_lm import as_input_error
from flip_flop.scoring.loading import ModelSource, in_one_line, load_weights

log = logging.getLogger("flip_flop")

WEIGHTS_PER_BYTE = 6
"""The most that a type of quantization stores; IQ1_S stores 5.1."""


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
    if not folder.is_dir():
        with lock_output(folder, wait=True):
            if not folder.is_dir():  # unless another process has converted the file meanwhile
                _convert(name, file, folder)
    return ModelSource(name, str(folder), extract_commit_hash(str(file), None), digest)


def _convert(name: str, file: Path, folder: Path) -> None:
    log.info("converting %s once, to %s", name, folder)
    what, hint = f"{name} is damaged or not supported", "Check the file, or use the model's safetensors."
    # Next to the file, transformers would also read a config.json or an adapter.
    with tempfile.TemporaryDirectory() as alone, new_folder(folder) as fresh:
        link = Path(alone) / "model.gguf"
        link.symlink_to(file.resolve())
        with as_input_error("E-MODEL-FILE", what, hint, Exception):
            _check_header(name, link)
            is_tokenizer = folder.name == "tokenizer"
            found = (
                AutoTokenizer.from_pretrained(alone, gguf_file=link.name) if is_tokenizer else _read_weights(name, link)
            )
        try:
            found.save_pretrained(fresh)
        except (OSError, SafetensorError) as error:
            raise write_failure(error, folder, "Free some space, or set XDG_CACHE_HOME.") from error


def _check_header(name: str, file: Path) -> None:
    """Reject a file that is damaged, has too many layers, or scales its rotary embeddings."""
    from transformers.integrations.gguf import read_gguf_metadata  # since transformers 5.23

    metadata, tensors = read_gguf_metadata(str(file))
    check_num_layers(name, metadata.get(f"{metadata['general.architecture']}.block_count", 0))
    scaled = [key for key in (*metadata, *tensors) if ".rope.scaling." in key or key.startswith("rope_")]
    if scaled:
        message = f"{name} scales its rotary embeddings ({scaled[0]}), which transformers does not read from GGUF."
        raise InputError("E-MODEL-FILE", message, "Use the model's safetensors.")


def _read_weights(name: str, file: Path) -> Any:
    config = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    check_model_size(name, config, WEIGHTS_PER_BYTE * file.stat().st_size)
    dense = {"quantization_config": transformers.GgufConfig(dequantize=True), "dtype": torch.float32}
    model = load_weights(ModelSource(name, str(file.parent)), config=config, gguf_file=file.name, **dense)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and torch.equal(head.weight, embeddings.weight):  # tied, but stored twice
        model.config.tie_word_embeddings = True
        model.tie_weights()
    return model
