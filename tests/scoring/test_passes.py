"""An audit tokenizes and scores each row once, apart from the two rows of its self-check."""

from collections import Counter

from transformers import PreTrainedTokenizerFast

from flip_flop import Task, audit
from flip_flop.prompts import Template, TemplateSet
from flip_flop.scoring import load_model
from tests.tiny import save_tiny

PROMPTS = ("{{ text }} Good?", "Review: {{ text }} Is it good?", "{{ text }} It is")


def test_audit_tokenizes_and_scores_each_row_once(tmp_path, monkeypatch):
    templates = [Template(str(number), prompt, "No ||| Yes") for number, prompt in enumerate(PROMPTS)]
    rows = [{"text": f"The room was {number} times clean.", "label": "Yes"} for number in range(12)]
    task = Task("rooms", TemplateSet(tuple(templates)), {"test": rows}, labels=["No", "Yes"], label_field="label")
    loaded, texts, passes = load_model(str(save_tiny(tmp_path / "tiny"))), Counter(), []
    tokenize = PreTrainedTokenizerFast.__call__

    def count(tokenizer, batch, **options):
        texts.update([batch] if isinstance(batch, str) else batch)
        return tokenize(tokenizer, batch, **options)

    monkeypatch.setattr(PreTrainedTokenizerFast, "__call__", count)
    hook = loaded.model.register_forward_pre_hook(lambda model, given, named: passes.append(named), with_kwargs=True)
    found = audit(loaded, task, quiet=True)
    hook.remove()
    prompts = [prompt for instance in found.instances for prompt in instance.prompts]
    assert {texts[prompt] for prompt in prompts} == {1}
    encoded, _, _ = loaded.encoder().encode_all(found.instances)
    packed = [named["input_ids"].numel() for named in passes if "packed" in named]
    assert len(packed) == 1
    assert packed[0] <= sum(len(instance.trie) for instance in encoded)
    alone = sum(named["input_ids"].numel() for named in passes if "packed" not in named)
    assert alone <= 2 * max(len(PROMPTS) * (instance.longest + 1) for instance in encoded)
