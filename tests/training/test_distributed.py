"""Several processes train what one does: the same steps, the same log, one folder, one voice."""

import json
import os
import signal
from datetime import timedelta

import numpy as np
import pytest
import torch
from accelerate import PartialState

from flip_flop.errors import InputError
from flip_flop.scoring.distributed import all_results, rank, world_size
from flip_flop.training.run import log_processes
from tests.processes import command, end, launch, start_all, wait_for
from tests.training.conftest import adapter_weights, log_of, make_exact_trainer, record_of, training_rows

# The last of an epoch's 5 steps has 5 instances instead of 8.
ROWS = 37
# The default of a machine without an accelerator is what these tests are about.
DEVICE = ("--device", "cpu") if torch.accelerator.is_available() else ()


@pytest.fixture
def task_file(tmp_path):
    rows = [{"text": f"The room was {'not ' * (number % 3 == 0)}good, {number}."} for number in range(ROWS)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    # One row for two processes: one of them is idle.
    (tmp_path / "validation.jsonl").write_text('{"text": "Fine stay 0"}\n')
    path = tmp_path / "task.yaml"
    path.write_text(
        "name: made\n"
        "data: {train: train.jsonl, validation: validation.jsonl}\n"
        "labels: [0, 1]\n"
        "templates:\n"
        '  - {name: a, jinja: "{{ text }} Is this review positive?", answer_choices: "No ||| Yes"}\n'
        '  - {name: b, jinja: "Review: {{ text }} True or false: a happy guest.", answer_choices: "False ||| True"}\n'
        '  - {name: c, jinja: "{{ text }} The guest was", answer_choices: "unhappy ||| happy"}\n'
    )
    return path


def training(num_processes, task_file, out, *flags):
    """The arguments of a training whose steps have 8 instances over all processes."""
    settings = ["--model", "demo", "--task", str(task_file), "--method", "f2c", "--out", str(out), *DEVICE]
    settings += ["--num-train-epochs", "2", "--logging-steps", "1", "--divergence-space", "labels", "--keep-worse"]
    return ["train", *settings, "--per-device-train-batch-size", str(8 // num_processes), *flags]


def run_two(tmp_path, arguments, code=0):
    """The output of two processes without a launcher, which takes seconds to start."""
    ended, shown = launch(2, command, *arguments, output=tmp_path / "output.txt")
    assert ended == code, shown
    return shown


@pytest.mark.slow
def test_two_processes_stop_at_one_step_on_a_signal_and_resume(tmp_path, task_file):
    out = tmp_path / "two"
    arguments = training(2, task_file, out, "--max-steps", "8", "--eval-steps", "4")
    processes = start_all(2, command, *arguments, output=tmp_path / "stopped.txt")
    wait_for_a_step(out)
    for process in processes:
        os.kill(process.pid, signal.SIGTERM)
    end(processes, seconds=120)
    assert list((out / "checkpoints").glob("checkpoint-*/MANIFEST.json"))
    assert not (out / "run.json").exists()
    shown = run_two(tmp_path, [*arguments, "--resume"])
    for line in (
        "next, flip-flop audit",
        "first votes",
        "processes that train together: 2",
        "resuming from checkpoint-",
    ):
        assert shown.count(line) == 1, line
    assert [entry["step"] for entry in log_of(out, "loss")] == list(range(1, 9))
    training_record = record_of(out)["training"]
    assert (training_record["num_processes"], training_record["dropout_depends_on_processes"]) == (2, True)


def wait_for_a_step(out):
    log = out / "log.jsonl"
    wait_for(lambda: log.exists() and '"loss"' in log.read_text())


def answer_in_time(*arguments):
    PartialState(cpu=True, timeout=timedelta(seconds=5))
    command(*arguments)


@pytest.mark.slow
def test_unresponsive_process_ends_the_others_with_an_error(tmp_path, task_file):
    out, output = tmp_path / "two", tmp_path / "output.txt"
    flags = ("--num-train-epochs", "200", "--eval-strategy", "no")
    first, second = start_all(2, answer_in_time, *training(2, task_file, out, *flags), output=output)
    wait_for_a_step(out)
    os.kill(second.pid, signal.SIGSTOP)
    try:
        assert end([first], seconds=60) == [2]
    finally:
        second.kill()
    errors = output.read_text()
    assert errors.splitlines()[-1].startswith("E-DISTRIBUTED: another process has ended, or has not answered in time")
    assert "Traceback" not in errors


@pytest.mark.slow
def test_one_and_two_processes_train_the_same_adapter(tmp_path):
    """5 steps of 4 instances over 17: the last step has one instance, and one of two processes none."""
    train(1, 4, 1, tmp_path)
    code, shown = launch(2, train, 2, 1, 2, tmp_path, output=tmp_path / "output.txt")
    assert code == 0, shown
    one, two = (torch.load(tmp_path / f"{count}.pt") for count in (1, 2))
    assert one["steps"][-1] == 5
    assert max(float(value.abs().max()) for name, value in one["adapter"].items() if "lora_B" in name) > 0.001
    assert two["told"] == "E-LABEL: two answers are the same tokens. Change one."
    assert two["steps"] == one["steps"]
    for name, value in one["adapter"].items():
        torch.testing.assert_close(two["adapter"][name], value, rtol=0, atol=1e-12)
    losses = [[*result["losses"], result["train_loss"]] for result in (two, one)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.slow
def test_two_processes_divide_the_open_answers_of_one(tmp_path, task_file, monkeypatch):
    templates = [f"  - {{name: {name}, jinja: '{name}: {{{{ text }}}} The guest was'}}" for name in "abc"]
    head = task_file.read_text().split("labels")[0]
    task_file.write_text("\n".join([f"{head}answer: {{kind: text, max_tokens: 2}}", "templates:", *templates]))
    flags = ("--max-steps", "2", "--batch-tokens", "200", "--eval-strategy", "no")
    written = {}
    for count in (2, 1):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / f"cache of {count}"))
        ended, shown = launch(
            count, command, *training(count, task_file, tmp_path / f"{count}", *flags), output=tmp_path / "output.txt"
        )
        assert ended == 0, shown
        (store,) = (tmp_path / f"cache of {count}").rglob("answers/*.jsonl")
        written[count] = [json.loads(line) for line in store.read_text().splitlines() if line]
    assert len(written[1]) > 3  # batches
    assert sorted(written[2]) == sorted(written[1])
    two, one = (record_of(tmp_path / count)["scoring"]["prompts_digest"] for count in "21")
    assert two == one


@pytest.mark.slow
def test_invalid_setting_is_reported_once(tmp_path, task_file):
    shown = run_two(tmp_path, training(2, task_file, tmp_path / "two", "--divergence-space", "words"), code=2)
    assert shown.count("E-CONFIG: --divergence-space is 'words'. It must be 'vocab', 'labels' or 'both'.") == 1


def test_launcher_that_starts_too_few_processes_is_warned_about(monkeypatch, caplog):
    for name, value in {"ACCELERATE_USE_CPU": "true", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    log_processes()
    assert "W-ONE-PROCESS: accelerate started one of several requested processes" in caplog.text


def test_settings_made_for_another_number_of_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("flip_flop.scoring.distributed.world_size", lambda: 2)
    with pytest.raises(InputError, match="E-DISTRIBUTED: 2 processes are joined, but the settings were made for 1"):
        make_exact_trainer(tmp_path, training_rows(count=4))


@pytest.mark.slow
def test_audit_in_two_processes_has_the_same_scores(tmp_path, flip_flop):
    words = ["audit", "--model", "demo", "--task", "demo", "--limit", "7", *DEVICE, "--out"]
    assert run_two(tmp_path, [*words, tmp_path / "two"]).count("next, flip-flop report") == 1
    assert flip_flop(*words, tmp_path / "one").code == 0
    one, two = (np.load(tmp_path / run / "scores.npz")["scores"] for run in ("one", "two"))
    np.testing.assert_allclose(two, one, atol=1e-5)


# ---- in a process ----


def train(processes, batch, accumulation, out):
    """Train in one process, 4 of 17 instances in a step, in float64, where only rounding differs."""
    torch.set_num_threads(1)
    trainer = make_exact_trainer(
        out / f"{processes}-checkpoints",
        training_rows(count=17),
        use_cpu=torch.accelerator.is_available(),  # as DEVICE
        learning_rate=1e-3,
        max_steps=5,
        logging_steps=2,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        eval_strategy="no",
        save_strategy="no",
    )
    result = trainer.train()
    told = ask_all(rank())
    if rank() == 0:
        lines = [entry for entry in trainer.state.log_history if "loss" in entry]
        done = {"steps": [line["step"] for line in lines], "losses": [line["loss"] for line in lines]}
        done |= {"train_loss": result.training_loss, "adapter": adapter_weights(trainer), "told": told}
        torch.save(done, out / f"{processes}.pt")


def ask_all(number):
    """Return the error of each process if the last one has found a mistake."""

    def work():
        if number == world_size() - 1:
            raise InputError("E-LABEL", "two answers are the same tokens.", "Change one.")

    try:
        return all_results(work)
    except InputError as error:
        return str(error)
