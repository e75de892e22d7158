"""The release's settings per dataset: a table, and the settings of a study's training runs under its protocol."""

import statistics
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.release import release_settings, with_protocol
from flip_flop.paper.study import narrow
from flip_flop.paper.study_file import load_study
from flip_flop.paper.units import Setup
from flip_flop.training import F2CConfig, make_config
from tests.studies.plans import keys, plan, small

QWEN, LLAMA = "Qwen/Qwen2.5-3B-Instruct", "meta-llama/Llama-3.2-3B-Instruct"


def test_defaults_are_medians_of_the_releases_weights():
    of_f2c = [settings for (method, _), settings in release_settings(QWEN).items() if method == "f2c"]
    assert len(of_f2c) == 11
    config = F2CConfig(protocol="release")
    for name in of_f2c[0]:
        assert getattr(config, name) == statistics.median(settings[name] for settings in of_f2c), name


def test_defaults_match_shared_release_settings():
    config = F2CConfig(protocol="release")
    assert (config.learning_rate, config.lr_scheduler_type.value, config.warmup_steps) == (1e-5, "cosine", 0)
    assert (config.weight_decay, config.max_grad_norm, config.max_steps, config.eval_steps) == (0.01, 1.0, 150, 5)
    assert config.per_device_train_batch_size * config.gradient_accumulation_steps == 32
    assert (config.lora_r, config.lora_alpha, config.lora_dropout) == (16, 32, 0.05)


def test_models_differ_only_in_wic():
    qwen, llama = release_settings(QWEN), release_settings(LLAMA)
    assert {key for key in qwen if qwen[key] != llama[key]} == {("f2c", "wic")}
    assert (qwen["f2c", "wic"]["unanimous_margin"], llama["f2c", "wic"]["unanimous_margin"]) == (12.0, 0.65)


def test_study1_uses_release_settings():
    study = with_protocol(narrow(load_study("study1"), protocol="release"), QWEN)
    cce, f2c = (make_config(study.settings.of(method, "rte") | {"method": method}) for method in ("cce", "f2c"))
    assert (cce.cce_weight, f2c.cce_weight, f2c.flip_temperature) == (0.1, 0.4, 2.2)
    assert {cce.vote_pass, f2c.vote_pass} == {"separate"}
    assert study.settings.of("swarm", "rte") == {"protocol": "release"}
    assert study.settings.of("base", "rte") == {}


def test_given_settings_override_the_protocol():
    study = narrow(load_study("study1"), protocol="release", settings={"jsd_weight": 0.2, "jsd": "mean"})
    config = make_config(with_protocol(study, QWEN).settings.of("f2c", "rte"))
    assert (config.jsd_weight, config.jsd, config.flip_direction) == (0.2, "mean", "reverse")


def test_study_file_names_its_protocol(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\ntasks: [rte]\nprotocol: release\n")
    assert load_study(str(path)).protocol == "release"
    path.write_text("name: mine\ntasks: [rte]\nprotocol: realease\n")
    with pytest.raises(InputError, match=r"E-STUDY-VALUE: .*mine.yaml, protocol: .* 'release'"):
        load_study(str(path))
    with pytest.raises(InputError, match=r"E-STUDY-VALUE: --set: protocol cannot be set here.*--protocol"):
        narrow(load_study("study1"), settings={"protocol": "release"})


def test_protocol_changes_digests_through_its_settings():
    found, own = keys(with_protocol(small(protocol="release"), "demo")), keys()
    assert found.keys() == own.keys()
    assert not set(found.values()) & set(own.values())  # a prompt's values are cut, too
    spelt = {"vote_pass": "separate", "cc_size_bound": "group", "jsd": "symmetric", "flip_direction": "reverse"}
    spelt |= {"answer_aggregation": "per_position", "divide_by_labels": True, "swarm_pairs": "mixture"}
    spelt |= {"swarm_space": "vocab"}  # without an evaluation there is no early stopping
    assert keys(small(protocol="release", settings=replace(small().settings, override=spelt))) == found


def test_plan_with_protocol_round_trip(tmp_path):
    from flip_flop.paper.folder import StudyFolder, load_plan

    written = plan(with_protocol(small(protocol="release"), "demo"), Setup("demo", device="cpu"))
    assert load_plan(StudyFolder(tmp_path).write_plan(written)) == written
    assert written.study.protocol == "release"
    assert {cell.settings.get("protocol") for cell in written.trainings} == {"release"}


def test_release_protocol_uses_its_rows(made):
    setup = Setup("owner/model", hub_mirror=str(made.mirror))
    study = narrow(load_study("study1"), tasks=["cb"], methods=["base"])
    paper, release = (plan(replace(study, protocol=name), setup) for name in ("paper", "release"))
    assert {cell.key for cell in paper.cells}.isdisjoint(cell.key for cell in release.cells)
