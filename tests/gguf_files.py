"""Write a tiny Llama model and its tokenizer as a GGUF file."""

import json

import gguf
import numpy as np

from tests.tiny import CHAT_TEMPLATE, byte_bpe, tiny_model

QUANTIZED = gguf.GGMLQuantizationType.Q8_0


def llama_tensors(model):
    """The weights under GGUF's names. Rows of queries and keys have GGML's order for rotary embeddings."""
    names, config = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, model.config.num_hidden_layers), model.config
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    found = {}
    for name, weights in model.state_dict().items():
        array = weights.float().numpy()
        for projection, number in heads.items():
            if projection in name:
                array = array.reshape(number, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found[f"{names.get_name(name.removesuffix('.weight'))}.weight"] = np.ascontiguousarray(array)
    return found


def write_gguf(path, model=None, *, architecture="llama", chat_template=CHAT_TEMPLATE, layers=None, add=None, more=()):
    """Write ``model`` to ``path``.

    ``layers`` is the number in the header, ``add`` adds metadata to the writer, ``more`` are more tensors. A tensor of
    bytes is quantized.
    """
    model, tokenizer = model or tiny_model("llama"), byte_bpe()
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    metadata = {
        "block_count": config.num_hidden_layers if layers is None else layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_attention_heads,
        "head_count_kv": config.num_key_value_heads,
        "layer_norm_rms_eps": config.rms_norm_eps,
        "rope_freq_base": 10000.0,
        "rope_dimension_count": config.hidden_size // config.num_attention_heads,
        "vocab_size": config.vocab_size,
        "tokenizer_model": "gpt2",
        "token_list": tokens,
        "token_types": [gguf.TokenType.CONTROL, *[gguf.TokenType.NORMAL] * (len(tokens) - 1)],
        "token_merges": [" ".join(merge) for merge in merges],
        "eos_token_id": tokenizer.eos_token_id,
        **({"chat_template": chat_template} if chat_template else {}),
    }
    for name, value in metadata.items():
        getattr(writer, f"add_{name}")(value)
    if add:
        add(writer)
    for name, array in {**llama_tensors(model), **dict(more)}.items():
        writer.add_tensor(name, array, raw_dtype=QUANTIZED if array.dtype == np.uint8 else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
