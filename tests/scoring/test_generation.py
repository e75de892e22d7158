"""Open answers of local models: the same in batches as alone, and read with the special tokens of their reasoning."""

import functools

import pytest
import torch
from transformers import (
    BartConfig,
    LlamaConfig,
    MiniMaxConfig,
    PreTrainedTokenizerFast,
    RwkvConfig,
    TrOCRConfig,
    WhisperConfig,
    XmodConfig,
    xLSTMConfig,
)

from flip_flop import audit
from flip_flop.open_answers.generation import as_choices
from flip_flop.prompts import Template
from flip_flop.reading import AnswerFormat
from flip_flop.scoring import Scored
from flip_flop.scoring.models import as_loaded
from flip_flop.tasks import Task
from tests.tiny import CONTEXT, GROUPED, byte_bpe, random_model, tiny_model

TOKENS, LENGTH = {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 0}, 8
DECODER = {"d_model": 32, "decoder_layers": 2, "decoder_ffn_dim": 48, "decoder_attention_heads": 4}
ENCODER = {"encoder_layers": 1, "encoder_ffn_dim": 48, "encoder_attention_heads": 4}
BOTH = TOKENS | DECODER | ENCODER | {"is_decoder": True, "is_encoder_decoder": False}
WHISPER = BOTH | {"max_target_positions": 256, "pad_token_id": 0, "decoder_start_token_id": 0}
ROBERTA = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
XMOD = ROBERTA | {"languages": ["en_XX"], "default_language": "en_XX", "pad_token_id": 0, "is_decoder": True}
MINIMAX = {"num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"], "head_dim": 8}
RWKV = TOKENS | {"hidden_size": 32, "attention_hidden_size": 32, "num_hidden_layers": 2}
XLSTM = TOKENS | {"hidden_size": 32, "num_heads": 4, "num_hidden_layers": 2, "chunk_size": 8}
LLAMA = GROUPED | {"vocab_size": 400}
ARCHITECTURES = {
    "llama": (LlamaConfig, LLAMA),
    "rwkv": (RwkvConfig, RWKV),
    "minimax": (MiniMaxConfig, LLAMA | MINIMAX),
    "trocr": (TrOCRConfig, TOKENS | DECODER),
    "bart": (BartConfig, BOTH),
    "whisper": (WhisperConfig, WHISPER),
    "xlstm": (xLSTMConfig, XLSTM),
    "xmod": (XmodConfig, XMOD | CONTEXT | {"vocab_size": 400}),
}
TEMPLATES = tuple(
    Template(name, jinja, None)
    for name, jinja in {
        "short": "{{ text }}",
        "long": "Question: {{ text }} Answer in one word, please. Answer:",
        "middle": "Say it: {{ text }}",
    }.items()
)
ROWS = [{"text": "it is"}, {"text": "the food was not very good, but the staff was friendly"}]


def greedy(model, ids):
    """The greedy answer by the logits of the whole text. It ends before a token without a clear lead."""
    start = len(ids)
    while len(ids) < start + LENGTH:
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].double()
        best, second = logits.topk(2).values.tolist()
        if best - second < 1e-3 or int(logits.argmax()) == 0:
            break
        ids.append(int(logits.argmax()))
    return ids[start:]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_open_answer_does_not_depend_on_the_other_prompts_of_its_batch(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kind, settings = ARCHITECTURES[name]
    model, tokenizer = random_model(kind(**settings)), byte_bpe()
    task = Task("words", TEMPLATES, {"test": ROWS}, answer=AnswerFormat(max_tokens=LENGTH))
    run = audit(as_loaded((model, tokenizer)), task, quiet=True)
    num_compared = 0
    for row in run.instances:
        for prompt, written in zip(row.prompts, row.written, strict=True):
            expected = tokenizer.decode(greedy(model, tokenizer(prompt)["input_ids"])).rstrip("\ufffd")
            assert written.startswith(expected.strip())
            num_compared += len(expected)
    assert num_compared > 30


# Of Magistral, Kimi, Command A, Sky-T1, DeepSeek, Seed-OSS and GPT-OSS.
MARKS = [
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<think>", "</think>"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel|>analysis<|message|>", "<|start|>assistant<|channel|>final<|message|>"),
]
OTHERS = ["<|channel|>", "<|message|>", "<|start|>", "<|plan|>"]


@functools.cache
def with_special_marks():
    """A tokenizer whose marks of reasoning are special tokens."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_bpe().backend_tokenizer, eos_token="<|eos|>")
    marks = [mark for pair in MARKS[:-1] for mark in pair]
    tokenizer.add_special_tokens({"extra_special_tokens": [*marks, *OTHERS]})
    return tokenizer


def answers_to(prompt, text, **form):
    """An audit with one prompt, to which the model writes a text and its end token."""
    tokenizer = with_special_marks()
    loaded = as_loaded(tiny_model(vocab_size=len(tokenizer)), tokenizer)
    written = tokenizer(text)["input_ids"]
    tokens = iter([*written, *[tokenizer.eos_token_id] * 100])

    def write_next(head, given, logits):
        logits[..., next(tokens)] = 1e6
        return logits

    loaded.model.lm_head.register_forward_hook(write_next)
    form = AnswerFormat("text", max_tokens=len(written) + 20, **form)
    task = Task("places", (Template("one", prompt, None),), {"test": [{"text": "x"}]}, answer=form)
    return audit(loaded, task, quiet=True)


def choice_of(run):
    """The text that training teaches."""
    (row,) = as_choices(Scored(run.data, run.instances), seed=0)
    return max(row.choices[0], key=len)


@pytest.mark.parametrize(
    ("prompt", "begin", "end"),
    [*(("Where?", *pair) for pair in MARKS), *((f"Where? {begin}", "", end) for begin, end in MARKS[:-1])],
)
def test_reasoning_between_special_tokens_is_no_answer_and_is_not_stopped(prompt, begin, end):
    reasoning = f"{begin}In France.\nRome? No.\n{end}"
    run = answers_to(prompt, f"{reasoning}Paris\nQ: Rome?", stop=("\n",))
    (row,) = run.instances
    assert row.written == (f"{reasoning}Paris",)
    assert row.choices[0][0] == "paris"
    assert choice_of(run) == f"{reasoning}Paris\n"  # all that the model wrote


@pytest.mark.parametrize("begin", ["[THINK]", "◁think▷", "<think>", "<|channel|>analysis<|message|>"])
def test_reasoning_between_special_tokens_without_an_end_is_unreadable(begin):
    run = answers_to("Where?", f"{begin}In France. Paris", stop=("\n",))
    assert run.value("unmapped_share") == 1.0


@pytest.mark.parametrize(
    "answer", ["<|plan|>Pa<|start|>ris", "Paris<|plan|><|plan|>", "[THINK]Rome?[/THINK]Paris<|start|>"]
)
def test_other_special_tokens_are_not_part_of_an_answer(answer):
    run = answers_to("Where?", f"{answer}\nQ", stop=("\n", "|"))
    reasoning = "[THINK]Rome?[/THINK]" if "THINK" in answer else ""
    assert next(iter(run.instances)).written == (f"{reasoning}Paris",)
    assert choice_of(run) == f"{reasoning}Paris\n"
