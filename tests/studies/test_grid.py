"""The paper's studies as grids: how many trainings and audits, of what, and what two studies share."""

from collections import Counter
from dataclasses import replace

import pytest

from flip_flop.errors import InputError
from flip_flop.studies.grid import AuditCell, TrainCell, expand
from flip_flop.studies.study import Subsets, load_study, narrow
from flip_flop.tasks.catalog import catalog_names

PAPERS_SOURCES = {"anli_r1", "anli_r2", "anli_r3", "rte", "copa", "hellaswag", "storycloze", "winogrande"}


def grid(name):
    return expand(load_study(name))


def test_study_1_is_base_and_three_methods_on_eleven_datasets():
    found = grid("study1")
    assert (len(found.trainings), len(found.audits)) == (33, 44)
    assert Counter(cell.method for cell in found.audits) == dict.fromkeys(("base", "swarm", "cce", "f2c"), 11)
    assert {cell.task for cell in found.audits} == set(catalog_names())
    assert all(cell.training is None or cell.training.task == cell.task for cell in found.audits)


def test_study_2_is_eight_sources_on_ten_other_targets_each():
    found = grid("study2")
    pairs = [(cell.training.task, cell.task) for cell in found.audits if cell.training is not None]
    assert (len(pairs), len(set(pairs)), len(found.trainings)) == (80, 80, 8)
    assert {source for source, _ in pairs} == PAPERS_SOURCES
    assert Counter(source for source, _ in pairs) == dict.fromkeys(PAPERS_SOURCES, 10)
    assert all(source != target for source, target in pairs)
    assert {target for _, target in pairs} == set(catalog_names())
    assert sum(cell.training is None for cell in found.audits) == 11


def test_study_3_trains_on_the_first_k_templates_and_audits_the_last_five():
    found = grid("study3")
    trained = {(cell.task, cell.first) for cell in found.trainings}
    anli = {(f"anli_r{number}", k) for number in (1, 2, 3) for k in (5, 10, None)}
    assert trained == {("rte", 5), ("rte", None)} | anli
    assert {cell.held_out for cell in found.audits} == {5}
    assert Counter(cell.method for cell in found.audits) == {"base": 4, "f2c": 11}


def test_the_box_plot_is_the_base_alone():
    found = grid("base_spread")
    assert (len(found.trainings), len(found.audits)) == (0, 11)


def test_an_adapter_that_studies_share_is_one_cell():
    cell = TrainCell("f2c", "rte", 0)
    assert all(cell in grid(name).trainings for name in ("study1", "study2", "study3"))
    assert set(grid("study2").trainings) < set(grid("study1").trainings)
    assert set(grid("base_spread").audits) < set(grid("study1").audits)


def test_seeds_multiply_trainings_and_leave_the_base_alone():
    found = expand(replace(load_study("study1"), seeds=(0, 1, 2)))
    assert (len(found.trainings), len(found.audits)) == (99, 110)


def test_templates_are_chosen_in_the_tasks_order():
    from flip_flop.tasks.embedded import embedded_task

    task = embedded_task()
    names = task.templates.names
    assert task.held_out_templates == names[8:]
    assert TrainCell("f2c", "demo", 0).templates(task) == AuditCell("base", "demo").templates(task) == names[:8]
    assert TrainCell("f2c", "demo", 0, 3).templates(task) == names[:3]
    assert AuditCell("base", "demo", 2).templates(task) == names[9:]
    assert AuditCell("base", "demo", ("thumbs", "sentiment")).templates(task) == ("thumbs", "sentiment")
    for wrong in (TrainCell("f2c", "demo", 0, 9), AuditCell("base", "demo", 12)):
        with pytest.raises(InputError, match="E-STUDY-TEMPLATES"):
            wrong.templates(task)


def test_templates_are_seen_or_unseen_and_never_half():
    from flip_flop.tasks.embedded import embedded_task

    task = embedded_task()  # 11 templates, of which the last 3 are never trained on
    names = task.templates.names
    assert (len(names), len(task.training_templates)) == (11, 8)

    def audited(first, held_out):
        return AuditCell("f2c", "demo", held_out, TrainCell("f2c", "demo", 0, first))

    assert audited(6, 5).templates(task) == names[6:]
    assert audited(6, names[2:5]).templates(task) == names[2:5]
    for half in (audited(7, 5), audited(None, 4), audited(4, names[3:5])):
        with pytest.raises(InputError, match=r"E-STUDY-TEMPLATES: .*1 of the \d templates of held_out"):
            half.templates(task)
    elsewhere = AuditCell("f2c", "demo", 5, TrainCell("f2c", "other", 0))
    assert elsewhere.templates(task) == names[6:]


@pytest.mark.parametrize("tasks", [["rte"], ["wsc", "cb"]])
def test_pairs_that_leave_nothing_to_train_are_refused(tasks):
    study = narrow(load_study("study2"), tasks=tasks)
    with pytest.raises(InputError, match=r"E-STUDY-VALUE: .*none is trained on"):
        expand(study)
    assert len(expand(replace(study, methods=("base",))).audits) == len(tasks)


def test_subsets_of_one_task_leave_the_others_whole():
    study = replace(load_study("study1"), methods=("base", "cce"), template_subsets={"cb": Subsets((4, 6), 2)})
    found = expand(study)
    assert Counter(cell.task for cell in found.trainings)["cb"] == 2
    assert {cell.held_out for cell in found.audits if cell.task == "rte"} == {None}
    assert {cell.held_out for cell in found.audits if cell.task == "cb"} == {2}
