"""A tiny random model, a small task, quick training settings, and readers of the results."""

import json
import os
import re
import signal
from dataclasses import asdict

import pytest
import torch
from transformers import PrinterCallback, ProgressCallback

from flip_flop import F2CTrainer, LoadedModel, train
from flip_flop.prompts import Template, TemplateSet
from flip_flop.record import ModelRecord
from flip_flop.tasks import RowsSource, Task
from flip_flop.training.config import make_config
from tests.exact import in_float64
from tests.tiny import byte_bpe, tiny_model

WORDS = ["room", "staff", "food", "hotel", "wifi", "service", "review", "question", "answer", "hypothesis"]


def rows(count, offset=0):
    return [
        {"text": f"The {WORDS[n % 10]} was {'not ' * (n % 3 == 0)}good {n}", "label": n % 2}
        for n in range(offset, offset + count)
    ]


def make_task(num_train=12):
    templates = TemplateSet(
        (
            Template("plain", "{{ text }}. Good?", "No ||| Yes"),
            Template("truth", "True or false: {{ text }}", "False ||| True"),
            Template("long", "Review: {{ text }}\nVerdict:", "Not at all ||| Guaranteed"),
            Template("terse", "{{ text }}", "Never ||| Yes"),
            Template("held", "Is it? {{ text }}", "No ||| Yes"),
        )
    )
    data = {
        "train": RowsSource(rows(num_train), "made rows"),
        "validation": RowsSource(rows(7, 100), "made rows, validation"),
        "test": RowsSource(rows(9, 200), "made rows, test"),
    }
    return Task("toy", templates, data, labels=(0, 1), label_field="label", held_out_templates=("held",))


def load_tiny(seed=0, dtype=torch.float32):
    model = tiny_model("qwen2", seed=seed).to(dtype)
    record = ModelRecord(name="tiny", digest=f"tiny-{seed}", num_parameters=1, dtype=str(dtype))
    return LoadedModel(model, byte_bpe(), record)


def settings(**changes):
    base = {
        "protocol": "paper",
        "per_device_train_batch_size": 4,
        "num_train_epochs": 2,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "linear",
        "weight_decay": 0.0,
        "eval_strategy": "epoch",
        "jsd_weight": 0.1,
        "unanimous_margin": 1.0,
        "max_cc_size": 4,
        "flip_weight_min": 0.02,
        "flip_temperature": 1.0,
        "logging_steps": 1,
        "divergence_space": "labels",
        "lora_r": 4,
        "seed": 3,
        "use_cpu": True,
    }
    return make_config(base | changes)


def run(out, *, model=None, task=None, resume=False, keep_worse=True, **changes):
    """Train the tiny model on the small task."""
    config = settings(**changes)
    return train(
        model or load_tiny(), task or make_task(), config, out, resume=resume, quiet=True, keep_worse=keep_worse
    )


def training_rows(label=None, count=8):
    instances = make_task(count).with_templates(["plain", "truth", "long"]).instances("train")
    return [asdict(instance) | ({} if label is None else {"label": label}) for instance in instances]


def make_trainer(out, rows=None, model=None, eval_rows=None, **changes):
    trainer = F2CTrainer(
        model or tiny_model("qwen2"),
        settings(output_dir=str(out), **changes),
        train_dataset=rows or training_rows(),
        eval_dataset=eval_rows,
        processing_class=byte_bpe(),
    )
    for callback in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(callback)
    return trainer


def make_exact_trainer(out, rows=None, **changes):
    """In float64 and without dropout, so that equal formulas agree to many digits."""
    trainer = make_trainer(out, rows, model=in_float64(tiny_model("qwen2")), **({"lora_dropout": 0.0} | changes))
    trainer.adapted.double()
    return trainer


def randomize(trainer, scale=0.3):
    """Give the adapter weights: at first it is zero."""
    for name, value in trainer.adapted.named_parameters():
        if "lora_B" in name:
            value.data.normal_(0, scale)


def adapter_weights(trainer):
    return {name: value.detach().clone() for name, value in trainer.adapted.named_parameters() if "lora_" in name}


def change_digit(path):
    """Change a digit, or a bit of a file without digits."""
    content = path.read_bytes()
    digits = [digit.start() for digit in re.finditer(rb"[1-8]", content)]
    place = digits[len(digits) // 2] if digits else len(content) // 2
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])


def adapter_bytes(out):
    return (out / "adapter" / "adapter_model.safetensors").read_bytes()


def record_of(out):
    return json.loads((out / "run.json").read_text())


def log_of(out, key="step"):
    """The log's entries that have the key."""
    entries = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [entry for entry in entries if key in entry]


def before_step(patch, step, act):
    """Act in the step that follows ``step`` others."""
    whole_step = F2CTrainer.training_step

    def changed(self, *arguments, **keywords):
        if self.state.global_step == step:
            act()
        return whole_step(self, *arguments, **keywords)

    patch.setattr(F2CTrainer, "training_step", changed)


def signal_in(patch, step):
    """Send this process a signal in the middle of a step."""
    before_step(patch, step - 1, lambda: os.kill(os.getpid(), signal.SIGTERM))


@pytest.fixture
def out(tmp_path):
    return tmp_path / "run"
