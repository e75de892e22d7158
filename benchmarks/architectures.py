"""The causal language models of transformers, as tiny random ones: which are read, packed or padded, and trained.

Each is loaded from its own configuration, in float32 and in bfloat16. An audit's scores are compared with a loop in
float32 that gives the model one sequence at a time; a training step has to give every adapter a finite gradient. Open
answers to a padded batch are compared with a loop that reads one text at a time, without a cache.
"""

import argparse
import contextlib
import copy
import inspect
import logging
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel, __version__
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from flip_flop import F2CConfig, LoadedModel
from flip_flop.errors import InputError
from flip_flop.files import write_json, write_text
from flip_flop.open_answers.generation import write_tokens
from flip_flop.reading import AnswerFormat
from flip_flop.record import ModelRecord
from flip_flop.scoring import causal_lm
from flip_flop.scoring.encode import EncodedAnswer, EncodedInstance, num_common
from flip_flop.scoring.options import Backend
from flip_flop.scoring.packed import answer_states
from flip_flop.scoring.scores import score_instances
from flip_flop.training.adapter import prepare_model

VOCABULARY, LAYERS, LARGEST = 64, 2, 3_000_000
LENGTHS, WRITTEN = (3, 14, 7, 5, 9, 4, 20, 11), 8  # of prompts and of their open answers
# Every architecture takes from these what it knows; no default of a configuration may be large.
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None, "is_decoder": True,
    "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48, "word_embed_proj_dim": 32, "max_position_embeddings": 256,
    "d_model": 32, "n_layer": LAYERS, "n_head": 4, "d_inner": 48, "decoder_layers": LAYERS, "decoder_ffn_dim": 48,
    "decoder_attention_heads": 4, "encoder_layers": 1, "encoder_ffn_dim": 48, "encoder_attention_heads": 4,
    "n_positions": 256, "rotary_dim": 4, "embedding_size": 32, "num_layers": LAYERS, "num_heads": 4, "num_kv_heads": 2,
    "state_size": 4, "mamba_d_state": 4, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64, "mamba_expand": 2,
    "mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "chunk_size": 8, "lru_width": 32,
    "num_local_experts": 4, "num_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "moe_intermediate_size": 16, "moe_shared_expert_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "intermediate_size_mlp": 48, "q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4,
    "v_head_dim": 8, "n_group": 2, "topk_group": 1, "first_k_dense_replace": 1, "moe_num_experts": 4, "moe_k": 2,
}  # fmt: skip
# Of sparse attention. The scores of fewer index heads tie.
ONE_HEAD_EACH = {"num_key_value_heads": 4}
HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
INDEXED = {"head_dim": 4, "num_key_value_heads": 4, "index_n_heads": 64, "index_head_dim": 8, "index_topk": 12}
# Where a width or a number has to be another one.
OTHER: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8}, "deepseek_v3": ONE_HEAD_EACH, "deepseek_v2": ONE_HEAD_EACH, "axk1": ONE_HEAD_EACH,
    "glm4_moe_lite": ONE_HEAD_EACH, "minicpm3": ONE_HEAD_EACH, "sarvam_mla": ONE_HEAD_EACH, "youtu": ONE_HEAD_EACH,
    "dots3_note_text": ONE_HEAD_EACH, "qwen3_5_text": HYBRID, "qwen3_5_moe_text": HYBRID, "qwen3_next": HYBRID,
    "bailing_hybrid": HYBRID | ONE_HEAD_EACH, "minimax": HYBRID,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "zaya": {"num_experts_per_tok": 1}, "modernbert-decoder": {"pad_token_id": 0},
    "gemma3n_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCABULARY, "laurel_rank": 8,
                     "hidden_size_per_layer_input": 8, "layer_types": ["sliding_attention", "full_attention"]},
    "gemma4_text": {"num_kv_shared_layers": 0, "vocab_size_per_layer_input": VOCABULARY,
                    "hidden_size_per_layer_input": 8},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]}, "zamba": {"n_mamba_heads": 1},
    "stablelm": ONE_HEAD_EACH, "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "nemotron_h": {"layers_block_type": ["mamba", "attention"]}, "bamba": {"attn_layer_indices": [1]},
    "xlnet": {"head_dim": None},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]}, "inkling2_text": {"unpadded_vocab_size": VOCABULARY},
    "inkling2_loop_text": {"unpadded_vocab_size": VOCABULARY}, "longcat_flash": {"head_dim": 4} | ONE_HEAD_EACH,
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX", "pad_token_id": 0},
    "axk2": INDEXED, "deepseek_v32": INDEXED, "glm_moe_dsa": INDEXED,
}  # fmt: skip


