"""Study files are validated: errors have a code and suggest the nearest name."""

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.study import MethodVariant, Settings, Subsets, narrow
from flip_flop.paper.study_file import COLOURS, load_study, study_names


def write(folder, text):
    path = folder / "mine.yaml"
    path.write_text(text)
    return str(path)


GOOD = """\
name: mine
tasks: [rte, tasks/own.yaml]
methods: [base, f2c]
seeds: [3, 5]
template_subsets:
  rte: {train_first: [2, all], held_out: [plain, terse]}
settings:
  learning_rate: 1e-4
  methods: {f2c: {learning_rate: 2e-4, jsd-weight: 0.5}}
  tasks: {tasks/own.yaml: {learning_rate: 3e-4}}
limit: 7
split: validation
"""
ABLATION = """\
name: ablation
tasks: [rte]
variants:
  frozen: {method: f2c, title: "F2C, frozen", votes: frozen, colour: "#123456"}
  wide: {method: f2c, lora-r: 4, tasks: {rte: {lora_dropout: 0}}}
methods: [base, cce, frozen, f2c, wide]
settings:
  methods: {f2c: {votes: online, lora_r: 2}, wide: {lora_alpha: 8}}
  tasks: {rte: {learning_rate: 1}}
eval_limit: 5
audit_held_out: true
"""


def test_study_file_is_read(tmp_path):
    study = load_study(write(tmp_path, GOOD))
    own = str(tmp_path / "tasks" / "own.yaml")
    assert (study.name, study.tasks, study.methods, study.seeds) == ("mine", ("rte", own), ("base", "f2c"), (3, 5))
    assert study.template_subsets == {"rte": Subsets((2, None), ("plain", "terse"))}
    assert (study.limit, study.split, study.cross, study.model) == (7, "validation", None, None)
    assert study.settings.of("f2c", "rte") == {"learning_rate": "2e-4", "jsd_weight": 0.5}
    assert study.settings.of("f2c", own) == {"learning_rate": "3e-4", "jsd_weight": 0.5}
    assert study.settings.of("cce", "rte") == {"learning_rate": "1e-4"}
    assert narrow(study, tasks=["own"]).tasks == (own,)


def test_variant_settings_override_those_of_its_method(tmp_path):
    study = load_study(write(tmp_path, ABLATION))
    assert study.variants["frozen"] == MethodVariant("f2c", "F2C, frozen", "#123456")
    assert study.variants["wide"] == MethodVariant("f2c", "wide", COLOURS[1])
    of = {name: study.training_settings(name, "rte") for name in study.methods[2:]}
    assert of["frozen"] == {"method": "f2c", "votes": "frozen", "lora_r": 2, "learning_rate": 1}
    wide = {"lora_r": 4, "lora_alpha": 8, "lora_dropout": 0}
    assert of["wide"] == {"method": "f2c", "votes": "online", "learning_rate": 1, **wide}
    assert of["f2c"] == {"method": "f2c", "votes": "online", "lora_r": 2, "learning_rate": 1}
    assert (study.eval_limit, study.audit_held_out) == (5, True)
    assert narrow(study, methods=["wide"]).methods == ("wide",)
    assert load_study(write(tmp_path, ABLATION.replace("methods: [", "# ["))).methods[-2:] == ("frozen", "wide")


