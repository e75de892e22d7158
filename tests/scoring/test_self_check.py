"""Every audit computes some scores twice, and stops if they differ by more than the dtype allows."""

import numpy as np
import pytest
import torch

from flip_flop import Task, audit
from flip_flop.errors import InputError
from flip_flop.prompts import Template, TemplateSet
from flip_flop.scoring import load_model
from tests.tiny import save_tiny


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", seed=3)))


def choices_task(count=12):
    """Prompts without any text of the row: one template's prompt is the beginning of the other two."""
    words = ["room", "clean", "quiet", "staff", "rude", "food", "cold", "view", "nice", "bed", "small"]
    draw = np.random.default_rng(0)
    rows = [
        {"a": " ".join(draw.choice(words, 4)), "b": " ".join(draw.choice(words, 4)), "label": number % 2}
        for number in range(count)
    ]
    prompts = ("Answer:", "Answer: This or which is it?", "Answer: This, the best ending is")
    templates = [
        Template(name, prompt + " ||| {{ answer_choices[label] }}", "{{ a }} ||| {{ b }}")
        for name, prompt in zip("abc", prompts, strict=True)
    ]
    return Task("choices", TemplateSet(tuple(templates)), {"test": rows}, labels=[0, 1], label_field="label")


@pytest.mark.slow
def test_record_has_number_and_largest_difference_of_checked_scores(loaded):
    checked = audit(loaded, choices_task(), quiet=True).record.scoring["self_check"]
    assert checked["num_scores"] == 2 * 3 * 2  # rows, templates, labels
    assert 0 <= checked["largest_difference"] < 1e-5
    many = audit(loaded, choices_task(count=700), quiet=True).record.scoring["self_check"]
    assert many["num_scores"] == 3 * 3 * 2


@pytest.mark.parametrize("error", [0.01, float("nan")])
def test_wrong_scores_stop_audit_with_instance_and_template(loaded, error):
    """A kernel that is wrong for rows longer than the sequences of this task."""

    def disturb(module, given, named, output):
        if output.last_hidden_state.shape[1] > 50:
            output.last_hidden_state[:, ::3] *= 1 + error

    audit(loaded, choices_task(), quiet=True)  # the model is probed once
    hook = loaded.model.model.register_forward_hook(disturb, with_kwargs=True)
    try:
        with pytest.raises(InputError, match="E-NONFINITE" if error != error else r"E-SELF-CHECK: .*'test-.*'[abc]'"):
            audit(loaded, choices_task(), quiet=True)
    finally:
        hook.remove()


def test_rounding_of_bfloat16_is_accepted(tmp_path):
    model = load_model(str(save_tiny(tmp_path / "tiny", seed=3)), dtype="bfloat16")
    checked = audit(model, choices_task(), quiet=True).record.scoring["self_check"]
    assert 1e-5 < checked["largest_difference"] < 0.5
    assert next(model.model.parameters()).dtype == torch.bfloat16
