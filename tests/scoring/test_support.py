"""The packed backend scores models exactly or falls back to the padded backend with a warning."""

import copy
import logging

import pytest
import torch
from torch import nn
from transformers import (
    BertGenerationConfig,
    BloomConfig,
    CodeGenConfig,
    CpmAntConfig,
    DeepseekV3Config,
    ElectraConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTJConfig,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    OPTConfig,
    Phi3Config,
    PhimoeConfig,
    Qwen2Config,
    RecurrentGemmaConfig,
    RemBertConfig,
    SmolLM3Config,
    StableLmConfig,
)

from flip_flop.errors import InputError
from flip_flop.prompts import RenderedInstance
from flip_flop.scoring import as_scorer, causal_lm, score_instances, support
from flip_flop.scoring.causal_lm import InFloat32, check_head, decoder_of
from flip_flop.scoring.support import choose_backend, packed_obstacle
from tests.exact import assert_scores, in_float64
from tests.scoring.made import instances
from tests.scoring.oracle import naive_scores
from tests.tiny import CONFIGS, SHAPE, byte_bpe, random_model, tiny_model

TOKENS = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GROUPED = SHAPE | TOKENS | {"num_key_value_heads": 2}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
# Models whose code cannot compute in float64.
FLOAT32_ONLY = (DeepseekV3Config, MambaConfig, RecurrentGemmaConfig)
NOT_THE_SAME = "a packed row does not give it the scores of separate sequences"


def made(config):
    """A random model of a configuration, with the vocabulary of the tokenizer of these tests."""
    config.vocab_size = len(byte_bpe())
    model = random_model(config)
    return model if isinstance(config, FLOAT32_ONLY) else in_float64(model)


@pytest.fixture(autouse=True)
def _each_line_anew():
    support._say.cache_clear()
    yield
    support._say.cache_clear()


@pytest.fixture(autouse=True, scope="module")
def _quiet():
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    yield
    library.setLevel(level)


def sliding(window):
    return MistralConfig(**GROUPED, max_position_embeddings=256, sliding_window=window)


def dynamic(original):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    return LlamaConfig(**GROUPED, max_position_embeddings=original, rope_parameters=rope)


REFUSED = {
    "a window that bites": (lambda: sliding(15), "its attention window ends at 15 tokens, and the longest prompt with"),
    "softened logits": (
        lambda: Gemma2Config(**GROUPED, head_dim=12),
        "it cannot be given a packed row (attention with softcap)",
    ),
    "a state space": (lambda: MambaConfig(**MAMBA), "it has layers of kind linear_attention"),
    "a recurrence, and capped logits": (
        lambda: RecurrentGemmaConfig(**GROUPED, lru_width=32, block_types=["recurrent", "attention"]),
        "it has layers of kind linear_attention",
    ),
    "biases by distance": (lambda: BloomConfig(hidden_size=32, n_layer=2, n_head=4), NOT_THE_SAME),
    "biases by distance, in a mask": (
        lambda: FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, alibi=True),
        NOT_THE_SAME,
    ),
}
SERVED = {
    "a window that does not bite": lambda: sliding(64),
    "a window in some layers": lambda: Gemma3TextConfig(**GROUPED, head_dim=12, sliding_window=64),
    "a window that is switched off": lambda: Qwen2Config(**GROUPED, sliding_window=8, use_sliding_window=False),
    "positions that grow later": lambda: dynamic(64),
    "learned positions with an offset": lambda: OPTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, max_position_embeddings=64,
        word_embed_proj_dim=32,
    ),
    "some layers without positions": lambda: SmolLM3Config(**GROUPED, no_rope_layers=[1, 0]),
    "a decoder under another name than its prefix": lambda: Llama4TextConfig(
        **GROUPED, head_dim=8, intermediate_size_mlp=48, num_local_experts=2, attention_chunk_size=64,
    ),
    "values of another width": lambda: DeepseekV3Config(
        **SHAPE, **TOKENS, num_key_value_heads=4, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4,
        qk_nope_head_dim=4, v_head_dim=6, n_routed_experts=4, num_experts_per_tok=2, n_group=2, topk_group=1,
        moe_intermediate_size=16, n_shared_experts=1, first_k_dense_replace=1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_unsupported_model_is_padded_exactly_with_one_warning(name, caplog):
    config, words = REFUSED[name]
    model, encoded = made(config()), instances(byte_bpe())
    tables = [score_instances(model, encoded, quiet=True) for _ in range(2)]
    for table in tables:
        assert table.settings["backend"] == "padded"
        assert_scores(model, table.scores, naive_scores(model, encoded))
    lines = [record.getMessage() for record in caplog.records if record.name == "flip_flop"]
    assert len(lines) == 1
    assert lines[0].startswith(f"W-PADDED: {type(model).__name__}: ")
    assert lines[0].endswith("; the slower padded back end is used.")
    assert "\n" not in lines[0]
    assert words in lines[0]


@pytest.mark.parametrize("name", SERVED)
def test_supported_model_is_packed_exactly(name, caplog):
    model, encoded = made(SERVED[name]()), instances(byte_bpe())
    table = score_instances(model, encoded, quiet=True)
    assert table.settings["backend"] == "packed"
    assert_scores(model, table.scores, naive_scores(model, encoded))
    assert not caplog.records


def test_window_matters_from_first_hidden_token():
    encoded = instances(byte_bpe())
    length = max(instance.longest for instance in encoded)
    model = made(sliding(length))
    assert choose_backend(model, encoded, "packed") == "packed"
    assert choose_backend(made(sliding(length - 1)), encoded, "packed") == "padded"
    assert_scores(model, score_instances(model, encoded, quiet=True).scores, naive_scores(model, encoded))


def test_length_dependent_positions_are_padded_beyond_limit():
    model = made(dynamic(64))
    assert packed_obstacle(model, 64) is None
    assert packed_obstacle(model, 65) == (
        "what its rotary positions keep fixed ends at 64 tokens, and the longest prompt with its answer is read in 65"
    )
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "original_max_position_embeddings": 32, "factor": 8.0, "short_mscale": 1.0, "long_mscale": 1.0,
    }  # fmt: skip
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    model = made(PhimoeConfig(**GROUPED, **experts, max_position_embeddings=256, rope_parameters=rope))
    assert "ends at 32 tokens" in packed_obstacle(model, 33)


