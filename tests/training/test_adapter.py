"""LoRA is on all attention and MLP projections of a model, fused experts included, and on no router."""

import logging

import pytest
import torch
from benchmarks.architectures import tiny
from peft import LoraConfig, PeftModel, PromptTuningConfig, XLoraConfig
from transformers import (
    DeepseekV3Config,
    DeepseekV32Config,
    FalconMambaConfig,
    GptOssConfig,
    GraniteMoeConfig,
    JambaConfig,
    JetMoeConfig,
    Mamba2Config,
    MambaConfig,
    MixtralConfig,
    NemotronHConfig,
    PhimoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
    RecurrentGemmaConfig,
)

from flip_flop.errors import InputError
from flip_flop.scoring import score_instances
from tests.scoring.made import instances, rows
from tests.tiny import SHAPE, byte_bpe, random_model, tiny_model
from tests.training.test_trainer import make_trainer

TINY = SHAPE | {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
GROUPED = TINY | {"num_key_value_heads": 2, "num_experts_per_tok": 2}
LOCAL, EXPERTS = GROUPED | {"num_local_experts": 4}, GROUPED | {"num_experts": 4, "moe_intermediate_size": 16}
STATES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 400, "state_size": 4}
HEADS = {"num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}
DEEPSEEK = {
    **GROUPED, "num_key_value_heads": 4, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4, "v_head_dim": 6, "n_routed_experts": 4, "n_group": 2, "topk_group": 1,
    "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1,
}  # fmt: skip
MIXTURES = {
    "Qwen3-MoE": lambda: Qwen3MoeConfig(**EXPERTS),
    "Qwen2-MoE, dense layers between": lambda: Qwen2MoeConfig(
        **EXPERTS, decoder_sparse_step=2, shared_expert_intermediate_size=16
    ),
    "Mixtral": lambda: MixtralConfig(**LOCAL),
    "DeepSeek-V3": lambda: DeepseekV3Config(**DEEPSEEK),
    "DeepSeek-V3.2, which chooses tokens": lambda: DeepseekV32Config(**DEEPSEEK),
    "GPT-OSS": lambda: GptOssConfig(**LOCAL, head_dim=8),
    "GraniteMoE": lambda: GraniteMoeConfig(**LOCAL),
    "PhiMoE": lambda: PhimoeConfig(**LOCAL),
    "Jamba": lambda: JambaConfig(**EXPERTS, mamba_d_state=4, attn_layer_period=2, attn_layer_offset=1),
    "JetMoE": lambda: JetMoeConfig(**LOCAL, kv_channels=8),
}  # fmt: skip
STATE_SPACES = {
    "Mamba": lambda: MambaConfig(**STATES),
    "Mamba 2": lambda: Mamba2Config(**STATES, **HEADS),
    "FalconMamba": lambda: FalconMambaConfig(**STATES),
    "Nemotron-H": lambda: NemotronHConfig(
        **TINY | {"layers_block_type": ["mamba", "attention"]},
        num_key_value_heads=2,
        head_dim=8,
        ssm_state_size=4,
        mamba_num_heads=8,
        mamba_head_dim=8,
        n_groups=1,
        chunk_size=8,
    ),
}
# Of the shape [experts, ., .], or of a linear layer, and no router's.
ROUTERS = ("router", "mlp.gate.", "expert_gate", "indexer")


@pytest.fixture(autouse=True)
def _quiet():
    library = logging.getLogger("transformers")
    level = library.level
    library.setLevel(logging.ERROR)
    yield
    library.setLevel(level)


def trained(out, config, dtype=torch.float32):
    """After two steps without dropout, under a method that always has a gradient."""
    model = random_model(config).to(dtype)
    changes = {"method": "swarm", "lora_dropout": 0.0, "max_steps": 2, "eval_strategy": "no"}
    trainer = make_trainer(out, rows(3), model=model, **changes)
    trainer.train()
    return trainer


def matrices(model):
    """The weights that the paper adapts, by name: all weights of a decoder's layers but norms, routers and biases."""
    return {
        name
        for name, value in model.named_parameters()
        if ".layers." in name
        and value.dim() > 1
        and not any(word in name for word in (*ROUTERS, "conv1d", "A_log", "_bias", "dt_proj"))
    }


@pytest.mark.parametrize("name", MIXTURES)
def test_all_projections_and_fused_experts_learn_but_routers_do_not(tmp_path, name):
    config = MIXTURES[name]()
    untouched = random_model(config)
    trainer = trained(tmp_path, config)
    merged = PeftModel.from_pretrained(random_model(config), save(trainer, tmp_path)).merge_and_unload()
    before, after = dict(untouched.named_parameters()), dict(merged.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == matrices(untouched)
    found = score_instances(trainer.adapted, instances(byte_bpe(), 3), quiet=True).scores
    expected = score_instances(merged.eval(), instances(byte_bpe(), 3), quiet=True).scores
    torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-4, atol=1e-4)


def save(trainer, tmp_path):
    trainer.adapted.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter"


@pytest.mark.parametrize("name", ["Qwen3-MoE", "PhiMoE"])
def test_dropout_on_fused_experts_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"^E-CONFIG-VALUE: lora_dropout is 0\.05, .* Set --lora-dropout 0\.$"):
        make_trainer(tmp_path, rows(3), model=random_model(MIXTURES[name]()))