@pytest.mark.parametrize(
    ("old", "new", "code", "hint"),
    [
        ("frozen: {method: f2c", "f2c: {method: f2c", "E-STUDY-VALUE", "no method's name"),
        ("frozen: {method: f2c", "a:b: {method: f2c", "E-STUDY-VALUE", "letters"),
        ("frozen: {method: f2c", "frozen: {method: base", "E-STUDY-VALUE", "swarm"),
        ("frozen: {method: f2c", "frozen: {method: f2", "E-STUDY-VALUE", "'f2c'"),
        ("frozen: {method: f2c, title", "frozen: {title", "E-STUDY-KEY", "method is missing"),
        ("frozen, f2c, wide]", "frozn]", "E-STUDY-VALUE", "'frozen'"),
        ('"#123456"', "red", "E-STUDY-VALUE", "#0072b2"),
        ("lora-r: 4", "seed: 4", "E-STUDY-VALUE", "seeds"),
        ("tasks: {rte: {lora_dropout: 0}}", "tasks: {rt: {lora_dropout: 0}}", "E-STUDY-VALUE", "'rte'"),
        ("eval_limit: 5", "eval_limit: 0", "E-STUDY-VALUE", "greater than or equal to 1"),
        ("audit_held_out: true", "audit_held_out: 1", "E-STUDY-KEY", "a valid boolean"),
        ("eval_limit: 5", "cross: [rte]", "E-STUDY-KEY", "two studies"),
    ],
)
def test_invalid_variant_has_a_code(tmp_path, old, new, code, hint):
    assert old in ABLATION
    with pytest.raises(InputError) as error:
        load_study(write(tmp_path, ABLATION.replace(old, new)))
    assert error.value.code == code
    assert hint in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "code", "hint"),
    [
        ("name: mine", "nme: mine", "E-STUDY-KEY", "'name'"),
        ("name: mine", "name: a/b", "E-STUDY-KEY", "should match"),
        ("[rte, tasks/own.yaml]", "[]", "E-STUDY-KEY", "at least 1"),
        ("[rte, tasks/own.yaml]", "rte", "E-STUDY-KEY", "a valid tuple"),
        ("[base, f2c]", "[base, f2d]", "E-STUDY-VALUE", "'f2c'"),
        ("[3, 5]", "[3, 3]", "E-STUDY-VALUE", "twice"),
        ("[3, 5]", "[3, -5]", "E-STUDY-VALUE", "equal to 0"),
        ("[3, 5]", "[3, yes]", "E-STUDY-VALUE", "a valid integer"),
        ("rte: {train_first", "rt: {train_first", "E-STUDY-VALUE", "'rte'"),
        ("train_first: [2, all]", "train_first: [1]", "E-STUDY-VALUE", "equal to 2"),
        ("train_first: [2, all]", "first: [2]", "E-STUDY-KEY", "train_first"),
        ("[plain, terse]", "0", "E-STUDY-VALUE", "held_out is 0"),
        ("learning_rate: 1e-4", "seed: 4", "E-STUDY-VALUE", "seeds"),
        ("learning_rate: 1e-4", "method: cce", "E-STUDY-VALUE", "methods"),
        ("methods: {f2c", "methods: {base", "E-STUDY-VALUE", "swarm"),
        ("{f2c: {learning_rate: 2e-4, jsd-weight: 0.5}}", "{f2c: 3}", "E-STUDY-KEY", "a valid dictionary"),
        ("limit: 7", "limit: 0", "E-STUDY-VALUE", "equal to 1"),
        ("split: validation", "split: [a]", "E-STUDY-KEY", "a valid string"),
        ("limit: 7", "cross: [rte]", "E-STUDY-KEY", "two studies"),
        ("limit: 7", "limit: 7\nlimit: 8", "E-STUDY-YAML", "Fix"),
        ("limit: 7", "cross: [5]", "E-STUDY-KEY", "cross, 0 is 5"),
        ("limit: 7", "5: 7", "E-STUDY-YAML", "5"),
        ("[2, all]", "[]", "E-STUDY-KEY", "at least 1"),
        ("[3, 5]", "[3, 4294967296]", "E-STUDY-VALUE", "equal to 4294967295"),
        ("name: mine", "name: trainings", "E-STUDY-VALUE", "another name"),
        ("name: mine", "name: Logs", "E-STUDY-VALUE", "all studies share"),
        ("name: mine", "name: study1", "E-STUDY-VALUE", "a shipped study has"),
    ],
)
def test_invalid_study_file_has_a_code(tmp_path, old, new, code, hint):
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as error:
        load_study(path)
    assert error.value.code == code
    assert hint in str(error.value)
    assert path in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_study_has_a_suggestion():
    with pytest.raises(InputError, match=r"E-STUDY-UNKNOWN: .*Did you mean 'study1'\?"):
        load_study("stud1")
    assert {load_study(name).name for name in study_names()} == set(study_names())
    assert load_study("smoke").model == "demo"


def test_command_line_overrides_the_file():
    study = narrow(load_study("study2"), tasks=["rte", "cb"], seeds=[2, 1, 2], limit=9, settings={"jsd-weight": "0"})
    assert (study.tasks, study.cross, study.seeds, study.limit) == (("rte", "cb"), ("rte",), (2, 1), 9)
    assert study.settings.of("f2c", "rte") == {"jsd_weight": "0"}


@pytest.mark.parametrize(
    "wrong",
    [
        {"tasks": ["rt"]},
        {"methods": ["f2"]},
        {"seeds": ()},
        {"seeds": [0, -1]},
        {"seeds": [2**32]},
        {"settings": {"seed": "1"}},
    ],
    ids=str,
)
def test_invalid_option_has_a_code(wrong):
    with pytest.raises(InputError, match="E-STUDY-VALUE") as error:
        narrow(load_study("study2"), **wrong)
    assert "\n" not in str(error.value)
    # Every seed that NumPy takes is one.
    assert narrow(load_study("study2"), seeds=[0, 2**32 - 1]).seeds == (0, 2**32 - 1)


def test_later_layers_of_settings_win():
    all_four = {"a": 1, "b": 1, "c": 1, "d": 1}
    layers = Settings(all_four, {"cce": {"b": 2, "c": 2, "d": 2}}, {"rte": {"c": 3, "d": 3}}, {"d": 4})
    assert layers.of("cce", "rte") == {"a": 1, "b": 2, "c": 3, "d": 4}
    assert layers.of("f2c", "cb") == {"a": 1, "b": 1, "c": 1, "d": 4}