def longrope(original):
    rope = {
        "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4,
        "factor": 256 / original,
    }  # fmt: skip
    lengths = {"max_position_embeddings": 256, "original_max_position_embeddings": original}
    return Phi3Config(**GROUPED, **lengths, rope_parameters=rope)


@torch.no_grad()
def score_of_answer_alone(model, answer):
    """The score of a new copy of the model."""
    logits = copy.deepcopy(model)(input_ids=torch.tensor([answer.inputs])).logits[0, len(answer.context) - 1 :]
    picked = logits.double().log_softmax(-1)[torch.arange(len(answer.tokens)), list(answer.tokens)]
    return float(picked.mean())


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
        assert table.settings["backend"] == "padded"
        assert_scores(model, table.scores, [expected[number] for number in order])


def test_states_may_have_another_dtype_than_head():
    model = random_model(MambaConfig(**MAMBA, vocab_size=400)).bfloat16()
    assert choose_backend(model, instances(byte_bpe()), "packed") == "padded"


@pytest.mark.parametrize("config", [ElectraConfig, RemBertConfig])
def test_head_with_other_input_is_rejected(config):
    model = random_model(config(**SHAPE, vocab_size=400, embedding_size=8, output_embedding_size=8, is_decoder=True))
    with pytest.raises(InputError, match=r"^E-MODEL-KIND: \w+ gives its head other states than its decoder's\."):
        check_head(model)


