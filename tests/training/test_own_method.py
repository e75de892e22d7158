"""A custom method is a function and a Method, given as an object or as module:name."""

import copy
import json
import pickle
import re
from dataclasses import dataclass

import pytest
import torch

from flip_flop import F2CConfig, train
from flip_flop.method import METHODS, Method, find_method
from tests.refused import refused
from tests.training.conftest import (
    load_tiny,
    log_of,
    make_exact_trainer,
    make_task,
    make_trainer,
    record_of,
    run,
    settings,
)


def worst_template(instance, config):
    return {"worst": instance.nll(int(instance.consensus.label)).amax(), "nothing": 0 * instance.scores().sum()}


WORST = Method("worst_template", "Worst template", "#cc79a7", worst_template)
NAMED = f"{__name__}:WORST"
# Its loss cannot be pickled, and it asks for no consensus.
LOCAL = Method("local", "Local", "#000000", lambda instance, config: worst_template(instance, config), False)


@pytest.mark.slow
@pytest.mark.parametrize("method", [NAMED, LOCAL], ids=str)
def test_custom_method_is_logged_recorded_and_resumed(out, method):
    run(out, method=method, max_steps=2)
    run(out, resume=True, method=method, max_steps=2)
    steps = log_of(out, "loss")
    assert len(steps) == 2
    assert any("worst" in entry for entry in steps)
    for entry in steps:  # a step without a consensus has no terms
        terms = entry.get("worst", 0.0) + entry.get("nothing", 0.0)
        assert entry["loss"] == pytest.approx(terms, rel=2**-20)  # a few float32 roundings
    record, plan = (json.loads((out / name).read_text()) for name in ("run.json", "plan.json"))
    name = find_method(method).name
    assert copy.deepcopy(method) is method  # as settings are copied
    assert (record["name"], record["adapter"]["method"], record["training"]["method"]) == (name, name, name)
    assert plan["settings"]["method"] == (NAMED if method == NAMED else name)
    assert pickle.loads(pickle.dumps(settings(method=method))).method == plan["settings"]["method"]


MODULE = """from flip_flop.method import Method


def terms(instance, config):
    return {"own": SIGN * instance.scores().sum()}


OWN = Method("own", "Own", "#000000", terms, needs_consensus=False)
"""


