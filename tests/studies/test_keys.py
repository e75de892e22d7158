"""The digest of a cell: it contains exactly the inputs that decide the result."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flip_flop.errors import InputError
from flip_flop.paper import digests as keys_module
from flip_flop.paper.folder import StudyFolder, load_plan
from flip_flop.paper.local import LocalRun
from flip_flop.paper.study import MethodVariant, Settings, Subsets, narrow
from flip_flop.paper.study_file import load_study
from flip_flop.paper.units import Setup
from tests.studies.plans import DEMO, SHORT, keys, plan, small, write_task
from tests.studies.running import here, write_study

CELLS = {"train cce-clear_hotel_reviews-seed0", "audit cce-clear_hotel_reviews-seed0", "audit base-clear_hotel_reviews"}


@pytest.fixture(scope="module")
def first():
    return keys()


def changed(first, found) -> set[str]:
    return {name for name, key in first.items() if found.get(name) != key}


def of(*layers, **changes):
    return small(settings=Settings(*layers), **changes)


@pytest.mark.parametrize(
    ("study", "differ"),
    [
        (small(), ()),
        (small(name="other", description="another one"), ()),
        (small(tasks=("demo_remarks", "demo_clear"), seeds=(1, 0), methods=("base", "swarm", "cce")), ()),
        (of(SHORT | {"logging_steps": 2, "report_to": "none"}), ()),
        (of(SHORT | {"learning_rate": "3e-4", "cce-weight": 1}), ()),  # the defaults, spelt out
        (of({}, {"cce": SHORT}, {}, {"max_steps": "2"}), ()),
        (of(SHORT | {"adam_beta2": 0.999, "eval_delay": 0}), ()),  # the library's defaults
        (of(SHORT | {"batch_tokens": 512, "per_device_eval_batch_size": 3}), ()),
        (of(SHORT | {"torch_empty_cache_steps": 4}), ()),
        (of(SHORT, {"swarm": {"lora_r": 3}}), ()),
        (of(SHORT | {"learning_rate": 2e-4}), ("train", "audit cce")),
        (of(SHORT | {"adam_beta2": 0.9}), ("train", "audit cce")),
        (of(SHORT, {"cce": {"lora_r": 3}}), ("train", "audit cce")),
        (of(SHORT | {"chat_template": "off"}), ("train", "audit")),
        (of(SHORT | {"backend": "padded"}), ("train", "audit")),
        (small(limit=23), ("train", "audit")),
        (small(split="validation"), ("audit",)),
        (small(seeds=(1,)), ("train", "audit cce")),
    ],
)
def test_digests_change_only_with_deciding_settings(first, study, differ):
    assert set(first) == CELLS
    assert len(set(first.values())) == 3
    assert changed(first, keys(study)) == {name for name in CELLS if name.startswith(differ or "none")}


def test_model_and_dtype_change_every_digest(first, tmp_path):
    assert changed(first, keys(setup=replace(DEMO, dtype="bfloat16"))) == CELLS
    for name, content in (("config.json", "{}"), ("model.safetensors", "weights")):
        (tmp_path / name).write_text(content)
    here = keys(setup=Setup(str(tmp_path)))
    assert changed(first, here) == CELLS
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copy / name).write_bytes((tmp_path / name).read_bytes())
    assert keys(setup=Setup(str(copy))) == here
    (tmp_path / "model.safetensors").write_text("Weights")
    assert changed(here, keys(setup=Setup(str(tmp_path)))) == CELLS
    hub = keys(setup=Setup("owner/model"))
    assert changed(hub, keys(setup=Setup("owner/model", "a1" * 20))) == CELLS


def test_digests_are_stable(tmp_path):
    """Digests of the smoke study."""
    expected = {
        "audit base-hotel_reviews": "fb55d3da989d2022584c19fa260f944d803c7b0417fc9324e095522a021df983",
        "train swarm-hotel_reviews-seed0": "8475482f5147782e8d0accb3731e2a6ed654cd1551df0a5a365a50d276e3f9a5",
        "audit swarm-hotel_reviews-seed0": "2fb26b1a23db06e2c42bd9e8377556d5b326b247e53db25fb15e5b71ef948bcb",
    }
    made = plan(narrow(load_study("smoke"), tasks=["demo"], methods=["base", "swarm"]), Setup("demo", dtype="float32"))
    assert {f"{cell.kind} {cell.label}": cell.key for cell in made.cells} == expected
    folder = StudyFolder(tmp_path)
    base = made.cells[0]
    folder.run(base).mkdir(parents=True)
    (folder.run(base) / "run.json").write_text('{"kind": "audit"}')
    (folder.run(base) / "cell.json").write_text(json.dumps({"key": expected["audit base-hotel_reviews"]}))
    assert [folder.is_done(cell) for cell in made.cells] == [True, False, False]


def test_unit_is_a_training_run_with_its_audits():
    made = plan(small(tasks=("demo_clear", "demo_remarks", "demo"), cross=("demo_clear", "demo_remarks")))
    assert [(unit.training is None, len(unit.audits)) for unit in made.units] == [(True, 1)] * 3 + [(False, 2)] * 2
    assert [cell for unit in made.units for cell in unit.cells] == list(made.cells)
    assert [unit.name for unit in made.units] == [cell.name for cell in made.cells if cell.training is None]


HUB_TASK = """\
name: tickets
data: {train: {repo: a/b, split: train}, test: {repo: a/b, split: test}}
label_field: label
labels: [0, 1]
templates:
  - {name: short, jinja: "{{ text }}?", answer_choices: "No ||| Yes"}
  - {name: long, jinja: "Is this so? {{ text }}", answer_choices: "No ||| Yes"}
