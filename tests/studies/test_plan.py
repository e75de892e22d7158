"""Plans: the digest of a cell contains exactly the inputs that decide the result. Files and lists of plans."""

import functools
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flip_flop.paper import cli
from flip_flop.paper.folder import StudyFolder, load_plan
from flip_flop.paper.plan import Setup
from flip_flop.paper.study import load_study, narrow
from tests.refused import refused
from tests.studies.small_studies import DEMO, LONG, SHORT, here, keys, plan, small, write_study, write_task

CELLS = {"train cce-clear_hotel_reviews-seed0", "audit cce-clear_hotel_reviews-seed0", "audit base-clear_hotel_reviews"}


@pytest.fixture(scope="module")
def first():
    return keys()


def changed(first, later) -> set[str]:
    return {name for name, key in first.items() if later.get(name) != key}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("study", "differ"),
    [
        (small(name="other", description="another one"), ()),
        (small(tasks=("demo_remarks", "demo_clear"), seeds=(1, 0), methods=("base", "swarm", "cce")), ()),
        (small(SHORT | {"logging_steps": 2, "report_to": "none"}), ()),
        (small(SHORT | {"learning_rate": "3e-4", "cce-weight": 1}), ()),  # the defaults, spelt out
        (small({}, settings={"methods": {"cce": SHORT}}, override={"max_steps": "2"}), ()),
        (small(SHORT | {"adam_beta2": 0.999, "eval_delay": 0}), ()),  # the library's defaults
        (small(SHORT | {"batch_tokens": 512, "per_device_eval_batch_size": 3, "torch_empty_cache_steps": 4}), ()),
        (small(settings={"methods": {"swarm": {"lora_r": 3}}}), ()),
        (small(shard="fsdp"), ()),
        (small(SHORT | {"learning_rate": 2e-4}), ("train", "audit cce")),
        (small(SHORT | {"adam_beta2": 0.9}), ("train", "audit cce")),
        (small(settings={"methods": {"cce": {"lora_r": 3}}}), ("train", "audit cce")),
        (small(SHORT | {"chat_template": "off"}), ("train", "audit")),
        (small(SHORT | {"backend": "padded"}), ("train", "audit")),
        (small(limit=23), ("train", "audit")),
        (small(eval_limit=3), ("train", "audit cce")),
        (small(split="validation"), ("audit",)),
        (small(seeds=(1,)), ("train", "audit cce")),
        (small(protocol="release"), ("train", "audit")),  # a prompt's values are cut, too
    ],
)
def test_digests_change_only_with_deciding_settings(first, study, differ):
    assert set(first) == CELLS
    assert changed(first, keys(study)) == {name for name in CELLS if name.startswith(differ or "none")}


