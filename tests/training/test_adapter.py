"""LoRA is on all linear layers of a model except its head."""

import pytest
import torch
from benchmarks.architectures import tiny
from peft import LoraConfig, PromptTuningConfig, XLoraConfig
from transformers import MambaConfig, NemotronHConfig, Qwen3MoeConfig

from flip_flop import F2CTrainer
from flip_flop.training.adapter import weights_digest
from tests.refused import refused
from tests.scoring.oracle import rows
from tests.tiny import SHAPE, byte_bpe, random_model, tiny_model
from tests.training.conftest import make_trainer, settings

pytestmark = pytest.mark.usefixtures("quiet_transformers")
TINY = SHAPE | {"vocab_size": 400, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
MIXTURE = TINY | {"num_key_value_heads": 2, "num_experts_per_tok": 2}
STATES = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 400, "state_size": 4}
ARCHITECTURES = {
    "Qwen3-MoE": lambda: Qwen3MoeConfig(**MIXTURE, num_experts=4, moe_intermediate_size=16),
    "Mamba": lambda: MambaConfig(**STATES),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_adapters_of_experts_and_states_learn_and_other_weights_are_a_warning(tmp_path, name, caplog):
    # A method that always has a gradient.
    changes = {"method": "swarm", "lora_dropout": 0.0, "max_steps": 2, "eval_strategy": "no"}
    trainer = make_trainer(tmp_path, rows(3), model=random_model(ARCHITECTURES[name]()), **changes)
    trainer.train()
    learned = {key: bool(value.any()) for key, value in trainer.adapted.named_parameters() if "lora_B" in key}
    assert learned
    assert all(learned.values())
    is_state_space = "amba" in name or name == "Nemotron-H"
    assert caplog.text.count("W-ADAPTER") == is_state_space, "PEFT itself adapts the experts of these mixtures"


def test_all_projections_get_an_adapter_without_a_warning(tmp_path, caplog):
    trainer = make_trainer(tmp_path, rows(3), model=tiny_model("qwen2"))
    adapted = {name.split(".")[-1] for name, module in trainer.adapted.named_modules() if hasattr(module, "lora_A")}
    assert adapted == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert "W-ADAPTER" not in caplog.text


@pytest.mark.parametrize(
    ("peft_config", "reason"),
    [
        (LoraConfig(target_modules=["no_such_part"]), "PEFT cannot put the adapter on Qwen2ForCausalLM: "),
        (PromptTuningConfig(num_virtual_tokens=2), "PromptTuningConfig is not supported."),
        (XLoraConfig(adapters={"0": "out"}, hidden_size=32), "XLoraConfig is not supported."),
    ],
)
def test_unsupported_adapter_is_refused(tmp_path, peft_config, reason):
    line = refused(
        "^E-ADAPTER: ",
        F2CTrainer,
        tiny_model("qwen2"),
        settings(output_dir=str(tmp_path)),
        train_dataset=rows(3),
        processing_class=byte_bpe(),
        peft_config=peft_config,
    )
    assert line.startswith(f"E-ADAPTER: {reason}")


@pytest.mark.parametrize("architecture", ["phimoe", "llama4_text"])
def test_router_that_returns_several_tensors_gets_no_adapter(tmp_path, architecture):
    model = tiny(architecture)
    model.resize_token_embeddings(400, mean_resizing=False)
    trainer = make_trainer(tmp_path, rows(3), model=model, lora_dropout=0.0)
    names = [name for name, parameter in trainer.adapted.named_parameters() if parameter.requires_grad]
    assert names
    assert not [name for name in names if "router" in name]


@pytest.mark.parametrize(
    ("architecture", "dtype", "code"),
    [
        ("deepseek_v4", torch.float32, "E-ADAPTER"),
        ("inkling2_text", torch.bfloat16, "E-MODEL-KIND"),
    ],
)
def test_model_without_a_backward_pass_is_refused_before_training(tmp_path, architecture, dtype, code):
    model = tiny(architecture)
    model.resize_token_embeddings(400, mean_resizing=False)
    refused(
        f"^{code}: .* cannot .*Try --dtype float32",
        make_trainer,
        tmp_path,
        rows(3),
        model=model.to(dtype),
        lora_dropout=0.0,
    )


def test_second_trainer_of_a_model_is_refused_and_the_first_adapter_stays(tmp_path):
    model = tiny_model("qwen2")
    trainer = make_trainer(tmp_path, rows(3), model=model)
    before = weights_digest(trainer.adapted)
    refused("^E-ADAPTER: the model has an adapter", make_trainer, tmp_path, rows(3), model=model, seed=9)
    assert weights_digest(trainer.adapted) == before
    make_trainer(tmp_path, rows(3), model=trainer.model)  # trains its adapter further


def test_training_without_gradients_is_refused(tmp_path):
    with torch.no_grad():
        refused("^E-CONFIG: gradients are off", make_trainer, tmp_path, rows(3))
