"""A slow training step as an oracle: separate pairs, two passes, full logits, in float64; and test instances."""

import copy
import functools
import tempfile

import torch

from flip_flop.scoring import EncodedAnswer, EncodedInstance
from tests.method import oracle
from tests.training.test_trainer import make_trainer

# What Algorithm 1 makes of the instances: 1 no consensus, 2 unanimous, 3 a split.
CASES = (2, 3, 2, 1, 3)
NO_CONSENSUS = CASES.index(1)
LOSSES = {
    "cce": {"method": "cce"},
    "cce, sums": {"method": "cce", "cce_reduction": "sum"},
    "cce over labels": {"method": "cce", "cce_space": "labels"},
    "cce over both": {"method": "cce", "cce_space": "both"},
    "f2c": {"method": "f2c", "divergence_space": "vocab"},
    "f2c, sums": {"method": "f2c", "divergence_space": "vocab", "cce_reduction": "sum"},
    "f2c over labels": {"method": "f2c", "divergence_space": "labels"},
    "f2c over labels, sums": {"method": "f2c", "divergence_space": "labels", "cce_reduction": "sum"},
    "f2c over labels, cce over both": {"method": "f2c", "divergence_space": "labels", "cce_space": "both"},
    "f2c over both": {"method": "f2c", "divergence_space": "both", "vocab_weight": 0.5, "labels_weight": 1.5},
    "swarm": {"method": "swarm", "swarm_pairs": "all"},
}
WEIGHTS = {
    "jsd_weight": 0.7, "flip_weight_min": 0.3, "flip_weight_max": 0.9, "max_cc_size": 2, "unanimous_margin": 0.5,
    "lora_dropout": 0.0,
}  # fmt: skip


def made_trainer(folder, **changes):
    trainer = make_trainer(folder, **(WEIGHTS | changes))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        for name, value in trainer.adapted.named_parameters():
            if "lora_B" in name:
                value.data.normal_(0, 0.3)
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


def distance(found, expected):
    """Relative L2 over all weights together."""
    missing = [name for name, value in found.items() if value is None]
    assert not missing
    off = sum(float((found[name].double() - value.double()).pow(2).sum()) for name, value in expected.items())
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


def choose(trainer, longest):
    chosen = {}
    for number in range(200):
        answers = candidate(number, longest)
        case = algorithm_1(trainer.args, slow_scores(trainer.adapted, answers))[0]
        index = next((index for index, wanted in enumerate(CASES) if wanted == case and index not in chosen), None)
        if index is not None:
            chosen[index] = EncodedInstance(f"row-{index}", answers)
        if len(chosen) == len(CASES):
            return [chosen[index] for index in range(len(CASES))]
    raise AssertionError(f"no instances of the cases {set(CASES) - {CASES[index] for index in chosen}}")


@functools.cache
def made_instances(longest=4):
    """5 instances, 4 templates, 3 labels of up to ``longest`` tokens."""
    with tempfile.TemporaryDirectory() as folder:
        return choose(made_trainer(folder), longest)


# ---- the slow way: separate pairs, the plain forward and full logits, in float64 ----


def slow_scores(model, answers):
    with torch.no_grad():
        return [_scores(model, template).tolist() for template in answers]


def algorithm_1(args, scores):
    return oracle.algorithm_1(
        scores, tau=args.unanimous_margin, k_max=args.max_cc_size, f_min=args.flip_weight_min,
        f_max=args.flip_weight_max, t=args.flip_temperature,
    )  # fmt: skip


def slow_step(trainer, instances, voter=None):
    """The loss and the gradients; the templates of another model may vote."""
    args = trainer.args
    model = copy.deepcopy(trainer.adapted).double().train()
    model.zero_grad()
    total = torch.zeros((), dtype=torch.float64)
    for instance in instances:
        if args.method == "swarm":
            total = total + _slow_swarm(model, instance)
            continue
        scores = slow_scores(voter or model, instance.answers)
        split = algorithm_1(args, scores)
        if split[0] != 1:
            total = total + _slow_f2c(model, instance, oracle.consensus(scores)[2], split, args)
    loss = total / len(instances)
    loss.backward()
    return float(loss.detach()), lora_gradients(model)


def _answer_log_probs(model, answer):
    """The log-softmax at each position that predicts an answer token, and the tokens' log-probabilities."""
    ids = list(answer.context) + list(answer.tokens)
    rows = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].log_softmax(-1)
    rows = rows[len(answer.context) - 1 : len(ids) - 1]
    return rows, torch.stack([rows[index, token] for index, token in enumerate(answer.tokens)])


def _scores(model, template):
    return torch.stack([_answer_log_probs(model, answer)[1].mean() for answer in template])


def _slow_f2c(model, instance, label, split, args):
    _, cc, nc, flip_weight = split
    losses, of_vocab, of_labels = [], [], []
    for template in instance.answers:
        rows, picked = _answer_log_probs(model, template[label])
        of_label = -_scores(model, template).log_softmax(0)[label]
        of_tokens = -picked.sum() if args.cce_reduction == "sum" else -picked.mean()
        losses.append({"vocab": of_tokens, "labels": of_label, "both": of_tokens + of_label}[args.cce_space])
        of_vocab.append(rows.mean(0).softmax(0))
        of_labels.append(_scores(model, template).softmax(0))
    loss = sum(losses) / len(losses)
    if args.method == "cce" or not cc:
        return loss
    for space, weight, q in (("vocab", args.vocab_weight, of_vocab), ("labels", args.labels_weight, of_labels)):
        if args.divergence_space in (space, "both"):
            middle = sum(q[t] for t in cc) / len(cc)
            jsd = args.jsd_weight * sum((q[t] * (q[t] / middle).log()).sum() for t in cc) / len(cc)
            flips = [flip_weight * (q[s] * (q[s] / middle.detach()).log()).sum() / len(nc) for s in nc]
            loss = loss + weight * (jsd + sum(flips))
    return loss


def _slow_swarm(model, instance):
    scores = [_scores(model, template) for template in instance.answers]
    loss = 0.0
    for own in scores:
        for others in scores:  # itself included
            loss = loss - (others.detach().softmax(0) * own).sum() / len(scores) ** 2
    return loss