"""


def test_digest_uses_content_of_hub_rows(tmp_path, monkeypatch):
    path = tmp_path / "task.yaml"
    path.write_text(HUB_TASK)
    monkeypatch.delenv("FLIP_FLOP_HUB_MIRROR", raising=False)
    words = "It works"

    def load_dataset(*arguments, split, **more):
        return [{"text": f"{words} {split} {number}", "label": number % 2} for number in range(12)]

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    found = []
    for commit in ("a" * 40, "b" * 40, None):  # None: a node that the hub does not answer
        monkeypatch.setattr("flip_flop.tasks.sources._commit", lambda repo, revision, answer=commit: answer)
        found.append(set(keys(small(tasks=(str(path),))).values()))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == 3
    for split in ("train", "test"):
        file = tmp_path / "mirror" / "a" / "b" / "default" / f"{split}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist(load_dataset(split=split)), file)
    mirrored = replace(DEMO, hub_mirror=str(tmp_path / "mirror"))
    assert set(keys(small(tasks=(str(path),)), mirrored).values()) == found[0]
    words = "It does not work"
    assert not set(keys(small(tasks=(str(path),))).values()) & found[0]


def test_missing_revision_is_resolved(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def found(revision=None):
        return plan(setup=Setup("owner/model", revision))

    unknown = found()
    assert unknown.setup.revision is None
    shas = {"main": "e" * 40, "v1.0": "f" * 40}
    api = SimpleNamespace(model_info=lambda name, revision, timeout: SimpleNamespace(sha=shas[revision]))
    monkeypatch.setattr("huggingface_hub.HfApi", lambda: api)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    session = SimpleNamespace(head=lambda address, timeout: SimpleNamespace(status_code=200))
    monkeypatch.setattr("huggingface_hub.utils.get_session", lambda: session)
    assert (found().setup.revision, found("v1.0").setup.revision) == ("e" * 40, "f" * 40)
    main = tmp_path / "models--owner--model" / "refs" / "main"
    main.parent.mkdir(parents=True)
    main.write_text("c" * 40)
    cached = found()
    assert cached.setup.revision == cached.model_identity["revision"] == "c" * 40
    assert cached.cells == found("c" * 40).cells == found("main").cells
    main.write_text("d" * 40)
    later = {cell.key for cell in found().cells}
    assert not later & {cell.key for cell in (*cached.cells, *unknown.cells)}


@pytest.mark.parametrize(
    ("options", "has_gpu", "dtype"),
    [
        ((), True, "bfloat16"),
        (("--device", "cpu"), True, "float32"),
        (("--device", "cuda"), False, "bfloat16"),
        (("--gpus", "0"), True, "float32"),
        (("--gpus", "1"), False, "bfloat16"),
        (("--dtype", "float16"), True, "float16"),
    ],
)
def test_auto_dtype_is_resolved_for_all_units(tmp_path, monkeypatch, capsys, options, has_gpu, dtype):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    study, out = write_study(tmp_path), tmp_path / "out"
    here("run", study, "--methods", "base", "--out", out, "--export", tmp_path / "list", *options)
    assert json.loads((out / "small" / "study.json").read_text())["setup"]["dtype"] == dtype
    assert f"in {dtype}." in (tmp_path / "list").read_text()


def test_export_without_gpu_requires_dtype(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(LocalRun, "run", lambda self, plan, quiet: [])
    study = write_study(tmp_path)
    with pytest.raises(InputError, match=r"E-MODEL-DTYPE: --export .* Give --device cpu or cuda, or --dtype\."):
        here("run", study, "--out", tmp_path / "out", "--export", tmp_path / "list")
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
    here("run", study, "--out", tmp_path / "out")
    assert load_plan(tmp_path / "out" / "small" / "study.json").setup.dtype == "float32"


def test_digest_uses_content_of_task_files(tmp_path):
    def of_tasks(*paths):
        return set(keys(small(tasks=tuple(map(str, paths)))).values())

    before = of_tasks(write_task(tmp_path / "a"))
    assert len(before) == 3
    assert of_tasks(write_task(tmp_path / "b")) == before
    for number, change in enumerate(({"prompt": "{{ text }}!"}, {"shift": 1}, {"name": "others"})):
        assert not of_tasks(write_task(tmp_path / f"c{number}", **change)) & before
    with pytest.raises(InputError, match=r"E-STUDY-TASK: .*are both named 'tickets'"):
        of_tasks(tmp_path / "a" / "task.yaml", tmp_path / "c1" / "task.yaml")
    # An instance's name decides which ones a limit keeps.
    named = write_task(tmp_path / "d")
    named.write_text("id_field: text\n" + named.read_text())
    assert not of_tasks(named) & before


def test_digest_uses_training_templates_only(first):
    made = plan(small(template_subsets={"demo_clear": Subsets((3, None), ("feeling", "recommended"))}))
    # Under which label, on which templates, and whether all of these are new to it.
    said = {f"{cell.kind} {cell.label}": (cell.templates, cell.held_out) for cell in made.cells}
    own, held_out = keys_module.open_task("demo_clear", DEMO).training_templates.names, ("feeling", "recommended")
    assert said == {
        "train cce-clear_hotel_reviews-seed0-first3": (own[:3], False),
        "train cce-clear_hotel_reviews-seed0": (own, False),
        "audit base-clear_hotel_reviews-2templates": (held_out, True),
        "audit cce-clear_hotel_reviews-seed0-first3-on-2templates": (held_out, True),
        "audit cce-clear_hotel_reviews-seed0-on-2templates": (held_out, False),
    }
    everything = keys(small(template_subsets={"demo_clear": Subsets((3, 5, None), 3)}))
    assert set(everything) == {name.replace("-2templates", "-last3") for name in said}
    assert everything["train cce-clear_hotel_reviews-seed0"] == first["train cce-clear_hotel_reviews-seed0"]


def test_studies_share_adapters(made):
    setup = Setup("owner/model", hub_mirror=str(made.mirror), story_cloze_dir=str(made.stories))
    study1, study2, study3 = (
        plan(replace(load_study(name), template_subsets={}), setup) for name in ("study1", "study2", "study3")
    )
    trained = {cell.key for cell in study1.trainings}
    assert (len(trained), len({cell.key for cell in study1.audits})) == (33, 44)
    assert {cell.key for cell in study2.trainings} < trained
    assert {cell.key for cell in study3.trainings} < trained
    folders = {cell.key: cell.folder for cell in study1.trainings}
    assert all(folders[cell.key] == cell.folder for cell in (*study2.trainings, *study3.trainings))
    cross = [cell.key for cell in study2.audits if cell.training is not None]
    assert (len(cross), len(set(cross))) == (80, 80)


def test_error_names_the_option_without_an_unavailable_dataset(made, monkeypatch):
    setup = Setup("owner/model", hub_mirror=str(made.mirror))
    study = narrow(load_study("study1"), tasks=["storycloze", "cb", "rte"])
    with pytest.raises(InputError, match=r"E-DATA-STORYCLOZE: .* Or leave it out: --tasks cb,rte\.$"):
        plan(study, setup)
    assert plan(narrow(study, tasks=["cb", "rte"]), setup).cells
    with pytest.raises(InputError, match=r"E-DATA-STORYCLOZE: .* CSV files\.$"):
        plan(narrow(study, tasks=["storycloze"]), setup)
    monkeypatch.delenv("FLIP_FLOP_PROMPTSOURCE")  # all datasets need the templates
    with pytest.raises(InputError, match="E-TPL-FETCH: ") as error:
        plan(narrow(study, tasks=["cb", "rte"]), setup)
    assert "--tasks" not in str(error.value)


def test_settings_are_validated_before_loading(monkeypatch):
    monkeypatch.setattr(keys_module, "open_task", None)
    study = small(settings=Settings({}, {"cce": {"learning_rat": 1}}))
    with pytest.raises(InputError, match=r"E-CONFIG-KEY: .*'learning_rat' in study small\. Did you mean 'learning_rat"):
        plan(study)


def test_plan_round_trip(tmp_path):
    subsets = {"demo_clear": Subsets((2, None), ("feeling", "recommended"))}
    study = small(template_subsets=subsets, settings=Settings(SHORT | {"bf16": True}))  # on a node without a GPU, too
    written = plan(study)
    path = StudyFolder(tmp_path).write_plan(written)
    assert load_plan(path) == written
    assert StudyFolder(tmp_path).read_study(study) == written
    path.write_text("{}")
    with pytest.raises(InputError, match="E-STUDY-BROKEN"):
        load_plan(path)
    with pytest.raises(InputError, match=r"E-STUDY-MISSING: .* There: small\."):
        StudyFolder(tmp_path).read_study(load_study("study1"))
    assert Path(path).parent == tmp_path / "small" / "plans"


def test_equal_variants_share_a_training_run():
    variants = {name: MethodVariant("cce", name, "#000000") for name in ("same", "other")}
    settings = Settings(SHORT, {"other": {"lora_r": 3}})
    study = small(methods=("base", "cce", "same", "other"), variants=variants, settings=settings)
    made = plan(study)
    assert [cell.label for cell in made.trainings] == [f"{m}-clear_hotel_reviews-seed0" for m in ("cce", "other")]
    assert keys(study).items() >= keys().items()
    _, cce, same, other = made.audits
    assert (cce.method, same.method, cce.folder) == ("cce", "same", same.folder)
    assert other.key != cce.key
    assert [len(unit.cells) for unit in made.units] == [1, 3, 2]
    assert made.trainings[1].settings["method"] == "cce"


def test_eval_limit_changes_training_digests(first):
    assert changed(first, keys(small(eval_limit=3))) == {name for name in CELLS if "cce" in name}


def test_audit_held_out_adds_audits(tmp_path):
    task, without = (
        str(write_task(tmp_path / a, name=a, held_out=h)) for a, h in (("tickets", ["t1", "t3"]), ("b", ()))
    )
    made = plan(small(tasks=(task, without), audit_held_out=True))
    audited = [(cell.method, cell.task_name, cell.templates) for cell in made.audits if cell.task == task]
    assert audited == [(m, "tickets", names) for m in ("base", "cce") for names in (("t0", "t2"), ("t1", "t3"))]
    assert [cell.held_out for cell in made.audits] == [False, True, False, True, False, False]
    assert made.trainings[0].templates == ("t0", "t2")
    path = StudyFolder(tmp_path / "studies").write_plan(made)
    assert load_plan(path) == made
