"""Tiny random causal LMs of seven architectures, and tokenizers of three kinds, made on the spot."""

import functools

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModelForCausalLM,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

CORPUS = [
    "The food was not very good, but the staff was friendly. Is this review positive? Yes",
    "Premise: the cat sat on the mat. Hypothesis: an animal rested. True, False or Neither? Neither",
    "Question: does it follow? Answer: no, it does not follow at all. Guaranteed. Impossible. Maybe, not sure.",
    "What a terrible hotel; the room was dirty and the wifi kept failing. Would you stay again? Never",
] * 8

CHAT_TEMPLATE = (
    "{% for turn in messages %}<|{{ turn['role'] }}|>\n{{ turn['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


@functools.cache
def byte_bpe():
    """GPT-2-like: byte-level BPE without BOS and pad tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = {"special_tokens": ["<|end|>"], "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False, **special)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


@functools.cache
def metaspace():
    """SentencePiece-like: a space belongs to the next word, the text begins with a space, and there is a BOS."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    special = {"special_tokens": ["<unk>", "<s>", "</s>"], "unk_token": "<unk>"}
    trainer = trainers.UnigramTrainer(vocab_size=220, show_progress=False, **special)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="</s>"
    )


@functools.cache
def word_level():
    """One token per word or punctuation mark; spaces are not tokens."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.WordLevelTrainer(special_tokens=["<unk>", "<end>"], show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<end>", pad_token="<end>")


TOKENIZERS = {"byte_bpe": byte_bpe, "metaspace": metaspace, "word_level": word_level}


def with_chat_template(tokenizer):
    """A copy of the tokenizer that has a chat template."""
    copy = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **tokenizer.special_tokens_map)
    copy.chat_template = CHAT_TEMPLATE
    return copy


SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
CONTEXT = {"max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 0}
GROUPED = SHAPE | CONTEXT | {"num_key_value_heads": 2}
ONE_KEY_HEAD = SHAPE | CONTEXT | {"num_key_value_heads": 1}
TIED = GROUPED | {"tie_word_embeddings": True}
GPT_2 = CONTEXT | {"n_embd": 32, "n_layer": 2, "n_head": 4}
CONFIGS = {
    "qwen2": (Qwen2Config, TIED),
    "llama": (LlamaConfig, GROUPED),
    "gpt_neox": (GPTNeoXConfig, SHAPE | CONTEXT),
    "gpt2": (GPT2Config, GPT_2),
    "qwen3": (Qwen3Config, TIED | {"head_dim": 12}),
    "mistral": (MistralConfig, ONE_KEY_HEAD | {"sliding_window": None}),
    "gemma": (GemmaConfig, ONE_KEY_HEAD | {"head_dim": 16, "pad_token_id": None}),
}
ARCHITECTURES = ("qwen2", "llama", "gpt2", "gpt_neox")
# Heads whose width is not the model's divided by their number, one key head for all, norms of queries and keys.
MORE_ARCHITECTURES = ("qwen3", "mistral", "gemma")


def random_model(config, seed=0, **options):
    """Its weights are large enough that answers differ clearly."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, **options)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0.0, 0.15)
    return model.eval()


def tiny_model(architecture="qwen2", vocab_size=400, seed=0):
    kind, settings = CONFIGS[architecture]
    return random_model(kind(**settings, vocab_size=vocab_size), seed, attn_implementation="sdpa")


def save_tiny(folder, *, seed=0, tokenizer=None, architecture="qwen2"):
    """A tiny model on disk, as a user has it: config, safetensors, tokenizer."""
    tokenizer = tokenizer or byte_bpe()
    transformers.utils.logging.disable_progress_bar()  # it would be in the command's output
    tiny_model(architecture, len(tokenizer), seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