@pytest.mark.slow
def test_edited_code_of_a_method_is_one_warning_and_recorded(out, tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    file, method = tmp_path / "edited_method.py", "edited_method:OWN"
    file.write_text(MODULE.replace("SIGN", "-1"))
    run(out, method=method, max_steps=1)
    (out / "run.json").unlink()
    file.write_text(MODULE.replace("SIGN", "1"))
    run(out, resume=True, method=method, max_steps=1)
    assert "these have changed since its start: code of the method." in caplog.text
    assert record_of(out)["allowed_changes"] == ["method"]


@dataclass
class Margins(F2CConfig):
    margin: float = 2.0


@pytest.mark.slow
def test_a_setting_of_an_own_configuration_must_be_that_of_the_run_to_resume(out):
    def start(margin, resume):
        config = Margins(method=LOCAL, max_steps=1, per_device_train_batch_size=2, use_cpu=True, margin=margin)
        return train(load_tiny(), make_task(), config, out, resume=resume, quiet=True, keep_worse=True)

    start(2.0, resume=False)
    refused("E-RESUME-CHANGED: .*settings.margin", start, 3.0, resume=True)


def failing(instance, config):
    return {"failing": torch.ones(2) @ torch.ones(3)}


def test_a_method_that_fails_is_one_line_with_its_place(out):
    words = (
        rf"E-CONFIG: method 'failing' fails for instance 'train-\d+', {re.escape(__file__)} line "
        rf"{failing.__code__.co_firstlineno + 1}: RuntimeError: .*\. Correct its loss\."
    )
    method = Method("failing", "Failing", "#000000", failing, needs_consensus=False)
    refused(words, run, out, method=method, max_steps=1)
    assert not (out / "adapter").exists()


@pytest.mark.parametrize("name", ["loss", "vote_share_0", "votes_so_far_1", "eval_loss", "train_loss"])
def test_a_term_named_as_a_key_of_the_log_is_refused(out, name):
    method = Method("mine", "Mine", "#000000", lambda instance, config: {name: instance.scores().sum()}, False)
    refused(f"E-CONFIG: method 'mine' has a term '{name}'", run, out, method=method, max_steps=1)


@pytest.mark.slow
def test_a_term_named_as_that_of_few_labels_is_refused(out):
    method = Method("mine", "Mine", "#000000", lambda instance, config: {"supervised": instance.scores().sum()}, False)
    refused(
        "E-CONFIG: method mine has a term 'supervised'", run, out, method=method, supervised_weight=1.0, max_steps=1
    )


def test_settings_store_the_method_by_name():
    assert json.loads(F2CConfig(method=LOCAL).to_json_string())["method"] == "local"
    assert F2CConfig(method=METHODS["cce"]).method == "cce"


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("f3c", "method is 'f3c'. Did you mean 'f2c'?"),
        ("no_such_module:WORST", "method is 'no_such_module:WORST': ModuleNotFoundError: .*PYTHONPATH"),
        (f"{__name__}:BEST", "AttributeError: .* has no attribute 'BEST'"),
        (f"{__name__}:worst_template", "which is a function. Name a Method."),
        (":", "method is ':', without :NAME. Give MODULE:NAME of a Method"),
        (":WORST", "method is ':WORST': ValueError: "),
        (Method("f2c", "Mine", "#000000", worst_template), "'f2c' is the name of another method"),
        (Method("mine", "Mine", "#000000"), "'mine' has no loss"),
        (Method("mine", "Mine", "greenish", worst_template), "'mine' has colour 'greenish', which is not #RRGGBB"),
        (Method("mine", "Mine", "", worst_template), "'mine' has colour '', which is not #RRGGBB"),
        (Method("base", "Mine", "#000000", worst_template), "'base' is the name of another method"),
        *(
            (Method(name, "Mine", "#000000", worst_template), f"method: {name!r} is not one word")
            for name in ("", " ", "../x", "a/b", "a b", "..", ".a")
        ),
    ],
)
def test_invalid_method_is_refused(method, words):
    refused(f"E-CONFIG: .*{words}", settings, method=method)


@pytest.mark.parametrize("method", [None, 3, ["f2c"]])
def test_method_of_another_type_is_refused_with_the_known_names(method):
    refused(r"E-CONFIG: method is .* Use one of swarm, cce, f2c", find_method, method)


def test_nll_does_not_depend_on_earlier_calls(tmp_path):
    """Own forward, column of all scores, or the vocabulary's distribution: equal in float64 to rounding."""
    read = {}

    def loss(instance, config):
        label = int(instance.consensus.label)
        ways = {
            "alone": lambda: None,
            "with scores": instance.scores,
            "with words": lambda: instance.answer_log_probs(label),
        }
        for way, prepare in ways.items():
            prepare()
            read.setdefault(way, []).append(torch.stack([instance.nll(label), instance.nll(label, "sum")]))
        scores, counts = instance.scores()[:, label], instance.token_counts[:, label]
        read.setdefault("by hand", []).append(torch.stack([-scores, -scores * counts]))
        for rows in instance.answer_log_probs(label):
            assert torch.allclose(rows.exp().sum(-1), torch.ones(()).double(), rtol=0, atol=1e-12)
        assert not hasattr(instance, "label")
        return {"nll": instance.nll(label).mean()}

    trainer = make_exact_trainer(tmp_path, method=Method("any", "Any", "#000000", loss))
    trainer.compute_loss(trainer.adapted, {"instances": list(trainer.train_instances)})
    expected = torch.stack(read.pop("by hand"))
    for way, result in read.items():
        torch.testing.assert_close(torch.stack(result), expected, rtol=1e-12, atol=0, msg=way)


