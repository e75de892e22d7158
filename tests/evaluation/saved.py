"""Tiny random models on disk, as a user has them: config, safetensors, tokenizer."""

from tests.tiny import byte_bpe, tiny_model


def save_tiny(folder, *, seed=0, tokenizer=None, architecture="qwen2"):
    tokenizer = tokenizer or byte_bpe()
    tiny_model(architecture, len(tokenizer), seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
