"""The paper's studies as grids: how many training runs and audits, of what, and what two studies share."""

from collections import Counter
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.paper.data.catalog import catalog_names
from flip_flop.paper.grid import GridCell, expand
from flip_flop.paper.study import Subsets, narrow
from flip_flop.paper.study_file import load_study
from flip_flop.tasks.embedded import embedded_task

PAPERS_SOURCES = {"anli_r1", "anli_r2", "anli_r3", "rte", "copa", "hellaswag", "storycloze", "winogrande"}


def grid(study):
    """Its training runs and its audits."""
    cells = expand(load_study(study) if isinstance(study, str) else study)
    return [[cell for cell in cells if cell.kind == kind] for kind in ("train", "audit")]


def test_study_1_has_four_methods_on_eleven_datasets():
    trainings, audits = grid("study1")
    assert (len(trainings), len(audits)) == (33, 44)
    assert Counter(cell.method for cell in audits) == dict.fromkeys(("base", "swarm", "cce", "f2c"), 11)
    assert {cell.task for cell in audits} == set(catalog_names())
    assert all(cell.training is None or cell.training.task == cell.task for cell in audits)
    trainings, audits = grid(replace(load_study("study1"), seeds=(0, 1, 2)))
    assert (len(trainings), len(audits)) == (99, 110)


def test_study_2_has_eight_sources_with_ten_targets():
    trainings, audits = grid("study2")
    pairs = [(cell.training.task, cell.task) for cell in audits if cell.training is not None]
    assert (len(pairs), len(set(pairs)), len(trainings)) == (80, 80, 8)
    assert Counter(source for source, _ in pairs) == dict.fromkeys(PAPERS_SOURCES, 10)
    assert all(source != target for source, target in pairs)
    assert {target for _, target in pairs} == set(catalog_names())
    assert sum(cell.training is None for cell in audits) == 11


def test_study_3_trains_on_k_templates_and_audits_five():
    trainings, audits = grid("study3")
    anli = {(f"anli_r{number}", k) for number in (1, 2, 3) for k in (5, 10, None)}
    assert {(cell.task, cell.templates) for cell in trainings} == {("rte", 5), ("rte", None)} | anli
    assert {cell.templates for cell in audits} == {5}
    assert Counter(cell.method for cell in audits) == {"base": 4, "f2c": 11}


def test_shared_adapter_is_one_cell():
    cell = GridCell("train", "f2c", "rte", seed=0)
    assert all(cell in grid(name)[0] for name in ("study1", "study2", "study3"))
    assert set(grid("study2")[0]) < set(grid("study1")[0])
    trainings, audits = grid("base_spread")
    assert (len(trainings), len(audits)) == (0, 11)
    assert set(audits) < set(grid("study1")[1])


def test_audited_templates_are_all_seen_or_all_unseen():
    task = embedded_task()  # 11 templates, of which the last 3 are never trained on
    names = task.templates.names
    assert (len(names), task.held_out_templates) == (11, names[8:])

    def trained(first=None, name="demo"):
        return GridCell("train", "f2c", name, first, 0)

    def audited(held_out=None, training=None):
        return GridCell("audit", "f2c", "demo", held_out, training=training)

    assert trained().template_names(task) == audited().template_names(task) == names[:8]
    assert trained(3).template_names(task) == names[:3]
    assert audited(2).template_names(task) == names[9:]
    assert audited(("thumbs", "sentiment")).template_names(task) == ("thumbs", "sentiment")
    for wrong in (trained(9), audited(12)):
        with pytest.raises(InputError, match="E-STUDY-TEMPLATES"):
            wrong.template_names(task)
    assert audited(5, trained(6)).template_names(task) == names[6:]
    assert audited(names[2:5], trained(6)).template_names(task) == names[2:5]
    assert audited(5, trained(name="other")).template_names(task) == names[6:]
    for half in (audited(5, trained(7)), audited(4, trained()), audited(names[3:5], trained(4))):
        with pytest.raises(InputError, match=r"E-STUDY-TEMPLATES: .*1 of the \d templates of held_out"):
            half.template_names(task)


@pytest.mark.parametrize("tasks", [["rte"], ["wsc", "cb"]])
def test_pairs_without_training_task_are_refused(tasks):
    study = narrow(load_study("study2"), tasks=tasks)
    with pytest.raises(InputError, match=r"E-STUDY-VALUE: .*none of these tasks is trained on"):
        expand(study)
    assert len(expand(replace(study, methods=("base",)))) == len(tasks)


def test_subsets_apply_to_their_task():
    study = replace(load_study("study1"), methods=("base", "cce"), template_subsets={"cb": Subsets((4, 6), 2)})
    trainings, audits = grid(study)
    assert Counter(cell.task for cell in trainings)["cb"] == 2
    assert {cell.templates for cell in audits if cell.task == "rte"} == {None}
    assert {cell.templates for cell in audits if cell.task == "cb"} == {2}