def tiny(kind: str, **changes: Any) -> PreTrainedModel:
    """A random model of an architecture, its weights large enough that answers differ."""
    config_class = CONFIG_MAPPING[kind]
    known = {*inspect.signature(config_class.__init__).parameters, *dir(config_class), *config_class.attribute_map}
    known |= {name for parent in config_class.__mro__ for name in getattr(parent, "__annotations__", {})}
    sizes = {name: value for name, value in (SIZES | OTHER.get(kind, {}) | changes).items() if name in known}
    sizes = {
        name: value for name, value in sizes.items() if not isinstance(getattr(config_class, name, None), property)
    }
    # One name of a size is enough: a second one would be given to the same field.
    sizes = {name: value for name, value in sizes.items() if config_class.attribute_map.get(name) not in sizes}
    config = config_class(**sizes)
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"not made small: {size:,} parameters")
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, 0.15)
    return model.eval()


def made_instances(count: int = 3) -> list[EncodedInstance]:
    """Prompts of 4 to 20 tokens, answers of one to three, some beginnings in common."""
    draw = torch.Generator().manual_seed(1)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(torch.randint(1, VOCABULARY, (number,), generator=draw).tolist())

    instances = []
    for number in range(count):
        start = tokens(3 + 4 * number)
        contexts = [start + tokens(1), start + tokens(5), tokens(7)]
        answers = tuple(tuple(EncodedAnswer(context, tokens(length)) for length in (1, 3)) for context in contexts)
        instances.append(EncodedInstance(str(number), answers))
    return instances


@torch.no_grad()
def one_at_a_time(model: nn.Module, instances: list[EncodedInstance]) -> torch.Tensor:
    """Each answer's mean log-probability by the model's own forward of its sequence alone, in float32."""
    model = copy.deepcopy(model).float()
    scores = []
    for answer in (answer for instance in instances for template in instance.answers for answer in template):
        logits = model(input_ids=torch.tensor([answer.inputs]), use_cache=False).logits[0, len(answer.context) - 1 :]
        scores.append(logits.double().log_softmax(-1)[range(len(answer.tokens)), list(answer.tokens)].mean())
    return torch.stack(scores)


def exact_backend(model: nn.Module, instances: list[EncodedInstance]) -> Backend:
    """``packed`` if a packed row gives the scores of one sequence at a time."""
    try:
        scores = score_instances(model, instances, backend="packed", quiet=True).values
    except Exception:  # of any kind: the model does not take a packed row
        return "padded"
    exact = one_at_a_time(model, instances)
    return "packed" if torch.allclose(torch.from_numpy(scores).flatten().double(), exact, atol=1e-3) else "padded"


@torch.no_grad()
def greedy(model: nn.Module, prompt: list[int]) -> tuple[list[int], torch.Tensor]:
    """The greedy answer, and the logits of each token by the model's own forward of the whole text."""
    tokens, logits = list(prompt), []
    for _ in range(WRITTEN):
        logits.append(model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, -1].double())
        tokens.append(int(logits[-1].argmax()))
    return tokens[len(prompt) :], torch.stack(logits)


def open_answers(model: PreTrainedModel) -> str:
    """How the answers to prompts of several lengths are right: ``in batches``, ``one at a time`` or not at all.

    Right answers have the logits of :func:`greedy`, up to a token whose logits are equal to another's.
    """
    draw = torch.Generator().manual_seed(2)
    prompts = [torch.randint(1, VOCABULARY, (length,), generator=draw).tolist() for length in LENGTHS]
    loaded: Any = LoadedModel(model, None, ModelRecord(name="tiny"))  # type: ignore[arg-type]
    form, settings = AnswerFormat(), GenerationConfig(max_new_tokens=WRITTEN, pad_token_id=0)

    def are_right(batch: list[list[int]], in_batches: bool) -> bool:
        read: list[torch.Tensor] = []
        hook = model.register_forward_hook(lambda _, given, output: read.append(output.logits[:, -1].double()))
        try:
            answers = write_tokens(loaded, batch, settings, form, [None] * len(batch), in_batches=in_batches)
        finally:
            hook.remove()
        found = torch.stack(read, dim=1)
        for prompt, answer, logits in zip(batch, answers, found, strict=True):
            tokens, exact = greedy(model, prompt)
            compared = num_common(answer, tokens) + 1
            if not torch.allclose(logits[:compared], exact[:compared], atol=1e-3):
                return False
        return True

    try:
        if are_right(prompts, in_batches=True):
            return "in batches"
    except Exception:  # of any kind: the library's generation fails
        pass
    return "one at a time" if all(are_right([prompt], in_batches=False) for prompt in prompts) else "wrong"


def open_answers_in_all_orders(kind: str, model: PreTrainedModel) -> str:
    """Those of a model, and of one with its kinds of layers in reverse order. A cache may depend on the first layer."""
    found = {open_answers(model)}
    kinds = list(getattr(model.config, "layer_types", None) or ())
    if kinds != kinds[::-1]:
        with contextlib.suppress(AttributeError):  # other settings give the order
            found.add(open_answers(tiny(kind, layer_types=kinds[::-1])))
    return max(found)  # in alphabetical order the worst is last


