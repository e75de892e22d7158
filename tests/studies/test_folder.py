"""A study's folder: one for each study and model, and what `status` and `tables` find there."""

import functools
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.folder import StudyFolder, load_plan, root_of
from flip_flop.paper.local import LocalRun
from flip_flop.paper.units import Setup
from tests.studies.plans import plan, small
from tests.studies.running import STUDY, here, write_study

BASE = small(methods=("base",), model=None)


@functools.cache
def base_plan():
    return plan(BASE)


def of(model, study=BASE):
    """The plan of a study with a model of this name."""
    return replace(base_plan(), study=study, setup=Setup(model))


def write_model(folder, weights="weights"):
    """What passes for a model as long as none is loaded."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(weights)
    return folder


@pytest.fixture
def two(tmp_path):
    """A study that was run with two models, the later one's name being first in the alphabet."""
    folder = StudyFolder(tmp_path / "out")
    made = of("owner/some model"), of("another/tiny")
    for each in made:
        folder.write_plan(each)
    return folder, made


def test_each_model_has_a_folder(two):
    folder, made = two
    assert [folder.study(each).name for each in made] == ["small-some_model-21139d", "small-tiny-251167"]
    assert [load_plan(folder.study(each) / "study.json") for each in made] == list(made)
    assert [root_of(folder.write_plan(each)) for each in made] == [folder.root] * 2


@pytest.mark.parametrize(("was", "now", "warned"), [("1", "2", True), ("2", "2", False), (None, "2", False)])
def test_changed_commit_of_a_model_warns(tmp_path, caplog, was, now, warned):
    folder, made = StudyFolder(tmp_path), of("owner/tiny")
    for revision in (was, now):
        folder.write_plan(replace(made, setup=Setup("owner/tiny", revision=revision)))
    assert ("W-STUDY-MODEL: owner/tiny is at commit 2 now. The last run used 1" in caplog.text) == warned
    assert ("--revision 1 continues that run" in caplog.text) == warned


def test_folder_of_the_files_model_has_the_studys_name(tmp_path):
    folder, named = StudyFolder(tmp_path), replace(BASE, model="demo")
    assert folder.study(of("demo", named)) == folder.root / "small"
    others = [of("a/tiny"), of("b/tiny"), of("/models/tiny"), of("tiny"), of("a/tiny", named)]
    names = [folder.study(other).name for other in others]
    assert (len(set(names)), names[4]) == (4, names[0])
    assert all(name.startswith("small-tiny-") for name in names)


def test_local_model_is_identified_by_its_path(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(LocalRun, "run", lambda self, plan, quiet: [])
    monkeypatch.chdir(tmp_path)
    tiny = write_model(tmp_path / "tiny")
    write_study(tmp_path, STUDY.replace("model: demo", "model: ./tiny"))
    for given in ((), ("--model", "tiny"), ("--model", tiny)):
        here("run", "small.yaml", "--out", "out", *given)
        assert [path.parent.name for path in (tmp_path / "out").glob("*/study.json")] == ["small"]
    write_model(tmp_path / "other" / "tiny", "other weights")
    here("run", "small.yaml", "--out", "out", "--model", "other/tiny")
    assert len([*(tmp_path / "out").glob("small*/study.json")]) == 2
    assert load_plan(tmp_path / "out" / "small" / "study.json").setup.model == str(tiny)
    capsys.readouterr()
    for command in ("status", "tables"):
        with pytest.raises(InputError, match="E-STUDY-MODEL: "):
            here(command, "small.yaml", "--out", "out")
        assert here(command, "small.yaml", "--out", "out", "--model", "other/tiny") == 0


def test_several_models_require_a_name(two):
    folder, (first, second) = two
    with pytest.raises(InputError) as error:
        folder.read_study(BASE)
    message = "has study 'small' with several models: another/tiny, owner/some model. Name one of them with --model."
    assert str(error.value) == f"E-STUDY-MODEL: {folder.root} {message}"
    assert folder.read_study(BASE, "owner/some model") == first
    assert folder.read_study(BASE, "another/tiny") == second
    with pytest.raises(InputError, match=r"E-STUDY-MISSING: .* with --model b\. There: another/tiny, owner/some mod"):
        folder.read_study(BASE, "b")


def test_studies_with_a_common_prefix_are_distinct(tmp_path):
    folder = StudyFolder(tmp_path)
    folder.write_plan(of("demo", replace(BASE, name="small-er", model="demo")))
    folder.write_plan(of("demo", replace(BASE, name="smaller", model="demo")))
    with pytest.raises(InputError, match=r"E-STUDY-MISSING: .* There: small-er, smaller\."):
        folder.read_study(BASE)
    folder.write_plan(of("a/tiny"))
    (folder.root / "smaller" / "study.json").write_text("{")  # no matter of this study's
    assert folder.read_study(BASE) == of("a/tiny")