def test_edited_code_of_a_method_is_another_training(first, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    code = tmp_path / "studied_method.py"
    code.write_text(
        "from flip_flop.method import Method\n\n\ndef loss(*_): ...\n\n\nOWN = Method('own', 'Own', '#000000', loss)\n"
    )
    study = small(methods=("base", "cce", "studied_method:OWN"))
    before, again = keys(study), keys(study)
    assert before == again
    assert changed(first, before) == set()
    code.write_text(code.read_text().replace("...", "pass"))
    own = {f"{kind} studied_method_OWN-clear_hotel_reviews-seed0" for kind in ("train", "audit")}
    assert changed(before, keys(study)) == set(before) - CELLS == own


def test_model_and_dtype_change_every_digest(first, tmp_path):
    assert changed(first, keys(setup=replace(DEMO, dtype="bfloat16"))) == CELLS
    folders = [tmp_path / name for name in ("model", "copy", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights" if folder.name != "other" else "Weights")
    here, copy, other = (keys(setup=Setup(str(folder))) for folder in folders)
    assert here == copy
    assert changed(first, here) == changed(here, other) == CELLS
    hub = keys(setup=Setup("owner/model"))
    assert changed(hub, keys(setup=Setup("owner/model", "a1" * 20))) == CELLS


def test_digests_are_stable():
    expected = {
        "audit base-hotel_reviews": "a9c962fc755aeff5c2a3028dac1fc28320c4273a66f12f555f827798a2ece34c",
        "train swarm-hotel_reviews-seed0": "5a3acfad4cb1fb4c362ddcacf3a3419b3cd7592ddf88c0273b921813bf66cd32",
        "audit swarm-hotel_reviews-seed0": "52c13c9a929715211130d8a96f486856c772181d5af1f4f7540475f14996a3b9",
    }
    study = narrow(load_study("smoke"), tasks=["demo"], methods=["base", "swarm"])
    made = plan(study, Setup("demo", dtype="float32"))
    assert {f"{cell.kind} {cell.label}": cell.key for cell in made.cells} == expected


def test_digest_uses_content_of_hub_rows(tmp_path):
    hub = "name: tickets\ndata: {train: {repo: a/b}, test: {repo: a/b}}\n"

    def keys_of(words):
        task = write_task(tmp_path)
        task.write_text(hub + task.read_text().partition('csv"}\n')[2])
        for split in ("train", "test"):
            file = tmp_path / words / "a" / "b" / "default" / f"{split}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            rows = [{"text": f"{words} {split} {number}", "label": number % 2} for number in range(12)]
            pq.write_table(pa.Table.from_pylist(rows), file)
        return set(keys(small(tasks=(str(task),)), replace(DEMO, hub_mirror=str(tmp_path / words))).values())

    before = keys_of("works")
    (tmp_path / "works").rename(tmp_path / "moved")
    moved = keys(small(tasks=(str(tmp_path / "task.yaml"),)), replace(DEMO, hub_mirror=str(tmp_path / "moved")))
    assert set(moved.values()) == before
    assert not keys_of("fails") & before


def test_missing_revision_is_resolved_in_the_hubs_cache(tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    unknown = plan(setup=Setup("owner/model"))
    assert unknown.setup.revision is None
    main = tmp_path / "models--owner--model" / "refs" / "main"
    main.parent.mkdir(parents=True)
    main.write_text("c" * 40)
    cached = plan(setup=Setup("owner/model"))
    assert cached.setup.revision == cached.model_identity["revision"] == "c" * 40
    assert cached.cells == plan(setup=Setup("owner/model", "c" * 40)).cells
    assert not {cell.key for cell in cached.cells} & {cell.key for cell in unknown.cells}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "has_gpu", "dtype"),
    [
        ((), True, "bfloat16"),
        (("--device", "cpu"), True, "float32"),
        (("--device", "cuda"), False, "bfloat16"),
        (("--gpus", "0"), True, "float32"),
        (("--gpus", "1"), False, "bfloat16"),
        (("--dtype", "float16"), True, "float16"),
        ((), False, None),
    ],
)
def test_auto_dtype_is_resolved_for_all_units(tmp_path, monkeypatch, options, has_gpu, dtype):
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    arguments = ("run", write_study(tmp_path), "--methods", "base", "--out", tmp_path / "out", *options)
    if dtype is None:
        refused(
            r"E-MODEL-DEVICE: --export .* Give --device cpu or cuda, or --dtype\.",
            here,
            *arguments,
            "--export",
            tmp_path / "list",
        )
        return
    here(*arguments, "--export", tmp_path / "list")
    assert load_plan(tmp_path / "out" / "small" / "study.json").setup.dtype == dtype
    assert f"in {dtype}." in (tmp_path / "list").read_text()


@pytest.mark.parametrize(
    "change", [{}, {"prompt": "{{ text }}!"}, {"shift": 1}, {"name": "others"}, {"id_field": "text"}]
)
def test_digest_uses_content_of_task_files(tmp_path, change):
    first, other = write_task(tmp_path / "a"), write_task(tmp_path / "b", **change)
    before, after = (set(keys(small(tasks=(str(path),))).values()) for path in (first, other))
    assert (len(before), len(before & after)) == (3, 0 if change else 3)


def test_tasks_of_one_name_are_refused(tmp_path):
    paths = [str(write_task(tmp_path / name)) for name in ("a", "b")]
    refused(r"E-STUDY: .*are both named 'tickets'", plan, small(tasks=tuple(paths)))


def test_labels_name_the_templates(first):
    subsets = {"demo_clear": {"train_first": (3, None), "held_out": ("feeling", "recommended")}}
    made = plan(small(template_subsets=subsets))
    cells = {f"{cell.kind} {cell.label}": (cell.templates, cell.held_out) for cell in made.cells}
    trainable, held_out = plan().trainings[0].templates, ("feeling", "recommended")
    assert cells == {
        "train cce-clear_hotel_reviews-seed0-first3": (trainable[:3], False),
        "train cce-clear_hotel_reviews-seed0": (trainable, False),
        "audit base-clear_hotel_reviews-2templates": (held_out, True),
        "audit cce-clear_hotel_reviews-seed0-first3-on-2templates": (held_out, True),
        "audit cce-clear_hotel_reviews-seed0-on-2templates": (held_out, False),
    }
    last = keys(small(template_subsets={"demo_clear": {"train_first": (3, 5, None), "held_out": 3}}))
    assert set(last) == {name.replace("-2templates", "-last3") for name in cells}
    assert last["train cce-clear_hotel_reviews-seed0"] == first["train cce-clear_hotel_reviews-seed0"]


def test_held_out_templates_have_audits_of_their_own(tmp_path):
    task = str(write_task(tmp_path / "a", held_out_templates=["t1", "t3"]))
    without = str(write_task(tmp_path / "b", name="b"))
    made = plan(small(tasks=(task, without), audit_held_out=True))
    audited = [(cell.method, cell.templates) for cell in made.audits if cell.task == task]
    assert audited == [(method, names) for method in ("base", "cce") for names in (("t0", "t2"), ("t1", "t3"))]
    assert [cell.held_out for cell in made.audits] == [False, True, False, True, False, False]
    assert made.trainings[0].templates == ("t0", "t2")


def test_a_unit_is_a_training_run_with_its_audits_and_equal_variants_share_it():
    variants = {"same": {"method": "cce"}, "other": {"method": "cce", "lora_r": 3}}
    study = small(methods=("base", "cce", "same", "other"), variants=variants)
    made = plan(study)
    assert [cell.label for cell in made.trainings] == [f"{m}-clear_hotel_reviews-seed0" for m in ("cce", "other")]
    assert keys(study).items() >= keys().items()
    _, cce, same, other = made.audits
    assert (cce.method, same.method, cce.folder) == ("cce", "same", same.folder)
    assert other.key != cce.key
    assert [len(unit.cells) for unit in made.units] == [1, 3, 2]
    assert made.trainings[1].settings["method"] == "cce"


def test_unavailable_dataset_is_left_out_by_an_option(made, monkeypatch):
    setup = Setup("owner/model", hub_mirror=str(made.mirror))
    study = narrow(load_study("study1"), tasks=["storycloze", "cb", "rte"])
    refused(r"E-DATA-FILE: .* Or leave it out: --tasks cb,rte\.$", plan, study, setup)
    paper, release = (plan(narrow(study, tasks=["cb"], protocol=name), setup) for name in ("paper", "release"))
    assert {cell.key for cell in paper.cells}.isdisjoint(cell.key for cell in release.cells)


# ---- the folder ----


def test_plan_is_read_as_written(tmp_path):
    subsets = {"demo_clear": {"train_first": (2, None), "held_out": ("feeling", "recommended")}}
    study = small(SHORT | {"bf16": True}, template_subsets=subsets)  # on a node without a GPU, too
    written = plan(study)
    folder = StudyFolder(tmp_path)
    path = folder.write_plan(written)
    assert path.parent == tmp_path / "small" / "plans"
    for loaded in (load_plan(path), folder.read_study(study)):
        assert (loaded.cells, loaded.setup, loaded.study.tasks) == (written.cells, written.setup, study.tasks)
    assert here("status", path) == 0
    path.write_text("{}")
    for command in (load_plan, functools.partial(here, "status")):
        refused(r"E-STUDY: .*not the plan of a study", command, path)
    path.unlink()
    refused(r"E-STUDY: .*No such file", here, "tables", path)
    refused(r"E-STUDY: .* There: small\.", folder.read_study, load_study("study1"))


def test_each_model_has_a_folder(tmp_path):
    folder, base = StudyFolder(tmp_path), plan(small(methods=("base",)))
    study = small(methods=("base",), model=None)
    plans = [replace(base, study=study, setup=Setup(model)) for model in ("owner/some model", "a/tiny", "b/tiny")]
    names = [folder.study(one).name for one in plans]
    assert names[0] == "small-some_model-21139d"
    assert len(set(names)) == 3
    assert folder.study(base).name == "small"
    for one in plans[:2]:
        folder.write_plan(one)
    refused(r"E-STUDY: .*several runs.* There: a/tiny, owner/some model\.", folder.read_study, study)
    assert folder.read_study(study, "a/tiny").setup.model == "a/tiny"
    refused(r"E-STUDY: .*no such run of .*", folder.read_study, study, "b")


def test_unreadable_plan_of_another_study_is_ignored(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.write_plan(plan(small(methods=("base",))))
    others = ('{"study": {"name": "small-own"}}', '{"study": []}', "{}", "not JSON")
    for number, content in enumerate(others):
        (tmp_path / f"small-{number}").mkdir()
        (tmp_path / f"small-{number}" / "study.json").write_text(content)
    assert folder.read_study(small()).study.name == "small"


def test_status_notes_the_plan_of_another_file_with_the_same_name(tmp_path, caplog):
    write = StudyFolder(tmp_path / "out").write_plan
    write(plan(small()))
    mine = write_study(tmp_path / "mine")
    other = write_study(tmp_path / "other", LONG.replace("demo_clear", "demo_remarks").replace("cce", "swarm"))
    assert here("status", mine, "--out", tmp_path / "out") == 0
    assert "W-STUDY" not in caplog.text
    assert here("status", other, "--out", tmp_path / "out") == 0
    for words in ("had other tasks than its file: demo_clear", "had other methods than its file: base, cce"):
        assert f"W-STUDY: the last run of {other} {words}." in caplog.text


@pytest.mark.parametrize(("before", "now", "warned"), [("1", "2", True), ("2", "2", False), (None, "2", False)])
def test_changed_commit_of_a_model_warns(tmp_path, caplog, before, now, warned):
    folder, base = StudyFolder(tmp_path), plan(small(methods=("base",)))
    for revision in (before, now):
        folder.write_plan(replace(base, setup=Setup("owner/tiny", revision=revision)))
    assert ("--revision 1 continues that run" in caplog.text) == warned


# ---- the commands ----


@pytest.fixture
def no_rows(monkeypatch, tmp_path):
    """No templates and no data are available."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for variable in ("FLIP_FLOP_PROMPTSOURCE", "FLIP_FLOP_HUB_MIRROR", "FLIP_FLOP_STORY_CLOZE"):
        monkeypatch.delenv(variable, raising=False)


def test_a_plan_lists_cells_and_writes_nothing(tmp_path, capsys):
    assert here("plan", write_study(tmp_path), "--out", tmp_path / "out") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[2:] == [
        ["audit", "base-clear_hotel_reviews", "5", "open"],
        ["train", "cce-clear_hotel_reviews-seed0", "5", "open"],
        ["audit", "cce-clear_hotel_reviews-seed0", "5", "open"],
        ["1", "trainings,", "2", "audits;", "protocol", "paper"],
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("plan", "study1"), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--set", "x"), "E-CONFIG"),
        (("plan", "study1", "-m", "m", "--tasks", ""), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--methods", " , "), "E-STUDY"),
        (("plan", "study1", "-m", "m", "--seeds", "-1"), "E-STUDY"),
        (("plan", "study2", "-m", "m", "--tasks", "rte"), "E-STUDY"),
        (("status", "study1", "--out", "nowhere"), "E-STUDY"),
        (("run", "nothing"), "E-STUDY"),
        (("run", "smoke", "-m", "./nothing"), "E-MODEL-FILE"),
    ],
)
def test_a_mistake_is_one_line(flip_flop, no_rows, arguments, code):
    shown = flip_flop("study", *arguments)
    line = shown.err.removeprefix(f"reading study {arguments[1]}\n")
    assert (shown.code, line.partition(":")[0]) == (2, code)
    assert line.count("\n") == 1


def test_local_model_is_identified_by_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "_run_here", lambda *arguments: 0)
    monkeypatch.chdir(tmp_path)
    for name in ("tiny", "other/tiny"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "model.safetensors").write_text(name)
    write_study(tmp_path, LONG.replace("model: demo", "model: ./tiny"))
    for model in ((), ("--model", "tiny"), ("--model", tmp_path / "tiny")):
        here("run", "small.yaml", "--out", "out", *model)
        assert [path.parent.name for path in (tmp_path / "out").glob("*/study.json")] == ["small"]
    here("run", "small.yaml", "--out", "out", "--model", "other/tiny")
    assert len([*(tmp_path / "out").glob("small*/study.json")]) == 2
    assert load_plan(tmp_path / "out" / "small" / "study.json").setup.model == str(tmp_path / "tiny")
    assert here("status", "small.yaml", "--out", "out", "--model", "other/tiny") == 0
