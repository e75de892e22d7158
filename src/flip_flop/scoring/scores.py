"""Scores of every label under every template: mean log-probability of the answer's tokens, in nats (Eq. 13).

Their sources are a local model, a served model, or one's own :class:`Scorer`.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from flip_flop.console import track, warn_once
from flip_flop.errors import InputError, log
from flip_flop.files import generator
from flip_flop.hub import is_endpoint
from flip_flop.lazy import from_wing
from flip_flop.metrics import Scores
from flip_flop.prompts import RenderedInstance
from flip_flop.record import ModelRecord
from flip_flop.scoring import distributed
from flip_flop.scoring.causal_lm import TESTED, evaluation_mode, one_at_a_time, require_finite, unwrap
from flip_flop.scoring.encode import EncodedInstance
from flip_flop.scoring.models import LoadedModel, ModelGiven, as_loaded
from flip_flop.scoring.options import DEFAULT_SCORING, Backend, ScoringOptions
from flip_flop.scoring.packed import (
    AnswerStates,
    answer_states,
    merged_trie,
    pack,
    packed_attention,
    packing_order,
    rotary_limit,
    spare_pass,
)
from flip_flop.scoring.parts import Parts
from flip_flop.scoring.scorer import Scored, Scorer
from flip_flop.scoring.too_long import refuse_or_skip

WINDOW = 8  # forward passes whose scores are copied from the device together
# Kinds of layers in which tokens interact only by attention to earlier tokens.
ATTENTION_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}
# Rows of the self-check: one of 200, within these bounds, each under at most this number of templates.
MIN_ROWS = 2
MAX_ROWS = 16
MAX_TEMPLATES = 3
# Tolerance of the self-check in float32, absolute in nats and relative. Rounding is about 1e-7 of the logits.
SAME_NATS = 1e-3
SAME_SHARE = 1e-5
# In units of eps, the dtype's spacing above 1. A logit from 16 to 32 is a multiple of 16 eps. The difference of two
# logits, each rounded by up to half of that, doubles for two computations, and again for the layers below.
ROUNDING_EPS = 64
# Rows and tokens of the preferred tokens.
NUM_ROWS = 3
NUM_TOKENS = 5

Visit = Callable[[Sequence[EncodedInstance], AnswerStates, Tensor], None]


def score(
    loaded: ModelGiven,
    instances: Iterable[RenderedInstance],
    options: ScoringOptions = DEFAULT_SCORING,
    *,
    names: Sequence[str] = (),
    label: str = "scoring",
    quiet: bool = True,
    shared: bool = False,
    check: bool = True,
) -> Scored:
    """Score rendered instances, all with the same numbers of templates and labels, and check a few of the scores.

    Args:
        loaded: A loaded model, or a model as for :func:`~flip_flop.audit`.
        instances: The instances, such as ``task.instances("test")``. Those that are too long are refused, or left out
            of the scores.
        options: The scoring options.
        names: Template names, for errors.
        label: The name of the progress bar.
        quiet: Show no progress.
        shared: Divide the work between the processes of a launcher. All processes call this, and all get all scores.
        check: Check a few scores and find the preferred tokens, which costs the passes of a few more instances.

    Raises:
        InputError: ``E-DATA-ROWS`` without instances or for other rows; or as
            :meth:`~flip_flop.scoring.PromptEncoder.encode_all`, :func:`score_instances` and :func:`check_scores`.
    """
    instances = list(instances) if isinstance(instances, Iterable) else [instances]
    if not instances or (others := [row for row in instances if not isinstance(row, RenderedInstance)]):
        raise InputError(
            "E-DATA-ROWS",
            f"A row is of type {type(others[0]).__name__}." if instances else "There are no instances to score.",
            'Give rendered instances, such as task.instances("test").',
        )
    loaded = loaded if isinstance(loaded, LoadedModel) else as_loaded(loaded)
    encoder = loaded.encoder(options.chat_template, options.prompt_date or "")
    encoded, too_long, read = encoder.encode_all(instances)
    refuse_or_skip(too_long, len(instances), options.too_long, names)
    backend = choose_backend(loaded.model, encoded, options.backend)
    rows = [[row.prompts, row.choices] for row in read]
    parts = loaded.parts(backend, options.batch_tokens, rows)

    score_part = functools.partial(
        score_instances,
        loaded.model,
        backend=backend,
        batch_tokens=options.batch_tokens,
        label=label,
        quiet=quiet,
        parts=parts,
    )
    with parts.of_run():
        scores = score_in_parts(encoded, score_part) if shared else score_part(encoded)
        if check:
            self_check = check_scores(loaded.model, scores, encoded, names, quiet=quiet)
        else:
            self_check = None
    settings = {
        "delimiter": encoder.delimiter_of(instances[0].chat, instances[0].prompts[0]),
        "chat_template": encoder.uses_chat_template,
        "prompt_date": encoder.date,
        "bos": encoder.bos is not None,
        "backend": backend,
        "batch_tokens": options.batch_tokens,
        "boundary_merged": sum(answer.merged for instance in encoded for group in instance.answers for answer in group),
        "self_check": self_check,
    }
    preferred = _preferred_tokens(loaded, encoded, backend) if check else ()
    return Scored(
        scores,
        instances=read,
        too_long=tuple(too_long),
        settings=settings,
        prompt_tokens=np.array([instance.prompt_tokens for instance in encoded]),
        preferred_tokens=preferred,
    )


def _preferred_tokens(
    loaded: LoadedModel, instances: Sequence[EncodedInstance], backend: Backend
) -> tuple[tuple[str, ...], ...]:
    """Return the most probable first tokens of the answer under each template."""
    probs = _first_token_probs(loaded.model, instances, backend)
    top = probs.topk(min(NUM_TOKENS, probs.shape[-1])).indices.tolist()
    return tuple(tuple(str(loaded.tokenizer.decode([token])) for token in tokens) for tokens in top)


@one_at_a_time()
@torch.no_grad()
def _first_token_probs(
    model: nn.Module, instances: Sequence[EncodedInstance], backend: Backend
) -> Float[Tensor, "templates vocab"]:
    """Return the probabilities of the answer's first token under each template, the mean of a few drawn instances."""
    probs = []
    with evaluation_mode(model):
        for row in generator(0, "preferred-tokens").permutation(len(instances))[:NUM_ROWS].tolist():
            alone = answer_states(model, [instances[row]], backend=backend, batch_tokens=len(instances[row].trie))
            states = alone.of(0, label=0)
            counts = states.token_counts.flatten()
            first = states.token_row[counts.cumsum(0) - counts].to(states.logits.device)
            probs.append(states.logits[first].softmax(dim=-1).cpu())
    return torch.stack(probs).mean(dim=0)


