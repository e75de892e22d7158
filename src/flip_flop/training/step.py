"""A training step: its instances as the methods read them, rows that are computed together, and statistics."""

import math
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, NamedTuple, TypeVar, cast, get_args

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor, nn

from flip_flop.errors import InputError, log, reason_of, require_known
from flip_flop.files import derive_seed, generator
from flip_flop.method import Method
from flip_flop.method.algorithm import Consensus, TemplateSplit
from flip_flop.method.divergences import to_device
from flip_flop.method.losses import Terms
from flip_flop.method.settings import Reduction
from flip_flop.metrics import majority_vote
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.packed import AnswerStates, merged_trie

Result = TypeVar("Result")

# Keys of the log that no term may have.
LOGGED = {
    *("step", "epoch", "loss", "grad_norm", "learning_rate", "case_1", "case_2", "case_3", "flip_weight", "no_gold"),
    *("pseudo_label_accuracy", "own_label_mass", "own_label_mass_min", "vote_drift"),
}
LOGGED_PREFIXES = ("vote_share_", "votes_so_far_", "eval_", "train_")


@dataclass(eq=False)
class TrainingInstance:
    """A :class:`~flip_flop.method.algorithm.Instance` of a batch. No method waits for the device.

    Args:
        id: The instance's id.
        consensus: The strict majority, if there is one.
        split: The result of Algorithm 1.
        vote_scores: The scores that vote, on the CPU and without gradient.
        gold: The index of the gold label, for methods that use labels.
        states: The answer states of this instance, with gradient.
        keys: The run's seed and the epoch, counted from 0.
        templates: The indices of its templates among those of the task.
    """

    id: str
    consensus: Consensus
    split: TemplateSplit
    vote_scores: Float[Tensor, "templates labels"]
    gold: int | None
    states: AnswerStates
    keys: tuple[int, int]
    templates: Sequence[int]
    token_counts: Int[Tensor, "templates labels"] = field(init=False)
    _scores: Tensor | None = field(default=None, init=False)
    _token_log_softmax: dict[int, tuple[AnswerStates, Tensor]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.token_counts = to_device(self.states.token_counts[0], self.states.logits.device)

    def scores(self) -> Float[Tensor, "templates labels"]:
        """Mean log-probability of each answer's tokens, in nats."""
        if self._scores is None:
            self._scores = self.states.scores()[0]
        return self._scores

    def nll(self, label: int | None, reduction: Reduction = "mean") -> Float[Tensor, " templates"]:
        """Negative log-likelihood of a label's answer; reuses earlier results."""
        label = self._valid(label)
        require_known([reduction], get_args(Reduction), "E-CONFIG", "the method asks for the reduction")
        if label in self._token_log_softmax:
            answer, log_probs = self._token_log_softmax[label]
            target = to_device(answer.token_target, log_probs.device)
            picked = log_probs.gather(1, target[:, None]).squeeze(1)
            scores = torch.stack([tokens.mean() for tokens in picked.split(self._lengths(label))])
        elif self._scores is not None:
            scores = self._scores[:, label]
        else:
            scores = self.states.of(0, label).scores()[0, :, 0]
        if reduction == "sum":
            return -scores * self.token_counts[:, label]
        return -scores

    def answer_log_probs(self, label: int | None) -> list[Float[Tensor, "_positions vocab"]]:
        """Vocabulary distributions at each token of a label's answer, per template."""
        label = self._valid(label)
        if label not in self._token_log_softmax:
            answer = self.states.of(0, label)
            self._token_log_softmax[label] = answer, answer.token_log_softmax()
        return list(self._token_log_softmax[label][1].split(self._lengths(label)))

    def random(self, purpose: str) -> np.random.Generator:
        """Return a generator for (seed, purpose, epoch, id)."""
        seed, epoch = self.keys
        return generator(seed, purpose, epoch, self.id)

    def _valid(self, label: int | None) -> int:
        num_labels = self.token_counts.shape[1]
        if label is None or not 0 <= label < num_labels:
            raise InputError(
                "E-CONFIG",
                f"the method asks for the label {label} of instance {self.id!r}.",
                f"Labels are 0 to {num_labels - 1}. `gold` is None for a method without uses_labels=True.",
            )
        return label

    def _lengths(self, label: int) -> list[int]:
        return cast(list[int], self.states.token_counts[0, :, label].tolist())


def loss_terms(method: Method, instance: TrainingInstance, config: Any) -> Terms:
    """Return the terms of a method's loss; none for an instance that it skips.

    Raises:
        InputError: ``E-CONFIG`` if they are not a dict of scalar tensors by name, a name is a key of the log, or a
            custom method fails.
    """
    assert method.loss is not None
    try:
        terms: Any = {} if method.skips(instance) else method.loss(instance, config)
    except (InputError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # a custom loss can raise anything
        if method.is_built_in:
            raise
        frame = traceback.extract_tb(error.__traceback__)[:2][-1]
        raise InputError(
            "E-CONFIG",
            f"method {method.name!r} fails for instance {instance.id!r}, {frame.filename} line {frame.lineno}: "
            f"{reason_of(error)}.",
            "Correct its loss. F2CTrainer in Python shows the whole traceback.",
        ) from error
    if not isinstance(terms, dict) or not all(isinstance(term, Tensor) and term.dim() == 0 for term in terms.values()):
        raise InputError(
            "E-CONFIG",
            f"the loss of method {method.name!r} returned {repr(terms)[:80]}.",
            "Return a dict of scalar tensors by name, such as {'margin': margins.mean()}.",
        )
    for name in terms:
        if not isinstance(name, str) or name in LOGGED or name.startswith(LOGGED_PREFIXES):
            raise InputError(
                "E-CONFIG", f"method {method.name!r} has a term {name!r}.", "Choose a name that the log lacks."
            )
    return terms


@contextmanager
def drawn_for(device: torch.device, seed: int, purpose: str, *keys: int | str) -> Iterator[None]:
    """Make random draws inside, such as dropout, depend only on these keys; then restore the generators."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(derive_seed(seed, purpose, *keys))
        yield


def by_rows(
    run: Callable[[list[EncodedInstance]], Result],
    rows_of: Callable[[int], Iterable[list[EncodedInstance]]],
    max_tokens: int,
    parameters: Sequence[nn.Parameter],
) -> tuple[list[Result], int]:
    """Apply ``run``, a forward and backward pass, to rows of instances.

    If a row of several instances exceeds the device's memory, all rows restart with half the length and the original
    gradients.

    Args:
        run: From a row's instances to its result.
        rows_of: From the tokens of a row to the rows. A longer instance has its own row.
        max_tokens: Tokens of a row.
        parameters: The parameters that receive gradients.

    Returns:
        The result of each row, and the tokens of a row to use from now on.
    """
    gradients = [None if parameter.grad is None else parameter.grad.clone() for parameter in parameters]
    while True:
        results = []
        row = []
        try:
            for row in rows_of(max_tokens):
                results.append(run(row))
            return results, max_tokens
        except torch.OutOfMemoryError:
            if len(row) == 1:
                raise
        tokens = len(merged_trie(row))
        max_tokens = tokens // 2
        log.warning("W-MEMORY: a row of %d tokens does not fit; rows now have %d", tokens, max_tokens)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()


class InstanceStatistics(NamedTuple):
    """The statistics of an instance in a step: values by log key, the label mass of each template, and the vote."""

    id: str
    values: dict[str, Any]  # loss terms stay tensors until `StepStatistics.read`
    terms: frozenset[str]
    mass: dict[int, float]
    vote: int


class StepStatistics:
    """Means over the instances of the steps since the last log line.

    Loss terms are averaged over all instances, with zeros for skipped ones. Other values are averaged over the
    instances that have one.
    """

    def __init__(self, parts: Iterable["StepStatistics"] = ()):
        """Merge the statistics of several processes or rows."""
        self.instances: list[InstanceStatistics] = [instance for part in parts for instance in part.instances]

    def add(
        self,
        instances: Sequence[TrainingInstance],
        labels: Sequence[int | None],
        scores: Float[Tensor, "instances templates labels"],
        token_counts: Int[Tensor, "instances templates labels"],
        losses: Sequence[Terms],
        *,
        uses_labels: bool = False,
    ) -> None:
        """Add a micro-batch with its gold labels, and with scores and token counts on the CPU."""
        masses = (scores * token_counts.clamp(min=1)).exp().sum(dim=-1).tolist()
        votes = majority_vote(scores.float().numpy()).tolist()
        for instance, label, mass, vote, terms in zip(instances, labels, masses, votes, losses, strict=True):
            consensus = instance.consensus
            split = instance.split
            values: dict[str, Any] = {f"case_{case}": float(split.case == case) for case in (1, 2, 3)}
            values |= {name: value.detach() for name, value in terms.items()}
            if uses_labels:
                values["no_gold"] = float(label is None)
            if split.case == 3:
                values["flip_weight"] = split.flip_weight
            if label is not None and bool(consensus.exists):
                values["pseudo_label_accuracy"] = float(int(consensus.label) == label)
            by_template = dict(zip(instance.templates, mass, strict=True))
            self.instances.append(InstanceStatistics(instance.id, values, frozenset(terms), by_template, vote))

    def read(self) -> "StepStatistics":
        """Copy the loss terms from their device, all at once to wait for it only once; return itself.

        Raises:
            InputError: ``E-NONFINITE`` for a term that is not finite.
        """
        every = [(instance, name) for instance in self.instances for name in instance.terms]
        places = [(instance, name) for instance, name in every if isinstance(instance.values[name], Tensor)]
        if places:
            terms = [instance.values[name] for instance, name in places]
            # A method may return a constant on the CPU.
            unread = torch.stack([term.to(terms[0].device) for term in terms])
            for (instance, name), number in zip(places, unread.tolist(), strict=True):
                if not math.isfinite(number):
                    raise InputError(
                        "E-NONFINITE",
                        f"the term {name!r} of the loss of instance {instance.id!r} is {number}.",
                        "Correct the method, or lower --learning-rate.",
                    )
                instance.values[name] = number
        return self

    def means(self) -> dict[str, float]:
        """Return the means by log key."""
        if not self.instances:
            return {}
        logs = {}
        terms = set[str]().union(*(instance.terms for instance in self.read().instances))
        for name in dict.fromkeys(name for instance in self.instances for name in instance.values):
            numbers = [instance.values[name] for instance in self.instances if name in instance.values]
            logs[name] = sum(numbers) / (len(self.instances) if name in terms else len(numbers))
        masses: dict[int, list[float]] = {}
        for instance in self.instances:
            for template, mass in instance.mass.items():
                masses.setdefault(template, []).append(mass)
        means = [*map(fmean, masses.values())]
        return logs | {"own_label_mass": fmean(means), "own_label_mass_min": min(means)}

    def vote_counts(self, num_labels: int) -> Int64[np.ndarray, " labels"]:
        """Count the model's majority votes for each label."""
        return np.bincount(np.array([instance.vote for instance in self.instances], np.int64), minlength=num_labels)


def mean_loss(log_history: Sequence[Mapping[str, Any]]) -> float:
    """Return the mean loss of all logged steps, including those before a resume."""
    total = 0.0
    last = 0
    for entry in log_history:
        if "loss" in entry:
            total = total + entry["loss"] * (entry["step"] - last)
            last = entry["step"]
    return total / max(last, 1)
