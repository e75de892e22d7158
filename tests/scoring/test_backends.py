"""Tested architectures are packed, others are padded, and the self-check finds packed scores that are wrong."""

import copy

import pytest
import torch
from torch import nn
from transformers import (
    BertGenerationConfig,
    BloomConfig,
    CpmAntConfig,
    DeepseekV3Config,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
    Qwen2Config,
    RecurrentGemmaConfig,
    SmolLM3Config,
)

from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import causal_lm
from flip_flop.scoring.encode import PromptEncoder
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.scores import as_scorer, choose_backend, packed_obstacle, score_instances
from tests.exact import assert_scores, in_float64
from tests.refused import refused
from tests.scoring.oracle import instances, naive_scores
from tests.tiny import SHAPE, byte_bpe, random_model, tiny_model

pytestmark = pytest.mark.usefixtures("quiet_transformers")
TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GROUPED = SHAPE | TOKENS | {"num_key_value_heads": 2}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
# Models whose code cannot compute in float64.
FLOAT32_ONLY = (DeepseekV3Config, MambaConfig, RecurrentGemmaConfig)
FALCON = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
LLAMA_4 = {"head_dim": 8, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 64}
BLOOM = {"hidden_size": 32, "n_layer": 2, "n_head": 4}


def made(config):
    """A random model of a configuration, with the vocabulary of the tokenizer of these tests."""
    config.vocab_size = len(byte_bpe())
    model = random_model(config)
    return model if isinstance(config, FLOAT32_ONLY) else in_float64(model)


def with_window(length):
    return GROUPED | {"max_position_embeddings": 256, "sliding_window": length}


def with_growing_positions(original):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return GROUPED | {"max_position_embeddings": original, "rope_parameters": rope}


def sliding(window):
    return MistralConfig(**with_window(window))


def dynamic(original):
    return LlamaConfig(**with_growing_positions(original))


NARROW = GROUPED | {"head_dim": 12}
CONVOLUTION = GROUPED | {"layer_types": ["conv", "full_attention"]}
RECURRENT = GROUPED | {"lru_width": 32, "block_types": ["recurrent", "attention"]}
OPT = SHAPE | {"ffn_dim": 48, "max_position_embeddings": 64, "word_embed_proj_dim": 32}
DEEPSEEK = SHAPE | TOKENS | {"num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4}
DEEPSEEK |= {"qk_nope_head_dim": 4, "v_head_dim": 6, "moe_intermediate_size": 16, "first_k_dense_replace": 1}
DEEPSEEK |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "n_shared_experts": 1}
PLACE = "its attention depends on the place in a row"
WINDOW = "its attention window ends at 15 tokens, and the longest prompt with"
REFUSED = {
    "a window that bites": (MistralConfig, with_window(15), WINDOW),
    "a decoder under another name than its prefix": (Llama4TextConfig, GROUPED | LLAMA_4, PLACE),
    "an architecture that is not tested": (BloomConfig, BLOOM, "'bloom' is not tested with packed rows"),
    "softened logits": (Gemma2Config, NARROW, "'gemma2' is not tested with packed rows"),
    "a state space": (MambaConfig, MAMBA, "it has layers of kind linear_attention"),
    "a recurrence, and capped logits": (RecurrentGemmaConfig, RECURRENT, "it has layers of kind"),
    "layers that are not attention": (Lfm2Config, CONVOLUTION, "it has layers of kind conv"),
}
SERVED = {
    "a window that does not bite": (MistralConfig, with_window(64)),
    "a window in some layers": (Gemma3TextConfig, NARROW | {"sliding_window": 64}),
    "a window that is switched off": (Qwen2Config, GROUPED | {"sliding_window": 8, "use_sliding_window": False}),
    "positions that grow later": (LlamaConfig, with_growing_positions(64)),
    "learned positions with an offset": (OPTConfig, OPT),
    "some layers without positions": (SmolLM3Config, GROUPED | {"no_rope_layers": [1, 0]}),
    "values of another width": (DeepseekV3Config, DEEPSEEK),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_model_is_padded_exactly_with_one_warning(name, caplog):
    kind, settings, words = REFUSED[name]
    model, encoded = made(kind(**settings)), instances(byte_bpe())
    for _ in range(2):
        assert_scores(model, score_instances(model, encoded, quiet=True).values, naive_scores(model, encoded))
    lines = [record.getMessage() for record in caplog.records if record.name == "flip_flop"]
    assert len(lines) == 1
    assert lines[0].startswith(f"W-PADDED: {type(model).__name__}: ")
    assert lines[0].endswith("; the slower padded back end is used.")
    assert "\n" not in lines[0]
    assert words in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", SERVED)
def test_supported_model_is_packed_exactly(name, caplog):
    kind, settings = SERVED[name]
    model, encoded = made(kind(**settings)), instances(byte_bpe())
    assert choose_backend(model, encoded, "auto") == "packed"
    assert_scores(model, score_instances(model, encoded, quiet=True).values, naive_scores(model, encoded))
    assert "W-PADDED" not in caplog.text


def test_window_matters_from_first_hidden_token():
    encoded = instances(byte_bpe())
    length = max(instance.longest for instance in encoded)
    model = made(sliding(length))
    assert choose_backend(model, encoded, "auto") == "packed"
    assert choose_backend(made(sliding(length - 1)), encoded, "auto") == "padded"
    assert_scores(model, score_instances(model, encoded, quiet=True).values, naive_scores(model, encoded))


def longrope(original):
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "factor": 256 / original,
    }  # fmt: skip
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": original}
    return Phi3Config(**GROUPED, **lengths, rope_parameters=rope)


