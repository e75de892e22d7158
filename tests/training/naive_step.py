"""A slow training step as an oracle: separate pairs, two passes, full logits, in float64; and test instances."""

import copy
import functools
import tempfile
from dataclasses import replace

import torch

from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance
from tests.method.draws import LogitInstance
from tests.training.conftest import make_trainer, randomize

# What Algorithm 1 makes of the instances: 1 no consensus, 2 unanimous, 3 a split.
CASES = (2, 3, 2, 1, 3)
NO_CONSENSUS = CASES.index(1)
LOSSES = {
    "cce": {"method": "cce"},
    "cce, sums": {"method": "cce", "cce_reduction": "sum"},
    "cce over labels": {"method": "cce", "cce_space": "labels"},
    "f2c": {"method": "f2c", "divergence_space": "vocab"},
    "f2c over labels, cce over both": {"method": "f2c", "divergence_space": "labels", "cce_space": "both"},
    "f2c over both": {"method": "f2c", "divergence_space": "both", "vocab_weight": 0.5, "labels_weight": 1.5},
    "f2c of the release": {"method": "f2c", "protocol": "release", "divergence_space": "vocab"},
    "f2c, votes of a separate pass": {"method": "f2c", "divergence_space": "vocab", "vote_pass": "separate"},
    "swarm": {"method": "swarm", "swarm_pairs": "all"},
    "swarm of the release": {"method": "swarm", "protocol": "release"},
}
WEIGHTS = {
    "jsd_weight": 0.7, "flip_weight_min": 0.3, "flip_weight_max": 0.9, "max_cc_size": 2, "unanimous_margin": 0.5,
    "lora_dropout": 0.0,
}  # fmt: skip


def made_trainer(folder, **changes):
    trainer = make_trainer(folder, **(WEIGHTS | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        randomize(trainer)
    return trainer


def lora_gradients(model):
    return {name: value.grad for name, value in model.named_parameters() if "lora_" in name}


def step(trainer, instances):
    """The loss and the gradients of one micro-batch."""
    trainer.adapted.zero_grad()
    loss = trainer.training_step(trainer.adapted, {"instances": instances}, num_items_in_batch=len(instances))
    gradients = {
        name: None if value is None else value.clone() for name, value in lora_gradients(trainer.adapted).items()
    }
    trainer.adapted.zero_grad()
    return float(loss), gradients


def distance(computed, expected):
    """Relative L2 over all weights together."""
    missing = [name for name, value in computed.items() if value is None]
    assert not missing
    off = sum(float((computed[name].double() - value.double()).pow(2).sum()) for name, value in expected.items())
    return (off / sum(float(value.double().pow(2).sum()) for value in expected.values())) ** 0.5


# ---- instances, chosen by how the model votes ----


def candidate(number, longest):
    """4 templates that share some beginnings, 3 labels of one to ``longest`` tokens."""
    draw = torch.Generator().manual_seed(number)

    def tokens(count):
        return tuple(torch.randint(1, 200, (count,), generator=draw).tolist())

    start, tails = tokens(7), [tokens(3) for _ in range(1 + number % 4)]
    labels = [tokens(1 + label * (longest - 1) // 2) for label in range(3)]
    prompts = [start[: 4 + template] + tails[template % len(tails)] for template in range(4)]
    return tuple(tuple(EncodedAnswer(prompt, answer) for answer in labels) for prompt in prompts)


@torch.no_grad()
def choose(trainer, longest):
    """An instance of each of :data:`CASES`."""
    made = {}
    for number in range(200):
        instance = EncodedInstance(f"row-{len(made)}", candidate(number, longest))
        case = slow_instance(trainer.adapted, instance, trainer.args).split.case
        index = next((index for index, wanted in enumerate(CASES) if wanted == case and index not in made), None)
        if index is not None:
            made[index] = EncodedInstance(f"row-{index}", instance.answers)
        if len(made) == len(CASES):
            break
    return [made[index] for index in range(len(CASES))]


@functools.cache
def made_instances(longest=4):
    """5 instances, 4 templates, 3 labels of up to ``longest`` tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return choose(made_trainer(folder), longest)


# ---- the slow way: separate pairs, the plain forward and full logits, in float64 ----


def slow_instance(model, instance, args):
    """The instance as a method reads it, with one forward per template and label."""
    logits = [[_answer_logits(model, answer) for answer in answers] for answers in instance.answers]
    targets = [[answer.tokens for answer in answers] for answers in instance.answers]
    return LogitInstance(logits, targets, args, id=instance.id)


def _answer_logits(model, answer):
    """The logits at each position that predicts an answer token."""
    ids = torch.tensor([answer.context + answer.tokens])
    return model(input_ids=ids, use_cache=False).logits[0, len(answer.context) - 1 : -1]


def slow_step(trainer, instances, voter=None, draw=None):
    """The loss and the gradients; the templates of another model may vote, and the loss may be that of some."""
    model = copy.deepcopy(trainer.adapted).double().train()
    model.zero_grad()
    losses = []
    for instance in instances:
        templates = list(range(len(instance.answers))) if draw is None else draw(instance)
        answers = [instance.answers[template] for template in templates]
        slow = slow_instance(model, replace(instance, answers=answers), trainer.args)
        if voter is not None:
            slow.decide(slow_instance(voter, instance, trainer.args).vote_scores, trainer.args, templates)
        if not trainer.method.skips(slow):
            losses += trainer.method.loss(slow, trainer.args).values()
    loss = torch.stack(losses).sum() / len(instances)
    loss.backward()
    return float(loss.detach()), lora_gradients(model)
