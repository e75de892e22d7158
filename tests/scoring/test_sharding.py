"""A model that is divided between two processes has the scores, gradients and adapters of one process."""

import json
import os
import signal
from dataclasses import asdict, replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import MistralConfig, MixtralConfig, Phi3Config, Qwen2MoeConfig, TrainerCallback
from transformers.models.llama.modeling_llama import LlamaMLP

from flip_flop import load_model, score
from flip_flop.cli import main
from flip_flop.errors import InputError
from flip_flop.prompts import OpenAnswers, RenderedInstance
from flip_flop.reading import AnswerFormat
from flip_flop.scoring import models
from flip_flop.scoring.causal_lm import unwrap
from flip_flop.scoring.distributed import rank, wait_for_all
from flip_flop.scoring.options import ScoringOptions
from flip_flop.scoring.packed import AnswerStates
from flip_flop.scoring.scores import CausalLMScorer
from tests.processes import command, end, launch, start_all
from tests.refused import refused
from tests.tiny import CONFIGS, GROUPED, byte_bpe, random_model
from tests.training.conftest import adapter_weights, log_of, make_task, make_trainer, run, signal_in

EXPERTS = GROUPED | {"num_experts_per_tok": 2}
KINDS = {
    **{name: CONFIGS[name] for name in ("qwen2", "gpt_neox", "qwen3")},  # tied, untied and fused qkv, tied
    "phi3": (Phi3Config, GROUPED | {"pad_token_id": 0}),  # fused qkv and MLP
    "mixtral": (MixtralConfig, EXPERTS | {"num_local_experts": 4, "sliding_window": None}),
    "qwen2_moe": (
        Qwen2MoeConfig,
        EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24},
    ),
    "mistral": (MistralConfig, GROUPED | {"sliding_window": 8}),
    "gpt2": CONFIGS["gpt2"],
}
UNPACKED = "mistral"  # rows are longer than its window
TRAINED = ("gpt_neox", "qwen2_moe")  # and qwen2, stopped and resumed
# Half of the steps have no consensus and so no gradient, the first two among them.
STEPS = {"lora_dropout": 0.0, "votes": "frozen", "seed": 0}
# Long and short rows: with 60 tokens in a pass, two processes have 3 and 2 rows, and different numbers of passes.
ROWS = [
    RenderedInstance(
        f"row {number}",
        (f"The room was {'not ' * (number % 3 == 0)}good.{' Very' * number} good?", f"Review {number}: fine"),
        (("No", "Yes"), ("Not at all", "Guaranteed")),
        number % 2,
    )
    for number in range(5)
]


def save(folder, name, config, **more):
    random_model(config).save_pretrained(folder / name)
    byte_bpe().save_pretrained(folder / name)
    path = folder / name / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | more))


def measure(folder, shard):
    """Write what a process computes with each model: scores, gradients, adapter, its weights."""
    torch.set_num_threads(1)
    for name in KINDS:
        loaded = load_model(folder / name, device="cpu", shard=shard)
        done = {}
        for backend in ("padded",) if name == UNPACKED else ("packed", "padded"):
            options = ScoringOptions(backend=backend, batch_tokens=60)
            done[backend] = score(loaded, ROWS, options, shared=shard is not None).scores.values
        before = local_weights(loaded.model)
        if name in TRAINED:
            done |= trained(loaded, folder / f"{name}-{shard}", instances=2 if shard else 4)
        after = local_weights(loaded.model)
        assert all(torch.equal(value, after[key]) for key, value in before.items())
        done["weights"] = sum(value.numel() for value in before.values())
        if rank() == 0:
            torch.save(done, folder / f"{name}-{shard}.pt")


