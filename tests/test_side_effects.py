"""What the library leaves behind in the process of a notebook: in its models, arguments and global settings."""

import pytest
from peft import LoraConfig, get_peft_model

from flip_flop import audit, predict
from tests.tiny import byte_bpe, tiny_model
from tests.training.conftest import make_task


@pytest.mark.parametrize("ask", [audit, predict])
def test_each_module_keeps_its_mode(ask):
    adapted = get_peft_model(
        tiny_model(), LoraConfig(task_type="CAUSAL_LM", r=2)
    )  # in training mode, on a model that is not
    before = {name: module.training for name, module in adapted.named_modules()}
    assert len(set(before.values())) == 2
    ask(adapted, byte_bpe(), make_task(), quiet=True)
    assert {name: module.training for name, module in adapted.named_modules()} == before