def test_fused_experts_in_bfloat16_use_the_packed_backend(tmp_path):
    assert trained(tmp_path, MIXTURES["Mixtral"](), torch.bfloat16).backend == "packed"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", STATE_SPACES)
def test_state_space_model_trains_with_a_warning_about_its_out_proj(tmp_path, name, dtype, caplog):
    trainer = trained(tmp_path, STATE_SPACES[name](), dtype)
    learned = {key: bool(value.any()) for key, value in trainer.adapted.named_parameters() if "lora_B" in key}
    assert learned
    assert all(learned.values())
    lines = [record.getMessage() for record in caplog.records if "W-ADAPTER-SHARE" in record.getMessage()]
    assert len(lines) == 1
    assert "out_proj" in lines[0]


def test_gates_of_a_recurrence_get_no_adapter(tmp_path):
    config = RecurrentGemmaConfig(**LOCAL, lru_width=32, block_types=["recurrent", "attention"])
    learned = {key for key, value in trained(tmp_path, config).adapted.named_parameters() if "lora_B" in key}
    assert any("linear_x" in key for key in learned)
    assert not any("rg_lru" in key for key in learned)


def test_fully_adapted_model_has_no_warning(tmp_path, caplog):
    make_trainer(tmp_path, rows(3), model=tiny_model("qwen2"))
    assert "W-ADAPTER-SHARE" not in caplog.text


@pytest.mark.parametrize(
    ("peft_config", "reason"),
    [
        (LoraConfig(target_modules=["no_such_part"]), "PEFT cannot put the adapter on Qwen2ForCausalLM: "),
        (PromptTuningConfig(num_virtual_tokens=2), "PromptTuningConfig is not supported."),
        (XLoraConfig(adapters={"0": "out"}, hidden_size=32), "XLoraConfig is not supported."),
    ],
)
def test_unsupported_adapter_is_refused(tmp_path, peft_config, reason):
    from flip_flop.training import F2CTrainer
    from tests.training.conftest import settings

    with pytest.raises(InputError) as caught:
        F2CTrainer(
            tiny_model("qwen2"),
            settings(output_dir=str(tmp_path)),
            train_dataset=rows(3),
            processing_class=byte_bpe(),
            peft_config=peft_config,
        )
    assert str(caught.value).startswith(f"E-ADAPTER-KIND: {reason}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("architecture", "dtype", "code"),
    [("deepseek_v4", torch.float32, "E-ADAPTER-KIND"), ("inkling2_text", torch.bfloat16, "E-MODEL-KIND")],
)
def test_model_without_a_backward_pass_is_refused_before_training(tmp_path, architecture, dtype, code):
    model = tiny(architecture)
    model.resize_token_embeddings(400, mean_resizing=False)
    with pytest.raises(InputError, match=f"^{code}: .* cannot .*Try --dtype float32"):
        make_trainer(tmp_path, rows(3), model=model.to(dtype), lora_dropout=0.0)