def local_weights(model):
    """Copies of the weights that this process keeps between two passes, without those of an adapter."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()
    parts = {name: part for name, part in unwrap(model).named_parameters() if "lora_" not in name}
    return {
        name.replace(".base_layer", ""): (part.to_local() if isinstance(part, DTensor) else part).detach().clone()
        for name, part in parts.items()
    }


def trained(loaded, out, instances):
    """The gradient of the first step, and the adapter after 4. Of 7 rows, every other step has 3."""
    task = make_task(7).with_templates(["plain", "truth", "long", "terse"])
    changes = {"per_device_train_batch_size": instances, "max_steps": 4, "batch_tokens": 200, "learning_rate": 1e-3}
    without = {"lora_dropout": 0.0, "eval_strategy": "no", "save_strategy": "no"}
    trainer = make_trainer(out, [asdict(row) for row in task.instances("train")], loaded.model, **changes, **without)
    noted = {}

    class Note(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            if state.global_step == 0:
                values = trainer.adapted.named_parameters()
                noted.update({name: value.grad.clone() for name, value in values if value.grad is not None})

    trainer.add_callback(Note())
    trainer.train()
    return {
        "gradient": noted,
        "adapter": adapter_weights(trainer),
        "losses": [e["loss"] for e in trainer.state.log_history if "loss" in e],
    }


def stop_and_resume(folder, shard=None):
    """Train with evaluations and checkpoints. A signal to the last process stops all of them, and they resume."""
    changes = {"per_device_train_batch_size": 1 if shard else 2, **STEPS}
    for resume in (False, True) if shard else (False,):
        with pytest.MonkeyPatch.context() as patch:
            if shard and not resume and rank() == 1:
                signal_in(patch, step=4)
            loaded = load_model(folder / "qwen2", device="cpu", shard=shard)
            result = run(folder / f"run-{shard}", model=loaded, resume=resume, **changes)
        assert (result.adapter is None) == (shard is not None and not resume)
    if shard:
        loaded = load_model(folder / "qwen2", device="cpu", shard=shard)
        line = "E-RESUME-CHANGED: .*shard .None, now 'fsdp'"
        refused(line, run, folder / "run-None", model=loaded, resume=True, **changes)
        # The adapter of the run, on the model in parts.
        again = load_model(folder / "qwen2", adapter=folder / f"run-{shard}" / "adapter", device="cpu", shard=shard)
        scores = score(again, ROWS, shared=True).scores.values
        if rank() == 0:
            torch.save(scores, folder / f"again-{shard}.pt")


def divide_rows_in_one(folder):
    """Score with ``fsdp``. In the last process, the memory suffices for one row in a pass only."""
    loaded, scores = load_model(folder / "qwen2", device="cpu", shard="fsdp"), AnswerStates.scores

    def limited(states):
        if len(states.token_counts) > 1:
            raise torch.OutOfMemoryError("of the logits")
        return scores(states)

    with pytest.MonkeyPatch.context() as patch:
        if rank() == 1:
            patch.setattr(AnswerStates, "scores", limited)
        divided = score(loaded, ROWS, shared=True).scores.values
    if rank() == 0:
        torch.save(divided, folder / "divided.pt")


def two_processes(folder):
    torch.set_num_threads(1)
    divide_rows_in_one(folder)
    measure(folder, "fsdp")
    stop_and_resume(folder, "fsdp")
    line = "E-DISTRIBUTED: .* are quantized, and --shard does not divide those"
    refused(line, load_model, folder / "quantized", device="cpu", shard="fsdp")
    wait_for_all()


@pytest.mark.slow
def test_two_processes_with_half_of_the_weights_compute_what_one_computes(tmp_path):
    for name, (kind, settings) in KINDS.items():
        save(tmp_path, name, kind(**settings, vocab_size=len(byte_bpe())))
    kind, settings = KINDS["qwen2"]
    quantized = {"quantization_config": {"quant_method": "fp8"}}
    save(tmp_path, "quantized", kind(**settings, vocab_size=len(byte_bpe())), **quantized)
    measure(tmp_path, None)
    stop_and_resume(tmp_path)
    code, shown = launch(2, two_processes, tmp_path, output=tmp_path / "output.txt")
    assert code == 0, shown
    for name in KINDS:
        alone = torch.load(tmp_path / f"{name}-None.pt", weights_only=False)
        other = torch.load(tmp_path / f"{name}-fsdp.pt", weights_only=False)
        for backend in other.keys() & {"packed", "padded"}:
            np.testing.assert_allclose(other[backend], alone[backend], rtol=1e-6, atol=1e-6, err_msg=name)
        assert 0.5 * alone["weights"] <= other["weights"] < 0.56 * alone["weights"], name
        if name in TRAINED:
            assert largest_difference(other["gradient"], alone["gradient"], relative=True) < 1e-6, name
            assert largest_difference(other["adapter"], alone["adapter"]) < 1e-5, name
            assert other["losses"] == pytest.approx(alone["losses"], rel=1e-5), name

    scores, divided = (torch.load(tmp_path / name, weights_only=False) for name in ("qwen2-None.pt", "divided.pt"))
    np.testing.assert_allclose(divided, scores["packed"], rtol=1e-6, atol=1e-6)
    alone = load_file(tmp_path / "run-None" / "adapter" / "adapter_model.safetensors")
    out = tmp_path / "run-fsdp"
    other = load_file(out / "adapter" / "adapter_model.safetensors")
    assert largest_difference(other, alone) < 1e-5
    losses = [[entry["loss"] for entry in log_of(path, "loss")] for path in (out, tmp_path / "run-None")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    one = load_model(tmp_path / "qwen2", adapter=out / "adapter", device="cpu")
    again = torch.load(tmp_path / "again-fsdp.pt", weights_only=False)
    np.testing.assert_allclose(score(one, ROWS).scores.values, again, rtol=1e-6, atol=1e-6)
    whole = load_model(tmp_path / "qwen2", device="cpu")
    line = "E-RESUME-CHANGED: .*num_processes .2, now 1.*shard .'fsdp', now None"
    refused(line, run, out, model=whole, resume=True, **STEPS)


def load_with_failure(folder):
    if os.environ["RANK"] == "1":
        models.check_model = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(InputError) as failed:
        load_model(folder, device="cpu", shard="fsdp")
    print(failed.value, flush=True)


def fail(folder, how, answer):
    """Score or answer, until the last process fails in the middle of a pass that both compute, or of loading."""
    if how == "load":
        load_with_failure(folder)
        return
    loaded = load_model(folder, device="cpu", shard="fsdp")
    if rank() == 1:
        failure = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        act = {"memory": Mock(side_effect=failure), "kill": lambda *_: os.kill(os.getpid(), signal.SIGKILL)}[how]
        loaded.model.model.layers[1].mlp.register_forward_pre_hook(act)
    with pytest.raises(InputError) as failed:
        CausalLMScorer(loaded, shared=True).scores([replace(row, open=answer and OpenAnswers(answer)) for row in ROWS])
    print(failed.value, flush=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "answer", "codes", "lines"),
    [
        ("memory", None, [0, 0], ["E-MEMORY: process 1: CUDA out of memory. Lower --batch-tokens"]),
        ("kill", None, [0, -signal.SIGKILL], []),
        ("load", None, [0, -signal.SIGKILL], []),
        ("kill", AnswerFormat(max_tokens=4), [0, -signal.SIGKILL], []),
    ],
)
def test_failure_of_one_process_ends_all_with_a_line(tmp_path, how, answer, codes, lines):
    kind, settings = KINDS["qwen2"]
    save(tmp_path, "qwen2", kind(**settings, vocab_size=len(byte_bpe())))
    assert end(start_all(2, fail, tmp_path / "qwen2", how, answer, output=tmp_path / "output.txt"), seconds=60) == codes
    shown = [line for line in (tmp_path / "output.txt").read_text().splitlines() if line.startswith("E-")]
    expected = [*lines, "E-DISTRIBUTED: another process has ended, or has not answered in time"]
    assert len(shown) == len(expected)
    assert all(any(line.startswith(start) for line in shown) for start in expected), shown


def command_with_little_memory(out, *words):
    """The command, with memory for 300 tokens of a row of training in the last process, after its first checkpoint."""
    whole_mlp = LlamaMLP.forward

    def limited_mlp(mlp, states):
        if torch.is_grad_enabled() and states.shape[1] > 300 and list(out.glob("checkpoints/*/MANIFEST.json")):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return whole_mlp(mlp, states)

    main.SECONDS_FOR_THE_FIRST = 0.0
    if os.environ["RANK"] == "1":
        LlamaMLP.forward = limited_mlp
    command("train", *words)


@pytest.mark.slow
def test_run_whose_memory_ran_out_resumes_with_smaller_passes(tmp_path, flip_flop):
    alone, out, output = tmp_path / "1", tmp_path / "2", tmp_path / "output.txt"
    words = [
        "--model",
        "demo",
        "--task",
        "demo",
        "--limit",
        16,
        "--lora-dropout",
        "0",
        "--device",
        "cpu",
        "--keep-worse",
    ]
    words += ["--max-steps", 4, "--save-strategy", "steps", "--save-steps", 2, "--eval-strategy", "no"]
    flip_flop("train", *words, "--per-device-train-batch-size", 4, "--out", alone)
    words += ["--per-device-train-batch-size", 2, "--shard", "fsdp", "--out", out]
    code, shown = launch(2, command_with_little_memory, out, *words, output=output)
    line = "E-MEMORY: process 1: CUDA out of memory. Lower --batch-tokens, or start more processes."
    assert (code, shown.count(line)) == (2, 1), shown
    code, shown = launch(2, command_with_little_memory, out, *words, "--resume", "--batch-tokens", 250, output=output)
    assert (code, shown.count("resuming from checkpoint-2")) == (0, 1), shown
    one, two = (load_file(path / "adapter" / "adapter_model.safetensors") for path in (alone, out))
    assert largest_difference(two, one) < 1e-5


@pytest.mark.slow
def test_commands_of_two_processes_write_and_print_once(tmp_path, flip_flop):
    """Of one row, one process repeats the other's, and open answers are those of one process."""
    (tmp_path / "rows.jsonl").write_text('{"place": "France"}\n')
    task = tmp_path / "task.yaml"
    jinja = ("{{ place }}:", "The capital of {{ place }} is", "{{ place }} has the capital")
    content = {"name": "made", "data": {"test": "rows.jsonl"}, "answer": {"kind": "text", "max_tokens": 4}}
    task.write_text(json.dumps(content | {"templates": [{"name": text[-4:], "jinja": text} for text in jinja]}))
    words = ("predict", "--model", "demo", "--task", task, "--input", tmp_path / "rows.jsonl", "--out")
    assert flip_flop(*words, tmp_path / "None.jsonl").code == 0
    out = tmp_path / "fsdp.jsonl"
    code, shown = launch(2, command, *words, out, "--shard", "fsdp", output=tmp_path / "predict.txt")
    assert (code, shown.count("1 row")) == (0, 1), shown
    assert out.read_text() == (tmp_path / "None.jsonl").read_text()
    words = (
        "audit",
        "--model",
        "demo",
        "--task",
        "demo",
        "--limit",
        1,
        "--dry-run",
        "--shard",
        "fsdp",
        "--out",
        tmp_path,
    )
    code, shown = launch(2, command, *words, output=tmp_path / "dry.txt")
    assert (code, shown.count("dry run: 1 instance")) == (0, 1), shown


def largest_difference(tensors, others, relative=False):
    assert tensors.keys() == others.keys()
    scale = max(float(value.abs().max()) for value in others.values())
    assert scale > 0
    largest = max(float((tensors[name] - value).abs().max()) for name, value in others.items())
    return largest / scale if relative else largest


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ((), "shard divides the weights between processes, but there is one. Start several: torchrun"),
        (("--load-in", "4bit"), "--shard does not work with --load-in."),
        (("--device-map", "auto"), "--shard does not work with --device-map."),
    ],
)
def test_shard_is_refused_in_one_line(tmp_path, flip_flop, flags, reason):
    done = flip_flop("audit", "--model", "demo", "--task", "demo", "--shard", "fsdp", *flags, "--out", tmp_path / "a")
    assert done.code == 2
    assert f"E-DISTRIBUTED: {reason}" in done.err
