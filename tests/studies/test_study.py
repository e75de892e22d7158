"""Study files are validated; their grid has the paper's training runs and audits; settings have layers."""

import statistics
from collections import Counter

import pytest

from flip_flop import F2CConfig
from flip_flop.paper.data.catalog import catalog_names
from flip_flop.paper.study import GridCell, Study, Subsets, expand, load_study, narrow, release_settings, study_names
from flip_flop.tasks.loading import embedded_task
from flip_flop.training.config import make_config
from tests.cases import read_list
from tests.refused import refused

QWEN, LLAMA = "Qwen/Qwen2.5-3B-Instruct", "meta-llama/Llama-3.2-3B-Instruct"
SOURCES_OF_TRANSFER = {"anli_r1", "anli_r2", "anli_r3", "rte", "copa", "hellaswag", "storycloze", "winogrande"}
GOOD = """\
name: mine
tasks: [rte, tasks/mine.yaml]
methods: [base, f2c]
seeds: [3, 5]
template_subsets:
  rte: {train_first: [2, all], held_out: [plain, terse]}
settings:
  learning_rate: 1e-4
  methods: {f2c: {learning_rate: 2e-4, jsd-weight: 0.5}}
  tasks: {tasks/mine.yaml: {learning_rate: 3e-4}}
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


def load(folder, text):
    (folder / "mine.yaml").write_text(text)
    return load_study(str(folder / "mine.yaml"))


def test_study_file_is_read(tmp_path):
    study = load(tmp_path, GOOD)
    assert (study.tasks, study.methods, study.seeds) == (("rte", "tasks/mine.yaml"), ("base", "f2c"), (3, 5))
    assert study.template_subsets["rte"] == Subsets(train_first=(2, None), held_out=("plain", "terse"))
    assert (study.limit, study.split, study.cross, study.model) == (7, "validation", None, None)
    assert study.task_reference("tasks/mine.yaml") == str(tmp_path / "tasks" / "mine.yaml")
    paper = {"protocol": "paper", "method": "f2c", "jsd_weight": 0.5}
    assert study.settings_of("f2c", "rte", QWEN) == paper | {"learning_rate": "2e-4"}
    assert study.settings_of("f2c", "tasks/mine.yaml", QWEN) == paper | {"learning_rate": "3e-4"}
    assert study.settings_of("base", "rte", QWEN) == {"learning_rate": "1e-4"}
    assert narrow(study, tasks=["mine"]).tasks == ("tasks/mine.yaml",)


def test_later_layers_of_settings_win(tmp_path):
    study = load(tmp_path, ABLATION)
    paper = {"protocol": "paper", "method": "f2c", "learning_rate": 1}
    assert study.settings_of("frozen", "rte", QWEN) == paper | {"votes": "frozen", "lora_r": 2}
    wide = {"votes": "online", "lora_r": 4, "lora_alpha": 8, "lora_dropout": 0}
    assert study.settings_of("wide", "rte", QWEN) == paper | wide
    assert study.settings_of("f2c", "rte", QWEN) == paper | {"votes": "online", "lora_r": 2}
    given = narrow(study, methods=["wide"], settings={"lora-r": "9"})
    assert (given.methods, given.settings_of("wide", "rte", QWEN)["lora_r"]) == (("wide",), "9")
    assert load(tmp_path, ABLATION.replace("methods: [", "# [")).methods[-2:] == ("frozen", "wide")


@pytest.mark.parametrize("case", read_list("studies/invalid_studies.yaml", "hint"))
def test_invalid_study_file_is_refused_in_one_line(tmp_path, case):
    text = {"GOOD": GOOD, "ABLATION": ABLATION}[case["file"]]
    assert case["old"] in text
    line = refused("E-STUDY: ", load, tmp_path, text.replace(case["old"], case["new"]))
    assert case["hint"] in line
    assert str(tmp_path / "mine.yaml") in line


def test_settings_of_a_custom_method_apply_to_its_variants(tmp_path):
    reference = "tests.training.test_own_method:WORST"
    text = ABLATION.replace("f2c: {votes", f'"{reference}": {{votes').replace(
        "method: f2c, lora-r", f'method: "{reference}", lora-r'
    )
    study = load(tmp_path, text)
    assert study.settings_of("wide", "rte", QWEN)["votes"] == "online"
    assert narrow(study, methods=["base"]).methods == ("base",)


def test_task_may_be_a_set_of_promptsource():
    task = "promptsource:super_glue/rte"
    study = Study(name="mine", tasks=(task, "tasks/mine.yaml"), folder="/studies")
    assert [*map(study.task_reference, study.tasks)] == [task, "/studies/tasks/mine.yaml"]


def test_ambiguous_name_of_a_task_file_is_refused():
    study = Study(name="mine", tasks=("a/task.yaml", "b/task.yaml", "b/other.yaml"))
    refused(r"E-STUDY: --tasks, study mine: there is no 'task'\..* a/task.yaml, ", narrow, study, tasks=["task"])
    assert narrow(study, tasks=["b/task.yaml", "other"]).tasks == study.tasks[1:]


def test_unknown_study_has_a_suggestion():
    refused(r"E-STUDY: .*Did you mean 'study1'\?", load_study, "stud1")
    assert {load_study(name).name for name in study_names()} == set(study_names())


@pytest.mark.parametrize(
    "wrong",
    [{"tasks": ["rt"]}, {"methods": ["f2"]}, {"seeds": ()}, {"seeds": [0, 2**32]}, {"settings": {"protocol": "paper"}}],
    ids=str,
)
def test_invalid_option_is_refused(wrong):
    refused("E-STUDY", narrow, load_study("study2"), **wrong)


# ---- the grid ----


def grid(study):
    """Its training runs and its audits."""
    cells = expand(load_study(study) if isinstance(study, str) else study)
    return [[cell for cell in cells if cell.kind == kind] for kind in ("train", "audit")]


def test_study_1_has_four_methods_on_eleven_datasets():
    trainings, audits = grid("study1")
    assert (len(trainings), len(audits)) == (33, 44)
    assert Counter(cell.method for cell in audits) == dict.fromkeys(("base", "swarm", "cce", "f2c"), 11)
    assert {cell.task for cell in audits} == set(catalog_names())
    assert list(map(len, grid(narrow(load_study("study1"), seeds=[0, 1, 2])))) == [99, 110]


def test_study_2_has_eight_sources_with_ten_targets():
    trainings, audits = grid("study2")
    pairs = [(cell.training.task, cell.task) for cell in audits if cell.training is not None]
    assert (len(pairs), len(set(pairs)), len(trainings), len(audits)) == (80, 80, 8, 91)
    assert Counter(source for source, _ in pairs) == dict.fromkeys(SOURCES_OF_TRANSFER, 10)
    assert all(source != target for source, target in pairs)


def test_study_3_trains_on_k_templates_and_audits_five():
    trainings, audits = grid("study3")
    anli = {(f"anli_r{number}", k) for number in (1, 2, 3) for k in (5, 10, None)}
    assert {(cell.task, cell.templates) for cell in trainings} == {("rte", 5), ("rte", None)} | anli
    assert {cell.templates for cell in audits} == {5}
    assert Counter(cell.method for cell in audits) == {"base": 4, "f2c": 11}


def test_studies_share_training_runs():
    cell = GridCell("train", "f2c", "rte", seed=0)
    assert all(cell in grid(name)[0] for name in ("study1", "study2", "study3"))
    assert set(grid("study2")[0]) < set(grid("study1")[0])
    assert set(grid("base_spread")[1]) < set(grid("study1")[1])


def test_audited_templates_are_all_seen_or_all_unseen():
    task = embedded_task()  # 11 templates, of which the last 3 are never trained on
    names = task.templates.names

    def trained(first=None, name="demo"):
        return GridCell("train", "f2c", name, first, 0)

    def audited(held_out=None, training=None):
        return GridCell("audit", "f2c", "demo", held_out, training=training)

    for cell, expected in (
        (trained(), names[:8]),
        (audited(), names[:8]),
        (trained(3), names[:3]),
        (audited(2), names[9:]),
        (audited(("thumbs", "sentiment")), ("thumbs", "sentiment")),
        (audited(5, trained(6)), names[6:]),
        (audited(names[2:5], trained(6)), names[2:5]),
        (audited(5, trained(name="other")), names[6:]),
    ):
        assert cell.template_names(task) == expected
    for cell in (
        trained(9),
        audited(12),
        audited(5, trained(7)),
        audited(4, trained()),
        audited(names[3:5], trained(4)),
    ):
        refused(r"E-STUDY: .*(fewer than the|1 of the \d templates of held_out)", cell.template_names, task)


@pytest.mark.parametrize("tasks", [["rte"], ["wsc", "cb"]])
def test_pairs_without_training_task_are_refused(tasks):
    study = narrow(load_study("study2"), tasks=tasks)
    refused(r"E-STUDY: .*none of these tasks is trained on", expand, study)
    assert len(expand(narrow(study, methods=["base"]))) == len(tasks)


# ---- the release's settings ----


def test_protocol_release_has_settings_per_dataset_below_all_others():
    study = narrow(load_study("study1"), protocol="release", settings={"jsd_weight": 0.2, "vocab_weight": 0.5})
    cce, f2c = (make_config(study.settings_of(method, "rte", QWEN)) for method in ("cce", "f2c"))
    assert (cce.cce_weight, f2c.cce_weight, f2c.flip_temperature) == (0.1, 0.4, 2.2)
    assert (f2c.jsd_weight, f2c.vocab_weight, f2c.method, f2c.vote_pass) == (0.2, 0.5, "f2c_release", "separate")
    by_name = study.settings_of("f2c_release", "rte", QWEN)
    assert by_name | {"method": "f2c"} == study.settings_of("f2c", "rte", QWEN)
    assert study.settings_of("swarm", "rte", QWEN)["protocol"] == "release"


@pytest.mark.parametrize("name", study_names())
def test_a_study_of_a_few_tasks_is_read_again_from_its_plan(name):
    study = load_study(name)
    few = narrow(study, tasks=study.tasks[-1:])
    assert Study.model_validate_json(few.model_dump_json()) == few


def test_defaults_of_the_release_are_medians_of_its_weights():
    weights = [settings["f2c"] for settings in release_settings(QWEN).values()]
    assert len(weights) == 11
    config = F2CConfig(protocol="release")
    for name in weights[0]:
        assert getattr(config, name) == statistics.median(settings[name] for settings in weights), name


def test_models_differ_only_in_wic():
    qwen, llama = release_settings(QWEN), release_settings(LLAMA)
    assert {key for key in qwen if qwen[key] != llama[key]} == {"wic"}
    assert (qwen["wic"]["f2c"]["unanimous_margin"], llama["wic"]["f2c"]["unanimous_margin"]) == (12.0, 0.65)


@pytest.mark.parametrize(
    ("path", "family"),
    [
        ("/hub/models--meta-llama--Llama-3.2-3B-Instruct/snapshots/0cb88a4f", LLAMA),
        ("/llama/models--Qwen--Qwen2.5-3B-Instruct/snapshots/aa8e7253", QWEN),
        ("/models/other", QWEN),
    ],
)
def test_release_settings_of_a_local_folder(path, family):
    assert release_settings(path) == release_settings(family)
