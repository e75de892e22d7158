"""``python -m tests.training.processes OUT``: a tiny training in one, two and four processes, in float64 and float32.

Each has the same instances in a step, 4 of 37. The processes are forked after the
imports. Rank 0 leaves ``OUT/<dtype>-<processes>.pt``.
"""

import os
import socket
import sys
import traceback
from pathlib import Path

import torch

from flip_flop.errors import InputError
from flip_flop.scoring.distributed import all_results, world_size
from tests.tiny import byte_bpe, tiny_model
from tests.training.test_trainer import adapter_weights, make_trainer, training_rows

# Processes, and for each of them instances per micro-batch and micro-batches per step.
SHAPES = ((1, 4, 1), (2, 1, 2), (4, 1, 1))
TRAININGS = [*(("float64", *shape) for shape in SHAPES), ("float32", *SHAPES[0]), ("float32", *SHAPES[2])]


def train(rank, processes, batch, accumulation, model, rows, out):
    """Train in one process."""
    trainer = make_trainer(
        out / f"{model.dtype}-{processes}",
        rows,
        model=model,
        lora_dropout=0.0,
        learning_rate=1e-3,
        max_steps=50,
        logging_steps=7,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        eval_strategy="no",
        save_strategy="no",
    )
    trainer.adapted.to(model.dtype)
    result = trainer.train()
    told = ask_all(rank)
    if rank == 0:
        lines = [entry for entry in trainer.state.log_history if "loss" in entry]
        found = {"steps": [line["step"] for line in lines], "losses": [line["loss"] for line in lines]}
        found |= {"train_loss": result.training_loss, "adapter": adapter_weights(trainer), "told": told}
        torch.save(found, out / f"{str(model.dtype).removeprefix('torch.')}-{processes}.pt")


def ask_all(rank):
    """Return the error of each process if the last one has found a mistake."""

    def work():
        if rank == world_size() - 1:
            raise InputError("E-LABEL", "two answers are the same tokens.", "Change one.")

    try:
        return all_results(work)
    except InputError as error:
        return str(error)


def start(rank, port, processes, *arguments):
    """Fork a process, with the environment that a launcher gives it; its id."""
    child = os.fork()
    if child:
        return child
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
    os.environ |= dict(zip(names, map(str, (rank, rank, processes, processes)), strict=True))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    code = 1
    try:
        train(rank, processes, *arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def main(out):
    """Train once in each way; return 1 if a process failed."""
    torch.set_num_threads(1)
    byte_bpe()  # kept for later calls
    for dtype, processes, *shape in TRAININGS:
        shared = (tiny_model("qwen2").to(getattr(torch, dtype)), training_rows(count=37), Path(out))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        children = [start(rank, port, processes, *shape, *shared) for rank in range(processes)]
        statuses = [os.waitpid(child, 0)[1] for child in children]
        if any(statuses):
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