def test_random_draws_depend_only_on_seed_purpose_epoch_and_id(tmp_path):
    drawn = []

    def loss(instance, config):
        drawn.append({purpose: tuple(instance.random(purpose).permutation(50)) for purpose in ("a", "b")})
        return {"nll": instance.nll(0).mean()}

    method = Method("draws", "Draws", "#000000", loss, needs_consensus=False)
    trainer = make_trainer(tmp_path, method=method)
    encoded = list(trainer.train_instances)[:2]
    for instances in (encoded, encoded[::-1]):
        trainer.compute_loss(trainer.adapted, {"instances": instances})
    assert drawn[:2] == drawn[:1:-1]
    assert len({*drawn[0].values(), *drawn[1].values()}) == 4


REDUCTION = "asks for the reduction 'total'. Known: mean, sum"
# name: (a term of the loss, words of the error)
INVALID_LABELS = {
    "no gold label": (lambda instance: instance.nll(instance.gold), "label None of instance .* uses_labels"),
    "label 2 of 2": (lambda instance: instance.nll(2), "label 2 of instance .* Labels are 0 to 1"),
    "label -1": (lambda instance: instance.answer_log_probs(-1)[0], "label -1"),
    "another reduction": (
        lambda instance: instance.nll(0, "total"),
        REDUCTION,
    ),
}
NO_TERMS = {
    "nothing": lambda instance: None,
    "tensor": lambda instance: instance.nll(0).mean(),
    "number": lambda instance: {"x": 1.0},
    "vector": lambda instance: {"x": instance.nll(0)},
}


def make_own(tmp_path, loss, **changes):
    method = Method("own", "Own", "#000000", lambda instance, config: loss(instance), needs_consensus=False)
    return make_trainer(tmp_path, method=method, **changes)


@pytest.mark.parametrize("name", INVALID_LABELS)
def test_term_of_an_invalid_label_is_refused(untyped, tmp_path, name):
    term, words = INVALID_LABELS[name]
    own = make_own(tmp_path, lambda instance: {"x": term(instance).mean()})
    refused(f"E-CONFIG: .*{words}", own.train)


@pytest.mark.parametrize("name", NO_TERMS)
def test_loss_without_scalar_terms_is_refused(untyped, tmp_path, name):
    words = "returned .* Return a dict of scalar tensors by name"
    refused(f"E-CONFIG: .*{words}", make_own(tmp_path, NO_TERMS[name]).train)


@pytest.mark.parametrize(("name", "words"), [("learning_rate", "'learning_rate'"), ("case_1", "'case_1'"), (1, "1")])
def test_term_with_a_name_of_the_log_is_refused(untyped, tmp_path, name, words):
    own = make_own(tmp_path, lambda instance: {name: instance.nll(0).mean()})
    refused(f"E-CONFIG: .*a term {words}", own.train)


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("max_steps", [1, 3])
def test_a_term_that_is_not_finite_is_named(tmp_path, factor, max_steps):
    trainer = make_own(tmp_path, lambda instance: {"odd": factor * instance.nll(0).mean()}, max_steps=max_steps)
    refused(r"E-NONFINITE: the term 'odd' of the loss of instance 'train-\d+' is (nan|inf)", trainer.train)


def test_a_loss_without_a_gradient_is_one_warning(tmp_path, caplog):
    make_own(tmp_path, lambda instance: {"x": instance.nll(0).mean().detach()}, max_steps=2).train()
    assert caplog.text.count("W-TRAINING: the adapter has not changed") == 1
    caplog.clear()
    make_own(tmp_path, lambda instance: {"x": instance.nll(0).mean()}, max_steps=2).train()
    assert "has not changed" not in caplog.text
    make_own(tmp_path, lambda instance: {"x": instance.nll(0).mean()}, max_steps=1, warmup_steps=0.1).train()
    assert caplog.text.count("W-TRAINING: the adapter has not changed") == 1