@pytest.mark.parametrize("config", [dynamic, longrope])
def test_length_dependent_positions_are_padded_beyond_limit(config):
    model = made(config(64))
    assert packed_obstacle(model, 64) is None
    assert packed_obstacle(model, 65) == (
        "its range of fixed rotary positions ends at 64 tokens, and the longest prompt with its answer is read in 65"
    )


@torch.no_grad()
def score_of_answer_alone(model, answer):
    """The score of a new copy of the model."""
    logits = copy.deepcopy(model)(input_ids=torch.tensor([answer.inputs])).logits[0, len(answer.context) - 1 :]
    picked = logits.double().log_softmax(-1)[torch.arange(len(answer.tokens)), list(answer.tokens)]
    return float(picked.mean())


@pytest.mark.slow
@pytest.mark.parametrize("config", [longrope, dynamic])
def test_length_dependent_positions_do_not_depend_on_batch(config):
    encoded = instances(byte_bpe())
    lengths = [len(answer.inputs) for instance in encoded for template in instance.answers for answer in template]
    original = sorted(lengths)[len(lengths) // 2]  # some are longer, some shorter, one is as long
    model = made(config(original))
    expected = [
        [[score_of_answer_alone(model, answer) for answer in template] for template in instance.answers]
        for instance in encoded
    ]
    for batch_tokens, order in ((1, [0, 1, 2, 3, 4]), (100_000, [4, 3, 2, 1, 0])):
        chosen = [encoded[number] for number in order]
        table = score_instances(model, chosen, batch_tokens=batch_tokens, quiet=True)
        assert choose_backend(model, chosen, "auto") == "padded"
        assert_scores(model, table.values, [expected[number] for number in order])


def forced(model):
    """The scores of packed rows, with the self-check of an audit."""
    texts = ("Is the room clean? It is", "The staff was rude and the food", "A quiet room")
    rows = [RenderedInstance(str(number), texts, (("No", "Yes, it was"),) * 3, None) for number in range(4)]
    return as_scorer((model, byte_bpe())).scores(rows, ScoringOptions(backend="packed"))


class Mixing(nn.Module):
    """A layer that mixes neighbours: it adds the state of the preceding token in the row."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return self.layer(states + 0.1 * nn.functional.pad(states, (0, 0, 1, 0))[:, :-1])


def mixing():
    model = tiny_model("qwen2")
    model.model.layers[1].mlp = Mixing(model.model.layers[1].mlp)
    return model


@pytest.mark.parametrize(
    "model",
    [lambda: made(FalconConfig(**FALCON)), lambda: made(FalconConfig(**FALCON, alibi=True)), mixing],
    ids=["falcon", "alibi", "mixing"],
)
def test_self_check_rejects_wrong_packed_scores(model):
    refused("E-SELF-CHECK", forced, model())


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (lambda: sliding(8), "its attention window ends at 8 tokens"),
        (lambda: longrope(8), "its range of fixed rotary positions ends at 8 tokens"),
        (lambda: Llama4TextConfig(**GROUPED, **LLAMA_4), "its attention depends on the place in a row"),
    ],
)
def test_packing_cannot_be_forced_where_the_scores_are_known_to_differ(config, words):
    model = made(config())
    refused(f"E-MODEL-KIND: {type(model).__name__} cannot be packed: {words}", forced, model)
    encoded = instances(byte_bpe())
    assert choose_backend(model, encoded, "auto") == "padded"
    assert_scores(model, score_instances(model, encoded, quiet=True).values, naive_scores(model, encoded))


def test_the_context_ends_where_the_positions_of_the_model_end():
    model = made(MptConfig(d_model=32, n_heads=4, n_layers=2, max_seq_len=24, **TOKENS))
    assert PromptEncoder.of(model, byte_bpe()).max_length == 24


@pytest.mark.parametrize("config", [lambda: Gemma2Config(**GROUPED, head_dim=12), lambda: MambaConfig(**MAMBA)])
def test_packing_cannot_be_forced_on_other_attention(config):
    refused(r"^E-(MODEL-KIND: \w+ (does not take a packed row|cannot be packed)|SELF-CHECK)", forced, made(config()))


def test_packing_can_be_forced_on_untested_architecture(monkeypatch, caplog):
    monkeypatch.setitem(causal_lm.TESTED, "packed", [])
    assert forced(tiny_model("qwen2")).settings["backend"] == "packed"
    assert not caplog.records


NOT_CAUSAL = [
    BertGenerationConfig(**SHAPE, **TOKENS, is_decoder=False),
    Gemma3TextConfig(**GROUPED, head_dim=12, use_bidirectional_attention=True),
    CpmAntConfig(hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48, num_hidden_layers=2, prompt_length=4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("config", NOT_CAUSAL, ids=lambda config: config.model_type)
def test_noncausal_model_is_rejected(config, dtype):
    config.vocab_size = len(byte_bpe())
    refused(
        r"^E-MODEL-KIND: \w+ is not causal: a token's logits change",
        as_scorer,
        (random_model(config).to(dtype), byte_bpe()),
    )


def test_model_whose_logits_are_not_finite_is_rejected():
    model = tiny_model("qwen2")
    with torch.no_grad():
        model.get_output_embeddings().weight[5] = float("nan")
    refused("E-NONFINITE: Qwen2ForCausalLM: its logits are not finite", as_scorer, (model, byte_bpe()))