class Custom(nn.Module):
    """A layer that is not a class of transformers, so that its model is probed."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return self.layer(states)


def custom_model(**sizes):
    model = tiny_model("qwen2", **sizes)
    model.model.layers[1].mlp = Custom(model.model.layers[1].mlp)
    return model


def test_tested_architectures_are_not_probed(monkeypatch):
    monkeypatch.setattr(support, "_probe", lambda *_: pytest.fail("probed"))
    assert choose_backend(tiny_model("qwen2"), instances(byte_bpe()), "packed") == "packed"
    monkeypatch.setattr(support, "_probe", lambda *_: "probed")
    assert packed_obstacle(custom_model(), 10) == "probed"
    monkeypatch.setitem(causal_lm.TESTED, "transformers", "5.0")
    assert packed_obstacle(tiny_model("qwen2"), 10) == "probed"


@pytest.mark.parametrize("name", ["falcon", "bloom"])
def test_self_check_rejects_wrong_entry_of_tested_architectures(name, monkeypatch):
    config = LEAKING[name]()
    config.vocab_size = len(byte_bpe())
    monkeypatch.setitem(causal_lm.TESTED, "packed", [name])
    texts = ("Is the room clean? It is", "The staff was rude and the food", "A quiet room")
    rows = [RenderedInstance(str(at), texts, (("No", "Yes, it was"),) * 3, None) for at in range(4)]
    with pytest.raises(InputError, match="E-SELF-CHECK"):
        as_scorer((random_model(config), byte_bpe())).scores(rows)


def test_model_is_probed_once(monkeypatch):
    model, encoded = custom_model(), instances(byte_bpe())
    calls = []
    probe = support._probe
    monkeypatch.setattr(support, "_probe", lambda tried, first: calls.append(tried) or probe(tried, first))
    for count in (5, 2):
        choose_backend(model, encoded[:count], "packed")
    assert calls == [model]


def test_probe_does_not_change_model():
    model = custom_model().train()
    model.set_attn_implementation("eager")
    level = logging.getLogger("transformers").level
    assert packed_obstacle(model, 10) is None  # without a warning, too
    assert model.training
    assert model.config._attn_implementation == "eager"
    assert logging.getLogger("transformers").level == level


# Whose layers show a node the whole row before it, each in its own way.
LEAKING = {
    "stablelm": lambda: StableLmConfig(**GROUPED | {"num_key_value_heads": 4}, partial_rotary_factor=0.5),
    "falcon": lambda: FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    "bloom": lambda: BloomConfig(hidden_size=32, n_layer=2, n_head=4),
}
PLAIN = {
    name: lambda name=name: CONFIGS[name][0](**CONFIGS[name][1]) for name in ("llama", "qwen2", "gemma", "gpt_neox")
} | {
    # Before transformers 5.24 both leak: their attention was computed without its interface.
    "gptj": lambda: GPTJConfig(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=256),
    "codegen": lambda: CodeGenConfig(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, n_positions=256),
}


def with_massive_activations(config):
    """In bfloat16: two tokens of 1000 in one channel, and 90 in that channel of every state after the last norm."""
    config.vocab_size = len(byte_bpe())
    model = random_model(config)
    last_norm = [part for part in model.modules() if type(part).__name__.endswith("Norm")][-1]
    with torch.no_grad():
        model.get_input_embeddings().weight[1:3, 3] = 1000.0
        constant = getattr(last_norm, "bias", None)
        (last_norm.weight if constant is None else constant)[3] = 90.0
    return model.bfloat16()


@pytest.mark.parametrize("name", [*LEAKING, *PLAIN])
def test_massive_activations_do_not_hide_leaks_in_bfloat16(name):
    model = with_massive_activations((LEAKING | PLAIN)[name]())
    assert choose_backend(model, instances(byte_bpe()), "packed") == ("padded" if name in LEAKING else "packed")


@torch.no_grad()
def test_probe_computes_bfloat16_weights_in_float32():
    ids = torch.arange(9)[None]
    model = with_massive_activations(PLAIN["llama"]())
    with InFloat32():
        found = model(input_ids=ids).logits
    assert next(model.parameters()).dtype == torch.bfloat16
    assert torch.equal(found, model.float()(input_ids=ids).logits)


def test_first_instance_is_probed():
    model, encoded = tiny_model("qwen2"), instances(byte_bpe())
    assert packed_obstacle(model, 10) is None

    class Rare(Mixing):
        """It mixes neighbours only in rows that are longer than the probe's."""

        def forward(self, states):
            return super().forward(states) if states.shape[1] > 20 else self.layer(states)

    model = tiny_model("qwen2")
    model.model.layers[1].mlp = Rare(model.model.layers[1].mlp)
    assert packed_obstacle(model, 10) is None
    support._PROBED.pop(decoder_of(model))
    assert choose_backend(model, encoded, "packed") == "padded"


NOT_CAUSAL = {
    "an encoder": lambda: BertGenerationConfig(**SHAPE, **TOKENS, is_decoder=False),
    "bidirectional attention": lambda: Gemma3TextConfig(**GROUPED, head_dim=12, use_bidirectional_attention=True),
    "a prefix that is seen whole": lambda: CpmAntConfig(
        hidden_size=32, num_attention_heads=4, dim_head=8, dim_ff=48, num_hidden_layers=2, prompt_length=4
    ),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_noncausal_model_is_rejected(name, dtype):
    config = NOT_CAUSAL[name]()
    config.vocab_size = len(byte_bpe())
    with pytest.raises(InputError, match=r"^E-MODEL-KIND: \w+ is not causal: a token's state changes with") as caught:
        check_head(random_model(config).to(dtype))
    assert "\n" not in str(caught.value)


class Mixing(nn.Module):
    """A layer that mixes neighbours: it adds the state of the preceding token in the row."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, states):
        return self.layer(states + 0.1 * nn.functional.pad(states, (0, 0, 1, 0))[:, :-1])


def test_probe_finds_layer_that_mixes_neighbours():
    model = in_float64(tiny_model("qwen2"))
    model.model.layers[1].mlp = Mixing(model.model.layers[1].mlp)
    assert packed_obstacle(model, 10) == NOT_THE_SAME
    encoded = instances(byte_bpe())
    table = score_instances(model, encoded, quiet=True)
    assert table.settings["backend"] == "padded"
    assert_scores(model, table.scores, naive_scores(model, encoded))


def test_too_small_vocabulary_is_padded():
    assert packed_obstacle(custom_model(vocab_size=8), 5) == "its vocabulary is too small to try it"