def training_step(model: nn.Module, instances: list[EncodedInstance], backend: Backend) -> str:
    """``yes``, or what went wrong in a step that raises the first label."""
    args = F2CConfig(lora_r=4, lora_dropout=0.0, select_by="last", use_cpu=True)
    adapted = prepare_model(model, args)
    answer_states(adapted, instances, backend=backend).scores().log_softmax(-1)[..., 0].mean().neg().backward()
    gradients = {name: value.grad for name, value in adapted.named_parameters() if "lora_B" in name}
    reached = [name for name, gradient in gradients.items() if gradient is not None and bool(gradient.any())]
    if not all(bool(gradients[name].isfinite().all()) for name in reached):
        return "a gradient is not finite"
    return "yes" if len(reached) == len(gradients) else f"{len(reached)} of {len(gradients)} adapters"


def row(kind: str) -> list[str] | None:
    """Of the table: architecture, back end, differences in nats in float32 and bfloat16, training, open answers."""
    instances = made_instances()
    try:
        model = tiny(kind)
        backend = exact_backend(model, instances)
    except Exception as error:
        logging.getLogger("architectures").warning("%s is left out: %s", kind, " ".join(str(error).split())[:120])
        return None
    cells: dict[str, list[str]] = {"audit": [], "train": []}
    for dtype in (torch.float32, torch.bfloat16):
        candidate = copy.deepcopy(model).to(dtype)
        try:
            causal_lm.check_model(candidate)
            table = score_instances(candidate, instances, backend=backend, quiet=True)
            found = torch.from_numpy(table.values).flatten().double()
            cells["audit"].append(f"{float((found - one_at_a_time(candidate, instances)).abs().max()):.1e}")
        except InputError as error:
            cells["audit"].append(f"refused: {error.code}")
            cells["train"].append("")
            continue
        except Exception as error:  # the model raised it
            cells["audit"].append(f"fails: {type(error).__name__}")
            cells["train"].append("")
            continue
        try:
            cells["train"].append(training_step(candidate, instances, backend))
        except InputError as error:
            cells["train"].append(f"refused: {error.code}")
        except Exception as error:  # the model raised it
            cells["train"].append(f"fails: {type(error).__name__}")
    is_read = cells["audit"][0][0].isdigit()
    answers = open_answers_in_all_orders(kind, model) if is_read else ""
    return [kind, backend, *cells["audit"], *cells["train"], answers]


def main() -> None:
    """Print the table, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("architectures", nargs="*", help="transformers' names; all without any")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)  # the models are tiny
    logging.basicConfig(format="%(message)s")
    logging.getLogger("transformers").setLevel(logging.CRITICAL)
    logging.getLogger("flip_flop").setLevel(logging.ERROR)
    rows = []
    for kind in arguments.architectures or sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES):
        found = row(kind)
        if found is not None:
            rows.append(found)
            print(" | ".join(found), flush=True)
    read = sum(cells[2][0].isdigit() for cells in rows)

    def count(answers: str) -> int:
        return sum(cells[-1] == answers for cells in rows)

    lines = [
        "# Architectures",
        "",
        f"As tested by `make architectures` with transformers {__version__}: {len(rows)} architectures as tiny random",
        f"models, of which {read} are audited. Differences are the largest from one sequence at a time in float32, in",
        "nats, over 18 answers; in bfloat16 they are its rounding. Training is one step, without dropout; `12 of 20",
        "adapters` means that so many got a gradient: the others belong to cross-attention, choose tokens of sparse",
        "attention, or, in `doge`, are a factor of what begins at 0.",
        "",
        f"Open answers to {len(LENGTHS)} prompts of different lengths are those of one text at a time, read without a",
        f"cache: of {count('in batches')} architectures in padded batches. The others, and those that are not in this",
        f"table, write one answer at a time and without a cache; so {count('one at a time')} are right.",
        "",
        "Left out are architectures whose configuration could not be made small.",
        "",
        "| architecture | back end | float32 | bfloat16 | trains in float32 | in bfloat16 | open answers |",
        "|---|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells in rows),
    ]
    if arguments.out:
        write_text(arguments.out, "\n".join(lines) + "\n")
        packed = [cells[0] for cells in rows if cells[1] == "packed"]
        batched = [cells[0] for cells in rows if cells[-1] == "in batches"]
        tested = {"transformers": ".".join(__version__.split(".")[:2]), "packed": packed, "batched": batched}
        write_json(Path(causal_lm.__file__).with_name("tested.json"), tested)


if __name__ == "__main__":
    main()