def choose_backend(model: nn.Module, instances: Sequence[EncodedInstance], wanted: Backend) -> Backend:
    """Return ``packed`` or ``padded``. ``auto`` packs architectures whose packed scores were tested.

    Others are computed as separate sequences, with a warning ``W-PADDED``.

    Raises:
        InputError: ``E-MODEL-KIND`` for ``packed`` if the packed scores of this model and these instances differ.
    """
    if wanted == "padded":
        return wanted
    causal_lm = unwrap(model)
    kind = causal_lm.config.model_type
    name = type(causal_lm).__name__
    obstacle = packed_obstacle(model, max((instance.longest for instance in instances), default=0))
    if wanted == "packed" and obstacle is not None:
        raise InputError("E-MODEL-KIND", f"{name} cannot be packed: {obstacle}.", "Use --backend auto or padded.")
    if obstacle is None and wanted == "auto" and kind not in TESTED["packed"]:
        obstacle = f"its architecture {kind!r} is not tested with packed rows"
    if obstacle is None:
        return "packed"
    warn_once(f"W-PADDED: {name}: {obstacle}; the slower padded back end is used.")
    return "padded"


def packed_obstacle(model: nn.Module, longest: int) -> str | None:
    """Return why packed scores differ, or ``None``. ``longest`` is the length of the longest sequence."""
    config = unwrap(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    if others := kinds - ATTENTION_LAYERS:
        return f"it has layers of kind {sorted(others)[0]}"
    if getattr(config, "attn_temperature_tuning", False):
        return "its attention depends on the place in a row"
    if kinds:
        slides = "sliding_attention" in kinds
    else:
        slides = getattr(config, "use_sliding_window", True)
    limits = {
        "attention window": slides and getattr(config, "sliding_window", None),
        "attention chunk": getattr(config, "attention_chunk_size", None),
        "range of fixed rotary positions": rotary_limit(model),
    }
    for name, limit in limits.items():
        if limit and longest > limit:
            return f"its {name} ends at {limit} tokens, and the longest prompt with its answer is read in {longest}"
    return None


@one_at_a_time()
@torch.no_grad()
def score_instances(
    model: nn.Module,
    instances: Sequence[EncodedInstance],
    *,
    backend: Backend = "auto",
    batch_tokens: int = DEFAULT_SCORING.batch_tokens,
    label: str = "scoring",
    quiet: bool = False,
    visit: Visit | None = None,
    parts: Parts | None = None,
) -> Scores:
    """Score every label of every instance under every template.

    The result does not depend on the order of the instances. It depends on ``batch_tokens``, the tokens of one forward
    pass, only by rounding. An instance is never divided. The model is in evaluation mode. ``visit`` gets the instances,
    states and scores of each forward pass. Passes whose scores are among the stored ``parts`` are not computed.

    Raises:
        InputError: ``E-NONFINITE`` with the instance's id if the model's output is not finite.
    """
    backend = choose_backend(model, instances, backend)
    parts = parts or Parts()
    order = packing_order(instances, backend)
    values = torch.empty((len(instances), len(instances[0].answers), len(instances[0].answers[0])), dtype=torch.float32)
    num_tokens = torch.zeros_like(values, dtype=torch.int64)
    passes: list[tuple[str, list[int]]] = []  # those of this window

    def collect() -> None:
        """Copy the scores of a window from the device."""
        parts.store()
        for key, rows in passes:
            values[rows] = torch.as_tensor(parts.scores[key])
            require_finite(values[rows], num_tokens[rows], [instances[row].id for row in rows])
        passes.clear()

    with (
        evaluation_mode(model),
        distributed.in_step(model, lambda: spare_pass(model)),
        packed_attention(model) if backend == "packed" else contextlib.nullcontext(),
        track(label, len(instances), "instances", quiet=quiet) as advance,
    ):
        while order:
            members = next(pack(model, (instances[row] for row in order), batch_tokens))
            trie = merged_trie(members)
            key = parts.key(trie, batch_tokens)
            if key not in parts.stored:
                try:
                    states = answer_states(model, members, backend=backend, batch_tokens=batch_tokens)
                    answers = states.scores()
                except torch.OutOfMemoryError:
                    if len(members) == 1:
                        raise
                    batch_tokens = len(trie) // 2
                    log.warning("W-MEMORY: %d tokens do not fit; forwards now have %d", len(trie), batch_tokens)
                    continue
                if visit is not None:
                    visit(members, states, answers)
                parts.add(key, answers)
            rows = order[: len(members)]
            order = order[len(members) :]
            num_tokens[rows] = torch.from_numpy(trie.token_counts)
            passes.append((key, rows))
            if len(passes) == WINDOW:
                collect()
            advance(len(members))
        collect()
    return Scores.of(instances, values.numpy(), num_tokens.numpy())


def score_in_parts(
    instances: Sequence[EncodedInstance], score_part: Callable[[Sequence[EncodedInstance]], Scores]
) -> Scores:
    """Divide instances between the processes, which all call this function, and join the scores of their parts."""
    part = distributed.shard(instances) or instances[:1]  # a process without a part repeats another's instance
    parts = distributed.all_results(lambda: score_part(part))
    scores = np.empty((len(instances), *parts[0].values.shape[1:]), np.float32)
    counts = np.empty(scores.shape, np.int64)
    for number, table in enumerate(parts[: len(instances)]):
        rows = slice(number, None, len(parts))
        assert table.token_counts is not None
        scores[rows], counts[rows] = table.values, table.token_counts
    return Scores.of(instances, scores, counts)


def allowed_difference(model: nn.Module) -> float:
    """Return 64 eps of the model's dtype, at least 1e-3 nats: 0.5 in bfloat16, 0.063 in float16, 0.001 in float32."""
    causal_lm = unwrap(model)
    dtype = causal_lm.dtype
    if dtype == torch.float32 and causal_lm.device.type == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        dtype = torch.float16  # TF32 has the same precision
    return max(SAME_NATS, ROUNDING_EPS * torch.finfo(dtype).eps)


@torch.no_grad()
def check_scores(
    model: nn.Module,
    scores: Scores,
    instances: Sequence[EncodedInstance],
    names: Sequence[str] = (),
    *,
    quiet: bool = True,
) -> dict[str, float | int]:
    """Score a few rows again, one row at a time with the padded backend, and compare the scores.

    Two scores may differ by :func:`allowed_difference` and 1e-5 of their value: their sums are rounded in another
    order.

    Args:
        model: The model that computed the scores.
        scores: The scores, ``[instances, templates, labels]``.
        instances: Their instances.
        names: Template names, for errors.
        quiet: Show no progress.

    Returns:
        The number of scores that were checked, and their largest difference in nats.

    Raises:
        InputError: ``E-SELF-CHECK`` for a larger difference.
    """
    draw = generator(0, "self-check")
    allowed = allowed_difference(model)
    rows = draw.permutation(len(scores))[: int(np.clip(len(scores) // 200, MIN_ROWS, MAX_ROWS))].tolist()
    differences = []
    with track("self-check", len(rows), "instances", quiet=quiet) as advance:
        for row in rows:
            templates = draw.permutation(scores.values.shape[1])[:MAX_TEMPLATES]
            first = scores.values[row, templates].astype(np.float64)
            again = _scores_alone(model, instances[row], templates.tolist())
            differences.append(np.abs(np.subtract(first, again, out=np.zeros_like(first), where=first != again)))
            wrong = np.argwhere(~(differences[-1] <= allowed + SAME_SHARE * np.abs(again)))
            if len(wrong):
                cell = template, label = tuple(wrong[0].tolist())
                name = names[templates[template]] if names else int(templates[template]) + 1
                raise InputError(
                    "E-SELF-CHECK",
                    f"instance {scores.ids[row]!r}, template {name!r}, label {label}: the score is {first[cell]:.5f} "
                    f"in this run, but {again[cell]:.5f} if computed alone.",
                )
            advance(1)
    checked = np.concatenate(differences)
    return {"num_scores": checked.size, "largest_difference": float(checked.max())}


@one_at_a_time()
def _scores_alone(
    model: nn.Module, instance: EncodedInstance, templates: Sequence[int]
) -> Float[np.ndarray, "templates labels"]:
    """Return the scores of an instance under some templates, with the padded backend."""
    part = instance.under(templates)
    with evaluation_mode(model):
        # No forward pass is larger than the packed row of the instance, for which there was memory.
        states = answer_states(model, [part], backend="padded", batch_tokens=len(part.trie))
        return states.scores()[0].double().cpu().numpy()


def check_backend(model: nn.Module, instances: Sequence[EncodedInstance], backend: Backend) -> None:
    """Score two instances with this backend and alone, before a training.

    Raises:
        InputError: ``E-SELF-CHECK`` if the scores differ, or as :func:`score_instances`.
    """
    sample = instances[:MIN_ROWS]
    if sample:
        check_scores(model, score_instances(model, sample, backend=backend, quiet=True), sample)


class CausalLMScorer(Scorer):
    """A local model, scored by the packed or the padded backend. ``shared`` and ``check`` as in :func:`score`."""

    def __init__(self, loaded: LoadedModel, *, shared: bool = False):
        self.loaded = loaded
        self.shared = shared
        self.check = True
        self.record = loaded.record
        self.adapter = loaded.adapter
        self.allowed_changes = loaded.allowed_changes
        self.is_instruct = bool(loaded.tokenizer.chat_template) and loaded.adapter is None

    def scores(
        self,
        instances: Sequence[RenderedInstance],
        options: ScoringOptions = DEFAULT_SCORING,
        *,
        names: Sequence[str] = (),
        label: str = "scoring",
        quiet: bool = True,
    ) -> Scored:
        """:func:`~flip_flop.score`, or open answers by :func:`~flip_flop.open_answers.generation.generate`."""
        how: dict[str, Any] = {"names": names, "label": label, "quiet": quiet, "shared": self.shared}
        if instances[0].is_open:
            generated: Scored = from_wing("generate")(self.loaded, instances, options, **how)
            return generated
        if options.by == "generation":
            raise InputError(
                "E-ENDPOINT",
                f"{self.record.name} is loaded here, and has probabilities.",
                "Remove it: it is for a served model without log-probabilities.",
            )
        return score(self.loaded, instances, options, check=self.check, **how)

    def as_read(self, instance: RenderedInstance, options: ScoringOptions) -> RenderedInstance:
        """Return the instance in the tokenizer's chat template, if it is used."""
        return self.loaded.encoder(options.chat_template).as_read(instance)


def as_scorer(model: ModelGiven | Scorer, tokenizer: PreTrainedTokenizerBase | None = None) -> Scorer:
    """Return the scorer of a model, local or served. A scorer is returned unchanged.

    Raises:
        InputError: ``E-ENDPOINT``, ``E-SCORER`` for a scorer without a record, or as :func:`as_loaded`.
    """
    if isinstance(model, Scorer):
        if not isinstance(getattr(model, "record", None), ModelRecord):
            raise InputError(
                "E-SCORER",
                f"{type(model).__name__} has no record of its model.",
                "Set record = ModelRecord(name=...) in its class.",
            )
        return model
    if isinstance(model, str | os.PathLike) and is_endpoint(os.fspath(model)):
        served: Scorer = from_wing("EndpointScorer")(os.fspath(model), tokenizer)
        return served
    loaded = as_loaded(model, tokenizer)
    return CausalLMScorer(loaded.keep_answers() if isinstance(model, str | os.PathLike) else loaded)
